"""Secrets by name: what `stoker secret set` keeps, and `Secret.named` and `Client.secret` read.

They are where the stack says (`secrets = "secretsmanager:PREFIX"`), or on this machine: the values in the keyring or,
where none is to be had, encrypted in a file of Stoker's home. That file also lists which there are, and has no value in
the clear. The environment is asked for a secret that is kept nowhere: `STOKER_SECRET_DB_PASSWORD` for `db-password`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, NoReturn, Protocol, Sequence

from stoker.core.codec import parse_object
from stoker.core.errors import MissingPackage, NotFound, SerializationError, StoreError, UsageError, nearest
from stoker.core.secret import Secret
from stoker.core.values import frozen
from stoker.stacks import Stack
from stoker.store.access import prepare_home
from stoker.worker.secrets import BROUGHT, KEYRING, SecretKind, SecretMissing

VARIABLE: Final = "STOKER_SECRET_"
"""How the variable of a secret that is kept nowhere begins."""
KEY: Final = f"{VARIABLE}KEY"
"""The variable with the key of the encrypted file."""
PLACES: Final = ("keyring", "file")
VALUE: Final = ""
"""What the value of a secret without fields is called among fields."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_VERSION: Final = 1
_NEW_KEY: Final = "python -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode())'"


@frozen(kw_only=True)
class NamedSecret:
    """A secret that is kept, without its values."""

    name: str
    fields: tuple[str, ...] = ()
    """Empty where it has one value, and where they are known only with the values."""
    where: str
    """Where its values are, in words."""
    set_at: float
    """When they were set last."""


@frozen(repr=False)
class SecretValues:
    """The value, or the fields, of a secret by name; its text has none of them."""

    name: str
    _values: Mapping[str, str]

    @property
    def value(self) -> str:
        """The value of a secret without fields."""
        if VALUE not in self._values:
            raise SecretMissing(_has_fields(self.name, self._values), fix='read secret_values["FIELD"]')
        return self._values[VALUE]

    @property
    def secret_values(self) -> dict[str, str]:
        """The values of its fields, by their names; empty without fields."""
        return {field: value for field, value in self._values.items() if field != VALUE}

    @property
    def by_reference(self) -> dict[str, str]:
        """All its values by the references that a step has for them."""
        return {Secret.named(self.name, field).reference: value for field, value in self._values.items()}

    def __repr__(self) -> str:
        return f"<secret {self.name}>"

    def __reduce__(self) -> NoReturn:
        raise SerializationError(
            f"the secret '{self.name}' is written nowhere: hand over Secret.named(\"{self.name}\"), or read it there"
        )


class _Place(Protocol):
    """Where secrets are kept: as mappings of their fields, or of `VALUE` to the one value."""

    label: str

    def get(self, name: str) -> Mapping[str, str] | None: ...

    def put(self, name: str, values: Mapping[str, str]) -> str: ...

    def remove(self, name: str) -> None: ...


class NamedSecrets:
    """The secrets by name of a stack. `place` is "keyring" or "file" for new ones of this machine; the better one that
    there is without it."""

    def __init__(self, stack: Stack, *, place: str | None = None) -> None:
        self._machine: MachineSecrets | None = None
        if stack.secrets is None:
            self._machine = MachineSecrets(stack.home, shared=stack.shared, place=place)
            self._place: _Place = self._machine
            return
        if place is not None:
            raise UsageError(
                f"--place {place}: the stack '{stack.name}' keeps its secrets elsewhere (secrets = …)",
                fix="leave --place out, or name another --stack",
            )
        from stoker.backends.aws.secrets import SecretsManager  # a stack that names it has few others

        self._manager = SecretsManager(stack.secrets)
        self._place = self._manager

    def values(self, name: str) -> SecretValues:
        """The values of a secret; `SecretMissing` where it has none."""
        return SecretValues(name, self._values(checked_name(name)))

    def value(self, text: str) -> str:
        """The value of "name" or "name.field"; `SecretMissing` where there is none."""
        name, dot, field = text.partition(".")
        values = self._values(checked_name(name), field)
        if field in values and bool(dot) == bool(field):
            return values[field]
        what = f"secret:named:{text}: {_has_fields(name, values)}"
        fix = f"write secret:named:{name}" if values.keys() <= {VALUE} else f"write secret:named:{name}.FIELD"
        raise SecretMissing(f"{what}{nearest(field, list(values))}" if field else what, fix=fix)

    def set(self, name: str, values: Mapping[str, str]) -> str:
        """Keep the `VALUE` of a secret, or fields of it beside those that it has; where, in words."""
        for one in (name, *filter(None, values)):
            checked_name(one)
        return self._place.put(name, values)

    def remove(self, name: str) -> None:
        """Remove a secret with all its values; `NotFound` for one that is not kept."""
        self.check(name)
        self._place.remove(name)

    def check(self, name: str) -> None:
        """`NotFound` for a secret that is not kept."""
        names = [secret.name for secret in self.listed()]
        if name not in names:
            what = f"{self.label} has no secret called '{name}'{nearest(name, names)}"
            raise NotFound(what, fix="stoker secret list")

    @property
    def label(self) -> str:
        """Where they are, in words."""
        return self._place.label

    def listed(self) -> Sequence[NamedSecret]:
        """The secrets that are kept, by name."""
        if self._machine is not None:
            return self._machine.listed()
        return sorted(
            (
                NamedSecret(name=name, where=self._place.label, set_at=at)
                for name, at in self._manager.listed()
                if _NAME.fullmatch(name)
            ),
            key=lambda secret: secret.name,
        )

    def _values(self, name: str, field: str = "") -> Mapping[str, str]:
        found = self._place.get(name)
        if found is not None:
            return found
        values = _in_environment(name, field)
        if not values:
            reference, option = (f"{name}.{field}", f" --field {field}") if field else (name, "")
            raise SecretMissing(
                f"secret:named:{reference}: neither {self._place.label} has it, nor the environment variable "
                f"{_variable(name, field)}",
                fix=f"stoker secret set {name}{option}",
            )
        return values


