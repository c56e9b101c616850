"""The table of distributed failures: what a user's code does, and which cause, rank and words it is to be told with.

The rows are in `failures.yaml`. `test_failures.py` runs each as a gang of its own;
`docs/guide/distributed-failures.md` shows the table.
`python -m tests.distributed.failures [ROW…]` runs rows, all of them without a name, and writes the table anew with the
seconds that it measured from a rank's failure, or since the ranks stood still, to that of the step.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import attrs
import yaml

TORCH = """
import ctypes
import fcntl
import mmap
import queue
import signal
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from stoker.config import MPI

LOCK = threading.Lock()
RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))

class Numbers(Dataset):
    '''What a dataset does in rank 1 is a function of its index.'''
    def __init__(self, size=8, does=None):
        self.size, self.does = size, does

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.does is not None and RANK == 1 and index == 3:
            self.does()
        return torch.tensor([float(index)])

def torchrun(count=2, **more):
    return Torchrun(nproc_per_node=count, **{"hang_after": "6s", **more})
"""
"""Follows the head of every script of torch's."""


@attrs.frozen(kw_only=True)
class Failure:
    """One row."""

    name: str
    """The step."""
    what: str
    """What happens, in words of the docs."""
    code: str
    """The body of the step's function."""
    cause: str
    says: str
    """What the message has, with `FILE:N` for each line of code."""
    group: str
    """Rows of one group are steps of one run."""
    rank: int | None = None
    """None: no single rank's fault, or no rank's."""
    launch: str = "torchrun()"

    @property
    def step(self) -> str:
        """The step's source."""
        body = indent(self.code, "    ")
        return f"@step(cache=False, launch={self.launch})\ndef {self.name}() -> object:\n{body}"


FAILURES = [
    Failure(name=name, group=group, **row)
    for group, rows in yaml.safe_load(Path(__file__).with_name("failures.yaml").read_text(encoding="utf-8")).items()
    for name, row in rows.items()
]


def without_lines(text: str) -> str:
    """A message without what changes from run to run: lines, process ids, ports, folders."""
    text = re.sub(r"[\w./-]*\b\w+\.py:\d+", "FILE:N", text)
    text = re.sub(r"\bpid\)? ?\d+|process \d+", "pid N", text)
    return re.sub(r"(?:/[\w.+-]+)+/", "…/", text)


def script(rows: list[Failure], forked: Collection[str] = ()) -> str:
    """The script of a group. The ranks of rows with these names are forked instead of being started by torchrun."""
    name = rows[0].group
    steps = "\n".join(
        row.step.replace("launch=torchrun(", "launch=forked(") if row.name in forked else row.step for row in rows
    )
    calls = "\n".join(f"    {row.name}()" for row in rows)
    return f"{TORCH}\n{steps}\n@pipeline(failure_mode='continue', max_parallel=2)\ndef {name}():\n{calls}\n\n{name}()\n"


def table(told: Mapping[str, str]) -> Iterator[str]:
    """The rows of the docs. `told`: what happens → the seconds after which it is told."""
    yield "| what happens | cause | rank | what Stoker says | told after |"
    yield "|---|---|---|---|---|"
    for row in FAILURES:
        rank = "none alone" if row.rank is None else str(row.rank)
        words = row.says.replace("FILE:N", "train.py:12").replace("|", "\\|")
        yield f"| {row.what} | `{row.cause}` | {rank} | `{words}` | {told.get(row.what, '')} |"


MARK = "<!-- made from tests/distributed/failures.py -->\n"
"""Stands before the table in the docs."""


def told_in(text: str) -> dict[str, str]:
    """What a table of the docs has in its last column, by what happens."""
    rows = [re.split(r"(?<!\\\\) ?\| ?", line) for line in text.partition(MARK)[2].splitlines()[2:]]
    return {row[1]: row[-2] for row in rows}


def told_after(step: Any) -> str:
    """The seconds from a rank's failure to that of the step; empty where no rank has failed."""
    at = step.attempts[-1]._row.error.get("at")
    return f"{step.attempts[-1].ended.timestamp() - at:.1f} s" if at else ""


def main() -> None:
    """Run rows and write the docs' table."""
    from tests.distributed.conftest import scripted
    from tests.engine.conftest import Lab

    docs = Path(__file__).resolve().parents[2] / "docs" / "guide" / "distributed-failures.md"
    before, mark, _ = docs.read_text(encoding="utf-8").partition(MARK)
    told = told_in(docs.read_text(encoding="utf-8"))
    chosen = [row for row in FAILURES if row.name in sys.argv[1:] or not sys.argv[1:]]
    for group, rows in itertools.groupby(chosen, lambda row: row.group):
        members = list(rows)
        with tempfile.TemporaryDirectory() as folder:
            lab = scripted(Lab(Path(folder)), script(members), name=f"{group}.py")
            lab.start(f"{group}.py").wait(1, 3600)
            told |= {row.what: told_after(lab[group].steps[row.name]) for row in members}
            lab.close()
        docs.write_text(before + mark + "".join(f"{line}\n" for line in table(told)), encoding="utf-8")


if __name__ == "__main__":
    main()
