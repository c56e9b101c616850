"""Which commit and branch are checked out, from CI's variables or Git's own files: no process is started for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Mapping

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
