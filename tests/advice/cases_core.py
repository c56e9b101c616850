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
                'launch=Accelerate(use_parallelism_config=True, use_fsdp=True, fsdp_version="2"), '
                "resources=ResourceSettings(gpu_count=2)",
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
        files={"s.py": DEFINED},
        call="stoker plan s.py:p",
        entries=(
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
)
