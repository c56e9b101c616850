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

GROUPS: tuple[Group, ...] = (
    Group(
        name="ranks",
        files={"s.py": STEP},
        call="stoker plan s.py --simulate 8xH100",
        code=3,
        entries=(
            (
                "launch=Accelerate(num_processes=2)",
                "write cpu=True for ranks on CPUs, or ask for resources.gpu_count",
                "launch=Accelerate(num_processes=2, cpu=True)",
            ),
            (
                "launch=Accelerate(tpu=True), resources=ResourceSettings(nodes=2)",
                "or ask for resources.nodes=1",
                "launch=Accelerate(tpu=True), resources=ResourceSettings(nodes=1)",
            ),
            (
                "launch=Accelerate(multi_gpu=True, use_fsdp=True), resources=ResourceSettings(gpu_count=2)",
                "keep use_fsdp=True",
                "launch=Accelerate(use_fsdp=True), resources=ResourceSettings(gpu_count=2)",
            ),
            ("launch=Accelerate(cpu=True, use_fsdp=True)", "keep one of them", "launch=Accelerate(cpu=True)"),
            ("launch=Accelerate(cpu=True, use_megatron_lm=True)", "keep one of them", "launch=Accelerate(cpu=True)"),
            (
                "launch=Accelerate(multi_gpu=True), resources=ResourceSettings(gpu_count=1)",
                "or ask for resources.gpu_count=2",
                "launch=Accelerate(multi_gpu=True), resources=ResourceSettings(gpu_count=2)",
            ),
            (
                "launch=Accelerate(use_parallelism_config=True), resources=ResourceSettings(gpu_count=2)",
                'write use_fsdp=True and fsdp_version="2"',
                (
                    'launch=Accelerate(use_parallelism_config=True, use_fsdp=True, fsdp_version="2"), '
                    "resources=ResourceSettings(gpu_count=2)"
                ),
            ),
            (
                "launch=Torchrun(nproc_per_node=4), resources=ResourceSettings(gpu_count=2)",
                "ask for resources.gpu_count=4",
                "launch=Torchrun(nproc_per_node=4), resources=ResourceSettings(gpu_count=4)",
            ),
            (
                "launch=Accelerate(num_processes=4), resources=ResourceSettings(gpu_count=2)",
                "or for num_processes=2, or compute on the CPUs with cpu=True",
                "launch=Accelerate(num_processes=2), resources=ResourceSettings(gpu_count=2)",
            ),
            (
                "launch=Torchrun(num_processes=3), resources=ResourceSettings(nodes=2)",
                "ask for num_processes=4",
                "launch=Torchrun(num_processes=4), resources=ResourceSettings(nodes=2)",
            ),
            (
                "launch=Torchrun(num_processes=3, processes_per_node=2), resources=ResourceSettings(nodes=2)",
                "give one of the two: num_processes=4",
                "launch=Torchrun(num_processes=4), resources=ResourceSettings(nodes=2)",
            ),
            (
                "launch=Accelerate(num_machines=2), resources=ResourceSettings(gpu_count=1)",
                "or ask for resources.nodes=2",
                "launch=Accelerate(num_machines=2), resources=ResourceSettings(gpu_count=1, nodes=2)",
            ),
            ("launch=MPI(label=True)", 'or write program="srun"', 'launch=MPI(label=True, program="srun")'),
            (
                "launch=Torchrun(rdzv_endpoint='a:1')",
                'rdzv_backend="etcd-v2"',
                "launch=Torchrun(rdzv_endpoint='a:1', rdzv_backend=\"etcd-v2\")",
            ),
            (
                "launch=Torchrun(rdzv_backend='etcd-v2')",
                "give rdzv_endpoint",
                "launch=Torchrun(rdzv_backend='etcd-v2', rdzv_endpoint='a:1')",
            ),
            (
                "launch=Torchrun(standalone=True), resources=ResourceSettings(nodes=2)",
                "remove standalone",
                "launch=Torchrun(), resources=ResourceSettings(nodes=2)",
            ),
            (
                "launch=Torchrun(rdzv_backend='static', max_restarts=1), resources=ResourceSettings(nodes=2)",
                'or write "c10d"',
                'launch=Torchrun(rdzv_backend="c10d", max_restarts=1), resources=ResourceSettings(nodes=2)',
            ),
        ),
    ),
    Group(
        name="ranks on older accelerators",
        files={"s.py": STEP},
        call="stoker plan s.py --simulate 1xV100,1xA100",
        code=3,
        entries=(
            (
                "launch=Accelerate(mixed_precision='bf16'), resources=ResourceSettings(accelerators='V100')",
                'write mixed_precision="fp16", or ask for another accelerator',
                "launch=Accelerate(mixed_precision=\"fp16\"), resources=ResourceSettings(accelerators='V100')",
            ),
            (
                "launch=Accelerate(mixed_precision='fp8'), resources=ResourceSettings(accelerators='A100')",
                'or "bf16"',
                "launch=Accelerate(mixed_precision=\"bf16\"), resources=ResourceSettings(accelerators='A100')",
            ),
        ),
    ),
    Group(
        name="ranks that would waste something",
        files={"s.py": STEP},
        call="stoker plan s.py --simulate 8xH100",
        code=0,
        entries=(
            (
                "launch=Torchrun(num_processes=2), resources=ResourceSettings(gpu_count=4)",
                "leave the number of processes out",
                "launch=Torchrun(), resources=ResourceSettings(gpu_count=4)",
            ),
            (
                "launch=Accelerate(cpu=True, num_processes=2), resources=ResourceSettings(gpu_count=1)",
                "remove cpu=True, or ask for no accelerator",
                "launch=Accelerate(cpu=True, num_processes=2)",
            ),
            ("launch=Torchrun(master_port=29511)", "remove master_port", "launch=Torchrun()"),
        ),
    ),
    Group(
        name="setting",
        files={"s.py": STEP},
        call="stoker plan s.py --simulate 8xH100",
        entries=(
            ("environment={'A': True}", 'write "true" in quotes', "environment={'A': \"true\"}"),
            ("launch={'launcher': 'command'}", 'write Command(["my-launcher", …])', 'launch=Command(["env"])'),
            (
                "launch={'launcher': 'mpi', 'command': ['env']}",
                'write Command(["my-launcher", …])',
                'launch=Command(["env"])',
            ),
            (
                "launch={'launcher': 'torchrun', 'outputs': 'all', 'arguments': {'outputs': 'all'}}",
                "remove one of the two",
                "launch={'launcher': 'torchrun', 'outputs': 'all'}",
            ),
            ("step_operator=''", 'write step_operator="name"', 'step_operator="local"'),
            ("settings={'failure_mode': 'continue'}", "give failure_mode to @pipeline", ""),
            ("settings={'orchestrator.kubeflow': {'host': 'https://x'}}", "give it to @pipeline or to the stack", ""),
        ),
    ),
    Group(
        name="setting on Slurm",
        files={"s.py": STEP, "stoker.toml": "[stacks.x]\norchestrator = 'slurm'\nartifact_store = '/tmp'\n"},
        call="stoker plan s.py --stack x --offline",
        entries=(
            (
                "settings={'resources': SlurmSettings(partition='gpu')}",
                "put it under 'orchestrator.slurm'",
                "settings={'orchestrator.slurm': SlurmSettings(partition='gpu')}",
            ),
        ),
    ),
    Group(
        name="pipeline's setting",
        files={"s.py": STEP.replace("(@@)", "").replace("@pipeline", "@pipeline(@@)")},
        call="stoker plan s.py",
        entries=(
            (
                "settings={'orchestrator.local': 3}",
                "give a mapping of its fields",
                "settings={'orchestrator.local': {}}",
            ),
        ),
    ),
    Group(
        name="field",
        files={"s.py": VALUE.replace("\nVALUE", "\nfrom stoker import Secret\n\nVALUE")},
        call="stoker plan s.py",
        entries=(
            (
                "Retry(3, on_oom='halve batch-size')",
                'write it as in the function: "batch_size"',
                'Retry(3, on_oom="halve batch_size")',
            ),
            (
                "Retry(3, on_oom='scale memory 1')",
                "write a factor above 1, such as 2 or 1.5",
                "Retry(3, on_oom='scale memory 1.5')",
            ),
            ("Retry(3, on_oom=3)", 'write a list of "halve batch_size"', 'Retry(3, on_oom=["halve batch_size"])'),
            ("Retry(3, on='cancelled')", "remove it", "Retry(3)"),
            ("Monitor(idle_below=200)", "write a number above 0, up to 100", "Monitor(idle_below=100)"),
            ("PackageSettings(environment='venv')", 'write "pypi"', 'PackageSettings(environment="pypi")'),
            (
                "PackageSettings(index_url='https://me:secret@example.com/simple')",
                "write it without, and put the password into ~/.netrc",
                "PackageSettings(index_url='https://example.com/simple')",
            ),
            (
                "PackageSettings(pypi={'Six': '1', 'six': '2'})",
                "remove one of the two",
                "PackageSettings(pypi={'six': '2'})",
            ),
            (
                "PackageSettings(pypi={'six': '@'})",
                'write {"package": "@ https://…"}',
                "PackageSettings(pypi={'six': '@ https://example.com/six.whl'})",
            ),
            (
                "PackageSettings(pypi={'six': '1 --hash=x'})",
                'write "1.26.4", ">=1.26,<2", or ""',
                "PackageSettings(pypi={'six': \">=1.16,<2\"})",
            ),
            (
                "PackageSettings(conda={'six': '1 && reboot'})",
                'write "1.26.4", ">=1.26,<2", or ""',
                "PackageSettings(conda={'six': \"1.16.0\"})",
            ),
            ("Secret.env('A B')", "write secret:env:NAME", "Secret.parse('secret:env:NAME')"),
            ("Secret.parse('env:NAME')", "write secret:env:NAME", "Secret.parse('secret:env:NAME')"),
            (
                "KubernetesSettings(service_account='a', service_account_name='b')",
                "remove one of the two",
                "KubernetesSettings(service_account='a')",
            ),
            ("DeepSpeed(bind_core_list=['0,1'])", "write a list of names", "DeepSpeed(bind_core_list=['0', '1'])"),
            ("Accelerate(env=3)", "write [3]", "Accelerate(env=[3])"),
            ("Accelerate(monitor_interval='a')", "write a number, such as 0.5", "Accelerate(monitor_interval=0.5)"),
            (
                "Torchrun(nproc_per_node=2, processes_per_node=4)",
                "give the number of processes once",
                "Torchrun(nproc_per_node=2)",
            ),
        ),
    ),
    Group(
        name="body",
        files={"s.py": BODY.replace("\n@pipeline\n", ELSEWHERE)},
        call="stoker plan s.py:p",
        entries=(
            ("two(each([1, 2]))", "call .map(…) instead", "two.map(each([1, 2]))"),
            ("taken({1: one()})", "use texts as keys", "taken({'1': one()})"),
            (
                "one.with_options(id='a', after='b')(); one.with_options(id='b', after='a')()",
                "remove one of their after= or inputs",
                "one.with_options(id='a')(); one.with_options(id='b', after='a')()",
            ),
            ("two(kept[0])", "call that step in this pipeline too", "two(one())"),
            ("other.trace()", "call it, to nest it", "other()"),
        ),
    ),
    Group(
        name="pipeline in a pipeline",
        files={"s.py": PIPELINE + "@pipeline(dynamic=True)\ndef q():\n    one()\n\n@pipeline@@\ndef p():\n    q()\n"},
        call="stoker plan s.py:p",
        entries=(("", "write @pipeline(dynamic=True) on p", "(dynamic=True)"),),
    ),
    Group(
        name="definition of a step",
        files={"s.py": "from stoker.integrations.huggingface import run_with_accelerate\n" + DEFINED},
        call="stoker plan s.py:p",
        entries=(
            (
                "@step(launch='torchrun')\n@run_with_accelerate\ndef g():\n    return 1",
                "keep one of the two",
                "@step\n@run_with_accelerate\ndef g():\n    return 1",
            ),
            (
                "@step\ndef g() -> tuple[Annotated[int, ''], int]:\n    return 1, 1",
                'write Annotated[…, "name"]',
                '@step\ndef g() -> tuple[Annotated[int, "name"], int]:\n    return 1, 1',
            ),
        ),
    ),
    Group(
        name="line",
        files={"s.py": TWO, "rest.py": TAKES},
        call="@@",
        entries=(
            (
                "stoker plan rest.py --label --x",
                "write --label=--x if that is the value",
                "stoker plan rest.py --label=--x",
            ),
            ("stoker run s.py:p --tag 'a\tb'", "write letters, digits and signs", "stoker run s.py:p --tag a-b"),
            ("stoker plan s.py:p --pipeline q --n 1", "name one", "stoker plan s.py --pipeline q --n 1"),
            (
                "stoker plan s.py:p --with resources --simulate 1xH100",
                "write --with resources:gpu=1",
                "stoker plan s.py:p --with resources:gpu=1 --simulate 1xH100",
            ),
            (
                "stoker plan s.py:p --with resources:trainium=many --simulate 16xtrainium",
                "write trainium=16",
                "stoker plan s.py:p --with resources:trainium=16 --simulate 16xtrainium",
            ),
            (
                "stoker plan s.py:p --with resources:memory=-1",
                'write memory=4096 (MB) or memory="4GB"',
                "stoker plan s.py:p --with resources:memory=4096",
            ),
            (
                "stoker plan s.py:p --with resources:cpu=1,cpu_count=1",
                "remove one of the two",
                "stoker plan s.py:p --with resources:cpu=1",
            ),
            (
                "stoker plan rest.py --name x",
                "write --set parameters.name=…",
                "stoker plan rest.py --set parameters.name=x",
            ),
            ("stoker run s.py:p --detach --debug", "leave one of them out", "stoker run s.py:p --debug"),
            ("stoker plan --zzz s.py", "write s.py --zzz …", "stoker plan s.py:p"),
            ("stoker plan s.py:p --render=zzz", "--render alone prints", "stoker plan s.py:p --render"),
            ("stoker rerun", "write `stoker rerun latest`, for example", "stoker run s.py:p"),
            ("stoker migrate .", "name its files one by one", "stoker migrate s.py"),
            ("stoker build s.py:p --output x", "add --render", "stoker build s.py:p --output x --render"),
        ),
    ),
    Group(
        name="line after a run",
        files={"s.py": TWO.partition("@pipeline\ndef q")[0] + AFTER},
        call="python s.py",
        entries=(
            ("rerun --n latest", "write stoker rerun RUN --n …", "rerun latest --n 2"),
            ('rerun latest --from "a[0]"', "name a", "rerun latest --from a"),
            ("logs latest --raw --json", "leave one of them out", "logs latest --raw"),
            ("logs latest --attempt 1", "stoker logs latest STEP --attempt 1", "logs latest a --attempt 1"),
            ("metrics latest --csv --json", "leave one of the options out", "metrics latest --csv"),
            ("report latest --gpu", "stoker report latest STEP --gpu", "gpu latest"),
            ("report latest a --gpu", "`stoker gpu latest` lists the steps that held some", "gpu latest"),
            ("card latest a --output no/where.html", "name another: --output FILE", "card latest a --output page.html"),
        ),
    ),
    Group(
        name="flow's resources",
        files=flow(above="@@"),
        call="stoker plan f.py --simulate 8xH100",
        entries=(("@resources(gpu=True)", "write gpu=1", "@resources(gpu=1)"),),
    ),
    Group(
        name="stack of this machine",
        files={"s.py": TWO, "stoker.toml": "@@"},
        call="stoker plan s.py:p --stack x",
        entries=(
            (
                "[stacks.x]\nartifact_store = 'file://here'",
                'write "file:///absolute/here", or the path alone',
                "[stacks.x]\nartifact_store = 'here'",
            ),
        ),
    ),
    Group(
        name="step that runs",
        files={"s.py": WORK},
        call="python s.py",
        code=1,
        entries=(
            ("log_metadata({'a': object()})", "log texts, numbers, lists and dicts", "log_metadata({'a': ['a', 1]})"),
            (
                "log_metadata({'a': 'a' * 20_000})",
                "return it from the step as an artifact",
                "log_metadata({'a': 'output'})\n    return 'a' * 20_000",
            ),
            ("log_metrics({'a': [1, 2]})", "log one number", "log_metrics({'a': sum([1, 2]) / 2})"),
            ("log_metrics({1: 2})", "write names as texts", "log_metrics({'1': 2})"),
        ),
    ),
    Group(
        name="what a step returns",
        files={
            "s.py": WORK.replace("    @@\n    return 1", "    return 1").replace(
                "@step\ndef a() -> Any:\n    return 1", "@step\n@@"
            )
        },
        call="python s.py",
        code=1,
        entries=(
            ("def a() -> None:\n    return 1", "change the return annotation", "def a() -> int:\n    return 1"),
            (
                "def a() -> tuple[int, str]:\n    return 1",
                "return a tuple with one value for each output",
                "def a() -> tuple[int, str]:\n    return 1, 'a'",
            ),
        ),
    ),
    Group(
        name="script that a worker imports",
        files={"s.py": WORK.replace("@step\ndef a() -> Any:\n    @@\n    return 1", "@@")},
        call="python s.py",
        code=1,
        entries=(
            (
                "if __name__ != '__main__':\n    sys.exit(2)\n@step\ndef a():\n    return 1",
                'move line 8 below `if __name__ == "__main__":`',
                'if __name__ == "__main__":\n    len(sys.argv) > 1 and sys.exit(2)\n@step\ndef a():\n    return 1',
            ),
            (
                "if __name__ == '__main__':\n    @step\n    def a():\n        return 1",
                "define the step at module level, above the call of the pipeline",
                "@step\ndef a():\n    return 1",
            ),
        ),
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
        entries=(
            ("Secret.env('NOWHERE')", "export NOWHERE=… before the run is started", "Secret.env('HERE')"),
            ("Secret.file('nowhere')", "write the value into nowhere, with chmod 600", "Secret.file('token')"),
        ),
    ),
    Group(
        name="client",
        files={"s.py": CLIENT},
        call="python s.py",
        code=2,
        entries=(
            ("Client('local', store=client.store)", "Client('local')", "Client('local')"),
            ("client.runs(limit=-1)", "write 0 or more", "client.runs(limit=0)"),
            ("client.artifact('zzz')", "digests are in step.outputs", "client.artifact(step.outputs['left'].digest)"),
            ("client.artifact('4')", "write more of the digest", "client.artifact('4e')"),
            ("list(step.logs(rank='x'))", "write a number from 0", "list(step.logs(rank='launcher'))"),
            ("list(step.logs(rank=7))", "ask without a rank", "list(step.logs())"),
            ("list(step.logs(tail=-1))", "write 0 or more", "list(step.logs(tail=0))"),
            ("step.metrics['loss'].rank(3)", "choose of 0", "step.metrics['loss'].rank(0)"),
            ("step.output", "say which: step.outputs['left']", "step.outputs['left']"),
            ("len(step)", "its own results are in step.outputs", "len(step.outputs)"),
            (
                "run.steps['b'].output",
                "elements that succeeded have theirs: step[0].outputs",
                "run.steps['b'][0].outputs",
            ),
            ("run.steps['bad'].output", "see step.failure", "run.steps['bad'].failure"),
            (
                "list(run.steps['b'].logs(attempt=1))",
                "ask for an attempt of one: step[0].logs(…)",
                "list(run.steps['b'][0].logs(attempt=1))",
            ),
        ),
    ),
    Group(
        name="commands after a run",
        files={"s.py": COMMANDS},
        call="python s.py",
        env={"STOKER_SIMULATE": "2xH100"},
        entries=(
            ("logs latest b --attempt 1", 'stoker logs latest "b[0]" …', 'logs latest "b[0]" --attempt 1'),
            ("report latest b --gpu", 'stoker report latest "b[0]" --gpu', 'report latest "b[0]" --gpu'),
            ("why latest c --against {first}", "name another one: --against RUN", "why latest c --against {second}"),
        ),
    ),
    Group(
        name="run that goes on",
        files={"s.py": GOES_ON, "t.py": WAITS},
        call="python s.py",
        code=1,
        entries=(
            ("client.delete(run)", " first", "cancel(); client.delete(run)"),
            ("run.end_left_jobs()", "stoker cancel", "cancel(); run.end_left_jobs()"),
            (
                "run.steps['a'].output",
                "run.wait() until it is there",
                "Path('go').touch(); run.wait(); run.steps['a'].output",
            ),
        ),
    ),
    Group(
        name="run that failed",
        files={"s.py": FAILS},
        call="python s.py",
        code=1,
        entries=(
            (
                "p()",
                "STEP; stoker resume",
                "Path('there').touch(); stoker('logs', 'latest', 'a'); stoker('resume', 'latest')",
            ),
        ),
    ),
    Group(
        name="card",
        files={"x.png": "GIF89a"} | flow(above="@card", next="current.card.append(@@); self.next(self.end)"),
        call="python f.py run",
        code=0,
        entries=(
            ("'text'", 'write Markdown("…")', "Markdown('text')"),
            ("Image(b'no picture')", "read a file's bytes", "Image(Path(__file__).with_name('x.png').read_bytes())"),
            ("Image('x.png')", "read a file's bytes", "Image(Path(__file__).with_name('x.png').read_bytes())"),
            ("Image(b'GIF89a' + b' ' * 30_000_000)", "make it smaller", "Image(b'GIF89a')"),
            ("Table([1])", "write Table([[1, 2], [3, 4]], ['a', 'b'])", "Table([[1, 2], [3, 4]], ['a', 'b'])"),
            ("ProgressBar(max='many')", "write a number", "ProgressBar(max=3)"),
            ("ProgressBar(max=float('nan'))", "write a number", "ProgressBar(max=3)"),
            ("Frame('a' * 30_000_000)", "show less of it", "Frame('a' * 3_000)"),
        ),
    ),
    Group(
        name="plan with settings",
        files={"s.py": STEP.replace("@@", "resources=ResourceSettings(memory='900TB')")},
        call="stoker plan s.py @@",
        code=3,
        entries=(("", "--set steps.a.resources.memory=", "--set steps.a.resources.memory=1GB"),),
    ),
    Group(
        name="plugin",
        files={
            # In an interpreter of its own, which looks for parts of other distributions anew.
            "s.py": "import subprocess, sys\ncode = 'from stoker.cli.main import main; main()'\n"
            "words = ['plan', 't.py', '--set', 'steps.a.launch=mine']\n"
            "sys.exit(subprocess.run([sys.executable, '-c', code, *words]).returncode)\n",
            "t.py": STEP.replace("@@", ""),
            "good.py": "from stoker.launchers.command import LAUNCHER\n",
            "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
            "mine-1.0.dist-info/entry_points.txt": "[stoker.launchers]\nmine = @@\n",
        },
        call="python s.py",
        entries=(
            ("nowhere:LAUNCHER", "mend or uninstall the package 'mine'", "stoker.launchers.torchrun:LAUNCHER"),
            (
                "json:loads",
                "let the entry point in the group 'stoker.launchers' name",
                "stoker.launchers.torchrun:LAUNCHER",
            ),
        ),
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
        entries=(("sys.modules['libcst'] = None", "pip install 'stoker[migrate]'", "import libcst"),),
    ),
    Group(
        name="call in a script",
        files={"s.py": PIPELINE + "@pipeline(dynamic=True)\ndef p():\n    @@\n\nif __name__ == '__main__':\n    p()\n"},
        call="python s.py",
        entries=(("list(one.submit())", "iterate over .result()", "list(numbers.submit().result())"),),
    ),
    Group(
        name="call outside a pipeline",
        files={"s.py": PIPELINE + "if __name__ == '__main__':\n    @@\n"},
        call="python s.py",
        entries=(("one.submit()", "call the step like a function", "one()"),),
    ),
    Group(
        name="script with options of its own",
        files={
            "s.py": "import argparse\n" + TWO.partition("@pipeline\ndef q")[0] + "\nif __name__ == '__main__':\n"
            "    parser = argparse.ArgumentParser()\n    parser.add_argument('--name')\n"
            "    parser.parse_args()\n    p()\n"
        },
        call="stoker plan s.py @@",
        entries=(("--name x", "write the script's own behind `--`: FILE -- --name …", "-- --name x"),),
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
        entries=(
            (
                "import keyring",
                "keyring set SERVICE USER, for here/me",
                "import keyring\nkeyring.set_password('here', 'me', 'x')",
            ),
            (
                "import keyring\nkeyring.set_keyring(keyring.backends.fail.Keyring())",
                "unlock it, or set one up: keyring diagnose",
                "import keyring\nkeyring.set_password('here', 'me', 'x')",
            ),
            (
                "import sys\nsys.modules['keyring'] = None",
                "pip install 'stoker[keyring]'",
                "import keyring\nkeyring.set_password('here', 'me', 'x')",
            ),
        ),
    ),
    Group(
        name="ranks that run",
        files={"s.py": ALONE + WORK.replace("    @@\n", "    alone()\n").replace("@step", "@step(launch=@@)")},
        call="python s.py",
        code=1,
        entries=(
            (
                "Command(['env', 'RANK=x', 'WORLD_SIZE=2'])",
                "leave RANK as the launcher sets it",
                "Command(['env', 'A=x'])",
            ),
            (
                "Torchrun(nproc_per_node=2, outputs='main')",
                "say one_world=False in the launch",
                "Torchrun(nproc_per_node=2, one_world=False)",
            ),
        ),
    ),
)
