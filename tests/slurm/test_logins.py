"""The machine on which a cluster's commands are called: this one, and one behind a real OpenSSH server."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.sshd import ALIAS, Sshd
from tests.waiting import until

from stoker.backends.base.logins import Here, Login, Ssh, login
from stoker.backends.base.platforms import Away
from stoker.core.errors import BackendError, SettingsError
from stoker.core.hosts import Address, parse_host, ssh_address
from stoker.ssh import connection as ssh_module
from stoker.ssh import scripts as sshscripts

STRANGE = """it's a "strange" $HOME `place` \\ & ünï*?"""


@pytest.fixture
def far(ssh_server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ssh]:
    """The server, by its alias."""
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(ssh_server.config))
    found = login(f"ssh://{ALIAS}")
    assert isinstance(found, Ssh)
    yield found
    found.close()


@pytest.fixture(params=["here", "far"])
def either(request: pytest.FixtureRequest) -> Login:
    """Both; what one can, the other can too."""
    found: Login = Here() if request.param == "here" else request.getfixturevalue("far")
    return found


# What both do


def test_commands_are_called(either: Login) -> None:
    ran = either.run(["sh", "-c", 'printf "%s|" "$@"; echo words >&2; exit 3', "sh", "a b", "it's", "", STRANGE])
    assert (ran.code, ran.out, ran.err) == (3, f"a b|it's||{STRANGE}|", "words\n")
    assert either.run(["cat"], input=b"line\nanother").out == "line\nanother"
    assert either.run(["cat"]).out == "", "a command without input does not wait for one"
    assert either.run(["head", "-c", "3"], input=b"x" * 300_000).out == "xxx"


def test_a_missing_command_is_told(either: Login) -> None:
    ran = either.run(["no-such-command", "x"])
    assert ran.code == 127
    assert "no-such-command" in ran.err


def test_a_command_that_takes_too_long_is_no_answer(either: Login) -> None:
    with pytest.raises(Away, match=r"within 0\.5 s"):
        either.run(["sleep", "60"], timeout=0.5)
    assert either.run(["echo", "again"]).out == "again\n"


def test_files_are_written_and_read(either: Login, tmp_path: Path) -> None:
    folder = f"{tmp_path}/{STRANGE}"
    files = {f"{folder}/{number}/data": os.urandom(number * 100) for number in range(5)}
    either.write({**files, f"{folder}/x": b""})
    for path, data in files.items():
        assert either.read(path) == data
    assert either.read(f"{folder}/x") == b""
    assert either.read(f"{folder}/nothing") is None
    assert either.read(f"{folder}/x/below a file") is None
    assert either.exists(f"{folder}/3") and not either.exists(f"{folder}/9")
    assert sorted(os.listdir(folder)) == ["0", "1", "2", "3", "4", "x"], "nothing is left beside them"
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.stat(f"{folder}/x").st_mode & 0o777 == 0o600
    either.write({f"{folder}/x": b"#!/bin/sh\necho ran\n"}, mode=0o700)
    assert either.run([f"{folder}/x"]).out == "ran\n", "written anew, and to be run"
    either.remove([f"{folder}/3", f"{folder}/x", f"{folder}/gone"])
    assert sorted(os.listdir(folder)) == ["0", "1", "2", "4"]


def test_folders_that_are_there_stay_as_they_are(either: Login, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    either.write({f"{tmp_path}/open/a/b": b"x"})
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "open/a").stat().st_mode & 0o777 == 0o700


def test_a_place_that_cannot_be_written_to_is_told(either: Login, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackendError, match="cannot") as caught:
        either.write({f"{tmp_path}/file/below": b"x"})
    assert not isinstance(caught.value, Away), "asking again would not help"
    assert "folder" in caught.value.fix


def test_what_files_have_gained(either: Login, tmp_path: Path) -> None:
    data = bytes(range(256)) * 20
    path, other, empty = (f"{tmp_path}/{STRANGE}{name}" for name in "abc")
    either.write({path: data, other: b"12345", empty: b""})
    asked = {path: 0, other: 5, empty: 0, f"{tmp_path}/missing": 0, f"{tmp_path}/no/folder": 7}
    assert either.tails(asked) == {path: data}, "missing files and those without news are left out"
    assert either.tails({path: 1000, other: 2}, limit=100) == {path: data[1000:1100], other: b"345"}
    assert either.tails({path: len(data) + 9}) == {}, "a file that is shorter than the offset"
    assert either.tails({}) == {}


