"""What a person does with containers by hand: run a rendered job, and run commands beside a step that runs.

The script of a job has its folders, its document, and `docker run`. Labels are left out: by them `stoker gc` and later
drivers would take the container for one of a run's. Options are those of
https://docs.docker.com/reference/cli/docker/container/run/, which podman has too.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import NOT_HERE, Beside, RunningAttempt
from stoker.backends.base.byhand import (
    document_lines,
    input_lines,
    needs,
    needs_command,
    split_variables,
    stop,
    subshell,
)
from stoker.backends.docker.engines import Engine, engine_address
from stoker.backends.docker.jobfiles import GANG, job_files, name_of
from stoker.backends.docker.requests import BUNDLE, INSIDE, LABEL, EngineFacts
from stoker.backends.docker.settings import SECRETS
from stoker.core.errors import UsageError
from stoker.core.plan import Job, Site
from stoker.core.protocol import RESULT
from stoker.core.secret import MASK
from stoker.store.blobs import INPUTS

Option = Callable[[Any], Sequence[str]]


def _text(flag: str) -> Option:
    return lambda value: (f"{flag}={value}",)


def _each(flag: str) -> Option:
    return lambda values: [f"{flag}={value}" for value in values]


def _pairs(flag: str, between: str) -> Option:
    return lambda values: [f"{flag}={name}{between if text else ''}{text}" for name, text in values.items()]


def _flag(flag: str) -> Option:
    return lambda value: (flag,) if value else ()


_HOST: Final[Mapping[str, Option]] = {
    "CapAdd": _each("--cap-add"),
    "CapDrop": _each("--cap-drop"),
    "CgroupParent": _text("--cgroup-parent"),
    "Devices": lambda devices: [f"--device={one['PathOnHost']}:{one['PathInContainer']}" for one in devices],
    "Dns": _each("--dns"),
    "DnsOptions": _each("--dns-option"),
    "DnsSearch": _each("--dns-search"),
    "ExtraHosts": _each("--add-host"),
    "GroupAdd": _each("--group-add"),
    "Init": _flag("--init"),
    "IpcMode": _text("--ipc"),
    "Memory": _text("--memory"),
    "MemorySwap": _text("--memory-swap"),
    "NanoCpus": lambda billionths: (f"--cpus={billionths / 1e9:g}",),
    "NetworkMode": _text("--network"),
    "OomScoreAdj": _text("--oom-score-adj"),
    "PidMode": _text("--pid"),
    "PidsLimit": _text("--pids-limit"),
    "Privileged": _flag("--privileged"),
    "ReadonlyRootfs": _flag("--read-only"),
    "Runtime": _text("--runtime"),
    "SecurityOpt": _each("--security-opt"),
    "ShmSize": _text("--shm-size"),
    "Sysctls": _pairs("--sysctl", "="),
    "Tmpfs": _pairs("--tmpfs", ":"),
    "Ulimits": lambda limits: [f"--ulimit={one['Name']}={one['Soft']}:{one['Hard']}" for one in limits],
    "UsernsMode": _text("--userns"),
}
"""Fields of HostConfig → options of `docker run`."""


def script(job: Job, request: Mapping[str, Any], site: Site, facts: EngineFacts) -> str:
    """The script of all containers of a job."""
    return subshell(_lines(job, request, site, facts))


def _lines(job: Job, request: Mapping[str, Any], site: Site, facts: EngineFacts) -> Iterator[str]:
    containers = request["containers"]
    yield needs_command("docker", "or podman, by that name")
    yield from input_lines(job.key, containers[0]["document"]["job"]["inputs"])
    if any(one["request"]["HostConfig"].get("DeviceRequests") for one in containers):
        yield stop(
            f"missing: devices, which are leased when {job.key} starts: write UUIDs of free ones (nvidia-smi -L) in "
            "place of each <device …> below, and remove this line"
        )
    if request["engine"]:
        yield f"export DOCKER_HOST={shlex.quote(request['engine'])}"
    if request["network"]:
        yield f"docker network create {shlex.quote(request['network'])} >/dev/null"
    several = len(containers) > 1
    for one in containers:
        yield from _container(one, request, site, facts, wait="&" if several else "")
    if several:
        yield "code=0; for process in $(jobs -p); do wait $process || code=$?; done"
        if request["network"]:
            yield f"docker network rm {shlex.quote(request['network'])} >/dev/null"
        yield "exit $code"


def _container(
    container: Mapping[str, Any], request: Mapping[str, Any], site: Site, facts: EngineFacts, *, wait: str
) -> Iterator[str]:
    name, body, document = container["name"], container["request"], container["document"]
    if not facts.shares_files:
        yield from _copied(container, request, site)
        return
    files = job_files(name, scratch=site.scratch, store=facts.store)
    folders = [files.notes, f"{files.notes}/{GANG}" if document["job"].get("gang") else ""]
    folders += [files.inputs, f"{files.outputs}/{INPUTS}"] if files.blobs else []
    mounts = body["HostConfig"]["Mounts"]
    below = f"{site.checkpoints}/" if site.checkpoints else "\0"
    folders += [mount["Source"] for mount in mounts if str(mount["Source"]).startswith(below)]
    yield f"mkdir -p {shlex.join(filter(None, folders))}"
    if body.get("User", facts.user) != facts.user:
        yield f"chmod -R a+rwX {shlex.join(filter(None, folders))}"
    if site.bundle and any(mount["Source"] == site.bundle for mount in mounts):
        yield needs(site.bundle, "Stoker's worker, which a run makes")
    spec, variables = split_variables({**document, "package": ""})
    yield from variables
    yield from document_lines(shlex.quote(files.document), spec)
    # The code is the project's folder as it is now: a run would send it along in a package.
    code = sorted({document["root"]} - {""}) if document["package"] else []
    mounted = [shlex.quote(f"--mount=type=bind,source={path},target={path},readonly") for path in code]
    kept = [] if request["keep"] else ["--rm"]
    yield _command("docker run", [*kept, *_words(container, request), *mounted], body) + wait
    if not wait:
        yield f"echo 'its result is in {files.notes}/{RESULT}'"


def _copied(container: Mapping[str, Any], request: Mapping[str, Any], site: Site) -> Iterator[str]:
    """A container of an engine that does not see this machine's folders: files are copied into it."""
    name, body = shlex.quote(container["name"]), container["request"]
    yield "here=$(mktemp -d)"
    yield f'mkdir "$here"/{INSIDE.rpartition("/")[2]}'
    inside = f'"$here"/{INSIDE.rpartition("/")[2]}'
    document, variables = split_variables(container["document"])
    yield from variables
    yield from document_lines(f"{inside}/job.json", document)
    if any(text.startswith("PYTHONPATH=") and BUNDLE in text for text in body["Env"]):
        yield needs(site.bundle, "Stoker's worker, which a run makes")
        yield f"cp -r {shlex.quote(site.bundle)} {inside}/{BUNDLE.rpartition('/')[2]}"
    yield _command("docker create", [*_words(container, request)], body) + ">/dev/null"
    yield f"docker cp {inside} {name}:{INSIDE.rpartition('/')[0]}/"
    yield f"docker start --attach {name}"
    yield f'docker cp {name}:{INSIDE}/{RESULT} "$here"/'
    yield f'echo "its result is in $here/{RESULT}; docker rm {name} removes the container"'


