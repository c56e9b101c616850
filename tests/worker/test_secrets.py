"""What the masker recognizes, and how secrets are spelled, read and missed."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast
from urllib.parse import quote

import pytest

from stoker.core.errors import MissingPackage, ParameterError, UsageError
from stoker.core.protocol import StepError, StepResult
from stoker.core.secret import Secret, is_reference, looks_secret
from stoker.worker.secrets import BROUGHT, KINDS, MaskedStream, Masker, SecretMissing, SecretReader, read, references

VALUE = 'pä$$"word/with+odd\\things'


def test_what_is_written_is_the_reference() -> None:
    secret = Secret.env("HF_TOKEN", version="2")
    assert str(secret) == repr(secret) == f"{secret}" == secret.reference == "secret:env:HF_TOKEN#2"
    assert Secret.parse(secret.reference) == secret == pickle.loads(pickle.dumps(secret))
    assert Secret.keyring("hub", "me").reference == "secret:keyring:hub/me"
    assert is_reference("secret:file:~/.token") and not is_reference("secret: env") and not is_reference("secretly")
    for text in ("env:X", "secret:env:", "secret:env:a b", "secret::x"):
        with pytest.raises(ParameterError, match="no reference"):
            Secret.parse(text)


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        json.dumps(VALUE)[1:-1],
        json.dumps(VALUE, ensure_ascii=False)[1:-1],
        repr(VALUE)[1:-1],
        quote(VALUE, safe=""),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
        VALUE.encode().hex(),
    ],
)
def test_usual_forms_of_a_value_are_masked(form: str) -> None:
    masked = Masker({"secret:env:PW#1": VALUE}).text(f"before {form} behind {form}")
    assert form not in masked and masked.count("***env:PW***") == 2
    assert masked.startswith("before ") and " behind " in masked


def test_lines_short_values_and_documents() -> None:
    masker = Masker({"secret:file:k": "-----BEGIN\nabcdefghijkl\nxy\n", "secret:env:S": "short"})
    assert masker.text("abcdefghijkl and short xy") == "***file:k*** and short xy"
    error = StepError(message="abcdefghijkl", because=("x abcdefghijkl",), stacks={"0": "abcdefghijkl"}, rank=1)
    masked = masker.result(StepResult(ok=False, error=error, outputs={"kept": "abcdefghijkl"}))
    assert masked.error is not None and "abcdefghijkl" not in repr(masked.error) and masked.error.rank == 1
    assert masked.outputs == {"kept": "abcdefghijkl"}
    assert Masker({}).text("abcdefghijkl") == "abcdefghijkl"


def test_values_are_read_once_and_a_missing_one_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-the-file\n")
    monkeypatch.setenv("A_TOKEN", "from-the-variable")
    reader = SecretReader()
    variables = {"A": "secret:env:A_TOKEN", "B": f"secret:file:{tmp_path}/token", "C": "plain"}
    expected = {variables["A"]: "from-the-variable", variables["B"]: "from-the-file"}
    assert references(variables, {}) == set(expected) and reader.values_of(variables, {}) == expected
    monkeypatch.setenv("A_TOKEN", "another-value")
    assert reader.values_of(variables, {}) == expected
    assert reader.masker is not None and reader.masker.text("from-the-file") == f"***file:{tmp_path}/token***"
    with pytest.raises(SecretMissing, match="environment variable NOT_THERE has no value"):
        read(Secret.env("NOT_THERE"))
    with pytest.raises(SecretMissing, match=f"the file {tmp_path}/none"):
        read(Secret.file(f"{tmp_path}/none"))
    with pytest.raises(UsageError, match="no kind of secret called 'vault'"):
        read(Secret.parse("secret:vault:x"))
    assert set(KINDS.builtin) <= set(KINDS.names())


def test_values_that_were_read_elsewhere_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A detached driver in a pod has neither the file nor the variable."""
    secret = Secret.file(str(tmp_path / "none"), version="2")
    monkeypatch.setenv(BROUGHT, json.dumps({secret.reference: "from there"}))
    assert read(secret) == "from there"
    with pytest.raises(SecretMissing):
        read(Secret.file(str(tmp_path / "none")))


def test_a_keyring_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(MissingPackage) as missing:
        read(Secret.keyring("hub", "me"))
    assert "stoker[keyring]" in missing.value.fix


