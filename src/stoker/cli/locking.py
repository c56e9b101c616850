"""What `stoker plan --lock` shows: the exact packages of each image of a plan, and the file that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from stoker.cli.output import paint
from stoker.core.lock import Lock
from stoker.core.plan import Plan
from stoker.core.words import count_text
from stoker.images.locks import file_text, parse, read_file
from stoker.report.streams import echo, say


def show(plan: Plan, file: str | bool, *, as_json: bool) -> None:
    """Print the locks of a plan, or write them into a file, beside those that it has of other plans."""
    locks = {digest: parse(document) for digest, document in plan.locks.items()}
    if isinstance(file, str):
        path = Path(file)
        others = read_file(path)
        path.write_text(file_text({**others, **locks}.values()), encoding="utf-8")
        say(f"{path} has {count_text(len(others | locks), 'lock')}, {len(locks)} of them of this plan")
    elif not as_json:
        echo("\n".join(lines(plan, locks)))


def lines(plan: Plan, locks: dict[str, Lock]) -> Iterator[str]:
    """The packages of each lock as a requirements file has them, below what they are for."""
    for digest, lock in locks.items():
        steps = list(dict.fromkeys(step.name for step in plan.steps if step.lock == digest))
        yield ""
        yield (
            f"{paint(', '.join(steps), '1')}  {count_text(len(lock.lines), 'package')} for Python {lock.python} on "
            f"{lock.platform}, by {lock.resolver} on {lock.made}"
        )
        if lock.kept:
            yield f"  of the parent image: {', '.join(f'{name} {text}' for name, text in sorted(lock.kept.items()))}"
        if not lock.whole:
            yield "  predicted: what else the parent image has is not known, and the build chooses beside it"
        yield from (f"  {line}" for line in lock.lines)
