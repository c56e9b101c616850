"""A driver whose terminal goes away, or whose output nobody reads: its steps end as they do after Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.conftest import Lab

from stoker.store.access import prepare_home

SCRIPT = """
import sys
import time
from pathlib import Path

from stoker import pipeline, step

@step(cache=False)
def lasts(seconds: float) -> None:
    try:
        Path("begun").touch()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            print("a line", flush=True)
            time.sleep(0.1)
    finally:
        time.sleep(min(seconds, 1.0))
        Path("finally").touch()

@pipeline
def lasting(seconds: float = 600.0):
    lasts(seconds)

if __name__ == "__main__":
    lasting(*map(float, sys.argv[1:2]))
    print("the script goes on")
"""


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.write("lasting.py", SCRIPT)
    yield made
    made.close()


def shell(lab: Lab, command: str) -> subprocess.CompletedProcess[str]:
    """The end of a command line; Python's own buffers are as a person's are."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "STOKER_HOME": str(lab.home), "PATH": path, "PYTHONUNBUFFERED": ""}
    argv = ["bash", "-c", command]
    return subprocess.run(
        argv, cwd=lab.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def there(lab: Lab, name: str) -> bool:
    return (lab.folder / name).exists()


@pytest.mark.parametrize("argv", [("lasting.py",), ("stoker", "run", "lasting.py", "--debug")])
def test_a_hangup_is_asked_to_stop_and_a_second_one_is_the_same(patient: Lab, argv: tuple[str, ...]) -> None:
    driver = patient.start(*argv)
    driver.until(lambda: there(patient, "begun"))
    driver.signal(signal.SIGHUP)
    if "--debug" not in argv:
        driver.until_written("the terminal is gone")
        driver.signal(signal.SIGHUP)
    driver.wait(130)
    assert there(patient, "finally")
    assert patient["lasting"].status == "cancelled"


def test_nohup_goes_on(patient: Lab) -> None:
    code = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    driver = patient.start("-c", code, sys.executable, "lasting.py", "2")
    driver.until(lambda: there(patient, "begun"))
    driver.signal(signal.SIGHUP)
    assert "the script goes on" in driver.wait(0)
    assert patient["lasting"].status == "succeeded"


@pytest.mark.parametrize("program", [f"{sys.executable} lasting.py", "stoker run lasting.py"])
def test_a_closed_pipe_is_asked_to_stop(patient: Lab, program: str) -> None:
    done = shell(patient, program + " 2>&1 | head -1; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (130, "")
    assert there(patient, "finally")
    assert patient["lasting"].status == "cancelled"


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "> /dev/full", "2> /dev/full", ">&- 2>&- <&-"])
def test_closed_and_full_streams_do_not_end_a_run(patient: Lab, redirection: str) -> None:
    done = shell(patient, f"stoker run lasting.py --seconds 0.1 {redirection}")
    words = done.stdout + done.stderr
    assert "Traceback" not in words
    assert patient["lasting"].status == "succeeded"
    lost = redirection == "> /dev/full"
    assert done.returncode == (4 if lost else 0), words
    assert ("error: stdout cannot be written: No space left on device" in words) == lost


def test_a_run_goes_on_without_its_terminal_where_that_is_set(patient: Lab) -> None:
    prepare_home(str(patient.home), shared=True)
    main, terminal = pty.openpty()
    environment = {**os.environ, "STOKER_HOME": str(patient.home)}
    argv = [sys.executable, "-m", "stoker", "run", "lasting.py", "--seconds", "3", "--set", "on_hangup=detach"]
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    driver = subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        cwd=patient.folder,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    while not there(patient, "begun"):
        os.read(main, 4096)
    os.close(main)  # the kernel hangs the terminal up, and sends SIGHUP to its processes
    assert driver.wait(120) == 0
    run = patient["lasting"]
    assert run.status == "succeeded" and there(patient, "finally")
    (written,) = patient.home.rglob("driver.out")
    assert "lasting succeeded" in written.read_text() and "the script goes on" in written.read_text()
    assert stat.S_IMODE(written.stat().st_mode) == 0o660  # the home's group reads it, as it reads all other files


def test_a_disk_that_is_full_elsewhere_is_not_stdout(tmp_path: Path) -> None:
    """An error of a write names no file: which one it was says the code that wrote."""
    program = """
import sys
from stoker.cli import doctor
from stoker.cli.main import main

def lines(*words, **options):
    with open("/dev/full", "w") as file:
        file.write("x")
        file.flush()

doctor.command.callback = lines
main()
"""
    environment = {**os.environ, "STOKER_HOME": str(tmp_path)}
    argv = [sys.executable, "-c", program, "doctor"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "error: a file cannot be written: No space left on device" in done.stderr
    assert "stdout" not in done.stderr
