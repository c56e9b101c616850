"""Cases of settings of platforms: what `stoker plan` refuses before a platform is asked anything."""

from __future__ import annotations

from tests.advice.cases import VALUE, Group

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


def here(kind: str, *entries: tuple[str, str, str]) -> tuple[tuple[str, str, str], ...]:
    """Cases that are mended in the same settings, which stand in the entries without their class."""
    return tuple((f"{kind}({wrong})", fix, f"{kind}({right})") for wrong, fix, right in entries)


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
                (
                    "runtime_env={'pip': 3}",
                    'write pip = ["six==1.16.0"]',
                    "runtime_env={'pip': [\"six==1.16.0\"]}",
                ),
            ),
            *here(
                "SkypilotSettings",
                ("accelerators=3", 'write "V100:2", {"V100": 2}', 'accelerators={"V100": 2}'),
                ("cluster_name='a b'", 'write "a-b"', 'cluster_name="a-b"'),
                ("accelerators={'V100:2': 2}", 'write "V100:2" alone', 'accelerators="V100:2"'),
                ("accelerators='2xV100'", 'write "V100:2"', 'accelerators="V100:2"'),
                ("disk_size='0GB'", "write the number of GB, such as 256", "disk_size=256"),
            ),
            *here(
                "SagemakerSettings",
                ("role='NAME'", "write it whole", 'role="arn:aws:iam::123456789012:role/NAME"'),
            ),
        ),
    ),
    Group(
        name="platform's value that is the step's",
        files={"s.py": BESIDE},
        call="stoker plan s.py --simulate 8xH100",
        entries=(
            ("SlurmSettings(options={'output': 'x'})", "Stoker reads what the job writes", ""),
            ("SlurmSettings(options={'wait': True})", "Stoker waits for the job by itself", ""),
            ("SlurmSettings(options={'quiet': True})", "Stoker watches the job by itself", ""),
            ("SlurmSettings(options={'test-only': True})", "`stoker plan` asks the cluster and submits nothing", ""),
            ("SlurmSettings(options={'uid': 'x'})", "jobs are those of who runs the pipeline", ""),
            ("SlurmSettings(options={'help': True})", "see https://slurm.schedmd.com/sbatch.html", ""),
            ("SlurmSettings(options={'ignore-pbs': True})", "the script is Stoker's", ""),
            ("SlurmSettings(options={'chdir': '/x'})", "in which the pipeline was started", ""),
            ("SlurmSettings(options={'wrap': 'x'})", "the step's function is what runs", ""),
            (
                "SlurmSettings(options={'export': 'ALL'})",
                "environment={…} of the step",
                "SlurmSettings(), environment={'A': '1'}",
            ),
            (
                "SlurmSettings(options={'ntasks-per-node': 2})",
                "launch=… of the step",
                "SlurmSettings(), launch='torchrun'",
            ),
            (
                "SlurmSettings(options={'no-kill': True})",
                "retry=… of the step",
                "SlurmSettings(), retry=2",
            ),
            (
                "SlurmSettings(options={'c': 2})",
                "resources=ResourceSettings(cpu_count=…)",
                "resources=ResourceSettings(cpu_count=1)",
            ),
            (
                "SlurmSettings(options={'tres-per-task': 'gres/gpu:2'})",
                "resources=ResourceSettings(gpu_count=…) or accelerators=…",
                "resources=ResourceSettings(cpu_count=1, accelerators='H100:2')",
            ),
            (
                "SlurmSettings(options={'tmp': '1G'})",
                "resources=ResourceSettings(disk=…)",
                "resources=ResourceSettings(disk='1MB')",
            ),
            (
                "SlurmSettings(options={'gpus': 2})",
                "resources=ResourceSettings(gpu_count=…) or accelerators=…",
                "resources=ResourceSettings(gpu_count=2)",
            ),
            (
                "SlurmSettings(options={'gres': 'gpu:2'})",
                "resources=ResourceSettings(gpu_count=…) or accelerators=…; for others extended={…}",
                "resources=ResourceSettings(accelerators='H100:2')",
            ),
            (
                "SlurmSettings(options={'mem-per-cpu': '1G'})",
                "resources=ResourceSettings(memory=…)",
                "resources=ResourceSettings(memory='100MB')",
            ),
            (
                "SlurmSettings(options={'N': 2})",
                "resources=ResourceSettings(nodes=…)",
                "resources=ResourceSettings(nodes=1)",
            ),
            (
                "ContainerSettings(run_options={'environment': {'A': '1'}})",
                "environment={…} of the step",
                "ContainerSettings(), environment={'A': '1'}",
            ),
            (
                "ContainerSettings(run_options={'restart_policy': {}})",
                "retry=… of the step",
                "ContainerSettings(), retry=2",
            ),
            (
                "ContainerSettings(run_options={'cpus': 1})",
                "resources=ResourceSettings(cpu_count=…)",
                "ContainerSettings(), resources=ResourceSettings(cpu_count=1)",
            ),
            (
                "ContainerSettings(run_options={'gpus': 'all'})",
                "resources=ResourceSettings(gpu_count=…)",
                "ContainerSettings(), resources=ResourceSettings(gpu_count=2)",
            ),
            (
                "ContainerSettings(run_options={'mem_limit': '100m'})",
                "resources=ResourceSettings(memory=…)",
                "ContainerSettings(), resources=ResourceSettings(memory='100MB')",
            ),
            (
                "KubernetesSettings(accelerators='H100:2')",
                'ask by resources=ResourceSettings(accelerators="H100:2")',
                'KubernetesSettings(), resources=ResourceSettings(accelerators="H100:2")',
            ),
            (
                "RaySettings(resources={'CPU': 1})",
                "resources=ResourceSettings(cpu_count=…)",
                "RaySettings(), resources=ResourceSettings(cpu_count=1)",
            ),
            (
                "RaySettings(resources={'GPU': 1})",
                "resources=ResourceSettings(gpu_count=…)",
                "RaySettings(), resources=ResourceSettings(gpu_count=1)",
            ),
            (
                "RaySettings(resources={'memory': 1})",
                "resources=ResourceSettings(memory=…)",
                "RaySettings(), resources=ResourceSettings(memory='100MB')",
            ),
            ("RaySettings(runtime_env={'mpi': {}})", 'launch="mpi" of the step', 'RaySettings(), launch="mpi"'),
        ),
    ),
    Group(
        name="platform's value that is the container's",
        files={"s.py": BESIDE},
        call="stoker plan s.py --with docker",
        entries=(
            (
                "ContainerSettings(run_options={'shm_size': '1m'})",
                "resources=ResourceSettings(shared_memory=…)",
                "ContainerSettings(), resources=ResourceSettings(shared_memory='1MB')",
            ),
            (
                "ContainerSettings(run_options={'image': 'x'})",
                "docker=DockerSettings(parent_image=…)",
                "ContainerSettings(), docker=DockerSettings(parent_image='python:3.11-slim')",
            ),
            (
                "SlurmSettings(options={'container': 'x'})",
                "docker=DockerSettings(parent_image=…, skip_build=True), and container=… of SlurmSettings",
                "SlurmSettings(container='apptainer'), docker=DockerSettings(parent_image='x', skip_build=True)",
            ),
        ),
    ),
    Group(
        name="platform's value that is a call",
        files={"s.py": CALLED},
        call="stoker plan s.py",
        entries=(
            (
                "SlurmSettings(options={'array': '1-2'}); a(1)",
                "a step that is called with .map becomes an array",
                "SlurmSettings(); a.map([1, 2])",
            ),
            ("SlurmSettings(options={'input': 'x'}); a('x')", "a step's inputs are its arguments", "a('x')"),
        ),
    ),
)