def test_a_keyring_that_cannot_be_read_is_a_secret_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    class NoKeyringError(RuntimeError):
        pass

    def get_password(service: str, user: str) -> str:
        raise NoKeyringError(f"no backend for {service}/{user}")

    package, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    vars(errors)["KeyringError"] = NoKeyringError
    vars(package).update(get_password=get_password, errors=errors)
    monkeypatch.setitem(sys.modules, "keyring", package)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    with pytest.raises(SecretMissing, match="secret:keyring:hub/me: the keyring cannot be read: NoKeyringError"):
        read(Secret.keyring("hub", "me"))


KEYRING = """
import sys
import keyring
from stoker.core.secret import Secret
from stoker.worker.secrets import SecretMissing, SecretReader, read

if sys.argv[1] == "write":
    keyring.set_password("hub", "me", "from-the-keyring-01")
try:
    print(read(Secret.keyring("hub", "me")))
    print(SecretReader().values_of({"A": "secret:keyring:hub/me"}, {}))
    read(Secret.keyring("hub", "nobody"))
except SecretMissing as error:
    print(error, "|", error.fix)
"""


def test_a_real_keyring(tmp_path: Path) -> None:
    pytest.importorskip("keyrings.alt.file")

    def run(backend: str, what: str) -> list[str]:
        environ = {**os.environ, "PYTHON_KEYRING_BACKEND": backend, "XDG_DATA_HOME": str(tmp_path)}
        words = [sys.executable, "-c", KEYRING, what]
        ran = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    plain = "keyrings.alt.file.PlaintextKeyring"
    for what in ("write", "read"):
        value, values, *missing = run(plain, what)
        assert value == "from-the-keyring-01" and values == "{'secret:keyring:hub/me': 'from-the-keyring-01'}"
        assert "the keyring's entry hub/nobody has no value" in missing[0]
        assert "keyring set SERVICE USER, for hub/nobody" in "".join(missing)
    said = run("keyring.backends.fail.Keyring", "read")
    assert said[0].startswith("secret:keyring:hub/me: the keyring cannot be read: NoKeyringError")


def test_which_names_look_secret() -> None:
    secret = ("HF_TOKEN", "token", "password", "db_password", "api_key", "AWS_SECRET_ACCESS_KEY", "api-key")
    assert all(looks_secret(name, "0123456789") for name in secret)
    harmless = ("pad_token", "tokenizer", "eos_token", "key", "passwords_file", "new_token")
    assert not any(looks_secret(name, "0123456789") for name in harmless)
    assert not looks_secret("token", "short") and not looks_secret("token", "two words are a text")
    assert not looks_secret("token", "secret:env:X") and not looks_secret("token", 12345678901)


def test_a_text_is_never_cut_inside_of_a_secret() -> None:
    values = {"secret:env:A": "abcabcabd", "secret:env:B": "dabcabca" * 2, "secret:env:C": "пароль-это"}
    masker = Masker(values)
    text = "xabcabcabdabcabcadabcabca пароль-этоabcabcabcabd dabcabcabcabd" + values["secret:env:B"] + "abcab"
    expected = masker.text(text)
    for size in range(1, len(text)):
        pieces, rest = [], ""
        for begin in range(0, len(text), size):
            rest += text[begin : begin + size]
            end = masker.whole_end(rest)
            pieces.append(masker.text(rest[:end]))
            rest = rest[end:]
        assert "".join(pieces) + masker.text(rest) == expected, size
    data = "x пароль-эт".encode()
    assert data[: masker.whole_end_of_bytes(data)] == b"x "
    assert data[: masker.whole_end_of_bytes(data[:-1])] == b"x ", "in the middle of a character"
    assert Masker({}).whole_end(text) == len(text)


def test_a_masked_stream_is_otherwise_the_stream() -> None:
    plain = io.StringIO()
    stream = MaskedStream(plain, Masker({"secret:env:T": "hf_0123456789"}))
    print("a hf_0123456789 b", end="", file=cast("TextIO", stream))
    stream.writelines(["c hf_0123", "456789", " d h"])
    assert plain.getvalue() == "a ***env:T*** bc ***env:T*** d "
    assert stream.isatty() is False and stream.getvalue() == plain.getvalue()
    stream.end()
    assert plain.getvalue().endswith(" d h")
