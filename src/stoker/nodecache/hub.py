"""Repositories of the Hugging Face Hub, by its own package, and their place in its own cache of a node.

`link` makes data that was brought a part of that cache, so that `from_pretrained("org/model")` finds it there: links to
the files, in the layout that every version of the package has:
https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Any, Final, Iterable, Iterator

from stoker.core.data import HubPlace, StepData, hub_place
from stoker.core.errors import Away, DiskFull, MissingPackage, UsageError
from stoker.nodecache.sources import DataListing, SourceFile, listing_of

_LOGIN: Final = "log in by `hf auth login`, or give the step a token: environment={'HF_TOKEN': Secret.env('HF_TOKEN')}"
_ANSWERS: Final = frozenset({400, 401, 403, 404, 410, 451})
"""Statuses of HTTP that the hub gives again when it is asked again."""
_SECONDS: Final = 30.0


class Hub:
    """One repository, at the commit that its revision is when it is listed."""

    workers = 8

    def __init__(self, data: StepData) -> None:
        place = hub_place(data.uri)
        assert place is not None, "who makes it has seen that it is an address of the hub"
        self._data = data
        self._place = place
        self._commit = data.revision
        self._scratch = threading.local()

    def listing(self) -> DataListing:
        """The files of the commit with their digests: SHA-256 of large ones, those of git of all others."""
        place, data = self._place, self._data
        with _translated(data.uri):
            from huggingface_hub import HfApi, constants
            from huggingface_hub.hf_api import RepoFile

            api = HfApi(endpoint=constants.ENDPOINT)
            known = {"repo_id": place.repository, "repo_type": place.kind}
            commit = self._commit
            if not commit:
                found = api.repo_info(**known, revision=place.revision, timeout=_SECONDS)  # type: ignore[arg-type]
                commit = self._commit = str(found.sha)
                if getattr(found, "gated", False):
                    api.auth_check(**known)  # type: ignore[arg-type]
            tree = api.list_repo_tree(**known, recursive=True, revision=commit)  # type: ignore[arg-type]
            files = [_source_file(one) for one in tree if isinstance(one, RepoFile)]
        path = place.path
        inside = [file for file in files if not path or file.path == path or file.path.startswith(f"{path}/")]
        if path and not inside:
            raise UsageError(f"{data.uri}: the repository has no {path} at {place.revision}", fix="correct the path")
        return listing_of(data.uri, inside, data, at=path, revision=commit)

    def bring(self, file: SourceFile, target: Path) -> None:
        """Download a file; what a killed download left is gone on with where the package can."""
        with _translated(self._data.uri):
            from huggingface_hub import constants, hf_hub_download

            folder = target.with_name(f"{target.name}.hub")
            brought = hf_hub_download(
                self._place.repository,
                file.path,
                repo_type=self._place.kind,
                revision=self._commit,
                local_dir=folder,
                endpoint=constants.ENDPOINT,
            )
            os.replace(brought, target)
            # What the package notes of a download would say of the next one that this file is here.
            import shutil

            shutil.rmtree(folder, ignore_errors=True)

    def is_encrypted(self, file: SourceFile) -> bool:
        """Never: digests of the hub are of the bytes."""
        return False


def _source_file(one: Any) -> SourceFile:
    if one.lfs is not None:
        return SourceFile(one.path, one.lfs.size, f"sha256:{one.lfs.sha256}")
    return SourceFile(one.path, one.size, f"git:{one.blob_id}")


@contextlib.contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        fix = "pip install 'stoker[hub]', also where the step runs: it is a package of the step"
        raise MissingPackage(f"{uri} needs a package: {error}", fix=fix) from error
    except OSError as error:
        raise _error_of(uri, error) from error
    except Exception as error:  # the errors of the package's HTTP client, which differs from version to version
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "requests", "hf_xet"):
            raise
        raise Away(f"{uri}: the hub does not answer: {type(error).__name__}: {error}", fix=_AGAIN) from error


_AGAIN: Final = "try again; retry=3 does so by itself"


def _error_of(uri: str, error: OSError) -> Exception:
    from huggingface_hub import errors

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{uri}: {error}")
    place = hub_place(uri)
    assert place is not None, "only addresses of the hub come here"
    named = f"the {place.kind} {place.repository}"
    if isinstance(error, errors.GatedRepoError):
        fix = f"ask for access on the page of {place.repository} with the account of the token; {_LOGIN}"
        return UsageError(f"{uri}: {named} is gated, and this token has no access", fix=fix)
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError(f"{uri}: {named} has no revision '{place.revision}'", fix="correct what stands behind @")
    if isinstance(error, errors.RepositoryNotFoundError):
        fix = f"correct the name; for a private one {_LOGIN}"
        return UsageError(f"{uri}: the hub has no {named.removeprefix('the ')}, or shows it to others only", fix=fix)
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = f"{uri}: the hub answers {status}: {error}" if status else f"{uri}: {type(error).__name__}: {error}"
    if status in _ANSWERS:
        return UsageError(text, fix=f"check the address; {_LOGIN}")
    return Away(text, fix=_AGAIN)


def cache_folder(environ: Any) -> Path:
    """The cache of the package by the variables of a process, as its documentation has them."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"]).expanduser()
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def snapshot_folder(cache: Path, place: HubPlace, commit: str) -> Path:
    """Where the package looks for the files of a commit."""
    return _repository_folder(cache, place) / "snapshots" / commit


def _repository_folder(cache: Path, place: HubPlace) -> Path:
    return cache / "--".join([f"{place.kind}s", *place.repository.split("/")])


def link(cache: Path, place: HubPlace, commit: str, files: Path, paths: Iterable[str]) -> None:
    """Make files that were brought a part of the package's cache; what is there already stays."""
    snapshot = snapshot_folder(cache, place, commit)
    for path in paths:
        pointer = snapshot / path
        if not pointer.exists():
            _replace_by_link(files / path, pointer)
    if not place.is_commit:
        note = _repository_folder(cache, place) / "refs" / place.revision
        with contextlib.suppress(FileNotFoundError):
            if note.read_text(encoding="utf-8") == commit:
                return
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f".{note.name}.{os.getpid()}")
        partial.write_text(commit, encoding="utf-8")
        partial.replace(note)


def _replace_by_link(target: Path, link_path: Path) -> None:
    link_path.parent.mkdir(parents=True, exist_ok=True)
    partial = link_path.with_name(f".{link_path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(link_path)
