"""Runs beside which files of the home are damaged at random moments: bits flip, files are cut short, files go away.

    python -m tests.reliability.store_storm --seed 1 --count 200

A schedule damages files between two runs, during one, or both; the files of the database are left out. What a run that
succeeded says must be what a run that was left alone says: the digests in its rows are the same, and each value is that
one or is refused when it is loaded. A run that failed is followed by another one without further damage, which must
succeed. `make storm-store SEED=… N=…` is the same; results are kept, and their schedules are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from stoker.core.artifact import StoredArtifact
from stoker.core.errors import DamagedArtifact, StoreError
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.records import RunFilter
from stoker.store.store import open_store

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_SOURCES: Final = f'File "{Path(artifacts.__file__).parents[1]}{os.sep}'
"""What the lines of a traceback through Stoker's own code begin with."""
PATIENCE: Final = 300.0
"""Seconds after which a program that has not ended counts as hanging."""
HOWS: Final = ("flip", "cut", "delete")
WHENS: Final = ("between", "during", "both")

PIPELINE: Final = """
import os
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np

from stoker import pipeline, step


@step
def array(n: int) -> Annotated[np.ndarray, "array"]:
    return np.arange(n, dtype=np.int64)


@step
def parts(n: int) -> list[bytes]:
    return [bytes([number]) * 60_000 for number in range(n)]


@step
def file(n: int) -> Path:
    path = Path(tempfile.mkdtemp(), "table.csv")
    path.write_text("".join(f"{number},{number * number}\\n" for number in range(n)))
    return path


@step
def length(part: bytes, seed: int) -> list[int]:
    return [sum(part), len(part)] * 2000


@step
def text(path: Path, values: np.ndarray, seed: int) -> str:
    return path.read_text() + str(int(values.sum()))


@step
def last(lengths: list[list[int]], text: str, values: np.ndarray, seed: int) -> list[int]:
    return [sum(map(sum, lengths)), len(text), int(values[::7].sum())]


@pipeline(max_parallel=2)
def storming(seed: int):
    values = array(400_000)
    last(length.map(parts(5), seed=seed), text(file(3000), values, seed), values, seed)


if __name__ == "__main__":
    storming(int(os.environ["STORM_SEED"]))
"""

FLOW: Final = """
import numpy as np

from stoker.flow import FlowSpec, step


class Storming(FlowSpec):
    @step
    def start(self):
        self.values = np.arange(400_000, dtype=np.int64)
        self.words = ["word"] * 20_000
        self.numbers = [3, 5, 7]
        self.next(self.each, foreach="numbers")

    @step
    def each(self):
        self.part = self.values[:: self.input].copy()
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total = int(sum(input.part.sum() for input in inputs))
        self.merge_artifacts(inputs, include=["values", "words"])
        self.next(self.end)

    @step
    def end(self):
        self.result = [self.total, int(self.values.sum()), len(self.words)]


if __name__ == "__main__":
    Storming()
"""

FAN_OUT: Final = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(EXAMPLES)!r})
from fan_out import reading

if __name__ == "__main__":
    Path("texts").mkdir(exist_ok=True)
    for number in range(5):
        Path("texts", f"{{number}}.txt").write_text("to be or not to be " * (number + 1) * 200)
    reading("texts")
"""
"""The example's pipeline; its own script needs a home in which it never ran."""
SOURCES: Final = {"pipeline.py": PIPELINE, "flow.py": FLOW, "texts.py": FAN_OUT}
PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "pipeline": ("pipeline.py",),
    "flow": ("flow.py", "run"),
    "fan_out": ("texts.py",),
    "digits": (str(EXAMPLES / "digits.py"),),
    "digits_flow": (str(EXAMPLES / "digits_flow.py"), "run"),
    "ddp_digits": (str(EXAMPLES / "ddp_digits.py"),),
    "accelerate_digits": (str(EXAMPLES / "accelerate_digits.py"),),
}
SHARES: Final[Mapping[str, int]] = {"pipeline": 12, "flow": 12, "fan_out": 12, "digits": 1, "digits_flow": 1}
"""Program → how often it is drawn: those that import torch or scikit-learn take tens of seconds."""


@attrs.frozen(kw_only=True)
class Schedule:
    """One try."""

    seed: int
    program: str
    when: Literal["between", "during", "both"]
    before: int
    """How many files are damaged before the run."""
    moments: tuple[float, ...]
    """When files are damaged during the run, as parts of the time that a run takes."""
    fresh: bool
    """Whether the run has an empty home; otherwise one in which the program ran before."""


