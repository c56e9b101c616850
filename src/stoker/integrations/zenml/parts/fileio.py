"""`zenml.io.fileio`, `zenml.utils.io_utils` and `yaml_utils` for paths of this machine."""

from __future__ import annotations

import builtins
import glob as globs
import json
import os
import random
import shutil
import string
from pathlib import Path
from typing import IO, Any, Iterator

from stoker.core.errors import UsageError

Convertible = str


def _local(path: Any) -> str:
    text = str(os.fspath(path))
    if "://" in text:
        raise UsageError(
            f"fileio: {text} is not a path of this machine", fix="open it with fsspec, or return a Path from the step"
        )
    return text


def open(path: Any, mode: str = "r") -> IO[Any]:
    """Open a file."""
    return builtins.open(_local(path), mode, encoding=None if "b" in mode else "utf-8")


def copy(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Copy a file."""
    if not overwrite and os.path.exists(_local(dst)):
        raise FileExistsError(dst)
    shutil.copy(_local(src), _local(dst))


def exists(path: Any) -> bool:
    """Whether there is something."""
    return os.path.exists(_local(path))


def isdir(path: Any) -> bool:
    """Whether it is a folder."""
    return os.path.isdir(_local(path))


def glob(pattern: Any) -> list[str]:
    """The paths that match."""
    return globs.glob(_local(pattern))


def listdir(path: Any, only_file_names: bool = True) -> list[str]:
    """What a folder has."""
    names = os.listdir(_local(path))
    return names if only_file_names else [os.path.join(path, name) for name in names]


def makedirs(path: Any) -> None:
    """Make a folder and those above it."""
    os.makedirs(_local(path), exist_ok=True)


def mkdir(path: Any) -> None:
    """Make a folder."""
    os.mkdir(_local(path))


def remove(path: Any) -> None:
    """Remove a file."""
    os.remove(_local(path))


def rename(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Move a file."""
    if not overwrite and os.path.exists(_local(dst)):
        raise FileExistsError(dst)
    os.replace(_local(src), _local(dst))


def rmtree(path: Any) -> None:
    """Remove a folder with all that is in it."""
    shutil.rmtree(_local(path))


def size(path: Any) -> int:
    """Bytes of a file, or of all in a folder."""
    if os.path.isdir(_local(path)):
        return sum(size(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)
    return os.path.getsize(path)


def stat(path: Any) -> os.stat_result:
    """What the system knows of a file."""
    return os.stat(_local(path))


def walk(top: Any, topdown: bool = True, onerror: Any = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """All folders below one."""
    return os.walk(_local(top), topdown=topdown, onerror=onerror)


# zenml.utils.io_utils


def copy_dir(source_dir: Any, destination_dir: Any, overwrite: bool = False) -> None:
    """Copy a folder."""
    shutil.copytree(_local(source_dir), _local(destination_dir), dirs_exist_ok=True)


create_dir_recursive_if_not_exists = makedirs


def create_dir_if_not_exists(dir_path: Any) -> None:
    """Make a folder that may be there."""
    makedirs(dir_path)


def create_file_if_not_exists(file_path: Any, file_contents: str = "{}") -> None:
    """Write a file that is not there."""
    if not exists(file_path):
        write_file_contents_as_string(file_path, file_contents)


def get_global_config_directory() -> str:
    """The folder in which Stoker keeps its history."""
    from stoker.stacks import load

    return str(load(None).home)


def read_file_contents_as_string(file_path: Any) -> str:
    """A file's text."""
    return Path(_local(file_path)).read_text(encoding="utf-8")


def write_file_contents_as_string(file_path: Any, content: str) -> None:
    """Write a file's text."""
    makedirs(os.path.dirname(os.path.abspath(_local(file_path))))
    Path(file_path).write_text(content, encoding="utf-8")


def resolve_relative_path(path: Any) -> str:
    """The path from the root."""
    return os.path.abspath(_local(path))


# zenml.utils.yaml_utils and string_utils


def read_yaml(file_path: Any) -> Any:
    """What a YAML file says."""
    import yaml

    return yaml.safe_load(read_file_contents_as_string(file_path))


def write_yaml(file_path: Any, contents: Any, sort_keys: bool = True) -> None:
    """Write a YAML file."""
    import yaml

    write_file_contents_as_string(file_path, yaml.safe_dump(contents, sort_keys=sort_keys))


def read_json(file_path: Any) -> Any:
    """What a JSON file says."""
    return json.loads(read_file_contents_as_string(file_path))


def write_json(file_path: Any, contents: Any, **options: Any) -> None:
    """Write a JSON file."""
    write_file_contents_as_string(file_path, json.dumps(contents, **options))


def random_str(str_length: int) -> str:
    """A text of random letters."""
    return "".join(random.choices(string.ascii_uppercase, k=str_length))
