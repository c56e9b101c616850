"""Mistakes in what is asked of one step and of a run, on the command line, in Python and in what a step does."""

from __future__ import annotations

from tests.advice.cases import BODY, DEFINED, PIPELINE, STEP, TWO, VALUE, Group, flow

ELSEWHERE = """
@step
def taken(x: dict) -> int:
    return 1

@pipeline
def other():
    kept.append(one())

kept = []
other.trace()

@pipeline
"""
AFTER = """
if __name__ == "__main__":
    import shlex, sys
    from stoker.cli.main import main

    p()
    sys.argv = ["stoker", *shlex.split('''@@''')]
    main()
"""
ALONE = """
from stoker import context
from stoker.config import *

def alone():
    if context.world_size > 1:
        import torch.distributed as ranks

        ranks.init_process_group("gloo", rank=0, world_size=1, store=ranks.HashStore())
"""
WORK = """
import sys
from typing import Any
from stoker import *
from stoker import Secret, pipeline, step
from stoker import log_metadata, log_metrics

@step
def a() -> Any:
    @@
    return 1

@pipeline
def p():
    a()

if __name__ == "__main__":
    p()
"""
CLIENT = """
import contextlib, io
from typing import Annotated
from stoker import log_metrics, pipeline, step
from stoker.client import Client
from stoker.core.errors import RunFailed

@step
def a() -> tuple[Annotated[int, "left"], Annotated[int, "right"]]:
    log_metrics({"loss": 1})
    print("made")
    return 3, 4

@step
def b(x: int) -> int:
    return 1 // x

@step
def bad() -> int:
    return 1 // 0

@pipeline(failure_mode="continue")
def p():
    a()
    b.map([1, 0])
    bad()

if __name__ == "__main__":
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            p()
    except RunFailed as error:
        run = error.run
    client = Client()
    step = run.steps["a"]
    @@
"""
RUNS = """
import contextlib, os, sys, shutil
from pathlib import Path
from t import p

home = Path(os.environ["STOKER_HOME"])

def stoker(*words):
    from stoker.cli.main import main

    sys.argv = ["stoker", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise

def lose():
    shutil.rmtree(home / "artifacts")

if __name__ == "__main__":
    @@
"""
COMMANDS = """
import shlex, sys
from stoker import pipeline, step
from stoker.cli.main import main
from stoker.config import *

@step(resources=ResourceSettings(gpu_count=1))
def b(x: int) -> int:
    return x

@step
def c() -> int:
    return 1

@pipeline
def p():
    b.map([1, 2])

@pipeline
def q():
    b.map([1, 2])
    c()

if __name__ == "__main__":
    first, second, third = p(), q(), q()
    words = '''@@'''.replace("{first}", first.id).replace("{second}", second.id)
    sys.argv = ["stoker", *shlex.split(words)]
    main()
"""
WAITS = """
import time
from pathlib import Path
from stoker import pipeline, step

@step(cache=False)
def a() -> bytes:
    Path("began").touch()
    while not Path("go").exists():
        time.sleep(0.1)
    return b"a" * 100_000

@pipeline
def p():
    a()
"""
GOES_ON = """
import contextlib, subprocess, sys, time
from pathlib import Path
from stoker.client import Client

def cancel():
    with contextlib.suppress(Exception):
        run.cancel(now=True)
        run.wait()

if __name__ == "__main__":
    Path("began").unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "stoker", "run", "t.py", "--detach"], check=True, capture_output=True)
    while not Path("began").exists():
        time.sleep(0.1)
    client = Client()
    run = client.run("latest")
    try:
        @@
    finally:
        cancel()
"""
FAILS = """
import contextlib, sys
from pathlib import Path
from stoker import pipeline, step
from stoker.cli.main import main

@step
def a() -> str:
    return Path("there").read_text()

@pipeline
def p():
    a()

def stoker(*words):
    sys.argv = ["stoker", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise

if __name__ == "__main__":
    @@
"""
TAKES = """
from stoker import pipeline, step

@step
def a(name: str = "") -> str:
    return name

@pipeline
def p(name: str = "", label: str = ""):
    a(name)
"""

