"""Merge patches (https://www.rfc-editor.org/rfc/rfc7396), which is what is sent here."""

from __future__ import annotations

import json
from typing import Any

from tests.kubernetes.server.failures import Refused, bad_request
from tests.kubernetes.server.objects import Object, copied

MERGE = "application/merge-patch+json"


def patched(object: Object, content_type: str, text: str) -> Object:
    """The object after a patch.

    Raises:
        Refused: It is no merge patch.
    """
    if content_type != MERGE:
        raise Refused(415, "415: Unsupported Media Type", "UnsupportedMediaType", {})
    patch = json.loads(text)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal array into Go value of type map")
    merged: Object = _merged(object, patch)
    return merged


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    merged = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
