"""Cases of settings of platforms: what `stoker plan` refuses before a platform is asked anything."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.advice.cases import VALUE, Group, flow

BESIDE = """
from stoker import pipeline, step
from stoker.config import *


def asks(platform=None, **of_the_step):
    return of_the_step


@step(**asks(@@))
def a() -> int:
    return 1


@pipeline
def p():
    a()
"""
CALLED = """
from stoker import pipeline, step
from stoker.config import *


@step
def a(x: object) -> int:
    return 1


@pipeline
def p():
    @@
"""


INNER = (
    CALLED.partition("@pipeline")[0]
    + """
inside, outside = @@


@pipeline(**inside)
def inner():
    a(1)


@pipeline(**outside)
def p():
    inner()
"""
)
ARCHIVE = f"""
import os, sys, zipfile
STEPS = {CALLED.replace("@@", "a(1)")!r}
main, others = @@
with zipfile.ZipFile("app.pyz", "w") as archive:
    archive.writestr("__main__.py", main + "\\nif __name__ == '__main__': p()")
    archive.writestr("others.py", others)
os.execv(sys.executable, [sys.executable, "app.pyz"])
"""


def here(kind: str, *entries: tuple[str, str, str]) -> tuple[tuple[str, str, str], ...]:
    """Cases that are mended in the same settings, which stand in the entries without their class."""
    return tuple((f"{kind}({wrong})", fix, f"{kind}({right})") for wrong, fix, right in entries)


ANOTHER = "3.13" if sys.version_info[:2] == (3, 12) else "3.12"
"""A Python that is not this one."""
WITH_UV = str(Path(sys.executable).parent)
ARM = "manylinux_2_17_aarch64"
LINUX = "manylinux_2_17_x86_64"
FLASH = "https://x/flash_attn-2.6.3+cu122torch{}cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"


def wheel(tag: str, version: str = "1.0") -> str:
    """Settings that install a wheel into an image with Python 3.11."""
    return asked("python:3.11-slim", f"https://x/thing-{version}-{tag}.whl")


def asked(parent: str, *requirements: str) -> str:
    """Settings of an image with requirements."""
    return f"docker=DockerSettings(parent_image={parent!r}, requirements={list(requirements)})"


IMAGES: tuple[Group, ...] = (
    Group(
        name="packages of an image",
        files={"s.py": BESIDE.replace("@@", "resources=ResourceSettings(gpu_count=1), @@")},
        call="stoker plan s.py --with docker --simulate '1xH100;driver=580.95.05'",
        code=3,
        entries=(
            (
                asked("python:3.11-slim", "torch==2.4.0+cu124", "torchvision==0.19.0+cpu"),
                "give both one suffix",
                asked("python:3.11-slim", "torch==2.4.0+cu124", "torchvision==0.19.0+cu124"),
            ),
            (
                asked("python:3.11-slim", "torch==2.5.1", "nvidia-cudnn-cu12==8.9.7.29"),
                "leave nvidia-cudnn-cu12 out",
                asked("python:3.11-slim", "torch==2.5.1"),
            ),
            (
                asked("python:3.11-slim", "jax[cuda12]==0.8.0", "jax-cuda13-plugin==0.8.0"),
                'require "jax[cuda13]" alone',
                asked("python:3.11-slim", "jax[cuda13]==0.8.0"),
            ),
            (
                asked("python:3.11-slim", "jax[cuda12]==0.6.2", "jax-cuda12-plugin==0.6.0"),
                "require jax-cuda12-plugin==0.6.2",
                asked("python:3.11-slim", "jax[cuda12]==0.6.2", "jax-cuda12-plugin==0.6.2"),
            ),
            (
                asked("python:3.11-slim", "torch==2.4.0+cu121", "torchvision==0.19.0+cu118"),
                "torchvision+cu121",
                asked("python:3.11-slim", "torch==2.4.0+cu121", "torchvision==0.19.0+cu121"),
            ),
            (
                asked("python:3.11-slim", "torch==2.4.0+cu121", "torchvision==0.20.0+cu121"),
                "require torchvision==0.19.*",
                asked("python:3.11-slim", "torch==2.4.0+cu121", "torchvision==0.19.*"),
            ),
            (
                asked("python:3.11-slim", "torch==2.4.0", FLASH.format("2.3")),
                "take its build for this torch",
                asked("python:3.11-slim", "torch==2.4.0", FLASH.format("2.4")),
            ),
            (
                asked("nvidia/cuda:12.4.1-runtime-ubuntu22.04", "cupy-cuda11x==13.3.0"),
                "require cupy-cuda12x",
                asked("nvidia/cuda:12.4.1-runtime-ubuntu22.04", "cupy-cuda12x==13.3.0"),
            ),
            (wheel("cp311-cp311-win_amd64"), "require its wheel for Linux", wheel(f"cp311-cp311-{LINUX}")),
            (wheel(f"cp311-cp311-{ARM}"), "require its wheel for x86_64", wheel(f"cp311-cp311-{LINUX}")),
            (wheel(f"cp310-cp310-{LINUX}"), "require the wheel for cp311", wheel(f"cp311-cp311-{LINUX}")),
            (
                asked("python:3.11-slim", "torch==2.5.1", "six==1.16.0", "six==1.15.0"),
                "require one version of six",
                asked("python:3.11-slim", "torch==2.5.1", "six==1.16.0"),
            ),
            (
                asked("python:3.11-alpine", "torch==2.5.1"),
                "take a parent image with glibc, such as python:3.11-slim",
                asked("python:3.11-slim", "torch==2.5.1"),
            ),
            (
                asked("python:3.13-slim", "torch==2.4.0"),
                "take an image with Python 3.8 to 3.12",
                asked("python:3.12-slim", "torch==2.4.0"),
            ),
            (
                asked("python:3.11-slim", "torch==2.4.0+cu130"),
                "write torch==2.4.0+cu124",
                asked("python:3.11-slim", "torch==2.4.0+cu124"),
            ),
            (
                asked("python:3.9-slim", "torch==2.5.1"),
                "take an image with the client's Python",
                "docker=DockerSettings(requirements=['torch==2.5.1'])",
            ),
        ),
    ),
    Group(
        name="image that is another Python's",
        files={"s.py": BESIDE},
        call="stoker plan s.py --with docker",
        code=0,
        entries=(
            (
                f"docker=DockerSettings(parent_image='python:{ANOTHER}-slim')",
                "take an image with Python",
                "docker=DockerSettings()",
            ),
            (
                asked("python:3.11-slim", "numpy==1.26.0"),
                "pin the same versions in both places",
                "docker=DockerSettings(requirements=[f'numpy=={__import__(\"numpy\").__version__}'])",
            ),
        ),
    ),
    Group(
        name="function that is in no file",
        files={"s.py": BESIDE.partition("@step")[0] + "@@\n\n@pipeline\ndef p():\n    a()\n"},
        call="stoker plan s.py --with docker",
        code=3,
        entries=(
            (
                f"exec(\"@step(docker=DockerSettings(parent_image='python:{ANOTHER}-slim'))\\ndef a(): pass\")",
                "define it in a file, or take an image with Python",
                f"@step(docker=DockerSettings(parent_image='python:{ANOTHER}-slim'))\ndef a(): pass",
            ),
        ),
    ),
    Group(
        name="image",
        files={
            "s.py": BESIDE,
            "Dockerfile": "FROM python:3.11-slim\n",
            "pyproject.toml": "[project]\nname = 'x'\nversion = '1'\n[project.optional-dependencies]\nmore = []\n",
        },
        call="stoker plan s.py --with docker",
        code=3,
    ),
    Group(
        name="stoker.lock",
        files={"s.py": BESIDE.replace("@@", "docker=DockerSettings()"), "stoker.lock": "@@"},
        call="stoker plan s.py --with docker --lock=stoker.lock",
    ),
    Group(
        name="container_registry of a stack",
        files={
            "s.py": BESIDE.replace("@@", ""),
            "stoker.toml": "[stacks.x]\ncontainer_registry = {uri = 'registry.example.com/team', @@}",
        },
        call="stoker plan s.py --stack x",
    ),
)

STACKS = """
[stacks.x]
step_operators.one = {flavor = "docker"}
step_operators.two = {flavor = "docker"}
[stacks.y]
orchestrator = {flavor = "kubeflow", host = "https://x"}
"""

APART = f"@step(packages=PackageSettings(python='{ANOTHER}', environment='pypi'))\ndef a(): return 1"

PLANS: tuple[Group, ...] = (
    Group(name="part of a stack", files={"s.py": BESIDE, "stoker.toml": STACKS}, call="stoker plan s.py --stack x"),
    Group(
        name="pipeline's settings of its stack",
        files={"s.py": CALLED.replace("@@", "a(1)").replace("@pipeline", "@pipeline(@@)")},
        call="stoker plan s.py",
    ),
    Group(name="settings of an inner pipeline", files={"s.py": INNER}, call="stoker plan s.py:p"),
    Group(
        name="command about settings",
        files={
            "s.py": BESIDE.replace("@@", ""),
            "stoker.toml": STACKS,
            "list.yaml": "- 1",
            "run.yaml": "parameters:",
            "step.yaml": "steps: {a: 3}",
            "steps.yaml": "steps: {a: {resources: {gpu_count: 0}}}",
        },
        call="@@",
    ),
    Group(
        name="step that halves",
        files={
            "s.py": BESIDE.replace("def a()", "def a(n)")
            .replace("    a()", "    a(@@)")
            .replace("asks(@@)", "asks(retry=Retry(3, on_oom='halve n'))")
        },
        call="stoker plan s.py",
    ),
    Group(
        name="value of a step",
        files={"s.py": "import threading\n" + CALLED.replace("@@", "a(@@)")},
        call="stoker plan s.py",
    ),
    Group(
        name="code of a step",
        files={
            "s.py": "import importlib\n"
            + CALLED.replace("@@", "a('json')")
            .replace("@step", "@step(@@)")
            .replace("return 1", "return importlib.import_module(x).__name__")
        },
        call="stoker plan s.py",
        code=0,
    ),
    Group(
        name="function of a step",
        files={
            "s.py": "import sys, types\n"
            + CALLED.partition("@step")[0]
            + "A = '@step\\ndef a(): return 1'\n@@\n\n@pipeline\ndef p():\n    a()\n"
        },
        call="stoker plan s.py",
    ),
    Group(
        name="step that reads the main block",
        files={"s.py": CALLED.replace("return 1", "return n").replace("@@", "a(1)") + "\n@@\n    p()\n"},
        call="python s.py",
        code=3,
    ),
    Group(name="archive", files={"s.py": ARCHIVE}, call="python s.py"),
    Group(
        name="platform that must know all steps",
        files={
            "s.py": CALLED.replace("@@", "a(1)").replace(
                "@pipeline", "def done():\n    pass\n\n@pipeline(on_success=done)"
            )
        },
        call="stoker plan s.py@@",
        code=3,
    ),
    Group(
        name="platform that must know all steps of a dynamic pipeline",
        files={
            "s.py": CALLED.replace("@@", "a(1)").replace("@pipeline", "@pipeline(dynamic=True)"),
            "stoker.toml": STACKS,
        },
        call="stoker plan s.py@@",
        code=3,
    ),
    Group(
        name="platform that must know all steps of a flow",
        files={**flow(), "stoker.toml": STACKS},
        call="stoker plan f.py@@",
        code=3,
    ),
    Group(
        name="usual settings",
        files={"s.py": BESIDE.replace("@@", "docker=DockerSettings(parent_image='x', skip_build=True)")},
        call="stoker plan s.py --with docker:host=tcp://127.0.0.1:1@@",
        code=3,
    ),
    Group(
        name="packages of a step",
        files={"s.py": BESIDE.replace("@@", "packages=PackageSettings(pypi={'nothing-here': '1'})")},
        call="stoker plan s.py@@",
        code=3,
    ),
    Group(
        name="packages that conda makes",
        files={"s.py": BESIDE.replace("@@", "packages=PackageSettings(@@)")},
        call="stoker plan s.py",
        code=3,
        env={"PATH": "/nowhere"},
    ),
    Group(
        name="Python of an environment",
        files={"s.py": BESIDE.replace("@@", f"packages=PackageSettings(python='{ANOTHER}', environment='pypi')")},
        call="stoker plan s.py",
        code=3,
        env={"PATH": "@@"},
        entries=(("/nowhere", "install it, or pip install uv", WITH_UV),),
    ),
    Group(
        name="function of an environment of another Python",
        files={"s.py": BESIDE.partition("@step")[0] + f"A = {APART!r}\n@@\n\n@pipeline\ndef p():\n    a()\n"},
        call="stoker plan s.py",
        code=3,
        env={"PATH": WITH_UV},
        entries=(("exec(A)", "define it in a file", APART),),
    ),
    Group(
        name="environment that uv makes",
        files={"s.py": BESIDE.replace("@@", "packages=PackageSettings(pypi={'x': '1'}, environment='uv')")},
        call="stoker plan s.py",
        code=3,
        env={"PATH": "@@"},
        entries=(("/nowhere", "pip install uv, or --environment=pypi", WITH_UV),),
    ),
)

GROUPS: tuple[Group, ...] = (
    Group(
        name="platform's value",
        files={"s.py": VALUE},
        call="stoker plan s.py",
        entries=(
            *here(
                "SlurmSettings",
                ("options={'comment': 'x'}", "comment=… of SlurmSettings", "comment='x'"),
                ("options={'clusters': 'x'}", "host=… of SlurmSettings", "host='ssh://x'"),
                ("options={'job-name': 'x'}", "job_name=… of SlurmSettings", "job_name='x'"),
                ("options={'nodefile': 'x'}", "nodelist=… of SlurmSettings", "nodelist=['x']"),
                *(
                    (f"options={{{name!r}: 'x'}}", f"{field}=… of SlurmSettings", f"{field}={value}")
                    for name, field, value in (
                        *((one, one, "'x'") for one in ("account", "constraint", "partition", "qos", "reservation")),
                        ("exclude", "exclude", "['x']"),
                        ("exclusive", "exclusive", "True"),
                        ("mail-type", "mail_type", "['END']"),
                        ("mail-user", "mail_user", "'x@y'"),
                    )
                ),
                ("options={'requeue': True}", "requeue=… of SlurmSettings", "requeue=True"),
                ("options={'signal': 'TERM@60'}", "warn_before=… of SlurmSettings", "warn_before=60"),
                ("options={'time': '1:00:00'}", "time_limit=… of SlurmSettings", "time_limit='1:00:00'"),
                ("options={'mem': '4G'}", "options = { mem = 0 }", "options={'mem': 0}"),
                ("options={'begin': 'now', 'b': 'now'}", "remove one of the two", "options={'begin': 'now'}"),
                ("options={'begin': 'a\"b'}", "write it without quotes and backslashes", "options={'begin': 'now'}"),
                ("options={'hold': 3}", 'write {"hold": true}', 'options={"hold": True}'),
                ("options={'begin': True}", 'write {"begin": …}', "options={\"begin\": 'now'}"),
                ("exclude=[]", "leave it out, or set it to None", "exclude=None"),
                ("folder='/a\\'b'", "use another folder", "folder='/ab'"),
                ("venv='env'", 'write "/shared/me/env" or "~/env"', 'venv="~/env"'),
                ("warn_before='2d'", 'write "5m"', 'warn_before="5m"'),
                ("reuse='x'", 'write "auto"', 'reuse="auto"'),
                ("gres_types={'H100': 'a b'}", '"feature/h100" for a feature', "gres_types={'H100': \"feature/h100\"}"),
                ("time_limit=30", 'write "30m" for minutes', 'time_limit="30m"'),
                ("modules=['a b']", 'write ["cuda/12.4", "python/3.11"]', 'modules=["cuda/12.4", "python/3.11"]'),
                ("driver={'x': 1}", "it takes partition", "driver={'partition': 'x'}"),
                ("driver={'qos': 'a b'}", "write it without blanks and quotes", "driver={'qos': 'ab'}"),
            ),
            *here(
                "BatchSettings",
                ("efs_volumes={'fs-01234567': 'data'}", 'write "/data"', "efs_volumes={'fs-01234567': \"/data\"}"),
                ("efs_volumes='x'", 'such as "fs-0123456789abcdef0"', 'efs_volumes="fs-0123456789abcdef0"'),
                ("host_volumes='data'", 'or {"/data": "/data"}', 'host_volumes={"/data": "/data"}'),
                (
                    "iam_role='a/b'",
                    'write "arn:aws:iam::123456789012:role/b"',
                    'iam_role="arn:aws:iam::123456789012:role/b"',
                ),
                ("log_options='x'", 'write "awslogs-group:/team/steps"', 'log_options="awslogs-group:/team/steps"'),
                ("queues='gpu:p5.48xlarge'", 'write "gpu=p5.48xlarge" in queues', 'queues="gpu=p5.48xlarge"'),
                ("ulimits={'nofile': [2, 1]}", "write [soft, hard]", "ulimits={'nofile': [1, 2]}"),
                ("ulimits={'nofile': 'x'}", "-1 is no limit", "ulimits={'nofile': -1}"),
                ("ulimits='x'", 'write {"nofile": 65536, "memlock": -1}', 'ulimits={"nofile": 65536, "memlock": -1}'),
                ("swappiness=101", "write a number up to 100", "swappiness=100"),
                ("share_identifier='a b'", "write letters and digits alone", "share_identifier='ab'"),
                ("secrets={'A': ''}", '{"HF_TOKEN": "arn:aws:secretsmanager:…"}', 'secrets={"A": "arn:aws:x"}'),
                (
                    "retry_rules='x'",
                    'write [{"onExitCode": "75", "action": "RETRY"}]',
                    'retry_rules=[{"onExitCode": "75", "action": "RETRY"}]',
                ),
                (
                    "retry_rules=['x']",
                    'write {"onExitCode": "75", "action": "RETRY"}',
                    'retry_rules=[{"onExitCode": "75", "action": "RETRY"}]',
                ),
                (
                    "retry_rules=[{'action': 'RETRY'}]",
                    'write {"onReason": "…", "action": "RETRY"}',
                    'retry_rules=[{"onReason": "OOM*", "action": "RETRY"}]',
                ),
                (
                    "retry_rules=[{'onReason': '*OOM', 'action': 'RETRY'}]",
                    "and * at the end alone",
                    "retry_rules=[{'onReason': 'OOM*', 'action': 'RETRY'}]",
                ),
                (
                    "retry_rules=[{'onExitCode': '75', 'action': 'RETRY'}] * 5",
                    "write 4 at most",
                    "retry_rules=[{'onExitCode': '75', 'action': 'RETRY'}] * 4",
                ),
                ("region='Ireland'", "write one such as eu-west-1", "region='eu-west-1'"),
                ("overlay={'image': 'x'}", "write image of these settings", "image='x'"),
            ),
            *here(
                "ContainerSettings",
                ("run_options={'labels': {}}", "Stoker finds its containers by their labels", ""),
                ("run_options={'detach': True}", "Stoker waits for the container by itself", ""),
                ("run_options={'entrypoint': 'x'}", "Stoker's worker is what the container runs", ""),
                ("run_options={'name': 'x'}", "a container's name follows from its run and step", ""),
                ("run_options={'command': 'x'}", "the step's function is what runs", ""),
                ("run_options={'volumes': ['/x']}", "mounts=[…] of ContainerSettings", "mounts=['/x']"),
                ("run_options={'network_mode': 'host'}", "network=… of ContainerSettings", "network='host'"),
                ("run_options={'user': '1000'}", "user=… of ContainerSettings", "user='1000'"),
                ("secrets={'a b': 'env:A'}", "use letters, digits and _ . -", "secrets={'a-b': 'env:A'}"),
                ("secrets={'a': 'env:'}", 'write "env:NAME" or a path', "secrets={'a': \"env:NAME\"}"),
                ("mounts=['a:b']", 'write "/folder:/place/inside"', 'mounts=["/folder:/place/inside"]'),
            ),
            *here(
                "KubernetesSettings",
                (
                    "persistent_volume_claims={'c': 'data'}",
                    'write "/data"',
                    "persistent_volume_claims={'c': \"/data\"}",
                ),
                ("labels={'a': 'x y'}", "other texts are annotations", "annotations={'a': 'x y'}"),
                ("labels={'a b': 'x'}", 'write "team" or "example.com/team"', "labels={\"team\": 'x'}"),
                ("host_paths='data'", 'write "/shared"', 'host_paths="/shared"'),
                ("tmpfs_path='x'", 'write "/x"', 'tmpfs_path="/x"'),
                ("reuse='x'", 'write "auto"', 'reuse="auto"'),
                ("extended_resources={'a/b': '16gb'}", 'write "16G"', "extended_resources={'a/b': \"16G\"}"),
                ("extended_resources={'a/b': 'x'}", 'such as 2, "500m"', "extended_resources={'a/b': \"500m\"}"),
                ("secrets=[3]", 'write ["a", "b"]', 'secrets=["a", "b"]'),
                (
                    "pools=[{'name': 'x', 'taints': 'a'}]",
                    'write [{"key": …, "effect": "NoSchedule"}]',
                    "pools=[{'name': 'x', 'taints': [{\"key\": 'a', \"effect\": \"NoSchedule\"}]}]",
                ),
                ("pools=[{'nodes': 1}]", 'write {"name": "h100", …}', 'pools=[{"name": "h100", \'nodes\': 1}]'),
                (
                    "tolerations='a'",
                    'write [{"key": …, "operator": "Exists"}]',
                    'tolerations=[{"key": \'a\', "operator": "Exists"}]',
                ),
                ("env_from='x'", 'write [{"secretRef": {"name": …}}]', 'env_from=[{"secretRef": {"name": \'x\'}}]'),
                ("pod_spec={'a': {1}}", "write plain values", "pod_spec={'a': [1]}"),
            ),
            *here(
                "RaySettings",
                ("resources={'object_store_memory': 1}", "Stoker keeps nothing in Ray's object store", ""),
                ("runtime_env={'worker_process_setup_hook': 'm.f'}", "call it in the step", ""),
                (
                    "runtime_env={'image_uri': 'x'}",
                    "or name packages by pip, uv or conda",
                    "runtime_env={'uv': ['six']}",
                ),
                ("runtime_env={'excludes': ['x']}", "leave it out: it thins out local folders", ""),
                ("runtime_env={'java_jars': ['x']}", "leave it out: steps are Python", ""),
                ("runtime_env={'nsight': 'default'}", "profile in the step", ""),
                ("runtime_env={'env_vars': {'STOKER_X': '1'}}", "remove it", "runtime_env={'env_vars': {}}"),
                ("labels={'a': 'x y'}", '"in(a,b)"', "labels={'a': \"in(a,b)\"}"),
                (
                    "runtime_env={'py_executable': 3}",
                    'write py_executable = "/opt/env/bin/python"',
                    "runtime_env={'py_executable': \"/opt/env/bin/python\"}",
                ),
                (
                    "address='anyscale://mine'",
                    'with headers={"Authorization": "env:NAME"}',
                    'address="https://x", headers={"Authorization": "env:NAME"}',
                ),
                ("accelerators={'H100': 3}", 'write {"H100": "H100"}', 'accelerators={"H100": "H100"}'),
                ("runtime_env={'pip': 3}", 'write pip = ["six==1.16.0"]', "runtime_env={'pip': [\"six==1.16.0\"]}"),
            ),
            *here(
                "SkypilotSettings",
                ("accelerators=3", 'write "V100:2", {"V100": 2}', 'accelerators={"V100": 2}'),
                ("cluster_name='a b'", 'write "a-b"', 'cluster_name="a-b"'),
                ("accelerators={'V100:2': 2}", 'write "V100:2" alone', 'accelerators="V100:2"'),
                ("accelerators='2xV100'", 'write "V100:2"', 'accelerators="V100:2"'),
                ("disk_size='0GB'", "write the number of GB, such as 256", "disk_size=256"),
            ),
            *here("SagemakerSettings", ("role='NAME'", "write it whole", 'role="arn:aws:iam::123456789012:role/NAME"')),
        ),
    ),
    Group(
        name="platform's value that is the step's", files={"s.py": BESIDE}, call="stoker plan s.py --simulate 8xH100"
    ),
    Group(
        name="platform's value that is the container's", files={"s.py": BESIDE}, call="stoker plan s.py --with docker"
    ),
    Group(name="platform's value that is a call", files={"s.py": CALLED}, call="stoker plan s.py"),
    *IMAGES,
    *PLANS,
)
