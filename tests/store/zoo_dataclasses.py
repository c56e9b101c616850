"""Classes of the zoo whose annotations are evaluated when they are made."""

import dataclasses

import pydantic


@dataclasses.dataclass
class Config:
    """A configuration."""

    lr: float
    layers: list[int]


class Model(pydantic.BaseModel):
    """A model with two fields."""

    a: int
    b: list[str] = []
