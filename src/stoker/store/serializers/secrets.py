"""Keeps the reference of a `Secret`: its value is in no artifact."""

from __future__ import annotations

from typing import Any, BinaryIO, Final, Mapping

from stoker.core.secret import Secret
from stoker.store.serializers.base import Stored


class SecretReference:
    """Saves a secret as the text of its reference."""

    name = "secret"

    def fits(self, value: Any) -> bool:
        """Whether it is one."""
        return type(value) is Secret

    def save(self, value: Secret, file: BinaryIO) -> Mapping[str, Any]:
        """Write the reference."""
        file.write(value.reference.encode())
        return {}

    def load(self, stored: Stored) -> Secret:
        """The secret by its reference; what runs a step puts the value in its place."""
        with stored.open() as file:
            return Secret.parse(file.read().decode())


SECRET: Final = SecretReference()
