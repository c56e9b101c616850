"""AWS Secrets Manager as the place of a stack's secrets by name: `secrets = "secretsmanager:PREFIX"`."""

from __future__ import annotations

import json
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.backends.aws.api import PERSON_WAITS, AwsClient, AwsError, AwsSettings
from stoker.core.codec import parse_object
from stoker.core.errors import BackendError, SettingsError, UsageError

FLAVOR: Final = "secretsmanager"
_FIX: Final = (
    f'write secrets = "{FLAVOR}:PREFIX" or {{flavor = "{FLAVOR}", prefix = "…", region = "…"}}, or leave it out'
)
_OPTIONS: Final = ("prefix", "region", "profile", "endpoint_url")
_ABSENT: Final = "ResourceNotFoundException"
_TEXT: Final = ""
"""What the whole text of a secret is called among its fields."""


@attrs.frozen(kw_only=True)
class SecretsManagerSettings(AwsSettings):
    """Where in AWS Secrets Manager a stack's secrets are."""

    prefix: str = ""
    """The beginning of all their names there."""

    @classmethod
    def parse(cls, value: Any) -> SecretsManagerSettings:
        """What a stack says of its secrets: "secretsmanager:PREFIX", or a table."""
        options = dict(value) if isinstance(value, Mapping) else {}
        if isinstance(value, str):
            options["flavor"], _, options["prefix"] = value.partition(":")
        flavor = options.pop("flavor", None)
        if flavor != FLAVOR:
            raise SettingsError(f"secrets: {flavor!r} is no place of secrets", fix=_FIX)
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise SettingsError(f"secrets: there is no option '{unknown[0]}'", fix=_FIX)
        return cls(**options)


class SecretsManager(AwsClient):
    """The secrets of an account and region whose names begin alike. One with fields is a JSON object there."""

    title = "AWS Secrets Manager"

    def __init__(self, settings: SecretsManagerSettings) -> None:
        super().__init__(settings, patience=PERSON_WAITS)
        self._prefix = settings.prefix
        self.label = f"{self.title} ({settings.prefix}…)"

    def get(self, name: str) -> Mapping[str, str] | None:
        """The secret's fields, and its text under an empty name; None where there is none."""
        try:
            answer = self._ask("get_secret_value", name)
        except AwsError as error:
            # Of one that is deleted, and could be restored, the service says in words only.
            if error.code == _ABSENT or (error.code == "InvalidRequestException" and "delet" in error.words):
                return None
            raise
        if "SecretString" not in answer:
            raise BackendError(f"the secret {self._prefix}{name} of {self.title} has bytes and no text")
        text: str = answer["SecretString"]
        return {**_fields(text), _TEXT: text}

    def put(self, name: str, values: Mapping[str, str]) -> str:
        """Set the text, or these fields beside those that are there; where, in words."""
        text = values.get(_TEXT)
        if text is None:
            before = self.get(name)
            if before is not None and before.keys() <= {_TEXT}:
                raise UsageError(f"the secret '{name}' has a value and no fields", fix=f"stoker secret rm {name} first")
            text = json.dumps({**{key: one for key, one in (before or {}).items() if key != _TEXT}, **values})
        try:
            if "DeletedDate" in self._ask("describe_secret", name):
                self._ask("restore_secret", name)
            self._ask("put_secret_value", name, SecretString=text)
        except AwsError as error:
            if error.code != _ABSENT:
                raise
            self.call("secretsmanager", "create_secret", Name=self._prefix + name, SecretString=text)
        return f"{self.title}, {self._prefix}{name}"

    def remove(self, name: str) -> None:
        """Delete the secret; AWS can restore it for 30 days."""
        self._ask("delete_secret", name)

    def listed(self) -> Iterator[tuple[str, float]]:
        """The names behind the prefix, and when each was set."""
        filters = [{"Key": "name", "Values": [self._prefix]}] if self._prefix else []
        for row in self.pages("secretsmanager", "list_secrets", "SecretList", Filters=filters):
            if row["Name"].startswith(self._prefix):
                yield row["Name"].removeprefix(self._prefix), row["LastChangedDate"].timestamp()

    def _ask(self, operation: str, name: str, **words: Any) -> Any:
        return self.call("secretsmanager", operation, SecretId=self._prefix + name, **words)


def _fields(text: str) -> dict[str, str]:
    try:
        values = parse_object(text)
    except SettingsError:
        return {}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
