"""Reads the values of secrets, and masks them in what steps write.

The process that drives a run reads each once, for its plan; they travel with the job (`WorkerJob.secrets`), and the
worker puts them into the step's environment and arguments. Nothing here is written to a file.

Where a platform's own storage can be read by others, a job's secrets travel in two halves. Their values are combined
with random bytes of the same length by exclusive or. The random half travels in the job's document, the other one lies
in a folder of the artifact store or of the run. Either of them alone is noise, whatever is done with it (a one-time
pad; C. E. Shannon, "Communication Theory of Secrecy Systems", 1949): who reads the platform's requests, logs and
key-value store needs the artifact store as well.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import sys
from functools import cache
from typing import Any, Callable, ClassVar, Final, Iterable, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.core.codec import parse_object
from stoker.core.errors import MissingPackage, StoreError, UsageError
from stoker.core.plugins import Registry
from stoker.core.protocol import SealedSecrets, StepError, StepResult
from stoker.core.secret import Secret, is_reference
from stoker.core.values import frozen

T = TypeVar("T")

BROUGHT: Final = "STOKER_SECRET_VALUES"
"""The variable with values that were read on another machine, as JSON by their references: a driver in a pod has it."""
SHORTEST: Final = 8
"""Characters of the shortest value that is masked: a shorter one may be a common word of the output."""


READ: Final[dict[str, str]] = {}
"""Values, of those that are masked, which the user's code in this process has read by name → their references."""


class SecretMissing(UsageError):
    """A secret that a step refers to has no value here."""


@frozen(kw_only=True)
class SecretKind:
    """One place where secrets are: the value that a registry `stoker.secrets` has under the kind's name."""

    read: Callable[[str], str | None]
    """The value of a name; None where there is none."""
    where: str
    """The place in words, with {name}: "the environment variable {name}"."""
    fix: str
    """What to do where there is no value, with {name}."""


def _read_file(name: str) -> str | None:
    try:
        with open(os.path.expanduser(name), encoding="utf-8") as file:
            return file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        return None


def _read_keyring(name: str) -> str | None:
    try:
        import keyring
    except ModuleNotFoundError as error:
        fix = "pip install 'stoker[keyring]'"
        raise MissingPackage("Secret.keyring needs the package 'keyring'", fix=fix) from error
    service, _, user = name.rpartition("/")
    try:
        password: str | None = keyring.get_password(service, user)
    except keyring.errors.KeyringError as error:  # locked, or there is no keyring, as on a server
        raise SecretMissing(
            f"secret:keyring:{name}: the keyring cannot be read: {type(error).__name__}: {error}",
            fix="unlock it, or set one up: keyring diagnose",
        ) from error
    return password


ENV: Final = SecretKind(
    read=os.environ.get, where="the environment variable {name}", fix="export {name}=… before the run is started"
)
FILE: Final = SecretKind(read=_read_file, where="the file {name}", fix="write the value into {name}, with chmod 600")
KEYRING: Final = SecretKind(
    read=_read_keyring, where="the keyring's entry {name}", fix="keyring set SERVICE USER, for {name}"
)
KINDS: Final[Registry[SecretKind]] = Registry(
    group="stoker.secrets",
    noun="kind of secret",
    kind=SecretKind,
    builtin={
        "env": ("stoker.worker.secrets:ENV", ""),
        "file": ("stoker.worker.secrets:FILE", ""),
        "keyring": ("stoker.worker.secrets:KEYRING", ""),
    },
)


def read(secret: Secret, kinds: Mapping[str, SecretKind] | None = None) -> str:
    """The value of a secret in this process; `kinds` are those of a stack, by their names.

    Raises `SecretMissing` where there is none, `MissingPackage` where its kind needs a package, `UsageError` for a kind
    that does not exist.
    """
    kind = (kinds or {}).get(secret.kind) or KINDS.load(secret.kind)
    brought: Mapping[str, str] = json.loads(os.environ.get(BROUGHT) or "{}")
    value = brought.get(secret.reference) or kind.read(secret.name)
    if not value:
        where = kind.where.format(name=secret.name)
        what = "is empty" if value == "" else "has no value on this machine, or cannot be read"
        raise SecretMissing(f"{secret.reference}: {where} {what}", fix=kind.fix.format(name=secret.name))
    return value


def references(environment: Mapping[str, str], trees: Mapping[str, Any]) -> set[str]:
    """The references of secrets among variables and in the trees of inputs (`core.plan.StepPlan`)."""
    wanted = {text for text in environment.values() if is_reference(text)}
    for tree in trees.values():
        _add_references(tree, wanted)
    return wanted


def _add_references(tree: Mapping[str, Any], wanted: set[str]) -> None:
    wire = tree.get("value")
    if wire is not None:
        if wire["s"] == "secret":
            wanted.add(base64.b64decode(wire["i"]).decode())
        return
    for item in tree["list"] if "list" in tree else tree.get("dict", {}).values():
        _add_references(item, wanted)


def revealed(value: Any, values: Mapping[str, str]) -> Any:
    """The value of a secret where `value` is one and the job has it; anything else as it is."""
    if type(value) is Secret:
        return values.get(value.reference, value)
    return value