SWEEP = """
from typing import Annotated
from stoker import ASHA, between, log_metrics, pipeline, step, sweep

@step
def train(rate: float = 0.5, layers: int = 1, kind: str = "a") -> None:
    log_metrics({"loss": rate}, step=0)

@step
def score(rate: float) -> float:
    return rate

@step
def named(rate: float) -> Annotated[float, "best_params"]:
    return rate

@step
def renamed(rate: float) -> Annotated[float, "best_rate"]:
    return rate

def plain(rate: float) -> float:
    return rate

ONE = {"rate": [0.1]}
SOME = {"rate": between(0.1, 0.9)}

@pipeline
def search():
    @@
"""
GROUPS: tuple[Group, ...] = (
    Group(name="sweep", files={"s.py": SWEEP}, call="stoker plan s.py:search"),
    Group(name="ranks", files={"s.py": STEP}, call="stoker plan s.py --simulate 8xH100", code=3),
    Group(
        name="ranks on older accelerators",
        files={"s.py": STEP},
        call="stoker plan s.py --simulate 1xV100,1xA100",
        code=3,
    ),
    Group(
        name="ranks that would waste something", files={"s.py": STEP}, call="stoker plan s.py --simulate 8xH100", code=0
    ),
    Group(name="setting", files={"s.py": STEP}, call="stoker plan s.py --simulate 8xH100"),
    Group(
        name="setting on Slurm",
        files={"s.py": STEP, "stoker.toml": "[stacks.x]\norchestrator = 'slurm'\nartifact_store = '/tmp'\n"},
        call="stoker plan s.py --stack x --offline",
    ),
    Group(
        name="pipeline's setting",
        files={"s.py": STEP.replace("(@@)", "").replace("@pipeline", "@pipeline(@@)")},
        call="stoker plan s.py",
    ),
    Group(
        name="field",
        files={"s.py": VALUE.replace("\nVALUE", "\nfrom stoker import Secret\n\nVALUE")},
        call="stoker plan s.py",
    ),
    Group(name="body", files={"s.py": BODY.replace("\n@pipeline\n", ELSEWHERE)}, call="stoker plan s.py:p"),
    Group(
        name="pipeline in a pipeline",
        files={"s.py": PIPELINE + "@pipeline(dynamic=True)\ndef q():\n    one()\n\n@pipeline@@\ndef p():\n    q()\n"},
        call="stoker plan s.py:p",
    ),
    Group(
        name="definition of a step",
        files={"s.py": "from stoker.integrations.huggingface import run_with_accelerate\n" + DEFINED},
        call="stoker plan s.py:p",
    ),
    Group(name="line", files={"s.py": TWO, "rest.py": TAKES}, call="@@"),
    Group(name="line after a run", files={"s.py": TWO.partition("@pipeline\ndef q")[0] + AFTER}, call="python s.py"),
    Group(name="flow's resources", files=flow(above="@@"), call="stoker plan f.py --simulate 8xH100"),
    Group(name="stack of this machine", files={"s.py": TWO, "stoker.toml": "@@"}, call="stoker plan s.py:p --stack x"),
    Group(name="step that runs", files={"s.py": WORK}, call="python s.py", code=1),
    Group(
        name="what a step returns",
        files={
            "s.py": WORK.replace("    @@\n    return 1", "    return 1").replace(
                "@step\ndef a() -> Any:\n    return 1", "@step\n@@"
            )
        },
        call="python s.py",
        code=1,
    ),
    Group(
        name="script that a worker imports",
        files={"s.py": WORK.replace("@step\ndef a() -> Any:\n    @@\n    return 1", "@@")},
        call="python s.py",
        code=1,
    ),
    Group(
        name="secret",
        files={
            "s.py": WORK.replace("    @@\n", "").replace("def a()", "def a(x: str)").replace("    a()", "    a(@@)"),
            "token": "abc",
        },
        call="python s.py",
        code=3,
        env={"HERE": "abc"},
    ),
    Group(name="client", files={"s.py": CLIENT}, call="python s.py", code=2),
    Group(name="commands after a run", files={"s.py": COMMANDS}, call="python s.py", env={"STOKER_SIMULATE": "2xH100"}),
    Group(name="run that goes on", files={"s.py": GOES_ON, "t.py": WAITS}, call="python s.py", code=1),
    Group(name="run that failed", files={"s.py": FAILS}, call="python s.py", code=1),
    Group(
        name="card",
        files={"x.png": "GIF89a"} | flow(above="@card", next="current.card.append(@@); self.next(self.end)"),
        call="python f.py run",
        code=0,
    ),
    Group(
        name="plan with settings",
        files={"s.py": STEP.replace("@@", "resources=ResourceSettings(memory='900TB')")},
        call="stoker plan s.py @@",
        code=3,
    ),
    Group(
        name="plugin",
        files={
            # In an interpreter of its own, which looks for parts of other distributions anew.
            "s.py": "import subprocess, sys\ncode = 'from stoker.cli.main import main; main()'\n"
            "words = ['plan', 't.py', '--set', 'steps.a.launch=mine']\n"
            "sys.exit(subprocess.run([sys.executable, '-c', code, *words]).returncode)\n",
            "t.py": STEP.replace("@@", ""),
            "good.py": "from stoker.launchers.registry import COMMAND\n",
            "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
            "mine-1.0.dist-info/entry_points.txt": "[stoker.launchers]\nmine = @@\n",
        },
        call="python s.py",
    ),
    Group(
        name="package that is missing",
        files={
            "s.py": "import sys\n@@\nsys.argv = ['stoker', 'migrate', 't.py']\n"
            "from stoker.cli.main import main\nmain()\n",
            "t.py": "print(1)\n",
        },
        call="python s.py",
        code=4,
    ),
    Group(
        name="call in a script",
        files={"s.py": PIPELINE + "@pipeline(dynamic=True)\ndef p():\n    @@\n\nif __name__ == '__main__':\n    p()\n"},
        call="python s.py",
    ),
    Group(
        name="call outside a pipeline",
        files={"s.py": PIPELINE + "if __name__ == '__main__':\n    @@\n"},
        call="python s.py",
    ),
    Group(
        name="script with options of its own",
        files={
            "s.py": "import argparse\n" + TWO.partition("@pipeline\ndef q")[0] + "\nif __name__ == '__main__':\n"
            "    parser = argparse.ArgumentParser()\n    parser.add_argument('--name')\n"
            "    parser.parse_args()\n    p()\n"
        },
        call="stoker plan s.py @@",
    ),
    Group(
        name="commands",
        files={"s.py": RUNS, "t.py": WAITS, "stoker.toml": "[stacks.x]\nartifact_store = '${BUCKET}'\n"},
        call="python s.py",
        entries=(
            (
                "stoker('stacks', 'setup', 'local')",
                "then call `stoker doctor --stack NAME`",
                (
                    "Path('stoker.toml').write_text('[stacks.y]\\norchestrator = { flavor = \"local\" }')\n"
                    "    stoker('doctor', '--stack', 'y')"
                ),
            ),
            (
                "stoker('plan', 't.py', '--stack', 'x')",
                "set it",
                "os.environ['BUCKET'] = 'here'; stoker('plan', 't.py', '--stack', 'x')",
            ),
            (
                "os.mkdir('a'); os.chdir('a'); os.rmdir('../a'); stoker('stacks')",
                "cd to a folder that does",
                "os.chdir('/'); stoker('stacks')",
            ),
        ),
    ),
    Group(
        name="doctor",
        files={"s.py": RUNS, "t.py": WAITS, "go": ""},
        call="python s.py",
        code=4,
        entries=(
            (
                "Path('stoker.toml').write_text('[stacks.x]\\nartifact_store = 3'); stoker('doctor')",
                "correct the file",
                "Path('stoker.toml').write_text('[stacks.x]\\nartifact_store = \"a\"'); stoker('doctor')",
            ),
            ("home.mkdir(mode=0o755); stoker('doctor')", "chmod 700", "home.chmod(0o700); stoker('doctor')"),
            (
                "os.environ['STOKER_HOME'] = 's.py/home'; stoker('doctor')",
                "set STOKER_HOME to a folder of yours",
                "os.environ['STOKER_HOME'] = 'home'; stoker('doctor')",
            ),
            (
                "p(); lose(); stoker('doctor')",
                "`stoker store check --repair`, then run the pipelines again",
                (
                    "with contextlib.suppress(SystemExit):\n        stoker('store', 'check', '--repair')\n"
                    "    p(); stoker('doctor')"
                ),
            ),
            (
                "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); stoker('stacks')",
                "write to another place",
                "stoker('stacks')",
            ),
        ),
    ),
    Group(
        name="keyring",
        files={
            "s.py": "@@\n"
            + WORK.replace("    @@\n", "")
            .replace("def a()", "def a(x: str)")
            .replace("    a()", "    a(Secret.keyring('here', 'me'))")
        },
        call="python s.py",
        code=3,
        env={"PYTHON_KEYRING_BACKEND": "keyrings.alt.file.PlaintextKeyring"},
    ),
    Group(
        name="ranks that run",
        files={"s.py": ALONE + WORK.replace("    @@\n", "    alone()\n").replace("@step", "@step(launch=@@)")},
        call="python s.py",
        code=1,
    ),
)
