"""Mistakes, what is said of each, and what becomes of the same program when that is done.

A group has a program with one gap, and the call that is made; a case of it is the mistake, what the fix says of it, and
what it says to write. Where the fix spells that out, the second is left empty, and the third must stand in the fix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import attrs

Entry = tuple[str, str, str]


@attrs.frozen(kw_only=True)
class Group:
    """Cases that share a program."""

    name: str
    files: Mapping[str, str]
    """`@@` stands where cases differ; in `call` and in `env`, too. A file of nothing else is not there without."""
    call: str
    """Several have "; " between them: the last one is it, and may stand on what those before it left."""
    code: int = 2
    """How the call ends with the mistake; it ends with 0 without. Where that is 0, too, it says the fix no more."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    entries: tuple[Entry, ...]


class Case(NamedTuple):
    """One mistake."""

    group: Group
    wrong: str
    fix: str
    """A part of what is said to do."""
    right: str

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.group.name}: {self.wrong or 'nothing'}".replace("\n", "; ")


def cases() -> Iterator[Case]:
    """Every case, those of the modules beside this one, too."""
    from tests.advice import cases_backends, cases_core, cases_flows

    for group in (*GROUPS, *cases_backends.GROUPS, *cases_core.GROUPS, *cases_flows.GROUPS):
        for wrong, fix, right in group.entries:
            yield Case(group, wrong, fix or right, right)


STEP = """
from stoker import pipeline, step
from stoker.config import *

@step(@@)
def a() -> int:
    return 1

@pipeline
def p():
    a()
"""
VALUE = """
from stoker import pipeline, step
from stoker.config import *

VALUE = @@

@step
def a() -> int:
    return 1

@pipeline
def p():
    a()
"""
PIPELINE = """
import concurrent.futures
from typing import Annotated
from stoker import each, pipeline, step

@step
def one() -> int:
    return 1

@step
def numbers() -> list[int]:
    return [1, 2]

@step
def two(x: int, y: int = 0) -> int:
    return x + y

@step
def text(x: str) -> str:
    return x

@step
def nothing() -> None:
    pass

@step
def pair() -> tuple[Annotated[int, "left"], Annotated[int, "right"]]:
    return 1, 2

"""
CALLS = (
    PIPELINE
    + """
@pipeline@@
"""
)
BODY = (
    PIPELINE
    + """
@pipeline
def p():
    @@
"""
)
DEFINED = (
    PIPELINE
    + """
@@

@pipeline
def p():
    g()
"""
)
TWO = """
from stoker import pipeline, step

@step
def a(n: int = 1) -> int:
    return n

@pipeline
def p(n: int = 1):
    a(n)

@pipeline
def q(n: int):
    a(n)
"""
FLOW = """
import threading
from pathlib import Path
from stoker.flow import *
from stoker.flow import FlowSpec, step

class F(FlowSpec):
    {member}
    {above}
    @step
    def start(self):
        {next}

    {more}

    @step
    def end(self):
        pass

if __name__ == "__main__":
    F()
"""
BRANCHES = """
    @step
    def a(self):
        self.x = 1
        self.next(self.j)

    @step
    def b(self):
        self.x = 2
        self.next(self.j)

    @step
    def j(self, inputs):
        {join}
        self.next(self.end)
"""
EACH = """
    @step
    def a(self):
        self.next(self.j)

    @step
    def j(self, inputs):
        self.next(self.end)
"""
WAYS = """
    @step
    def a(self):
        self.next(self.end)

    @step
    def b(self):
        self.next(self.end)
"""


def flow(member: str = "pass", above: str = "", next: str = "self.next(self.end)", more: str = "") -> dict[str, str]:
    """The file of a flow with a gap in one of its parts."""
    return {"f.py": FLOW.format(member=member, above=above, next=next, more=more.strip())}


ON = " --simulate 8xH100"