def schedule_of(seed: int, shares: Mapping[str, int]) -> Schedule:
    """The schedule of a seed."""
    draw = random.Random(seed)
    program = draw.choices(list(shares), list(shares.values()))[0]
    when = draw.choice(WHENS)
    fresh = when == "during" and draw.random() < 0.7
    moments = tuple(sorted(draw.uniform(0.1, 1.0) for _ in range(draw.randint(2, 8)))) if when != "between" else ()
    before = draw.randint(1, 6) if when != "during" else 0
    return Schedule(seed=seed, program=program, when=when, before=before, moments=moments, fresh=fresh)


@attrs.frozen(kw_only=True)
class Reference:
    """A program's home after a run that was left alone, and what it came to."""

    home: Path
    seconds: float
    digests: Mapping[tuple[str, str, str], str]
    """(pipeline, step, output) → digest; only what is the same in each run."""
    repeatable: frozenset[str]
    """Digests of values that have the same digest when they are saved again."""


def reference_of(program: str, scratch: Path) -> Reference:
    """Run a program twice, in homes of their own."""
    readings = []
    for number in range(2):
        home = scratch / f"reference-{program}-{number}"
        began = time.monotonic()
        code, output = _run(program, home, scratch, seed=0)
        seconds = time.monotonic() - began
        if code:
            raise RuntimeError(f"{program} fails without any damage: {output}")
        readings.append((home, seconds, *_outputs(home, scratch)))
    first, second = readings
    same = {place: digest for place, digest in first[2].items() if second[2].get(place) == digest}
    return Reference(home=second[0], seconds=second[1], digests=same, repeatable=frozenset(second[3]))


def play(schedule: Schedule, reference: Reference, scratch: Path) -> dict[str, Any]:
    """Play one schedule; `wrong` says what may not be."""
    draw = random.Random(f"play {schedule.seed}")
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="try-"))
    home = folder / "home"
    if not schedule.fresh:
        shutil.copytree(reference.home, home, symlinks=True)
    damages: Counter[str] = Counter()
    for _ in range(schedule.before):
        damages.update(_damage(home, draw))
    output = folder / "output"
    with output.open("wb") as file:
        process = _start(schedule.program, home, scratch, schedule.seed, file)
        began = time.monotonic()
        for moment in schedule.moments:
            while process.poll() is None and time.monotonic() < began + moment * reference.seconds:
                time.sleep(0.005)
            if process.poll() is None:
                damages.update(_damage(home, draw))
        code = _wait(process)
    text = output.read_text(errors="replace")
    wrong = _wrong(home, reference, scratch, code, text)
    healed: int | None = None
    if code and not wrong:
        healed, text = _run(schedule.program, home, scratch, seed=schedule.seed)
        wrong = _wrong(home, reference, scratch, healed, text)
        if healed and not wrong:
            wrong = f"the next run, without damage, ended with {healed}: {text[-1500:]}"
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "seed": schedule.seed,
        "program": schedule.program,
        "when": schedule.when,
        "damages": dict(damages),
        "code": code,
        "healed": healed,
        "noticed": "lost or damaged" in text or "runs again" in text,
        "wrong": wrong,
    }


def _damage(home: Path, draw: random.Random) -> list[str]:
    """Damage one file of a home; which kind of damage, or nothing where there is no file."""
    files = sorted(path for path in home.rglob("*") if _may_be_damaged(path))
    if not files:
        return []
    path, how = draw.choice(files), draw.choice(HOWS)
    try:
        size = path.stat().st_size
        if how == "delete" or not size:
            path.unlink()
            return ["delete"]
        path.chmod(0o644)
        if how == "cut":
            os.truncate(path, draw.randrange(size))
            return ["cut"]
        with path.open("r+b") as file:
            place = draw.randrange(size)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << draw.randrange(8)]))
        return ["flip"]
    except (FileNotFoundError, IndexError):  # the run moved it just now
        return []


