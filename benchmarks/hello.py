"""Three trivial steps: the smallest whole program."""

from stoker import pipeline, step


@step
def a() -> int:
    return 1


@step
def b(x: int) -> int:
    return x + 1


@step
def c(x: int) -> None:
    assert x == 2


@pipeline
def hello() -> None:
    c(b(a()))


if __name__ == "__main__":
    hello()
