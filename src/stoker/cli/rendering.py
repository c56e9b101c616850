"""`stoker plan FILE --render` as text: each step as a script that a person can paste into a shell, or its request."""

from __future__ import annotations

import json
from typing import Iterator, Sequence

from stoker.cli.output import paint
from stoker.core.codec import to_json
from stoker.images import context
from stoker.images.definition import is_definition
from stoker.run.building import package_lines
from stoker.run.rendering import RenderedStep


def lines(requests: Sequence[RenderedStep]) -> Iterator[str]:
    """The requests as text; a Dockerfile that several steps share is printed once."""
    dockerfiles: dict[tuple[str, ...], str] = {}
    for request in requests:
        yield ""
        each = f"  once for each of {', '.join(request.times)}" if request.times else ""
        yield f"{paint(request.step, '1')}  would be sent to {request.backend}{each}"
        if request.dockerfile:
            texts = {"Dockerfile": request.dockerfile, **request.files}
            first = dockerfiles.setdefault((*texts, *texts.values()), request.step)
            if first != request.step:
                yield f"  Dockerfile: that of {first}"
                texts = {}
            for name, text in texts.items():
                yield f"  {name}"
                yield from (f"    {line}".rstrip() for line in text.rstrip().splitlines())
        elif request.image and not is_definition(request.image):
            yield f"  no Dockerfile: {request.image} is used as it is"
        if request.script:
            yield "  by hand: paste from ( to ) into a shell"
            yield from request.script.splitlines()
            continue
        yield "  request"
        text = json.dumps(to_json(request.request), indent=2, ensure_ascii=False)
        yield from (f"    {line}" for line in text.splitlines())


def code_lines(package: context.CodePackage) -> Iterator[str]:
    """How much code travels, and what of the folder does not."""
    yield ""
    yield from package_lines(package)
    yield from (f"  stays behind: {path}" for path in package.left_out)
    yield from (f"  left out: {name}, which is being written" for name in package.changing)
