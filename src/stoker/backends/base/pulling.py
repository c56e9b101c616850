"""Pull rights, as they are where a job will run: the seam between a backend and the image registries.

A backend whose jobs pull their images on other machines says in its registration who pulls there (`Backend.puller`).
`pull_findings` asks the registry with that login, or says in the plan what was not checked, and why. Kubernetes' pull
secret, AWS Batch's execution role and a virtual machine's files are each such a `Puller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Final, Iterator

import attrs

from stoker.core.errors import StokerError
from stoker.core.findings import Finding, Reporter
from stoker.core.questions import NoAnswer, Questions
from stoker.images.credentials import Credentials, account_text, needed
from stoker.images.registries import ImageReference, parse

if TYPE_CHECKING:
    from stoker.images.transport import RegistryRefused

REFUSED: Final = "STK247"
NOT_CHECKED: Final = "STK248"


@attrs.frozen(kw_only=True)
class Puller:
    """Who pulls the images of a backend's jobs, where they run."""

    who: str
    """In words, such as "enroot on the cluster's nodes"."""
    fix: str
    """What to write where, so that it may pull; with {registry}."""
    account: Callable[[ImageReference], Credentials | None] | None = None
    """Finds the login with which it asks an image's registry; None where that cannot be seen from here."""
    defines: bool = False
    """Whether it builds images itself, of a definition (`images.dockerfile`), where the stack has no registry."""
    unseen: str = ""
    """Why its login cannot be seen from here; empty where it can."""


def pull_findings(image: str, puller: Puller, report: Reporter, questions: Questions) -> Iterator[Finding]:
    """What is wrong with the right to pull an image where a step will run, or that it was not checked.

    `image` is a name at a registry, whose repository may not be there yet. Asks the registry.
    """
    from stoker.images.registry import check_pull
    from stoker.images.transport import RegistryUnreachable

    name = parse(image)
    fix = puller.fix.replace("{registry}", name.registry)
    if puller.account is None:
        yield _not_checked(name, puller, puller.unseen, fix, report)
        return
    account_of = puller.account

    def ask() -> tuple[RegistryRefused | None, Credentials | None]:
        try:
            refusal = check_pull(image, account_of)
        except RegistryUnreachable as error:
            raise NoAnswer(error.message) from None
        return refusal, account_of(name) if refusal is not None else None

    try:
        refusal, account = questions.ask(
            name.server,
            ask,
            key=["pull", image, puller.who],
            place=["registry", name.server],
            nearby=name.loopback and not questions.strict,
        )
    except StokerError as error:
        yield _not_checked(name, puller, error.message, fix, report)
        return
    if refusal is not None:
        what = f"{puller.who} may not pull {name.repository}: {name.registry} refuses it {account_text(account)}"
        why = f"the job would wait for its image in vain; a pull needs {needed(name, 'pull')}"
        yield report.error(REFUSED, what, why, fix)


def _not_checked(name: ImageReference, puller: Puller, reason: str, fix: str, report: Reporter) -> Finding:
    what = f"not checked: whether {puller.who} may pull {name.repository}: {reason}"
    return report.info(NOT_CHECKED, what, f"a pull needs {needed(name, 'pull')}; {fix}")
