"""Nothing heavy is loaded before it is used: by `import stoker`, by `stoker --help`, by a worker.

Lists of modules instead of milliseconds: a slow machine cannot make these fail, and a failure names its culprit.
`benchmarks/` has the milliseconds.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

THIRD_PARTY = frozenset(
    """
    IPython PIL cattrs cloudpickle fsspec hypothesis jinja2 markdown_it matplotlib numpy packaging pandas peewee
    playhouse polars psutil psycopg pyarrow pygments ray requests rich scipy sklearn tomli torch typing_extensions yaml
    """.split()
)
"""All but attrs, of which values are made."""
STANDARD = frozenset(
    """
    asyncio concurrent.futures ctypes.util curses difflib doctest email ftplib html http importlib.metadata
    importlib.resources logging.config logging.handlers multiprocessing pdb pydoc sqlite3 ssl tomllib unittest
    urllib.request uuid webbrowser xml xmlrpc zipfile
    """.split()
)
CLICK = frozenset({"click"})

COMPLETE = """
import contextlib, io, os
os.environ.update(_STOKER_COMPLETE="bash_complete", COMP_WORDS={words!r}, COMP_CWORD="{at}")
from stoker.cli.main import main
sys.argv = ["stoker"]
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())) as printed, contextlib.suppress(SystemExit):
    main()
assert b"plain," in printed.buffer.getvalue(), printed.buffer.getvalue()
"""
COMPLETED = (THIRD_PARTY | STANDARD) - {"uuid", "tomllib"}
"""click imports uuid, and a file of stacks is TOML."""

ENTRIES: dict[str, tuple[str, str, frozenset[str]]] = {
    "import stoker": ("stoker", "import stoker", THIRD_PARTY | STANDARD | CLICK | {"subprocess"}),
    "a script's first line": (
        "stoker.pipelines",
        "from stoker import pipeline, step",
        THIRD_PARTY | STANDARD | CLICK,
    ),
    "stoker --help": (
        "stoker.cli.main",
        """
import contextlib, io
from stoker.cli.main import main
sys.argv = ["stoker", "--help"]
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
    main()
assert "Usage" in printed.getvalue(), printed.getvalue()
""",
        (THIRD_PARTY | STANDARD) - {"uuid"},  # click imports it
    ),
    "a shell's completion of a command": ("stoker.cli.completion", COMPLETE.format(words="stoker ru", at=1), COMPLETED),
    "a shell's completion of an option": (
        "stoker.cli.completion",
        COMPLETE.format(words="stoker plan --o", at=2),
        COMPLETED,
    ),
    "a shell's completion of a stack": (
        "stoker.cli.completion",
        COMPLETE.format(words="stoker run --stack l", at=3),
        COMPLETED,
    ),
    "a fork server": ("stoker.worker.forkserver", "import stoker.worker.forkserver", THIRD_PARTY | STANDARD | CLICK),
    "a worker": ("stoker.worker.worker", "import stoker.worker.worker", THIRD_PARTY | STANDARD | CLICK),
    "the driver": (
        "stoker.run.driver",
        "import stoker.run.start, stoker.run.driver",
        THIRD_PARTY | STANDARD | CLICK | {"shutil", "stoker.client", "tempfile"},
    ),
}
"""what → (module that must exist, what is run, modules that must not be loaded afterwards)"""


def loaded_by(code: str) -> set[str]:
    """The modules that some code loads, beyond those of a bare interpreter in this environment."""
    report = "after = set(sys.modules)\nimport json\nprint(json.dumps(sorted(after - before)))"
    program = f"import sys\nbefore = set(sys.modules)\n{code}\n{report}"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


def exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("entry", ENTRIES)
def test_nothing_heavy_is_loaded(entry: str) -> None:
    module, code, banned = ENTRIES[entry]
    if not exists(module):
        pytest.skip(f"{module} is not there yet")
    loaded = loaded_by(code)
    heavy = sorted(banned & loaded)
    assert not heavy, f"{entry} loads {', '.join(heavy)}; python -X importtime shows through whom"


def test_the_measure() -> None:
    assert "sqlite3" in loaded_by("import sqlite3")
    assert "sqlite3" not in loaded_by("import json")


UNUSED = (
    "random",
    "shutil",
    "stoker.backends.aws",
    "stoker.backends.kubernetes",
    "stoker.core.orders",
    "stoker.core.hosts",
    "stoker.core.receipt",
    "stoker.store.remote",
    "stoker.store.remote",
    "tempfile",
)
"""What a run on this machine without accelerators has no use for, and once loaded."""
PROOF = "stoker.core.receipt", "stoker.plan.preflight", "stoker.plan.proving", "stoker.plan.components"


def test_a_run_without_accelerators_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    program = (
        f"import os, runpy; os.environ['STOKER_HOME'] = {str(tmp_path / 'home')!r}; os.chdir({str(tmp_path)!r})\n"
        "sys.argv = ['train.py', '--quiet', *{words}]\n"
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        "    runpy.run_path('train.py', run_name='__main__')"
    )
    without = loaded_by(program.replace("{words}", "[]"))
    assert not {name for name in without if name.startswith((*PROOF, *UNUSED))}
    files = [spec.origin for name in without if name.startswith("stoker") and (spec := importlib.util.find_spec(name))]
    compiled = [file for file in files if file and "\n@attrs." in Path(file).read_text(encoding="utf-8")]
    assert not compiled, "a run loads these: take frozen and define from stoker.core.values, see there"
    words = ["--set", "steps.train.resources.gpu_count=1", "--simulate", "1xH100;driver=550.54.15"]
    assert set(PROOF) <= loaded_by(program.replace("{words}", str(words)))


SCRIPT = """
from stoker import pipeline, step

@step
def train() -> int:
    return 1

@pipeline
def training():
    train()

if __name__ == "__main__":
    training()
"""
