"""`stoker schedule`: one record for each schedule, its entry in a real crontab, and what becomes of due times."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from stoker.client import Client
from stoker.client.schedules import Schedule
from stoker.run.firing import FiringStarter
from stoker.store.rows import RunRow
from stoker.store.schedules import EXPIRES, ScheduleRow, Schedules
from stoker.store.store import open_store

BUSYBOX = shutil.which("busybox") or "/bin/busybox"
SYSTEMCTL = """
    #!/bin/sh
    echo "$@" >>"$0.calls"
    case "$2" in "$(cat "$0.refuses" 2>/dev/null)") echo "Failed to connect to bus" >&2; exit 1;; esac
"""
FLOW = """
    from stoker.flow import FlowSpec, schedule, step


    @schedule(cron="30 10 ? * 2-6 *", timezone="Europe/Berlin")
    class Nightly(FlowSpec):
        @step
        def start(self):
            self.next(self.end)

        @step
        def end(self):
            pass


    if __name__ == "__main__":
        Nightly()
"""
DAY = 86400.0
FRIDAY = datetime(2025, 6, 6, 5, 0, tzinfo=timezone.utc).timestamp()


@pytest.fixture
def programs(stoker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs on PATH: the crontab program of busybox with a table of the test's own, and a systemctl that
    writes down how it is called."""
    folder, spool = tmp_path / "programs", tmp_path / "spool"
    folder.mkdir()
    spool.mkdir()
    for name, text in {
        "crontab": f'#!/bin/sh\nexec {BUSYBOX} crontab -c {spool} "$@"\n',
        "systemctl": SYSTEMCTL,
    }.items():
        (folder / name).write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("TZ", "UTC")
    return folder


def crontab(*words: str, text: str | None = None) -> str:
    return subprocess.run(["crontab", *words], capture_output=True, text=True, input=text, check=False).stdout


def test_an_entry_of_a_real_crontab_runs_the_pipeline_once(stoker: Any, programs: Path) -> None:
    mine = "# mine\n5 4 * * * /bin/true\n"
    crontab("-", text=mine)
    said = stoker("schedule", "add", "@hourly", "train.py", "--count", "2", "--name", "often").stderr
    assert "'often' is added: crontab of" in said
    stoker("schedule", "add", "0 0 1 1 *", "train.py", "--count", "2", "--tag", "50%", "--name", "often")
    table = crontab("-l")
    assert table.startswith(mine)
    (entry,) = [line for line in table.splitlines() if "schedule fire often" in line]
    assert entry.startswith("0 0 1 1 * cd "), "it was changed, not added once more"

    schedules = Schedules(stoker.project.client().store.records.database)
    row = schedules.get("often")
    schedules.pause("often", paused=False, now=time.time() - 366 * DAY)  # as if it had been added a year ago
    command = entry.removeprefix("0 0 1 1 * ").replace("\\%", "%")
    for _ in range(2):  # two machines
        subprocess.run(["/bin/sh", "-c", command], env={"HOME": "/", "PATH": "/bin"}, cwd="/", check=True)
    (first,) = stoker.json("runs")
    assert (first["status"], first["parameters"]["count"], first["tags"]) == ("succeeded", 2, ["50%"])
    shown = stoker.json("show", first["id"])
    assert re.fullmatch(r"schedule 'often', due 20\d\d-01-01T00:00:00\+00:00", shown["cause"])
    assert "started by" in stoker("show", first["id"]).stdout
    (listed,) = stoker.json("schedule", "list")
    assert (listed["name"], listed["trouble"], listed["last"]["state"]) == ("often", "", "succeeded")
    log = (Path(stoker.project.home) / "schedules" / "often.log").read_text()
    assert "run " in log and "succeeded" in log

    stoker("schedule", "pause", "often")
    assert "# paused: 0 0 1 1 *" in crontab("-l")
    assert "is paused: nothing is started" in stoker("schedule", "fire", "often").stderr
    crontab("-", text=mine)  # somebody removes the entry
    stoker("schedule", "resume", "often")
    assert "# paused" not in crontab("-l") and "schedule fire often" in crontab("-l")
    crontab("-", text=mine)
    assert "nothing starts it any more" in stoker("schedule", "list").stderr
    stoker("schedule", "rm", "often")
    assert crontab("-l") == mine
    assert stoker.json("schedule", "list") == []
    assert "was removed: nothing is started" in stoker("schedule", "fire", "often").stderr
    assert row.source == "schedule:often"


