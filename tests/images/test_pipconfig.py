"""Pip's configuration as uv gets it, and as an index sees it: the file, the variables and the flags."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.images.test_resolving import HERE, needs_uv
from tests.servers.packageindex import running_index

from stoker.core.packages import Lock, Unresolved
from stoker.images.dockerfile import RequirementList
from stoker.images.environments import uv_words
from stoker.images.resolving import LockRequest, resolve, resolver_for


def test_flags_go_before_variables_and_these_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = http://file/simple\nextra-index-url =\n  http://a/simple\n  http://b/simple\n"
        "timeout = 60\n[install]\nno_binary = :all:\npre = no\n[list]\nformat = columns\n"
    )
    words = uv_words(str(file), {"PIP_INDEX_URL": "http://variable/simple", "PIP_PRE": "1", "PATH": "/bin"}, ())
    assert set(words.flags) == {
        "--index-url=http://variable/simple",
        "--extra-index-url=http://a/simple",
        "--extra-index-url=http://b/simple",
        "--no-binary=:all:",
        "--prerelease=allow",
    }
    assert words.lacking == () and words.variables == {}
    flags = uv_words("", {"PIP_INDEX_URL": "http://v/simple"}, ["-i=http://f/simple", "--find-links=/a", "-f=/b"])
    assert flags.flags == ("--index-url=http://f/simple", "--find-links=/a", "--find-links=/b")
    ways = uv_words("", {}, [f"--cert={file}", "--client-cert=/only/there", "--proxy=http://p:1"])
    assert dict(ways.variables) == {"SSL_CERT_FILE": str(file), "ALL_PROXY": "http://p:1"}
    assert uv_words("", {"PIP_KEYRING_PROVIDER": "subprocess"}, ()).flags == ("--keyring-provider=subprocess",)


@needs_uv
def test_uv_asks_the_indexes_of_pips_configuration_and_pip_what_uv_cannot(tmp_path: Path) -> None:
    with running_index(tmp_path / "one") as one, running_index(tmp_path / "two") as two:
        one.put("trainer", "1.0")
        two.put("trainer", "2.0")
        file = tmp_path / "pip.conf"
        file.write_text(f"[global]\nextra-index-url = {two.url}\n")
        asked = LockRequest(
            lists=(RequirementList(name="listed", lines=("trainer",)),),
            installer="pip",
            environment={"PIP_INDEX_URL": one.url},
            files={"pip.conf": str(file)},
            **HERE,
        )
        lock = resolve(asked)
        assert isinstance(lock, Lock) and lock.lines == ("trainer==2.0",), "the best of all indexes, as pip chooses"
        assert lock.resolver.startswith("uv ")
        file.write_text(f"[global]\nextra-index-url = {two.url}\n[install]\nignore-requires-python = true\n")
        resolver = resolver_for(asked)
        assert resolver is not None and resolver.kind == "pip"
        assert "since uv has no ignore-requires-python" in resolver.text
        file.write_text("no section\n")
        damaged = resolve(asked)
        assert isinstance(damaged, Unresolved) and "is no configuration of pip" in damaged.reason


@pytest.mark.skipif(sys.platform != "linux", reason="images are Linux's")
@needs_uv
def test_another_python_is_not_resolved_by_the_pip_here() -> None:
    other = {**HERE, "python": "3.99"}
    answer = resolve(LockRequest(lists=(), installer="pip", environment={"PIP_REQUIRE_HASHES": "1"}, **other))
    assert isinstance(answer, Unresolved) and "uv has no require-hashes" in answer.reason