def kinds_of(stack: Stack) -> Mapping[str, SecretKind]:
    """The kind of secrets by name, for what reads secrets of this stack."""
    read = NamedSecrets(stack).value
    return {"named": SecretKind(read=read, where="the secret {name}", fix="stoker secret set NAME, for {name}")}


def checked_name(name: str) -> str:
    """The name of a secret or of a field; `UsageError` for one that cannot be."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is no name of a secret or a field", fix="write letters, digits, '-' and '_', such as db-password"
        )
    return name


def _variable(name: str, field: str = "") -> str:
    return VARIABLE + (f"{name}__{field}" if field else name).replace("-", "_").upper()


def _in_environment(name: str, field: str) -> dict[str, str]:
    """The fields of a secret that variables have; the one that is asked for by the name that it is asked by."""
    beginning, variable = f"{_variable(name)}__", _variable(name, field)
    values = {
        text.removeprefix(beginning).lower(): os.environ[text] for text in os.environ if text.startswith(beginning)
    }
    if os.environ.get(variable) and variable not in (KEY, BROUGHT):
        values[field] = os.environ[variable]
    return values


def _has_fields(name: str, values: Mapping[str, str]) -> str:
    fields = ", ".join(sorted(filter(None, values)))
    return (
        f"the secret '{name}' has the fields {fields}" if fields else f"the secret '{name}' has a value and no fields"
    )


class MachineSecrets:
    """Secrets of one user on this machine: values in the keyring, or encrypted in the file that lists them all."""

    label = "this machine"

    def __init__(self, home: Path, *, shared: bool, place: str | None = None) -> None:
        self._home = home
        self._shared = shared
        self._chosen = place
        # Users who share a home have files of their own, which nobody else can read.
        self._path = home / f"secrets-{os.geteuid()}.json"

    def listed(self) -> list[NamedSecret]:
        """The secrets that are kept, by name."""
        return [
            NamedSecret(name=name, fields=tuple(entry["fields"]), where=self._where(entry), set_at=entry["set"])
            for name, entry in sorted(self._read()["secrets"].items())
        ]

    def get(self, name: str) -> Mapping[str, str] | None:
        """The fields of a secret; None for one that is not kept."""
        document = self._read()
        entry = document["secrets"].get(name)
        return None if entry is None else self._values(document, name, entry)

    def put(self, name: str, values: Mapping[str, str]) -> str:
        """Keep the value, or these fields beside those that are there; where, in words."""
        with self._changing() as document:
            entry = document["secrets"].get(name)
            before = {} if entry is None else self._values(document, name, entry)
            if before and (VALUE in before) != (VALUE in values):
                raise UsageError(_has_fields(name, before), fix=f"stoker secret rm {name} first")
            after = {**before, **values}
            ring = _keyring() if self._chosen != "file" else None
            if ring is None and self._chosen == "keyring":
                raise UsageError(
                    "there is no keyring here that keeps secrets", fix="pip install 'stoker[keyring]', or --place file"
                )
            fields = sorted(filter(None, after))
            made: dict[str, Any] = {
                "set": time.time(),
                "place": "file" if ring is None else "keyring",
                "fields": fields,
            }
            if ring is None:
                text = json.dumps({"name": name, "values": after})
                made["sealed"] = _cipher(name, make=True).encrypt(text.encode()).decode()
                self._forget(document, name)
            else:
                with _keyring_errors(name):
                    ring.set_password(_service(document), name, json.dumps(after))
            document["secrets"][name] = made
        return self._where(made)

    def remove(self, name: str) -> None:
        """Remove a secret; one that is gone is fine."""
        with self._changing() as document:
            self._forget(document, name)
            document["secrets"].pop(name, None)

    def _where(self, entry: Mapping[str, Any]) -> str:
        return "the keyring" if entry["place"] == "keyring" else str(self._path)

    def _values(self, document: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> dict[str, str]:
        if entry["place"] == "keyring":
            text = KEYRING.read(f"{_service(document)}/{name}")
            if text is None:
                what = f"the keyring has no entry {_service(document)}/{name} any more, which is the secret '{name}'"
                raise SecretMissing(what, fix=f"stoker secret rm {name}, then stoker secret set {name}")
            return parse_object(text)
        cipher = _cipher(name)
        from cryptography.fernet import InvalidToken

        try:
            opened = parse_object(cipher.decrypt(entry["sealed"].encode()))
        except InvalidToken:
            opened = {}
        if opened.get("name") != name:
            raise SecretMissing(
                f"the secret '{name}' in {self._path} is not encrypted with the key of {_key_place()}",
                fix=f"set {KEY} to the key that it was set with, or stoker secret rm {name} and set it again",
            )
        values: dict[str, str] = opened["values"]
        return values

    def _forget(self, document: Mapping[str, Any], name: str) -> None:
        """Remove what the keyring has of a secret."""
        entry = document["secrets"].get(name)
        if entry is None or entry["place"] != "keyring":
            return
        import keyring

        with _keyring_errors(name), contextlib.suppress(keyring.errors.PasswordDeleteError):  # it is gone
            keyring.delete_password(_service(document), name)

    def _read(self) -> dict[str, Any]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {"version": _VERSION, "id": os.urandom(4).hex(), "secrets": {}}
        except OSError as error:
            raise _unusable(self._path, error) from error
        document = parse_object(text, where=str(self._path))
        if document.get("version") != _VERSION:
            what = f"{self._path} is of another version of Stoker"
            raise StoreError(what, fix="upgrade Stoker here: pip install -U stoker")
        return document

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """The document, which is written when the block ends; no other process changes it meanwhile."""
        try:
            prepare_home(str(self._home), shared=self._shared)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._path, error) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:  # a file system without locks
                raise _unusable(self._path, error) from error
            document = self._read()
            yield document
            _write(self._path, json.dumps(document, indent=1))
        finally:
            os.close(lock)


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    import tempfile  # as below: a run without secrets does not need it

    try:
        descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            os.unlink(beside)
            raise
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> StoreError:
    what = f"the secrets of {path} cannot be read or written: {error.strerror}"
    return StoreError(what, fix="set STOKER_HOME to a folder of yours, or change the permissions")


# The keyring


def _service(document: Mapping[str, Any]) -> str:
    return f"stoker-{document['id']}"


def _keyring() -> Any:
    """The keyring, where there is one that keeps secrets: by keyring's own rule, which leaves out plain files."""
    try:
        import keyring.backends.chainer
        import keyring.core
    except ModuleNotFoundError:
        return None
    try:
        ring = keyring.get_keyring()
    except Exception as error:  # of whatever module the configuration names
        what = f"the keyring that is configured cannot be used: {type(error).__name__}: {error}"
        raise UsageError(what, fix="correct PYTHON_KEYRING_BACKEND or keyringrc.cfg (keyring diagnose)") from error
    first = ring.backends[0] if isinstance(ring, keyring.backends.chainer.ChainerBackend) else ring
    return ring if keyring.core.recommended(first) else None