def _words(container: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[str]:
    """The options as words of the shell; the files of secrets are named by variables."""
    yield from map(shlex.quote, _options(container, request))
    for name in request["secrets"]:
        variable = "FILE_OF_" + re.sub(r"\W", "_", name)
        source = f'"${{{variable}:?missing: the path of a file with the secret {name}}}"'
        yield f"--mount=type=bind,source={source},target={SECRETS}/{name},readonly"


def _options(container: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[str]:
    """The options of `docker run` for the body of a request."""
    body = container["request"]
    host: Mapping[str, Any] = body["HostConfig"]
    entrypoint: Sequence[str] = body["Entrypoint"]
    yield f"--name={container['name']}"
    yield f"--pull={request['pull']}"
    yield f"--entrypoint={entrypoint[0]}"
    if "User" in body:
        yield f"--user={body['User']}"
    yield f"--stop-timeout={body['StopTimeout']}"
    if body.get("Hostname"):
        yield f"--hostname={body['Hostname']}"
    for network in body.get("NetworkingConfig", {}).get("EndpointsConfig", {}).values():
        yield from (f"--network-alias={alias}" for alias in network["Aliases"])
    for text in body["Env"]:
        name, _, value = text.partition("=")
        yield f"--env={name}" if MASK in value else f"--env={text}"
    yield from (f"--env={name}" for name in request["credentials"])
    for field, option in _HOST.items():
        if field in host:
            yield from option(host[field])
    yield from _device_options(host.get("DeviceRequests", ()))
    yield from (_mount(mount) for mount in host["Mounts"])


def _device_options(requests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in requests:
        if one["Driver"] == "cdi":
            yield from (f"--device={name}" for name in one["DeviceIDs"])
        else:
            yield f'--gpus="device={",".join(one["DeviceIDs"])}"'


def _mount(mount: Mapping[str, Any]) -> str:
    read_only = ",readonly" if mount["ReadOnly"] else ""
    return f"--mount=type={mount['Type']},source={mount['Source']},target={mount['Target']}{read_only}"


def _command(command: str, words: Sequence[str], body: Mapping[str, Any]) -> str:
    """One word on each line: image and arguments come last."""
    image = str(body["Image"])
    known = not image.startswith("<")
    missing = '"${IMAGE:?missing: the image; export IMAGE with the name that stoker build shows}"'
    name = shlex.quote(image) if known else missing
    arguments = shlex.join([*body["Entrypoint"][1:], *body["Cmd"]])
    return " \\\n  ".join([command, *words, name, arguments]) + " "


# Beside a step: by the engine's own command, in each container of the run that runs. Which of them has the step's
# process is seen inside, so that containers that take several steps need nothing more.


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The containers of the run; a `UsageError` without a command that reaches the engine."""
    address = engine_address(options)
    program = _program(address)
    with contextlib.closing(Engine(address)) as engine:
        found = [one for kind in ("step", "pool") for one in engine.find({LABEL: kind, f"{LABEL}.run": attempt.run})]
    for container in found:
        if container["State"] == "running":
            name = name_of(container)
            yield Beside(
                where=f"container {name}",
                argv=(*program, "exec", "--interactive", name),
                terminal=(*program, "exec", "--interactive", "--tty", name),
                environment=attempt.environment,
            )


def _program(address: str) -> tuple[str, ...]:
    """The words by which an engine's command reaches the engine at an address."""
    for name, option in (("docker", "--host"), ("podman", "--url")):
        path = shutil.which(name)
        if path:
            return path, option, address
    raise UsageError(
        f"neither docker nor podman is on the PATH, by whose command containers of {address} are entered ({NOT_HERE})",
        fix="install Docker's command line (the package docker-cli or docker.io)",
    )