def _may_be_damaged(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and ".db" not in path.name and "quarantine" not in path.parts


def _start(program: str, home: Path, scratch: Path, seed: int, output: Any) -> subprocess.Popen[bytes]:
    for name, source in SOURCES.items():
        if not (scratch / name).exists():
            (scratch / name).write_text(source)
    environment = {**os.environ, "STOKER_HOME": str(home), "STORM_SEED": str(seed)}
    words = [sys.executable, *PROGRAMS[program]]
    return subprocess.Popen(words, cwd=scratch, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return -1


def _run(program: str, home: Path, scratch: Path, *, seed: int) -> tuple[int, str]:
    with tempfile.TemporaryFile() as file:
        code = _wait(_start(program, home, scratch, seed, file))
        file.seek(0)
        return code, file.read().decode(errors="replace")


def _wrong(home: Path, reference: Reference, scratch: Path, code: int, text: str) -> str:
    """What a program's end says that may not be; empty where all is well."""
    if code < 0:
        return f"it ended with {code}: {text[-1500:]}"
    if code and _SOURCES in text and "DamagedArtifact" not in text and "RunFailed" not in text:
        return f"a traceback: {text[-1500:]}"
    try:
        digests, _, problems = _read(home, scratch, reference.repeatable)
    except StoreError as error:
        return f"the store cannot be read: {error}"
    for place, digest in digests.items():
        if reference.digests.get(place, digest) != digest:
            problems.append(f"{'/'.join(place)} has the digest {digest}, not {reference.digests[place]}")
    return "; ".join(problems)


def _outputs(home: Path, scratch: Path) -> tuple[dict[tuple[str, str, str], str], set[str]]:
    digests, repeatable, _ = _read(home, scratch, frozenset())
    return digests, repeatable


def _read(
    home: Path, scratch: Path, repeatable: frozenset[str]
) -> tuple[dict[tuple[str, str, str], str], set[str], list[str]]:
    """The digests of all outputs in the store, those of values that have them when they are saved again, and what is
    wrong: a value that is handed out and is another one."""
    store = open_store(home=str(home))
    copies = Blobs(str(scratch / "copies"))
    digests: dict[tuple[str, str, str], str] = {}
    again: set[str] = set()
    problems: list[str] = []
    for run in store.records.runs(RunFilter()):
        for row in store.records.all_outputs():
            if row.run_id != run.id:
                continue
            artifact: StoredArtifact = row.artifact
            digests[run.pipeline, row.key, row.name] = artifact.digest
            try:
                digest = artifacts.save(artifacts.load(artifact, store.blobs), copies).digest
            except DamagedArtifact:
                continue
            if digest == artifact.digest:
                again.add(digest)
            elif artifact.digest in repeatable:
                problems.append(f"{run.id}/{row.key}.{row.name} is handed out as {digest}, not {artifact.digest}")
    store.close()
    return digests, again, problems


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as a table in Markdown."""
    lines = ["| what | tries | wrong |", "|---|---:|---:|"]
    for what in ("program", "when"):
        for name in dict.fromkeys(sorted(row[what] for row in rows)):
            group = [row for row in rows if row[what] == name]
            lines.append(f"| {what} {name} | {len(group)} | {sum(bool(row['wrong']) for row in group)} |")
    lines.append(f"| all | {len(rows)} | {sum(bool(row['wrong']) for row in rows)} |")
    damages: Counter[str] = Counter()
    for row in rows:
        damages.update(row["damages"])
    counts = ", ".join(f"{how} {damages[how]}" for how in HOWS)
    noticed, failed = sum(row["noticed"] for row in rows), sum(row["code"] != 0 for row in rows)
    lines.append(
        f"\n{damages.total()} files damaged: {counts}. {noticed} runs said so; {failed} failed and the next run"
    )
    lines.append(f"succeeded in {sum(row['healed'] == 0 for row in rows)} of them.")
    return "\n".join(lines)


def main() -> int:
    """Play the schedules that were not played yet, and print what all of them came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--programs", default="", help=f"a comma between them: {', '.join(PROGRAMS)}")
    parser.add_argument("--results", type=Path, default=Path(".stoker/store-storm.jsonl"))
    options = parser.parse_args()
    os.nice(10)
    shares = dict.fromkeys(options.programs.split(","), 1) if options.programs else SHARES
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    rows = [json.loads(line) for line in lines]
    played = {row["seed"] for row in rows}
    references: dict[str, Reference] = {}
    with tempfile.TemporaryDirectory(prefix="store-storm-") as scratch:
        for seed in range(options.seed, options.seed + options.count):
            if seed in played:
                continue
            schedule = schedule_of(seed, shares)
            if schedule.program not in references:
                references[schedule.program] = reference_of(schedule.program, Path(scratch))
            row = play(schedule, references[schedule.program], Path(scratch))
            rows.append(row)
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            if row["wrong"]:
                print(f"seed {seed}: {row['wrong']}", file=sys.stderr)
    print(summary(rows))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