@contextlib.contextmanager
def _keyring_errors(name: str) -> Iterator[None]:
    import keyring.errors

    try:
        yield
    except keyring.errors.KeyringError as error:
        raise SecretMissing(
            f"the secret '{name}': the keyring cannot be used: {type(error).__name__}: {error}",
            fix="unlock it (keyring diagnose), or stoker secret set --place file",
        ) from error


# The encrypted file


def _cipher(name: str, *, make: bool = False) -> Any:
    """What encrypts and decrypts; `make` makes a key where there is none."""
    try:
        from cryptography.fernet import Fernet
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "without a keyring, secrets are in a file that is encrypted by the package 'cryptography'",
            fix=f"pip install 'stoker[secrets]', or export {_variable(name)}=…",
        ) from error
    key = os.environ.get(KEY) or _key_of_file(make=make)
    try:
        return Fernet(key)
    except ValueError as error:
        what = f"{_key_place()} has no key: 32 bytes in URL-safe base64"
        raise UsageError(what, fix=f"make one: {_NEW_KEY}") from error


def _key_path() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "stoker" / "secret.key"


def _key_place() -> str:
    return f"the variable {KEY}" if os.environ.get(KEY) else str(_key_path())


def _key_of_file(*, make: bool) -> str:
    path = _key_path()
    try:
        if make and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_once(path, base64.urlsafe_b64encode(os.urandom(32)).decode())
        if path.stat().st_mode & 0o077:
            raise UsageError(f"others can read {path}, the key of your secrets", fix=f"chmod 600 {path}")
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        what = f"there is no key of your secrets: neither {path} nor {KEY}"
        raise SecretMissing(what, fix="bring the one that they were set with, or set them again") from error
    except (OSError, UnicodeDecodeError) as error:
        what = f"the key of your secrets, {path}, cannot be read or made: {error}"
        raise UsageError(what, fix=f"change its permissions, or set {KEY}") from error


def _make_once(path: Path, text: str) -> None:
    """Write a file that is not there; that of another process, which was first, stays."""
    import tempfile

    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    with contextlib.suppress(FileExistsError):
        os.link(beside, path)
    os.unlink(beside)
