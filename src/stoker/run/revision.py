"""Which commit and branch are checked out, from CI's variables or Git's own files: no process is started for it.

How the files differ from the commit is known to Git alone, which is asked while the plan is made.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Final, Mapping

from stoker.worker.secrets import Masker

_CI: Final = (
    # A pull request is checked out as a merge commit that has no branch: its own branch is the one that is meant.
    # https://docs.github.com/en/actions/reference/workflows-and-actions/variables
    ("GITHUB_SHA", ("GITHUB_HEAD_REF", "GITHUB_REF_NAME")),
    # https://docs.gitlab.com/ci/variables/predefined_variables/
    ("CI_COMMIT_SHA", ("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_REF_NAME")),
)
"""The variable with the commit, and those with the branch."""


def revision(folder: Path, environment: Mapping[str, str]) -> tuple[str, str]:
    """(commit, branch) of a folder; empty where there is none, or none that can be read."""
    for commit, branches in _CI:
        if environment.get(commit):
            return environment[commit], next((environment[name] for name in branches if environment.get(name)), "")
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            try:
                return _checked_out(parent / ".git")
            except (OSError, UnicodeDecodeError):
                return "", ""
    return "", ""


def _checked_out(git: Path) -> tuple[str, str]:
    """Of a repository, or a worktree, whose `.git` is a file: https://git-scm.com/docs/gitrepository-layout"""
    if git.is_file():
        git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head, ""
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    root = git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
    branch = name.removeprefix("refs/heads/")
    if (root / name).is_file():
        return (root / name).read_text(encoding="utf-8").strip(), branch
    packed = root / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), ""), branch


def here() -> tuple[str, str]:
    """The same of the working folder."""
    return revision(Path.cwd(), os.environ)


CLEAN: Final = "clean"
CHANGED: Final = "changed"
MOST: Final = 1_000_000
"""Bytes of a difference that are kept; of a longer one the beginning."""
SECONDS: Final = 2.0
"""How long a run waits for Git, which reads every file of a repository that it has not looked at lately. Where it takes
longer, the difference is unknown."""
_PRIVATE: Final = (".env*", "*.pem", "*.key", "*.p12", "id_*", ".netrc", ".pypirc", "*credentials*", "*secret*")
"""Files whose content is never kept."""
_TELLING: Final = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL")
"""Parts of the names of environment variables whose values are masked."""


class WorkTree:
    """How the files in a repository differ from the commit that is checked out; Git is asked at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        there = any((parent / ".git").exists() for parent in (folder, *folder.parents))
        self._status = self._asked("status", "--porcelain", "--untracked-files=no") if there else None

    def state(self) -> str:
        """`CLEAN` or `CHANGED`, of the files that Git knows; empty where that is unknown."""
        data = _answer(self._status, 1)
        return "" if data is None else CHANGED if data else CLEAN

    def difference(self, masker: Masker | None, environment: Mapping[str, str]) -> str:
        """The difference from the commit as a patch, at most `MOST` bytes, without the content of files whose names say
        that it is secret; values of secrets and of variables named like them are masked. Empty where Git says none."""
        private = [f":(exclude,glob,icase)**/{name}" for name in _PRIVATE]
        data = _answer(self._asked("diff", "--no-ext-diff", "--no-color", "HEAD", "--", ":/", *private), MOST)
        text = (data or b"").decode("utf-8", "replace")
        values = {f"env:{name}": value for name, value in environment.items() if any(map(name.upper().count, _TELLING))}
        return Masker(values).text(text if masker is None else masker.text(text))

    def _asked(self, *words: str) -> subprocess.Popen[bytes] | None:
        with contextlib.suppress(OSError):  # no Git here
            return subprocess.Popen(
                ["git", "--no-optional-locks", *words],  # without them, an editor's own Git is not disturbed
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return None


def _answer(git: subprocess.Popen[bytes] | None, most: int) -> bytes | None:
    """The first bytes of what Git prints; None where it fails or takes too long."""
    if git is None or git.stdout is None:
        return None
    data, end = b"", time.monotonic() + SECONDS
    with git.stdout as stream:
        while len(data) < most and select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(stream.fileno(), most - len(data))
            if not part:
                return None if git.wait() else data
            data += part
    git.kill()
    git.wait()
    return data if len(data) == most else None
