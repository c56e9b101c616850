"""Secrets in two halves, for platforms whose own storage others can read.

The values of a job's secrets are combined with random bytes of the same length by exclusive or. The random half travels
in the job's document, the other one lies in a folder of the artifact store or of the run. Either of them alone is
noise, whatever is done with it (a one-time pad; C. E. Shannon, "Communication Theory of Secrecy Systems", 1949): who
reads the platform's requests, logs and key-value store needs the artifact store as well.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Final, Mapping

from stoker.core.codec import parse_object
from stoker.core.errors import StoreError
from stoker.core.protocol import SealedSecrets
from stoker.store import notes

BLOCK: Final = 256
"""Bytes of which a half is a multiple, so that its length says little of the values'."""


def seal(values: Mapping[str, str], folder: str) -> tuple[SealedSecrets, bytes]:
    """Both halves of the values by reference: the one for the document, and what is to be written to its `place`.

    `folder` is the path or URI of the folder for the second half; its name there is random, and never used again.
    """
    text = json.dumps(dict(values), separators=(",", ":")).encode()
    text += b" " * (-len(text) % BLOCK)
    pad = os.urandom(len(text))
    sealed = SealedSecrets(half=base64.b64encode(pad).decode(), place=f"{folder}/sealed-{os.urandom(12).hex()}")
    return sealed, _combined(pad, text)


def unseal(sealed: SealedSecrets) -> dict[str, str]:
    """The values by reference; a `StoreError` where the second half is not there, or is another one's."""
    other = notes.get(sealed.place)
    if other is None:
        what = f"there is no {sealed.place}, which has half of the step's secrets: the driver has removed it"
        raise StoreError(what, fix="run the step again")
    pad = base64.b64decode(sealed.half)
    if len(pad) != len(other):
        raise StoreError(f"{sealed.place} is not the other half of the step's secrets", fix="run the step again")
    return {str(name): str(value) for name, value in parse_object(_combined(pad, other), where=sealed.place).items()}


def _combined(first: bytes, second: bytes) -> bytes:
    """The exclusive or of two texts of one length."""
    return (int.from_bytes(first, "big") ^ int.from_bytes(second, "big")).to_bytes(len(first), "big")
