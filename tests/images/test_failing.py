"""What engines print, taken apart: each text is as the engine of that name and version printed it."""

from __future__ import annotations

import pytest

from stoker.images.credentials import login, needed
from stoker.images.dockerfile import base_images, pin_images
from stoker.images.registries import parse
from stoker.images.transcript import Transcript, advice

DOCKER = """\
Step 1/3 : FROM base
 ---> 6e8f3e716600
Step 2/3 : RUN echo fine
 ---> Running in 0123456789ab
fine
Removing intermediate container 0123456789ab
 ---> 6e8f3e716601
Step 3/3 : RUN pip install six==99
 ---> Running in 0123456789ac
ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 0.9.0, 1.16.0)
ERROR: No matching distribution found for six==99
The command '/bin/sh -c pip install six==99' returned a non-zero code: 1
"""
BUILDKIT = """\
#1 [internal] load build definition from Dockerfile
#1 sha256:aaaaaaaaaaaaaaaaaaaa
#1 DONE 0.0s
#5 [2/3] RUN echo fine
#5 0.213 fine
#5 DONE 0.3s
#6 [3/3] RUN pip install six==99
#6 1.402 ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 0.9.0, 1.16.0)
#6 1.402 ERROR: No matching distribution found for six==99
#6 ERROR: process "/bin/sh -c pip install six==99" did not complete successfully: exit code: 1
------
 > [3/3] RUN pip install six==99:
#6 1.402 ERROR: No matching distribution found for six==99
------
Dockerfile:3
ERROR: failed to solve: process "/bin/sh -c pip install six==99" did not complete successfully: exit code: 1
"""
BUILDAH = """\
STEP 1/3: FROM base
STEP 2/3: RUN echo fine
fine
--> 5b1d0c3f2a1
STEP 3/3: RUN pip install six==99
ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 0.9.0, 1.16.0)
ERROR: No matching distribution found for six==99
error building at STEP "RUN pip install six==99": error while running runtime: exit status 1
"""


@pytest.mark.parametrize("text", [DOCKER, BUILDKIT, BUILDAH], ids=["docker", "buildkit", "buildah"])
def test_the_failed_instruction_and_its_own_output(text: str) -> None:
    transcript = Transcript()
    shown = [transcript.line(line) for line in text.splitlines()]
    instruction, output = transcript.failure()
    assert instruction == "RUN pip install six==99"
    assert sum("No matching distribution" in line for line in output) == 1
    assert not any(line.strip() == "fine" for line in output)
    assert any("fine" in line for line in shown) and not any("---> " in line for line in shown)
    assert "no six==99" in advice(transcript.text())


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("E: Unable to locate package libgl9", "no package libgl9"),
        ("E: Failed to fetch http://deb/x.deb  404  Not Found [IP: 1.2.3.4 80]", "newer parent_image"),
        ("write /layer: no space left on device", "disk is full"),
        ("error: externally-managed-environment", "break-system-packages"),
        ("error: command 'gcc' failed: No such file or directory", "build-essential"),
        ("exec /bin/sh: exec format error", "another processor"),
        ("toomanyrequests: You have reached your pull rate limit", "docker login"),
        ("the --mount option requires BuildKit.", "buildx"),
        ("/bin/sh: 1: python3: not found", "no Python"),
        ("The command '/bin/sh -c make' returned a non-zero code: 137", "memory"),
        ("x509: certificate verify failed", '"PIP_CERT"'),
        ("/bin/sh: useradd: not found\n/bin/sh: adduser: not found", 'user="1000:1000"'),
        ("nothing that is known", ""),
    ],
)
def test_advice(text: str, fix: str) -> None:
    assert (fix in advice(text)) if fix else advice(text) == ""


DOCKERFILE = """\
# syntax of no importance
ARG BASE=python
ARG TAG="3.11-slim"
FROM --platform=linux/amd64 ${BASE}:${TAG} AS build
RUN echo FROM nowhere \\
    # a comment in between
    FROM here
COPY <<EOF /note
FROM inside
EOF
FROM scratch
FROM build AS last
COPY --from=build /a /b
COPY --chown=1:1 --from=mambaorg/micromamba:1.5.8 /bin/micromamba /bin/
RUN --mount=type=bind,from=team/data:1,target=/data true
FROM $UNKNOWN
"""


def test_from_which_images_a_dockerfile_is_built() -> None:
    assert base_images(DOCKERFILE) == ("python:3.11-slim", "mambaorg/micromamba:1.5.8", "team/data:1")
    assert base_images(DOCKERFILE, {"BASE": "pypy"})[0] == "pypy:3.11-slim"
    assert base_images("FROM a\nFROM 0\n") == ("a",)


def test_images_by_their_digests() -> None:
    exact = {"python:3.11-slim": "docker.io/library/python@sha256:1", "team/data:1": "team/data@sha256:2"}
    changed = pin_images(DOCKERFILE, exact)
    assert "FROM --platform=linux/amd64 docker.io/library/python@sha256:1 AS build\n" in changed
    assert "from=team/data@sha256:2,target=/data" in changed
    assert pin_images(DOCKERFILE, {}) == DOCKERFILE
    assert changed.count("\n") == DOCKERFILE.count("\n")


@pytest.mark.parametrize(
    ("image", "permission", "command"),
    [
        ("1234.dkr.ecr.eu-west-1.amazonaws.com/train", "ecr:PutImage", "aws ecr get-login-password"),
        (
            "europe-docker.pkg.dev/project/images/train",
            "artifactregistry.writer",
            "gcloud auth configure-docker europe",
        ),
        ("team.azurecr.io/train", "AcrPush", "az acr login --name team"),
        ("ghcr.io/team/train", "write:packages", "docker login ghcr.io"),
        ("team/train", "Read & Write", "docker login"),
        ("registry.example.com:5000/train", "permission to push", "docker login registry.example.com:5000"),
    ],
)
def test_the_permission_in_the_registry_s_own_words(image: str, permission: str, command: str) -> None:
    assert permission in needed(parse(image), "push") and login(parse(image)).startswith(command)
