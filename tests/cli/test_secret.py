"""`stoker secret`: values are typed, piped and read from files; several processes lose none; what cannot be is said."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers.s3 import S3, s3_server  # noqa: F401  # a fixture

from stoker import Client, Secret
from stoker.client.namedsecrets import KEY
from stoker.core.errors import MissingPackage, UsageError
from stoker.core.request import RunRequest
from stoker.run.session import Session
from stoker.worker.secrets import SecretMissing

WORD = "a-value-of-mine-0123"


@pytest.fixture(autouse=True)
def _no_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_processes_that_set_at_once_lose_nothing(stoker: Any) -> None:
    program = [sys.executable, "-m", "stoker", "secret", "set"]
    words = [*(["shared", "--field", f"f{number}"] for number in range(4)), *([f"own-{number}"] for number in range(4))]
    started = [
        subprocess.Popen([*program, *one, "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for one in words
    ]
    for one, process in zip(words, started):
        assert process.stdin is not None
        process.stdin.write(f"{WORD}-{one[-1]}\n")
        process.stdin.close()
    assert [process.wait(120) for process in started] == [0] * 8
    assert Client().secret("shared").secret_values == {f"f{number}": f"{WORD}-f{number}" for number in range(4)}
    assert [Client().secret(f"own-{number}").value for number in range(4)] == [f"{WORD}-own-{n}" for n in range(4)]
    assert [one["name"] for one in stoker.json("secret", "list")] == [
        *(f"own-{number}" for number in range(4)),
        "shared",
    ]
    with pytest.raises(SecretMissing, match="has the fields f0, f1, f2, f3"):
        assert Client().secret("shared").value


def test_a_typed_value_is_not_shown(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from stoker.cli.main import main; main()"
    words = [sys.executable, "-c", code, "secret", "set", "login", "--field", "user", "--field", "password"]
    child = subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower, start_new_session=True)
    os.close(follower)
    shown = b""
    for question in (b"login.user: ", b"confirmation: ", b"login.password: ", b"confirmation: "):
        while not shown.rstrip(b"\0").lower().endswith(question):
            shown += os.read(leader, 1000)
        os.write(leader, f"{WORD}\n".encode())
        shown += b"\0"
    assert child.wait(60) == 0
    shown += os.read(leader, 1000)
    os.close(leader)
    assert WORD.encode() not in shown and b"'login' is kept in" in shown
    assert set(Client().secret("login").secret_values.values()) == {WORD}


WRONG = (
    (f"set db {WORD}", "", "does not stand on the command line", "with - (stdin) or --file"),
    ("set db", "", "stdin is no terminal", "with - (stdin) or --file"),
    ("set db -", "\n", "the value of 'db' is empty", ""),
    ("set db --file nowhere", "", "No such file or directory: nowhere", ""),
    ("set db - --file x", "", "either on stdin or in a file", "leave out"),
    ("set d.b -", WORD, "'d.b' is no name of a secret", "such as db-password"),
    ("set db --field a --field a -", WORD, "named twice", "once"),
    (
        "set db --field a --field b -",
        f'{{"a": "{WORD}"}}',
        "no JSON object with a text for each",
        'write {"a": "…", "b"',
    ),
    ("set db --file bytes", "", "no text in UTF-8", "base64"),
    ("set db --place keyring -", WORD, "no keyring here that keeps secrets", "--place file"),
    ("set one --field a -", WORD, "'one' has a value and no fields", "stoker secret rm one first"),
    ("set two -", WORD, "'two' has the fields a", "stoker secret rm two first"),
    ("rm onne --yes", "", "no secret called 'onne', did you mean 'one'?", "stoker secret list"),
    ("rm one", "", "nobody can be asked", "rm one --yes"),
)


def test_what_cannot_be_is_said_without_the_value(stoker: Any) -> None:
    (stoker.project.folder / "bytes").write_bytes(b"\xff\xfe")
    stoker("secret", "set", "one", "-", input=WORD)
    stoker("secret", "set", "two", "--field", "a", "-", input=WORD)
    elsewhere = {"STOKER_HOME": "/dev/null/home"}
    assert "cannot be read or written" in stoker("secret", "list", env=elsewhere, code=4).stderr
    ring = {"PYTHON_KEYRING_BACKEND": "no.such.Ring"}
    assert "correct PYTHON_KEYRING_BACKEND" in stoker("secret", "set", "x", "-", input=WORD, env=ring, code=2).stderr
    before = stoker.json("secret", "list")
    for words, given, what, fix in WRONG:
        refused = stoker("secret", *words.split(), input=given, code=2).stderr
        assert what in refused and fix in refused and WORD not in refused, words
    assert stoker.json("secret", "list") == before
    assert Client().secret("one").value == WORD and Client().secret("two").secret_values == {"a": WORD}


def read(reference: str) -> str:
    """What a run reads for a reference."""
    return Session(RunRequest()).secrets.read(Secret.parse(reference))


def test_keys_fields_and_packages_that_are_not_there(
    stoker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stoker("secret", "set", "one", "-", input=WORD)
    stoker("secret", "set", "two", "--field", "user", "-", input=WORD)
    assert read("secret:named:one") == read("secret:named:two.user") == WORD
    for reference, what, fix in (
        ("one.user", "'one' has a value and no fields", "write secret:named:one"),
        ("two", "'two' has the fields user", "write secret:named:two.FIELD"),
        ("two.usr", "did you mean 'user'", "write secret:named:two.FIELD"),
        ("one.", "has a value and no fields", ""),
        ("db.user", "nor the environment variable STOKER_SECRET_DB__USER", "stoker secret set db --field user"),
    ):
        with pytest.raises(SecretMissing, match=what) as missing:
            read(f"secret:named:{reference}")
        assert fix in missing.value.fix
    key = tmp_path / "config" / "stoker" / "secret.key"
    kept = key.read_text()
    for mode, text, what, fix in (
        (0o644, kept, "others can read", "chmod 600"),
        (0o600, "no key", "has no key: 32 bytes", "make one: python -c"),
        (0o600, "A" * 43 + "=", "not encrypted with the key of", f"set {KEY} to the key"),
        (0o600, "", "there is no key of your secrets", "bring the one"),
    ):
        key.write_text(text)
        key.chmod(mode)
        if not text:
            key.unlink()
        with pytest.raises(UsageError, match=what) as refused:
            read("secret:named:one")
        assert fix in refused.value.fix
    monkeypatch.setenv(KEY, kept)
    assert read("secret:named:one") == WORD
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(MissingPackage) as absent:
        read("secret:named:one")
    assert "stoker[secrets]" in absent.value.fix and "STOKER_SECRET_ONE" in absent.value.fix
    for name, text in (("STOKER_SECRET_MY_HUB", WORD), ("STOKER_SECRET_DB__USER", WORD)):
        monkeypatch.setenv(name, text)
    assert read("secret:named:my-hub") == read("secret:named:db.user") == Client().secret("my-hub").value == WORD
    assert Client().secret("db").secret_values == {"user": WORD}
    with pytest.raises(SecretMissing, match="secret:named:key: neither"):
        read("secret:named:key")  # STOKER_SECRET_KEY is no secret's


def test_a_stack_keeps_them_in_aws(stoker: Any, s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for name, text in s3_server.environment.items():
        monkeypatch.setenv(name, text)
    stacks = (
        'stack = "a"\n[stacks.a]\nsecrets = "secretsmanager:team/"\n[stacks.b]\nsecrets.flavor = "secretsmanager"\n'
    )
    stoker.project.write({"stoker.toml": stacks})
    monkeypatch.chdir(stoker.project.folder)
    set_in = stoker("secret", "set", "db", "--field", "user", "-", input=WORD).stderr
    assert "'db' is kept in AWS Secrets Manager, team/db" in set_in
    stoker("secret", "set", "db", "--field", "port", "-", input="5432")
    stoker("secret", "set", "hub", "-", input=WORD)
    stoker("secret", "set", "hub", "-", input=f"{WORD}-2")
    assert read("secret:named:db.user") == WORD and read("secret:named:hub") == f"{WORD}-2"
    assert Client().secret("db").secret_values == {"user": WORD, "port": "5432"}
    listed = stoker.json("secret", "list")
    assert [one["name"] for one in listed] == ["db", "hub"] and WORD not in json.dumps(listed)
    assert "'hub' has a value" in stoker("secret", "set", "hub", "--field", "a", "-", input=WORD, code=2).stderr
    assert "--place" in stoker("secret", "set", "hub", "--place", "file", "-", input=WORD, code=2).stderr
    with pytest.raises(SecretMissing, match=r"neither AWS Secrets Manager \(team/…\) has it"):
        read("secret:named:absent")
    stoker("secret", "rm", "hub", "--yes")
    with pytest.raises(SecretMissing):
        Client().secret("hub")
    stoker("secret", "set", "hub", "-", input=WORD)
    assert Client().secret("hub").value == WORD
    assert not [one for one in stoker.json("secret", "list", "--stack", "b") if "/" in one["name"]]
    for wrong, what in (
        ("vault:x", "'vault' is no place of secrets"),
        ("{flavor = 'secretsmanager', x = '1'}", "no option 'x'"),
    ):
        text = f"[stacks.a]\nsecrets = {wrong if wrong[0] == '{' else json.dumps(wrong)}\n"
        stoker.project.write({"stoker.toml": text})
        assert what in stoker("secret", "list", "--stack", "a", code=2).stderr


PASSED = """
from stoker import Client, pipeline, step

@step(cache=False, environment={"A": Client().secret("one").value})
def use(given: str) -> int:
    return 1

@step
def loose(given):
    return 1

@pipeline
def plain(text: str):
    use(text)

@pipeline
def whole():
    loose(Client().secret("one"))
"""


def test_what_a_script_reads_and_hands_on_is_said(stoker: Any) -> None:
    stoker("secret", "set", "one", "-", input=WORD)
    stoker.project.write({"passed.py": PASSED})
    said = stoker("plan", "passed.py:plain", "--text", WORD).stdout
    for what in ("the environment variable A", "the input 'given'"):
        assert f"STK195 warning: passed.py:13 step 'use': {what} looks like a secret" in said
    assert '"secret:named:one"' in said
    refused = stoker("plan", "passed.py:whole", code=None)
    assert refused.returncode and 'hand over Secret.named("one")' in refused.stderr and WORD not in refused.stderr