GROUPS: tuple[Group, ...] = (
    Group(
        name="step",
        files={"s.py": STEP},
        call="stoker plan s.py --simulate 8xH100",
        entries=(
            ("timeout='5 parsecs'", 'write a duration such as "2h", "1h30m", "90s"', "timeout='1h30m'"),
            ("timeout='5m 2h'", 'write a duration such as "2h", "1h30m", "90s"', "timeout='2h'"),
            ("timeout=-1", 'write a duration such as "2h", "1h30m", "90s"', "timeout=90"),
            ("timeout=0", 'write a duration such as "2h", "1h30m", "90s"', "timeout='500ms'"),
            ("timeout=True", 'write a duration such as "2h", "1h30m", "90s"', "timeout='90s'"),
            ("cache='sometimes'", "in Python True or False", "cache=True"),
            ("cache=None", "in Python True or False", "cache=False"),
            ("previews='yes'", "in Python True or False", "previews=True"),
            ("cache_key={1, 2}", "give text, numbers or lists", "cache_key=[1, 2]"),
            ("cache_expires=0", 'write a duration such as "2h", "1h30m", "90s"', "cache_expires='2h'"),
            ("track=3", "", 'track="tensorboard"'),
            ("track='wandb2'", "write 'tensorboard' or 'mlflow' or 'wandb'", "track='wandb'"),
            ("launch=5", 'write launch = "torchrun"', 'launch="torchrun"'),
            (
                "launch={'nproc_per_node': 2}",
                'launch.launcher="torchrun"',
                "launch={'nproc_per_node': 2, 'launcher': \"torchrun\"}",
            ),
            ("launch={'launcher': 3}", 'write launcher = "accelerate"', 'launch={"launcher": "accelerate"}'),
            ("settings=['a']", 'write {"resources": {"cpu_count": 4}}', 'settings={"resources": {"cpu_count": 1}}'),
            ("resources=2", "in Python ResourceSettings(…)", "resources=ResourceSettings(cpu_count=1)"),
            ("resources='big'", '{"cpu_count": …}', 'resources={"cpu_count": 1}'),
            (
                "settings={'retry': ResourceSettings(cpu_count=1)}",
                "put it under 'resources'",
                "settings={'resources': ResourceSettings(cpu_count=1)}",
            ),
            ("retry=3, settings={'retry': 2}", "remove one of the two", "retry=3"),
            ("environment=['A']", "in Python a dict", "environment={'A': '1'}"),
            ("name='a/b'", "use letters, digits, '_', '-' and spaces, such as train_2", "name='train_2'"),
            ("settings={'orchestrator': SlurmSettings(partition='gpu')}", "remove them", ""),
            (
                "resources=ResourceSettings(share=True)",
                'such as gpu_memory="10GB"',
                'resources=ResourceSettings(share=True, gpu_memory="10GB")',
            ),
            ("retry=Retry(on='gpu-oom')", "give times, such as Retry(3, on=…)", "retry=Retry(3, on='gpu-oom')"),
            (
                "packages=PackageSettings(pypi={'numpy': '1.x.y'})",
                'or ""',
                "packages=PackageSettings(pypi={'numpy': \"\"})",
            ),
            ("packages='numpy'", "in Python PackageSettings(…)", "packages=PackageSettings(pypi={'numpy': ''})"),
        ),
    ),
    Group(
        name="pipeline's option on a step",
        files={"s.py": VALUE.replace("@@", "1") + "\n\n@pipeline(@@)\ndef q():\n    a()\n"},
        call="stoker plan s.py:q",
        entries=(("tags='nightly'", "", 'tags=["nightly"]'),),
    ),
    Group(
        name="value",
        files={"s.py": VALUE},
        call="stoker plan s.py",
        entries=(
            ("ResourceSettings(memory='16')", 'write "16GB"', 'ResourceSettings(memory="16GB")'),
            (
                "ResourceSettings(memory='lots')",
                'write a size such as "16GB", "512MB", "1.5GiB"',
                "ResourceSettings(memory='1.5GiB')",
            ),
            (
                "ResourceSettings(memory='16XB')",
                'write a size such as "16GB", "512MB", "1.5GiB"',
                "ResourceSettings(memory='16GB')",
            ),
            (
                "ResourceSettings(memory=0)",
                'write a size such as "16GB", "512MB", "1.5GiB"',
                "ResourceSettings(memory='512MB')",
            ),
            ("ResourceSettings(memory='5000')", 'write "5000MB"', 'ResourceSettings(memory="5000MB")'),
            (
                "ResourceSettings(cpu_count='many')",
                "write a number above 0, such as 4 or 0.5",
                "ResourceSettings(cpu_count=0.5)",
            ),
            ("ResourceSettings(cpu_count=0)", "write a number above 0", "ResourceSettings(cpu_count=4)"),
            ("ResourceSettings(gpu_count=-1)", "write a whole number, 0 or more", "ResourceSettings(gpu_count=0)"),
            ("ResourceSettings(nodes='two')", "write a whole number, 1 or more", "ResourceSettings(nodes=1)"),
            ("ResourceSettings(gpus=2)", "gpu_count=2", "ResourceSettings(gpu_count=2)"),
            ("ResourceSettings(cpus=2)", "cpu_count=4", "ResourceSettings(cpu_count=4)"),
            ("ResourceSettings(gpu_type='H100')", "accelerators='H100:2'", "ResourceSettings(accelerators='H100:2')"),
            ("ResourceSettings(ram='1GB')", "memory='16GB'", "ResourceSettings(memory='16GB')"),
            ("ResourceSettings(shm='1GB')", "shared_memory='8GB'", "ResourceSettings(shared_memory='8GB')"),
            ("ResourceSettings(storage='1GB')", "disk='50GB'", "ResourceSettings(disk='50GB')"),
            ("ResourceSettings(replicas=2)", "nodes=2", "ResourceSettings(nodes=2)"),
            ("ResourceSettings(preemptible=True)", "spot=True", "ResourceSettings(spot=True)"),
            ("ResourceSettings(share='yes')", "True or False", "ResourceSettings(share=True)"),
            ("ResourceSettings(accelerators='2xH100')", 'write "H100:2"', 'ResourceSettings(accelerators="H100:2")'),
            ("ResourceSettings(accelerators='2:H100')", 'write "H100:2"', 'ResourceSettings(accelerators="H100:2")'),
            (
                "ResourceSettings(accelerators='H100:two')",
                'such as "H100:2"',
                'ResourceSettings(accelerators="H100:2")',
            ),
            ("ResourceSettings(accelerators='')", 'such as "H100:8"', 'ResourceSettings(accelerators="H100:8")'),
            ("ResourceSettings(accelerators=2)", 'such as "H100:8"', 'ResourceSettings(accelerators="H100:8")'),
            ("ResourceSettings(accelerators=[])", "leave it out to ask for none", "ResourceSettings()"),
            ("ResourceSettings(accelerators='v3-8')", 'write "tpu-v3:4"', 'ResourceSettings(accelerators="tpu-v3:4")'),
            ("ResourceSettings(accelerators='V100/1g.10gb')", 'write "V100"', 'ResourceSettings(accelerators="V100")'),
            (
                "ResourceSettings(accelerators='A100-SXM4-80GB-SHARED')",
                'write accelerators="A100-80GB", and gpu_memory="…", share=True',
                'ResourceSettings(accelerators="A100-80GB", gpu_memory="10GB", share=True)',
            ),
            (
                "ResourceSettings(extended=['a'])",
                'write {"example.com/fpga": 1}',
                'ResourceSettings(extended={"example.com/fpga": 1})',
            ),
            ("ResourceSettings(extended={'a': 'x'})", "write a number above 0", "ResourceSettings(extended={'a': 4})"),
            (
                "ResourceSettings(share=True, gpu_memory='10GB', gpu_count=2)",
                "ask for 1, or remove share",
                "ResourceSettings(share=True, gpu_memory='10GB', gpu_count=1)",
            ),
            (
                "ResourceSettings(accelerators='H100:2', gpu_count=4)",
                "gpu_count=4 and accelerators='H100'",
                "ResourceSettings(gpu_count=4, accelerators='H100')",
            ),
            (
                "ResourceSettings(accelerators='H100', gpu_memory='200GB')",
                "remove one of the two",
                "ResourceSettings(accelerators='H100')",
            ),
            (
                "ResourceSettings(accelerators='H100', gpu_vendor='amd')",
                "remove gpu_vendor",
                "ResourceSettings(accelerators='H100')",
            ),
            (
                "ResourceSettings(accelerators='H100', gpu_count=0)",
                "or set accelerators=None",
                "ResourceSettings(accelerators=None, gpu_count=0)",
            ),
            (
                "ResourceSettings(gpu_count=1.5)",
                'gpu_memory="10GB" with share=True',
                'ResourceSettings(gpu_memory="10GB", share=True)',
            ),
            ("ResourceSettings(4)", "ResourceSettings(cpu_count=…)", "ResourceSettings(cpu_count=4)"),
            ("Retry(jitter=2)", "such as 0.1", "Retry(jitter=0.1)"),
            ("Retry(times=-1)", "write a whole number, 0 or more", "Retry(times=0)"),
            ("Retry(3, on_oom='halve')", 'write "halve batch_size"', 'Retry(3, on_oom="halve batch_size")'),
            ("Retry(backoff=0.5)", "write 1 or more", "Retry(backoff=1)"),
            ("Monitor(interval=0.001)", "write 0.05 seconds or more", "Monitor(interval=0.05)"),
            ("Torchrun(nproc_per_node='two')", "such as 2", "Torchrun(nproc_per_node=2)"),
            ("Torchrun(max_restarts=-1)", "write a number 0 or more", "Torchrun(max_restarts=0)"),
            ("Torchrun(standalone='yes')", "True or False", "Torchrun(standalone=True)"),
            ("Torchrun(rdzv_conf='a')", 'write "timeout=60,keep=1"', 'Torchrun(rdzv_conf="timeout=60,keep=1")'),
            ("Torchrun(rdzv_conf=3)", 'write {"timeout": 60}', 'Torchrun(rdzv_conf={"timeout": 60})'),
            ("Torchrun(module=True)", "remove it", "Torchrun()"),
            ("Torchrun(outputs='x')", 'write "main" or "all"', 'Torchrun(outputs="main")'),
            ("Accelerate(zero_stage=4)", "write a number from 0 to 3", "Accelerate(zero_stage=3)"),
            ("DeepSpeed(include='a')", "remove it", "DeepSpeed()"),
            ("Command('my-launcher')", "write ['my-launcher']", "Command(['my-launcher'])"),
            ("Command([])", 'write ["my-launcher", "--option"]', 'Command(["my-launcher", "--option"])'),
            ("Command(command=3)", "write a list of words", "Command(command=['my'])"),
            ("DockerSettings(python_version=3.11)", 'such as "3.11"', 'DockerSettings(python_version="3.11")'),
            ("DockerSettings(python_version='2.7')", 'write "3.10" or later', 'DockerSettings(python_version="3.10")'),
            (
                "DockerSettings(python_package_installer='conda')",
                'write "uv" or "pip"',
                'DockerSettings(python_package_installer="uv")',
            ),
            ("DockerSettings(apt_packages='git')", "write ['git']", "DockerSettings(apt_packages=['git'])"),
            ("DockerSettings(build_config=3)", "in Python a dict", "DockerSettings(build_config={})"),
            ("DockerSettings(skip_build='yes')", "True or False", "DockerSettings(skip_build=True)"),
            ("DockerSettings(user=1000)", 'write "1000" in quotes', 'DockerSettings(user="1000")'),
            (
                "DockerSettings(build_options=['x'])",
                'write build_config={"options": {…}}',
                'DockerSettings(build_config={"options": {}})',
            ),
            (
                "DockerSettings(required_integrations=['a'])",
                'requirements: ["torch", "wandb"]',
                'DockerSettings(requirements=["torch", "wandb"])',
            ),
            ("PackageSettings(pypi=['numpy'])", "in Python a dict", "PackageSettings(pypi={'numpy': '1.2'})"),
            (
                "PackageSettings(pypi={'numpy': 1.2})",
                'write "1.2" in quotes',
                "PackageSettings(pypi={'numpy': \"1.2\"})",
            ),
            (
                "PackageSettings(pypi={'a b': '1'})",
                'write {"numpy": "1.26.4"}',
                'PackageSettings(pypi={"numpy": "1.26.4"})',
            ),
            (
                "PackageSettings(conda={'a b': '1'})",
                'write "numpy", or "conda-forge::numpy"',
                'PackageSettings(conda={"conda-forge::numpy": "1"})',
            ),
            ("PackageSettings({'numpy': ''})", "PackageSettings(pypi=…)", "PackageSettings(pypi={'numpy': ''})"),
            ("PackageSettings(channels='x')", "write ['x']", "PackageSettings(channels=['x'])"),
            (
                "KubernetesSettings(labels='x')",
                'write {"pool": "gpu"} or "pool=gpu"',
                'KubernetesSettings(labels="pool=gpu")',
            ),
            ("KubernetesSettings(labels=['x'])", 'write {"pool": "gpu"}', 'KubernetesSettings(labels={"pool": "gpu"})'),
            (
                "KubernetesSettings(image='a b')",
                "such as python:3.11-slim",
                "KubernetesSettings(image='python:3.11-slim')",
            ),
            ("KubernetesSettings(host_network='yes')", "True or False", "KubernetesSettings(host_network=True)"),
            ("KubernetesSettings(volumes=['x'])", 'write [{"name": …}]', 'KubernetesSettings(volumes=[{"name": "x"}])'),
            (
                "KubernetesSettings(volumes=[{'a': 1}])",
                'write {"name": "data", …}',
                'KubernetesSettings(volumes=[{"name": "data"}])',
            ),
            ("KubernetesSettings(efa=-1)", "write a whole number, 0 or more", "KubernetesSettings(efa=1)"),
            (
                "KubernetesSettings(pools='x')",
                'write [{"name": "h100", "accelerators": "H100:8", "nodes": 4}]',
                'KubernetesSettings(pools=[{"name": "h100", "accelerators": "H100:8", "nodes": 4}])',
            ),
            (
                "KubernetesSettings(driver={'x': 1})",
                "it takes image",
                "KubernetesSettings(driver={'image': 'python:3.11'})",
            ),
            (
                "KubernetesSettings(resource_names={'nvidia': 'x'})",
                'write "nvidia.com/gpu"',
                'KubernetesSettings(resource_names={"nvidia": "nvidia.com/gpu"})',
            ),
            (
                "KubernetesSettings(accelerators={'H100': 3})",
                'write {"pool": "gpu"}',
                'KubernetesSettings(accelerators={"H100": {"pool": "gpu"}})',
            ),
            ("KubernetesSettings(port=70000)", "write a number up to 65535", "KubernetesSettings(port=65535)"),
            (
                "KubernetesSettings(namespace='A B')",
                "write up to 63 small letters, digits and dashes",
                "KubernetesSettings(namespace='a-b')",
            ),
            ("SlurmSettings(folder='x')", 'write "/shared/me/slurm" or "~/slurm"', 'SlurmSettings(folder="~/slurm")'),
            ("SlurmSettings(partition='a b')", "or a list of names", "SlurmSettings(partition=['a', 'b'])"),
            (
                "SlurmSettings(time_limit='soon')",
                'write a duration such as "2h", "1h30m", "90s"',
                "SlurmSettings(time_limit='2h')",
            ),
            (
                "SlurmSettings(gres_types={'H100:2': 'x'})",
                'name the kind alone: "H100"',
                'SlurmSettings(gres_types={"H100": "h100"})',
            ),
            (
                "SlurmSettings(options={'partition': 'a'})",
                "partition=… of SlurmSettings",
                "SlurmSettings(partition='a')",
            ),
            (
                "SlurmSettings(dependency='x')",
                'options = { "dependency" = … }',
                'SlurmSettings(options={"dependency": "x"})',
            ),
            ("SlurmSettings(exclude=3)", "write ['3']", "SlurmSettings(exclude=['3'])"),
            ("SlurmSettings(host='x')", 'write "ssh://x"', 'SlurmSettings(host="ssh://x")'),
            ("SlurmSettings(host='ssh://me:pw@x')", "take it out", "SlurmSettings(host='ssh://me@x')"),
            ("SlurmSettings(python='3.11')", 'write "python3.11"', 'SlurmSettings(python="python3.11")'),
            ("SlurmSettings(max_jobs=0)", "write a whole number, 1 or more", "SlurmSettings(max_jobs=1)"),
            ("BatchSettings(queue='a b')", "write its name, or its ARN", "BatchSettings(queue='a-b')"),
            ("SagemakerSettings(keep_alive=99999)", "write 1 to 3600", "SagemakerSettings(keep_alive=3600)"),
            (
                "SagemakerSettings(instance_type='ml.zzz')",
                'write "ml.g5.xlarge"',
                'SagemakerSettings(instance_type="ml.g5.xlarge")',
            ),
            ("SkypilotSettings(cpus='x')", 'write "4" for exactly 4', 'SkypilotSettings(cpus="4+")'),
            ("SkypilotSettings(memory='x')", '"16+" for at least 16', 'SkypilotSettings(memory="16+")'),
            (
                "SkypilotSettings(disk_size='x')",
                'write a size such as "16GB", "512MB", "1.5GiB"',
                'SkypilotSettings(disk_size="512GB")',
            ),
            (
                "SkypilotSettings(infra='aws:us-east-1')",
                'write infra="aws/us-east-1"',
                'SkypilotSettings(infra="aws/us-east-1")',
            ),
            (
                "SkypilotSettings(any_of='x')",
                'write [{"infra": "aws"}, {"infra": "gcp"}]',
                'SkypilotSettings(any_of=[{"infra": "aws"}, {"infra": "gcp"}])',
            ),
            (
                "SkypilotSettings(ports='x')",
                'write 8080, or "9000-9010"',
                'SkypilotSettings(ports=[8080, "9000-9010"])',
            ),
            (
                "SkypilotSettings(idle_minutes_to_autostop=0)",
                "write at least 1 minute",
                "SkypilotSettings(idle_minutes_to_autostop=1)",
            ),
            (
                "SkypilotSettings(autostop=3)",
                "idle_minutes_to_autostop and down",
                "SkypilotSettings(idle_minutes_to_autostop=3, down=True)",
            ),
            ("RaySettings(address='x')", 'such as "http://head:8265"', 'RaySettings(address="http://head:8265")'),
            ("RaySettings(headers={'A': 3})", 'or "env:NAME" for a secret', 'RaySettings(headers={"A": "env:NAME"})'),
            ("RaySettings(gpu_fraction=2)", "such as 0.5", "RaySettings(gpu_fraction=0.5)"),
            ("RaySettings(runtime_env={'working_dir': 'x'})", "leave it out", "RaySettings(runtime_env={})"),
            (
                "RaySettings(runtime_env={'pip': 'numpy'})",
                'pip = ["six==1.16.0"]',
                'RaySettings(runtime_env={"pip": ["six==1.16.0"]})',
            ),
            ("RaySettings(token='x')", 'write "env:NAME" or a path', 'RaySettings(token="env:NAME")'),
            ("RaySettings(verify='false')", "in Python False, without quotes", "RaySettings(verify=False)"),
            (
                "RaySettings(env_vars={'A': 'b'})",
                "runtime_env = { env_vars = … }",
                'RaySettings(runtime_env={"env_vars": {"A": "b"}})',
            ),
            (
                "RaySettings(runtime_env={'pip': ['a'], 'conda': 'b'})",
                "remove the others",
                "RaySettings(runtime_env={'pip': ['a']})",
            ),
            ("KubeflowSettings(host='x')", "write https://x", "KubeflowSettings(host='https://x')"),
            ("ContainerSettings(user='a b c')", 'write "1000:1000"', 'ContainerSettings(user="1000:1000")'),
            ("ContainerSettings(mounts='x')", "write ['x']", "ContainerSettings(mounts=['/x:/x'])"),
        ),
    ),
    Group(
        name="call",
        files={"s.py": BODY},
        call="stoker plan s.py",
        entries=(
            ("two()", "give x=…", "two(x=1)"),
            ("two.map([1, 2], [1, 2, 3])", "make them equally long", "two.map([1, 2], [1, 2])"),
            ("two.map([1, 2], [1])", "over by keyword", "two.map([1, 2], y=1)"),
            ("two.map(5)", "give a list", "two.map([5])"),
            ("two.map(x=5)", "or as name=each(list)", "two.map(x=each([5]))"),
            ("two.map(one())", "or return a list from that step", "two.map(numbers())"),
            ("for n in numbers(): two(n)", "call .map(…) for one call for each element", "two.map(numbers())"),
            ("two(len(numbers()))", "call .map(…)", "two.map(numbers())"),
            ("text(one())", "put a step between them that converts", "text(text('1'))"),
            ("two(pair())", 'such as result["left"]', 'two(pair()["left"])'),
            ("two(nothing())", "use .with_options(after=…)", "two.with_options(after=nothing())(1)"),
            ("two({one()})", "use a list", "text.map([text('a')])"),
            (
                "one.with_options(id='a')(); one.with_options(id='a')()",
                "give one of them another id=",
                "one.with_options(id='a')(); one.with_options(id='b')()",
            ),
            ("one.submit()", "call the step itself", "one()"),
            ("pass", "call a function that has @step in it", "one()"),
            ("p()", "or write a loop", "one()"),
        ),
    ),
    Group(
        name="definition",
        files={"s.py": DEFINED},
        call="stoker plan s.py:p",
        entries=(
            (
                "@step\ndef g():\n    yield 1",
                "collect it into a list and return that",
                "@step\ndef g():\n    return [1]",
            ),
            (
                "@step\nasync def g():\n    return 1",
                "asyncio.run(…) inside",
                "import asyncio\n@step\ndef g():\n    async def f():\n        return 1\n    return asyncio.run(f())",
            ),
            (
                "@step\ndef h(*xs):\n    return 1\ng = one",
                "or take a list",
                "@step\ndef h(xs: list):\n    return 1\ng = one",
            ),
            ("@step\nclass g:\n    pass", "put @step on a function (def) at module level", "@step\ndef g():\n    pass"),
            (
                "class C:\n    @step\n    def g(self):\n        return 1\ng = C().g",
                "hand over what it needs of self as parameters",
                "@step\ndef g(me: int = 1):\n    return me",
            ),
            (
                "class C:\n    @step\n    @staticmethod\n    def g():\n        return 1\ng = C.g",
                "at module level",
                "@step\ndef g():\n    return 1",
            ),
            ("g = step(lambda: 1)", "write it with def", "@step\ndef g():\n    return 1"),
            ("@step\n@step\ndef g():\n    return 1", "remove one @step", "@step\ndef g():\n    return 1"),
            (
                "@step\ndef g() -> tuple[Annotated[int, 'a'], Annotated[int, 'a']]:\n    return 1, 1",
                "give one another name",
                "@step\ndef g() -> tuple[Annotated[int, 'a'], Annotated[int, 'b']]:\n    return 1, 1",
            ),
            (
                "def f():\n    @step\n    def g():\n        return 1\n    return g\ng = f()",
                "define it with def at module level",
                "@step\ndef g():\n    return 1",
            ),
            (
                "@step(failure_mode='continue')\ndef g():\n    return 1",
                "give failure_mode to @pipeline",
                "@step\ndef g():\n    return 1\n@pipeline(failure_mode='continue')\ndef inner():\n    g()",
            ),
            (
                "@pipeline\n@pipeline\ndef g():\n    one()",
                "remove one of the two decorators",
                "@pipeline\ndef g():\n    one()",
            ),
            ("g = pipeline(lambda: one())", "write it with def", "@pipeline\ndef g():\n    one()"),
            ("@pipeline\nasync def g():\n    one()", "write a plain function", "@pipeline\ndef g():\n    one()"),
            ("@pipeline\ndef g(*a):\n    one()", "name every parameter", "@pipeline\ndef g(a: int = 1):\n    one()"),
        ),
    ),
    Group(
        name="stoker.toml",
        files={"s.py": TWO.partition("@pipeline\ndef q")[0], "stoker.toml": "@@"},
        call="stoker plan s.py --stack x",
        entries=(
            ("[stacks]\nx = 3", "write [stacks.name]", "[stacks.x]"),
            (
                "[stacks.x]\norchestrator = 3",
                'write orchestrator = {flavor = "local"}',
                '[stacks.x]\norchestrator = {flavor = "local"}',
            ),
            (
                "[stacks.x]\nstep_operators.gpu = 3",
                'write step_operators.gpu = {flavor = "local"}',
                '[stacks.x]\nstep_operators.gpu = {flavor = "local"}',
            ),
            (
                "[stacks.x]\norchestrater = 'local'",
                "stand below [stacks.x.settings]",
                "[stacks.x]\n[stacks.x.settings]\nretry = 3",
            ),
            (
                "[stacks.x]\nreconnect = 'soon'",
                'write a duration such as "2h", "1h30m", "90s"',
                "[stacks.x]\nreconnect = '2h'",
            ),
            ("[stacks.x]\nreconnect = true", 'write reconnect = "10m"', '[stacks.x]\nreconnect = "10m"'),
            ("[stacks.x]\nshared = 'yes'", "write shared = true", "[stacks.x]\nshared = true"),
            (
                "[stacks.x]\nstep_operators = 'local'",
                "write step_operators.name = …",
                "[stacks.x]\nstep_operators.name = 'local'",
            ),
            ("[stacks.x]\nsettings = 3", "write [stacks.x.settings]", "[stacks.x]\n[stacks.x.settings]"),
            (
                "[stacks.x]\n[stacks.x.settings]\nretry = 'x'",
                "write a whole number, 0 or more",
                "[stacks.x]\n[stacks.x.settings]\nretry = 3",
            ),
            ("[stacks.y]", "write [stacks.x] in stoker.toml", "[stacks.y]\n[stacks.x]"),
            (
                "[stacks.x]\ncontainer_registry = 'a b'",
                'write container_registry = {flavor = "default", uri = "registry.example.com/team"}',
                '[stacks.x]\ncontainer_registry = {flavor = "default", uri = "registry.example.com/team"}',
            ),
            (
                "[stacks.x]\ncontainer_registry = {flavor = 'dockerhub'}",
                'write container_registry = {flavor = "dockerhub", uri = "docker.io/NAMESPACE"}',
                '[stacks.x]\ncontainer_registry = {flavor = "dockerhub", uri = "docker.io/team"}',
            ),
            (
                "[stacks.x]\nimage_builder = {flavor = 'kaniko', context = 'x'}",
                'or "tar://stdin"',
                "[stacks.x]\nimage_builder = {flavor = 'kaniko', context = \"tar://stdin\"}",
            ),
        ),
    ),
    Group(
        name="stoker.toml's database",
        files={"s.py": TWO.partition("@pipeline\ndef q")[0], "stoker.toml": "@@"},
        call="stoker plan s.py --stack x",
        code=4,
        entries=(
            (
                "[stacks.x]\ndatabase = 'mysql://x'",
                "write sqlite:///path/to/stoker.db",
                "[stacks.x]\ndatabase = 'sqlite:///stoker.db'",
            ),
        ),
    ),
    Group(
        name="command",
        files={"s.py": TWO, "m.py": "print(1)\n"},
        call="@@",
        entries=(
            ("stoker plan s.py", "name one: s.py:p", "stoker plan s.py:p"),
            ("stoker plan s.py:q", "add --n …", "stoker plan s.py:q --n 3"),
            ("stoker plan", "write `stoker plan train.py`", "stoker plan s.py:p"),
            ("stoker run", "write `stoker run train.py`", "stoker run s.py:p"),
            ("stoker plan .", "name a Python file in it", "stoker plan s.py:p"),
            ("stoker plan m.py", "put @pipeline on a function that calls steps", "stoker plan s.py:p"),
            (
                "stoker plan s.py:p --set retry",
                "write --set steps.train.resources.gpu_count=4",
                "stoker plan s.py:p --set steps.a.resources.gpu_count=0",
            ),
            (
                "stoker plan s.py:p --set steps.a.resources=3",
                'write its fields: {"cpu_count": …}',
                "stoker plan s.py:p --set steps.a.resources.cpu_count=1",
            ),
            ("stoker plan s.py:p --with", "write --with BACKEND", "stoker plan s.py:p --with local"),
            (
                "stoker plan s.py:p --with gpu",
                "write --with BACKEND[:field=value,…]",
                "stoker plan s.py:p --with local",
            ),
            (
                "stoker plan s.py:p --with local:cpus",
                "write local:cpus=VALUE",
                "stoker plan s.py:p --with local:cpus=1",
            ),
            ("stoker plan s.py:p --with local --with inline", "keep one of the two", "stoker plan s.py:p --with local"),
            ("stoker plan s.py:p --with local:cpu=1,cpu=2", "say it once", "stoker plan s.py:p --with local:cpu=1"),
            ("stoker plan s.py:p 3", "write --parameter value", "stoker plan s.py:p --n 3"),
            ("stoker plan s.py:p --json=3", "write --json alone", "stoker plan s.py:p --json"),
            ("stoker plan s.py:p --n", "write --n int", "stoker plan s.py:p --n 3"),
            ("stoker show latest", "or `stoker run FILE`", "stoker run s.py:p"),
            ("stoker show zzz", "`stoker runs` lists them", "stoker runs"),
            ("stoker explain STK999", "`stoker explain` lists them", "stoker explain"),
            (
                "stoker gc --older-than soon",
                'write a duration such as "2h", "1h30m", "90s"',
                "stoker gc --older-than 2h",
            ),
            ("stoker devices --release 3", "`stoker devices` shows which are", "stoker devices"),
            ("stoker build s.py", "name one: s.py:p", "stoker build s.py:p"),
            ("stoker rerun latest --code orig", "write --code original", "stoker plan s.py:p"),
        ),
    ),
    Group(
        name="flow's step",
        files=flow(next="@@"),
        call="stoker plan f.py",
        entries=(
            ("pass", "end it with self.next(self.another_step)", "self.next(self.end)"),
            ("self.next(end)", "write self.next(self.another_step)", "self.next(self.end)"),
            ("self.next()", "write self.next(self.another_step)", "self.next(self.end)"),
            ("self.next('end')", "write self.next(self.end)", "self.next(self.end)"),
            ("self.next(self.fin)", "or name another step", "self.next(self.end)"),
            ("if 1: self.next(self.end)", "end the step with one self.next(…)", "self.next(self.end)"),
            ("self.next(self.start)", "let another step end with self.next(self.end)", "self.next(self.end)"),
        ),
    ),
    Group(
        name="flow's foreach",
        files=flow(next="@@", more=EACH),
        call="stoker plan f.py",
        entries=(
            (
                "self.items = [1]; self.next(self.a, foreach=self.items)",
                "write foreach='items', and set self.items before",
                "self.items = [1]; self.next(self.a, foreach='items')",
            ),
            (
                "self.next(self.a, foreach='x', num_parallel=2)",
                "give one of them",
                "self.x = [1]; self.next(self.a, foreach='x')",
            ),
        ),
    ),
    Group(
        name="flow's join",
        files=flow(
            next="self.next(self.a, self.b)", more="@@".join(BRANCHES.format(join="pass").split("(self, inputs)"))
        ),
        call="stoker plan f.py",
        entries=(("(self)", "write `def j(self, inputs):`", "(self, inputs)"),),
    ),
    Group(
        name="flow's switch",
        files=flow(next="@@", more=WAYS),
        call="stoker plan f.py",
        entries=(
            (
                "self.c = 1; self.next({1: self.a, 2: self.b})",
                "condition='attribute'",
                "self.attribute = 'a'; self.next({'a': self.a, 'b': self.b}, condition='attribute')",
            ),
        ),
    ),
    Group(
        name="flow that ends",
        files={name: text.replace("pass\n\nif", "@@\n\nif") for name, text in flow(next="self.next(self.end)").items()},
        call="stoker plan f.py",
        entries=(("self.next(self.end)", "remove self.next", "pass"),),
    ),
    Group(
        name="flow's decorator",
        files=flow(above="@@"),
        call="stoker plan f.py",
        entries=(
            ("@retry(times='x')", "write times=3", "@retry(times=3)"),
            (
                "@retry(3)",
                "write @retry(times=…, minutes_between_retries=…)",
                "@retry(times=3, minutes_between_retries=1)",
            ),
            ("@timeout", "write @timeout(minutes=10)", "@timeout(minutes=10)"),
            ("@resources(cpu='many')", "write a number above 0, such as 4 or 0.5", "@resources(cpu=0.5)"),
            ("@environment(vars=['a'])", 'write vars={"NAME": "value"}', '@environment(vars={"NAME": "value"})'),
            ("@catch(var=3)", 'write var="failure"', '@catch(var="failure")'),
            ("@card(type=3)", 'write type="default"', '@card(type="default")'),
            ("@card(id=3)", 'write id="metrics"', '@card(id="metrics")'),
            ("@checkpoint(load_policy='x')", 'write "fresh", "eager" or "none"', '@checkpoint(load_policy="fresh")'),
            ("@pypi(packages=['numpy'])", 'write {"numpy": "1.26.4"}', '@pypi(packages={"numpy": ""})'),
            ("@pypi(python=3.11)", 'write a text such as "3.11"', '@pypi(python="3.11")'),
            ("@gpu_profile(interval='x')", "write interval=1", "@gpu_profile(interval=1)"),
        ),
    ),
    Group(
        name="flow's member",
        files=flow(member="@@"),
        call="stoker plan f.py",
        entries=(
            ("alpha = Parameter('alpha', type='int')", "write type=int", "alpha = Parameter('alpha', type=int)"),
            ("alpha = Parameter('a b')", 'name it by letters, digits, "-" and "_"', "alpha = Parameter('a-b')"),
        ),
    ),
    Group(
        name="flow's parameter",
        files=flow(member="alpha = Parameter('alpha', required=True, type=int)"),
        call="@@",
        entries=(("python f.py run", "add --alpha …", "python f.py run --alpha 3"),),
    ),
    Group(
        name="flow's class",
        files={name: text.replace("class F", "@@\nclass F") for name, text in flow().items()},
        call="stoker plan f.py",
        entries=(
            ("@project(name='A B')", "use small letters, digits and _", "@project(name='a_b')"),
            ("@project", "use small letters, digits and _", "@project(name='a_b')"),
            ("@conda_base(python=3.1)", 'such as "3.11"', '@conda_base(python="3.11")'),
        ),
    ),
    Group(
        name="flow that runs a foreach",
        files=flow(next="@@; self.next(self.a, foreach='items')", more=EACH),
        call="python f.py run",
        code=1,
        entries=(
            ("pass", "set self.items", "self.items = [1]"),
            (
                "self.items = 5",
                "set it to a list: self.items = [self.items]",
                "self.items = 5; self.items = [self.items]",
            ),
            (
                "self.items = {1: 2}",
                "self.items = list(self.items)",
                "self.items = {1: 2}; self.items = list(self.items)",
            ),
        ),
    ),
    Group(
        name="flow that runs a switch",
        files=flow(next="@@; self.next({1: self.a, 2: self.b}, condition='c')", more=WAYS),
        call="python f.py run",
        code=1,
        entries=(
            ("pass", "set self.c", "self.c = 1"),
            ("self.c = 7", "set self.c to one of these", "self.c = 1"),
        ),
    ),
    Group(
        name="flow that merges",
        files=flow(next="self.next(self.a, self.b)", more=BRANCHES.format(join="@@")),
        call="python f.py run",
        code=1,
        entries=(
            (
                "self.merge_artifacts(inputs)",
                "self.merge_artifacts(…, exclude=['x'])",
                "self.merge_artifacts(inputs, exclude=['x'])",
            ),
            (
                "self.merge_artifacts(inputs, exclude='x')",
                "write exclude=['x']",
                "self.merge_artifacts(inputs, exclude=['x'])",
            ),
            (
                "self.merge_artifacts(inputs); self.x = 1",
                "set self.x before it",
                "self.x = 1; self.merge_artifacts(inputs)",
            ),
        ),
    ),
    Group(
        name="replaced function",
        files={
            "s.py": "import json, time\n" + VALUE.replace("@@", "1") + '\n\n@@\n\nif __name__ == "__main__":\n    p()\n'
        },
        call="python s.py",
        entries=(
            (
                "json.dumps = lambda *a, **k: 5",
                "let them answer as Python's own do",
                "real = json.dumps\njson.dumps = lambda *a, **k: real(*a, **k)",
            ),
            (
                "time.time = lambda: 'now'",
                "let them answer as Python's own do",
                "real = time.time\ntime.time = lambda: real()",
            ),
        ),
    ),
)