def test_very_many_files_are_read_at_once(either: Login, tmp_path: Path) -> None:
    folder = f"{tmp_path}{'/a long name' * 300}"  # 2.1 MB of them: more than one command line takes
    paths = [f"{folder}/{number}/out" for number in range(600)]
    files = {path: b"%d\n" % number * (number % 7) for number, path in enumerate(paths) if number % 20 == 0}
    either.write(files)
    assert either.tails(dict.fromkeys(paths, 0)) == {path: data for path, data in files.items() if data}
    assert either.tails({path: len(files.get(path, b"")) for path in paths}) == {}
    either.remove(paths)
    assert either.tails(dict.fromkeys(paths, 0)) == {}


def test_a_folder_is_brought_once(either: Login, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "run").write_bytes(b"#!/bin/sh\necho brought\n")
    (source / "deep" / "run").chmod(0o755)
    target = f"{tmp_path}/there/{STRANGE}"
    either.bring(str(source), target)
    assert either.run([f"{target}/deep/run"]).out == "brought\n"
    (source / "deep" / "run").write_bytes(b"changed")
    either.bring(str(source), target)
    assert either.run([f"{target}/deep/run"]).out == "brought\n", "what is there stays"
    assert os.listdir(f"{tmp_path}/there") == [STRANGE], "nothing is left beside it"


def test_paths_of_that_machine(either: Login, ssh_server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    home = os.environ["HOME"] if isinstance(either, Here) else str(ssh_server.home)
    assert either.expand("~/runs") == f"{home}/runs"
    assert either.expand("$HOME/runs") == f"{home}/runs"
    assert either.expand("/abs") == "/abs"
    for wrong in ("runs", "$NOT_SET_ANYWHERE/x"):
        with pytest.raises(BackendError, match="no absolute path"):
            either.expand(wrong)


# What is ssh's own


def test_one_connection_serves_all_threads(far: Ssh, ssh_server: Sshd) -> None:
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda text=text: answers.append(far.run(["echo", text]).out)) for text in "abcdefgh"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [f"{text}\n" for text in "abcdefgh"]
    assert logins(ssh_server) == 1


def logins(server: Sshd) -> int:
    """How many connections stand."""
    return sum(process.name() == "sshd" and process.ppid() == server.pid for process in server.sessions())


def test_a_connection_that_was_cut_is_made_again(far: Ssh, ssh_server: Sshd) -> None:
    far.run(["true"])
    ssh_server.cut()
    until(lambda: answers(far))
    assert far.run(["echo", "back"]).out == "back\n"


def test_a_command_that_was_cut_off_is_no_answer(far: Ssh, ssh_server: Sshd, tmp_path: Path) -> None:
    far.run(["true"])
    caught: list[BaseException] = []

    def call() -> None:
        try:
            far.run(["sh", "-c", 'touch "$0"; sleep 300', f"{tmp_path}/began"], timeout=200)
        except BaseException as error:  # told to the test's own thread
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until((tmp_path / "began").exists)
    ssh_server.cut()
    thread.join()
    (error,) = caught
    assert isinstance(error, Away)


def answers(far: Login) -> bool:
    try:
        return far.run(["true"]).code == 0
    except Away:
        return False


def test_nobody_is_let_in(far: Ssh, ssh_server: Sshd) -> None:
    ssh_server.refuse()
    try:
        with pytest.raises(Away, match="Permission denied") as caught:
            far.run(["true"])
        assert "ssh-agent" in caught.value.fix and f"ssh -fNM {ALIAS}" in caught.value.fix
    finally:
        ssh_server.admit()
    assert far.run(["echo", "in"]).out == "in\n", "asked again, it answers"


def test_a_host_that_is_not_there(far: Ssh, free_tcp_port: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ssh_module, "_SOCKET", 1000)
    lost = login(f"ssh://127.0.0.1:{free_tcp_port}")
    with pytest.raises(Away, match=rf"ssh://127.0.0.1:{free_tcp_port} does not answer.*refused") as caught:
        lost.run(["true"])
    assert f"ssh -p {free_tcp_port} 127.0.0.1 true" in caught.value.fix
    assert not list(tmp_path.glob("stoker-ssh-*")), "nothing is left of an attempt"


def test_a_host_whose_key_is_another(far: Ssh, ssh_server: Sshd, tmp_path: Path, monkeypatch: Any) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    wrong = (tmp_path / "key.pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{ssh_server.port} {wrong}")
    own = f"Host *\n  UserKnownHostsFile {tmp_path}/known\n"
    (tmp_path / "config").write_text(own + ssh_server.config.read_text())
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(tmp_path / "config"))
    with pytest.raises(Away, match="does not answer") as caught:
        login(f"ssh://{ALIAS}").run(["true"])
    assert f"ssh-keygen -R {ALIAS}" in caught.value.fix