class Masker:
    """Puts `***env:NAME***` in the place of secrets' values, and of their usual encodings.

    Masked are the value, each of its lines, and what JSON, Python's `repr`, a URL, hexadecimal and base64 make of it,
    from `SHORTEST` characters on. Parts of a value, and other encodings, are not recognized.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._labels: dict[str, str] = {}
        for reference, value in values.items():
            label = f"***{reference.removeprefix('secret:').partition('#')[0]}***"
            for form in _forms(value):
                if len(form) >= SHORTEST:
                    self._labels.setdefault(form, label)
        longest_first = sorted(self._labels, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._forms = tuple(longest_first)

    def text(self, text: str) -> str:
        """The text with secrets masked."""
        if self._pattern is None or not text:
            return text
        return self._pattern.sub(lambda match: self._labels[match.group()], text)

    def whole_end(self, text: str) -> int:
        """Where the beginning of a longer text may be cut off: before all that may be the beginning of a secret."""
        return _whole_end(text, self._forms)

    def whole_end_of_bytes(self, data: bytes) -> int:
        """`whole_end` of UTF-8."""
        encoded = [form.encode("utf-8", "surrogatepass").decode("latin-1") for form in self._forms]
        return _whole_end(data.decode("latin-1"), encoded)

    def document(self, value: T) -> T:
        """A value of texts, mappings, lists and attrs classes with the texts in it masked."""
        masked: Any = value
        if self._pattern is None:
            return value
        if isinstance(value, str):
            masked = self.text(value)
        elif isinstance(value, Mapping):
            masked = {key: self.document(item) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            masked = type(value)(self.document(item) for item in value)
        elif attrs.has(type(value)):
            kind: Any = type(value)
            names = [field.name for field in attrs.fields(kind) if field.init]
            changes = {name: self.document(getattr(value, name)) for name in names}
            masked = attrs.evolve(masked, **changes)
        return masked  # type: ignore[no-any-return]

    def result(self, result: StepResult) -> StepResult:
        """A job's result with what was raised masked; outputs are the user's, and stay."""
        error: StepError | None = result.error
        return result if error is None else attrs.evolve(result, error=self.document(error))


class MaskedStream:
    """A text stream that masks secrets on their way to another one, whose other attributes it has.

    What may be the beginning of a secret waits for the next write, or for `end`.
    """

    def __init__(self, stream: Any, masker: Masker) -> None:
        self._stream = stream
        self._masker = masker
        self._rest = ""

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        whole = self._rest + text
        end = self._masker.whole_end(whole)
        self._rest = whole[end:]
        self._stream.write(self._masker.text(whole[:end]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """Write what still waits."""
        rest, self._rest = self._rest, ""
        self._stream.write(self._masker.text(rest))
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def masked_output(values: Mapping[str, str]) -> Iterator[None]:
    """Mask secrets in what is written to `sys.stdout` and `sys.stderr`, also by a debugger."""
    if not values:
        yield
        return
    masker = Masker(values)
    before = sys.stdout, sys.stderr
    masked = MaskedStream(sys.stdout, masker), MaskedStream(sys.stderr, masker)
    sys.stdout, sys.stderr = masked
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in masked:
            stream.end()


class StepSecrets:
    """What the step of this process reads of secrets by itself, by reference: masked in what it writes from then on."""

    current: ClassVar[StepSecrets | None] = None
    """None where it has read none."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._outputs = contextlib.ExitStack()

    def add(self, values: Mapping[str, str]) -> None:
        """Mask these values from now on."""
        if not values.items() <= self.values.items():
            self.values.update(values)
            self._outputs.enter_context(masked_output(values))

    def close(self) -> None:
        """Write what still waits, and mask no more."""
        self._outputs.close()


def _whole_end(text: str, forms: Sequence[str]) -> int:
    """The end of the text without the longest part that begins a form, or a form that this part would cut."""
    longest = max(map(len, forms), default=0)
    tail = text[max(0, len(text) - 2 * longest) :]
    partial = 0
    for form in forms:
        for length in range(min(len(form) - 1, len(tail)), partial, -1):
            if tail.endswith(form[:length]):
                partial = length
                break
    end = len(tail) - partial
    whole = re.compile("|".join(map(re.escape, forms))) if partial else None
    for match in whole.finditer(tail) if whole is not None else ():
        if match.start() < end < match.end():
            end = match.start()
    return len(text) - len(tail) + end


def _forms(value: str) -> Iterator[str]:
    from urllib.parse import quote  # not in workers that have no secrets

    yield value
    yield from (line.strip() for line in value.splitlines())
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    yield quote(value, safe="")
    data = value.encode("utf-8", "surrogatepass")
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        yield encoded.decode().rstrip("=")
    yield data.hex()


class SecretReader:
    """The secrets of one run in the process that drives it: each value is read once, and masked from then on.

    `kinds` gives those that the run's stack has beside the registered ones, by their names.
    """

    def __init__(self, kinds: Callable[[], Mapping[str, SecretKind]] = dict) -> None:
        self._kinds = cache(kinds)
        self._values: dict[str, str] = {}
        self.masker: Masker | None = None

    def read(self, secret: Secret) -> str:
        """The value of a secret; see `read` of this module for what is raised."""
        if secret.reference not in self._values:
            self._values[secret.reference] = read(secret, self._kinds())
            self.masker = Masker(self._values)
        return self._values[secret.reference]

    def values_of(self, environment: Mapping[str, str], trees: Mapping[str, Any]) -> dict[str, str]:
        """The values of the secrets that a job refers to, by reference; see `read` for what is raised."""
        return {text: self.read(Secret.parse(text)) for text in sorted(references(environment, trees))}


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
    from stoker.store import notes  # shutil and tempfile, which the driver does not load

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
