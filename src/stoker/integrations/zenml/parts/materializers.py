"""A user's materializer is a serializer here: the folder that it writes to `self.uri` is the artifact."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, ClassVar, Final, Iterator, Mapping

from stoker.core.artifact import Picture, Preview, picture_type
from stoker.core.usercode import script_module
from stoker.integrations.zenml.parts import fileio
from stoker.store.serializers import registry
from stoker.store.serializers.base import Stored, full_name
from stoker.store.serializers.files import PATH

_FOLDER: Final = "artifact"
_SHOWN: Final = 100_000
"""Characters of a visualization that are kept."""


class BaseMaterializer:
    """Saves and loads values of its `ASSOCIATED_TYPES` in the folder `self.uri`."""

    ASSOCIATED_TYPES: ClassVar[Any] = ()
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[Any] = "BaseArtifact"
    SKIP_REGISTRATION: ClassVar[bool] = False

    def __init__(self, uri: str = "", artifact_store: Any = None, **others: Any) -> None:
        self.uri = uri
        self.artifact = SimpleNamespace(uri=uri)
        self.artifact_store = artifact_store or fileio

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.SKIP_REGISTRATION:
            cls.serve_outputs()

    @classmethod
    def serve_outputs(cls) -> None:
        """Let it save and load the values of its types in this process."""
        kinds = cls.ASSOCIATED_TYPES if isinstance(cls.ASSOCIATED_TYPES, (list, tuple)) else (cls.ASSOCIATED_TYPES,)
        for kind in kinds:
            cls.serve(kind)

    @classmethod
    def serve(cls, kind: Any) -> None:
        """Let it save and load values of a type in this process."""
        if isinstance(kind, type):
            registry.register(kind, _Content(cls, kind))

    def load(self, data_type: type[Any]) -> Any:
        """The value in the folder."""
        return self.handle_input(data_type)

    def save(self, data: Any) -> None:
        """Write the value to the folder."""
        self.handle_return(data)

    def handle_input(self, data_type: type[Any]) -> Any:
        """`load` by its name in old releases; a class without either is loaded by pickle."""
        return pickle.loads((Path(self.uri) / _FOLDER).read_bytes())

    def handle_return(self, data: Any) -> None:
        """`save` by its name in old releases."""
        (Path(self.uri) / _FOLDER).write_bytes(pickle.dumps(data))

    def save_visualizations(self, data: Any) -> Mapping[str, Any]:
        """Files that show the value, each with what it is."""
        return {}

    def extract_metadata(self, data: Any) -> Mapping[str, Any]:
        """Facts about the value."""
        return {}

    def extract_full_metadata(self, data: Any) -> Mapping[str, Any]:
        """Facts about the value."""
        return self.extract_metadata(data)

    @contextlib.contextmanager
    def get_temporary_directory(self, delete_at_exit: bool = True, **others: Any) -> Iterator[str]:
        """A folder for what must pass through a file."""
        folder = tempfile.mkdtemp(prefix="stoker-materializer-")
        try:
            yield folder
        finally:
            if delete_at_exit:
                shutil.rmtree(folder, ignore_errors=True)


class PydanticMaterializer(BaseMaterializer):
    """Saves and loads models of pydantic as JSON."""

    SKIP_REGISTRATION = True

    def load(self, data_type: Any) -> Any:
        """The model."""
        return data_type.model_validate_json((Path(self.uri) / "data.json").read_bytes())

    def save(self, data: Any) -> None:
        """Write the model."""
        (Path(self.uri) / "data.json").write_text(data.model_dump_json(), encoding="utf-8")


class _Content:
    """The serializer of values of one type by a materializer."""

    def __init__(self, materializer: type[BaseMaterializer], kind: type) -> None:
        self.materializer = materializer
        self.kind = kind
        module = materializer.__module__
        if module == "__main__":
            module = script_module(str(getattr(sys.modules[module], "__file__", module)))
        self.name: Final = f"zenml:{module}.{materializer.__qualname__}:{full_name(kind)}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory(prefix="stoker-artifact-") as folder:
            uri = os.path.join(folder, _FOLDER)
            os.mkdir(uri)
            self.materializer(uri=uri).save(value)
            return PATH.save(Path(uri), file)

    def load(self, stored: Stored) -> Any:
        kind = self.kind
        return self.materializer(uri=str(PATH.load(stored))).load(kind)

    def preview(self, value: Any) -> Preview | None:
        with tempfile.TemporaryDirectory(prefix="stoker-artifact-") as folder:
            shown = self.materializer(uri=folder).save_visualizations(value)
            for path in shown or {}:
                data = Path(path).read_bytes()
                media = picture_type(data)
                if media:
                    return Preview(picture=Picture(media=media, data=data))
                return Preview(text=data.decode("utf-8", "replace")[:_SHOWN])
        return None