def test_a_connection_that_the_person_opened_is_used(ssh_server: Sshd, tmp_path: Path, monkeypatch: Any) -> None:
    """As where a password and a code have to be typed: nobody else gets in."""
    control = ssh_server.folder / "person"
    (tmp_path / "config").write_text(f"Host *\n  ControlPath {control}\n" + ssh_server.config.read_text())
    opened = ["ssh", "-F", str(tmp_path / "config"), "-f", "-N", "-M", ALIAS]
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(opened, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    ssh_server.refuse()
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(tmp_path / "config"))
    try:
        far = login(f"ssh://{ALIAS}")
        assert far.run(["echo", "through"]).out == "through\n"
        far.close()
        assert control.exists(), "it is theirs, and stays"
    finally:
        ssh_server.admit()
        subprocess.run([*opened[:3], "-O", "exit", ALIAS], check=True, capture_output=True)


def test_closing_ends_the_connection(far: Ssh, ssh_server: Sshd) -> None:
    far.run(["true"])
    far.close()
    until(lambda: logins(ssh_server) == 0)
    with pytest.raises(Away, match="closed"):
        far.run(["true"])


def test_what_login_scripts_print_is_no_answer(far: Ssh, ssh_server: Sshd) -> None:
    noise = ssh_server.home / ".bashrc"
    noise.write_text("echo welcome to the cluster\nexport SEEN=yes\n")
    try:
        assert far.run(["echo", "answer"]).out == "answer\n"
    finally:
        noise.unlink()


def test_commands_are_found_as_after_a_login(far: Ssh, ssh_server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch-of-the-site").write_text("#!/bin/sh\necho submitted to $SLURM_CONF\n")
    (tmp_path / "bin" / "sbatch-of-the-site").chmod(0o755)
    profile = ssh_server.home / ".profile"
    profile.write_text(f"echo a message of the day\nexport PATH={tmp_path}/bin:$PATH SLURM_CONF=/etc/site/slurm.conf\n")
    try:
        assert far.run(["sbatch-of-the-site"]).out == "submitted to /etc/site/slurm.conf\n"
        assert far.run(["sbatch-of-the-site"], input=b"x").out == "submitted to /etc/site/slurm.conf\n"
    finally:
        profile.unlink()


def test_a_commands_own_255_is_not_the_connections(far: Ssh) -> None:
    assert far.run(["sh", "-c", "exit 255"]).code == 254


def test_a_file_that_is_cut_while_it_is_read_is_no_answer() -> None:
    whole = b"3 /a\nabc" + b"0 /b\n" + b"stoker-ends-here\n"
    assert sshscripts.pieces(whole) == {"/a": b"abc", "/b": b""}
    assert sshscripts.pieces(b"4 /a\nabc" + b"stoker-ends-here\n") is None
    assert sshscripts.pieces(whole[:-1]) is None
    assert sshscripts.pieces(b"") is None


@pytest.mark.parametrize("path", ["/", "/home", "//", "/home/..", "relative", "/a/b\nc"])
def test_what_is_not_ours_is_not_removed(path: str) -> None:
    with pytest.raises(BackendError):
        sshscripts.remove([path])


def test_ssh_is_not_installed(far: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BackendError, match="ssh cannot be called") as caught:
        far.run(["true"])
    assert "openssh-client" in caught.value.fix


def test_the_sockets_path_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    folder = ssh_module._short_folder()
    try:
        assert len(folder) < 90 and os.stat(folder).st_mode & 0o777 == 0o700
    finally:
        os.rmdir(folder)


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ssh://login", Address("login")),
        ("ssh://Cluster_1", Address("Cluster_1")),
        ("ssh://me@login.example.org:2222/", Address("login.example.org", "me", 2222)),
        ("ssh://me%40site@login", Address("login", "me@site")),
        ("ssh://[2001:db8::1]:22", Address("2001:db8::1", "", 22)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert ssh_address(text) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("login", "ssh://login"),
        ("http://login", "ssh://login.example.org"),
        ("ssh://", "ssh://me@login:2222"),
        ("ssh://me:secret@login", "ssh-agent"),
        ("ssh://login/home/me", "folder"),
        ("ssh://login:99999", "ssh://me@login:2222"),
        ("ssh://-oProxyCommand=x", "ssh://"),
        ("ssh://-l@login", "ssh://"),
        ("ssh://a b", "ssh://"),
        (7, "ssh://"),
    ],
)
def test_wrong_addresses_are_refused_with_the_way_on(text: Any, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_host(text)
    assert words in caught.value.fix
    assert "secret" not in str(caught.value)


@pytest.fixture
def free_tcp_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