def test_what_is_refused_leaves_nothing_behind(stoker: Any, programs: Path) -> None:
    stoker.project.write({"flow.py": FLOW})
    for words, message, fix in (
        (["0 6 * * mo", "train.py"], "column 9 (day of the week): 'mo' is no day", "sun to sat"),
        (["0 6 * * *", "train.py", "--lern", "1"], "did you mean '--lr'", ""),
        (["0 6 * * *", "trin.py"], "there is no file trin.py, did you mean 'train.py'", ""),
        (["train.py"], "no times are given, and training has no @schedule", 'add "0 6 * * 1-5" train.py'),
        (["0 6 * * *", "train.py", "--zone", "Mars"], "there is no time zone 'Mars'", "UTC"),
        (
            ["0 6 * * *", "train.py", "--zone", "Asia/Tokyo"],
            "follows this machine's clock, which is UTC",
            "--on systemd",
        ),
        (["0 6 * * *", "train.py", "--on", "platform"], "Local starts nothing by itself", "--on crontab"),
        (["0 6 * * *", "train.py", "--overlap", "wait"], "--overlap wait", "queue: start when the run before is over"),
        (["0 6 * * *", "train.py", "--name", "Ni/ght"], "'Ni/ght' cannot name a schedule", "--name with small letters"),
    ):
        refused = stoker("schedule", "add", *words, code=2).stderr
        assert message in refused and fix in refused, refused
    (programs / "systemctl.refuses").write_text("daemon-reload")
    refused = stoker("schedule", "add", "0 6 * * *", "train.py", "--on", "systemd", code=4).stderr
    assert "systemctl --user refuses: Failed to connect to bus" in refused and "enable-linger" in refused
    assert not list((programs.parent / "person").rglob("stoker-*"))
    assert stoker.json("schedule", "list") == []
    assert crontab("-l") == ""
    assert "there is no schedule 'nightly'" in stoker("schedule", "rm", "nightly", code=2).stderr


def test_a_flow_has_its_times_from_its_decorator(stoker: Any, programs: Path) -> None:
    stoker.project.write({"flow.py": FLOW})
    stoker.project.run("flow.py", "schedule", "create", "--on", "systemd")
    (listed,) = stoker.json("schedule", "list")
    assert (listed["name"], listed["cron"], listed["zone"]) == ("nightly", "30 10 * * 1-5", "Europe/Berlin")
    folder = programs.parent / "person" / ".config" / "systemd" / "user"
    (timer,) = folder.glob("*.timer")
    assert "OnCalendar=Mon,Tue,Wed,Thu,Fri *-*-* 10:30:00 Europe/Berlin\n" in timer.read_text()
    calls = (programs / "systemctl.calls").read_text().splitlines()
    assert calls == ["--user daemon-reload", f"--user enable --now {timer.name}", f"--user restart {timer.name}"]
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--user", "--man=no", str(timer), str(timer.with_suffix(".service"))],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(programs.parent), "XDG_RUNTIME_DIR": str(programs.parent)},
        )
        assert "stoker-" not in checked.stderr, checked.stderr
    stoker("schedule", "rm", "nightly")
    assert not list(folder.iterdir())


def run_row(id: str, *, token: str) -> RunRow:
    """A run that waits in a platform's queue."""
    return RunRow(
        id=id,
        pipeline="p",
        created=FRIDAY,
        source="",
        stack="local",
        failure_mode="fail_fast",
        dynamic=False,
        driver={"place": "a queue"},
        token=token,
    )


class Desk:
    """A schedule of every day at six, a clock, and runs that are started by hand."""

    def __init__(self, home: Path, **fields: Any) -> None:
        self.store = open_store(home=str(home))
        self.schedules = Schedules(self.store.records.database)
        self.now = FRIDAY
        self.started: list[str] = []
        self.row = ScheduleRow(
            **{
                "name": "daily",
                "cron": "0 6 * * *",
                "zone": "UTC",
                "file": "train.py",
                "folder": "/",
                "stack": "local",
                "target": "crontab",
                "since": FRIDAY,
                "created": FRIDAY,
                "author": "me",
                **fields,
            }
        )
        self.schedules.put(self.row)

    def start(self, run_id: str) -> int:
        """Create a run that goes on until somebody ends it."""
        self.started.append(run_id)
        self.store.records.create_run(run_row(run_id, token=run_id))
        return 0

    def end(self, run_id: str) -> None:
        self.store.records.set_run(run_id, run_id, status="succeeded", ended=self.now)

    def fire(self, start: Any = None, sleep: Any = None) -> str:
        starter = FiringStarter(
            self.store, start or self.start, now=lambda: self.now, sleep=sleep or (lambda seconds: None)
        )
        return starter.fire(self.schedules.get("daily"))[0]

    def history(self) -> list[tuple[int, str]]:
        """(day of the month, state), the last first."""
        row = self.schedules.get("daily")
        return [(one.due.day, one.state) for one in Schedule(self.store, row, self.now).history()]

    def at(self, day: int, hour: int, minute: int = 0) -> None:
        self.now = datetime(2025, 6, day, hour, minute, tzinfo=timezone.utc).timestamp()


def test_what_was_missed_is_said_and_kept(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert "nothing of schedule 'daily' was due" in desk.fire()
    desk.at(6, 6, 0)
    desk.now -= 10  # a platform's clock may be ahead
    desk.fire()
    desk.fire()
    assert len(desk.started) == 1
    desk.end(desk.started[0])
    desk.at(8, 6, 1)
    desk.fire()  # the machine was off on the 7th
    assert desk.history() == [(8, "running"), (7, "missed"), (6, "succeeded")]
    desk.end(desk.started[1])
    desk.at(9, 6, 4)
    assert desk.history()[0] == (8, "succeeded"), "its run may yet begin"
    desk.at(9, 6, 6)
    row = desk.schedules.get("daily")
    assert [due.day for due in Schedule(desk.store, row, desk.now).missed()] == [7, 9]
    desk.schedules.note_missed(row.source, Schedule(desk.store, row, desk.now).missed(), now=desk.now)
    desk.schedules.pause("daily", paused=True, now=desk.now)
    desk.at(12, 7)
    assert "is paused" in desk.fire()
    desk.schedules.pause("daily", paused=False, now=desk.now)
    assert desk.history() == [(9, "missed"), (8, "succeeded"), (7, "missed"), (6, "succeeded")]


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
def test_while_the_run_before_goes_on(tmp_path: Path, overlap: str) -> None:
    desk = Desk(tmp_path, overlap=overlap)
    desk.at(6, 6)
    desk.fire()
    desk.at(7, 6)
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(desk.history()[0])
        if len(waited) == 3:
            desk.end(desk.started[0])

    said = desk.fire(sleep=sleep)
    if overlap == "skip":
        assert f"skipped, run {desk.started[0]} was still running" in said
        assert desk.history()[0] == (7, "skipped")
    assert len(desk.started) == (1 if overlap == "skip" else 2)
    assert waited == ([(7, "waiting")] * 3 if overlap == "queue" else [])


def test_who_dies_between_claim_and_start_is_succeeded_by_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.at(6, 6)
    seen = []

    def die(run_id: str) -> int:
        seen.append(run_id)
        raise SystemExit  # as a killed process, it settles nothing

    with pytest.raises(SystemExit):
        desk.fire(die)
    assert desk.history() == [(6, "starting")]
    assert "somebody else has it" in desk.fire()
    desk.now += EXPIRES + 1
    assert desk.history() == [(6, "lost")]
    first = seen[0]
    with pytest.raises(SystemExit):
        desk.fire(die)
    desk.now += EXPIRES + 1
    desk.fire()
    assert desk.started == [first] and seen == [first, first], "the run has the id of the first claim"
    # The first one was not dead but slow: its run has that id, too, and is refused.
    with pytest.raises(Exception, match="there is a run"):
        desk.store.records.create_run(run_row(first, token="another"))
    desk.now += EXPIRES + 1
    assert "somebody else has it" in desk.fire(), "a run that takes long is no lost start"
    assert desk.history() == [(6, "running")]


def test_a_start_without_a_run_has_failed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.at(6, 6)
    assert "`stoker run` ended with code 3 before there was a run" in desk.fire(lambda run_id: 3)
    assert desk.history() == [(6, "failed")]
    assert Client(store=desk.store).runs() == []


def test_slurm_gets_its_options_in_the_scrontab(stoker: Any, programs: Path) -> None:
    """The command has crontab's form: https://slurm.schedmd.com/scrontab.html"""
    shutil.copy(programs / "crontab", programs / "scrontab")
    stack = """
        stack = "cluster"
        [stacks.cluster.orchestrator]
        flavor = "slurm"
        partition = "gpu"
        driver = {partition = "login", memory = "2GiB", time_limit = "8h"}
    """
    stoker.project.write({"stoker.toml": stack})
    refused = stoker("schedule", "add", "0 6 */2 * 1", "train.py", code=2).stderr
    assert "needs a day's number and its weekday, which this scheduler cannot say" in refused
    said = stoker("schedule", "add", "0 6 * jan,mar sun", "train.py", "--tag", "50%").stderr
    assert "'training' is added: scrontab of" in said
    head, *options, entry = crontab("-l").splitlines()
    assert head.startswith("# stoker-training-")
    assert options == [
        "#SCRON --partition=login",
        "#SCRON --cpus-per-task=1",
        "#SCRON --mem=2048M",
        "#SCRON --time=0-08:00:00",
    ]
    assert entry.startswith("0 6 * 1,3 0 cd ") and "\\%" not in entry
    stoker("schedule", "add", "0 7 * * *", "train.py")
    assert len(crontab("-l").splitlines()) == 6
    stoker("schedule", "rm", "training")
    assert crontab("-l") == ""
    stoker.project.write({"stoker.toml": stack.replace('"slurm"', '"slurm"\n        shares_files = false')})
    refused = stoker("schedule", "add", "0 6 * * *", "train.py", code=2).stderr
    assert "whose nodes do not see this machine's files" in refused


def test_entries_are_quoted(stoker: Any, programs: Path) -> None:
    stoker("schedule", "add", "0 6 * * *", "train.py", "--tag", "it's 5% $HOME", "--name", "odd")
    (entry,) = [line for line in crontab("-l").splitlines() if "fire odd" in line]
    command = entry.removeprefix("0 6 * * * ")
    assert "%" not in command.replace("\\%", "")
    assert shlex.split(command)[:2] == ["cd", str(stoker.project.folder)]
    (listed,) = stoker.json("schedule", "list")
    assert listed["parameters"] == ["--tag", "it's 5% $HOME"]
