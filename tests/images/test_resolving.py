"""Resolving requirements into a lock: uv and pip, asked about an index on loopback."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.authority import certificate
from tests.servers.packageindex import PackageIndex, running_index

from stoker.core.packages import Lock, Unresolved
from stoker.images.dockerfile import RequirementList
from stoker.images.resolving import LockRequest, Resolver, resolve, resolver_for

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
HERE: dict[str, Any] = {"python": PYTHON, "platform": f"manylinux_2_36_{platform.machine()}"}
UV = resolver_for(LockRequest(lists=(), **HERE))
needs_uv = pytest.mark.skipif(UV is None or UV.kind != "uv", reason="uv is not installed")
PIP = Resolver(argv=(sys.executable, "-m", "pip"), kind="pip", text="pip of these tests")
RESOLVERS = [
    pytest.param(UV, id="uv", marks=needs_uv),
    pytest.param(PIP, id="pip"),
]
FIRST = [RESOLVERS[0], pytest.param(PIP, id="pip", marks=pytest.mark.long)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    """An index with trainer 1.0, 2.0 and 3.0, each for one release of framework."""
    with running_index(tmp_path / "index") as index:
        for release in ("1.0", "2.0", "3.0"):
            index.put("framework", release)
            index.put("trainer", release, requires=[f"framework=={release}", "logger"])
        index.put("logger", "0.5")
        yield index


def asked(index: PackageIndex, *lists: tuple[str, ...], **more: Any) -> LockRequest:
    words = {**HERE, "arguments": (f"--index-url={index.url}",), **more}
    named = tuple(RequirementList(name=f"list{number}", lines=lines) for number, lines in enumerate(lists))
    return LockRequest(lists=named, **words)


def lock_of(request: LockRequest, resolver: Resolver) -> Lock:
    lock = resolve(request, resolver=resolver)
    assert isinstance(lock, Lock), lock
    return lock


def refusal_of(request: LockRequest, resolver: Resolver) -> Unresolved:
    refusal = resolve(request, resolver=resolver)
    assert isinstance(refusal, Unresolved), refusal
    return refusal


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_a_lock_has_every_package_at_its_version_with_its_hash(index: PackageIndex, resolver: Resolver) -> None:
    lock = lock_of(asked(index, ("trainer>=1", "logger")), resolver)
    assert lock.lines == ("framework==3.0", "logger==0.5", "trainer==3.0")
    assert all(re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lock.lists[0].lines)
    assert (lock.python, lock.whole, lock.resolver) == (PYTHON, True, resolver.text)


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_what_a_list_installs_stays_where_a_later_list_allows_it(index: PackageIndex, resolver: Resolver) -> None:
    lock = lock_of(asked(index, ("framework==1.0",), ("trainer",)), resolver)
    assert [group.lines[0].partition(" ")[0] for group in lock.lists] == ["framework==1.0", "logger==0.5"]
    assert lock.versions == {"framework": "1.0", "trainer": "1.0", "logger": "0.5"}
    replaced = lock_of(asked(index, ("framework==1.0",), ("trainer==2.0",)), resolver)
    assert replaced.versions["framework"] == "2.0", "as an installer that is called twice"


@pytest.mark.parametrize("resolver", FIRST)
def test_what_the_parent_image_has_stays_where_it_is_allowed(index: PackageIndex, resolver: Resolver) -> None:
    index.put("trainer", "2.5", requires=["framework>=2.0,<3", "logger"])
    parent = {"framework": "2.0+cu121", "unheard-of": "1.0", "odd": "no version"}
    lock = lock_of(asked(index, ("trainer",), parent=parent), resolver)
    assert lock.lines == ("logger==0.5", "trainer==2.5") and lock.kept == {"framework": "2.0+cu121"}
    replaced = lock_of(asked(index, ("trainer==3.0",), parent=parent), resolver)
    assert replaced.lines == ("framework==3.0", "logger==0.5", "trainer==3.0") and replaced.kept == {}


@needs_uv
def test_what_must_change_changes_alone(index: PackageIndex) -> None:
    assert UV is not None
    index.put("logger", "0.6")
    parent = {"framework": "2.0", "logger": "0.5"}
    lock = lock_of(asked(index, ("trainer==3.0",), parent=parent), UV)
    assert lock.lines == ("framework==3.0", "trainer==3.0") and lock.kept == {"logger": "0.5"}


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_contradictions_and_missing_versions_are_told_in_the_resolvers_words(
    index: PackageIndex, resolver: Resolver
) -> None:
    conflict = refusal_of(asked(index, ("trainer==1.0", "framework==3.0")), resolver)
    assert (conflict.trouble, conflict.wrong) == ("conflict", True)
    assert "framework==1.0" in conflict.reason and "framework==3.0" in conflict.reason
    missing = refusal_of(asked(index, ("trainer==9.0",)), resolver)
    assert missing.trouble == "missing" and "trainer==9.0" in missing.reason
    nobody = refusal_of(asked(index, ("no-such-project",)), resolver)
    assert nobody.trouble == "missing" and "no-such-project" in nobody.reason
    assert "/tmp" not in conflict.reason + missing.reason + nobody.reason


@pytest.mark.parametrize("resolver", FIRST)
def test_a_refusal_shows_no_progress_of_downloads(index: PackageIndex, resolver: Resolver) -> None:
    index.put("large", "1.0", requires=["framework==1.0"], size=100_000)
    conflict = refusal_of(asked(index, ("large==1.0", "framework==3.0")), resolver)
    assert conflict.trouble == "conflict" and "large" in conflict.reason
    assert "kB" not in conflict.reason and "\u2501" not in conflict.reason, conflict.reason


@pytest.mark.parametrize("resolver", FIRST)
def test_an_index_that_does_not_answer_refutes_nothing(index: PackageIndex, resolver: Resolver) -> None:
    silent = refusal_of(asked(index, ("trainer",), arguments=("--index-url=http://127.0.0.1:9/simple",)), resolver)
    assert (silent.trouble, silent.wrong) == ("unanswered", False) and "Connection refused" in silent.reason


def test_a_resolver_that_is_gone_refutes_nothing(index: PackageIndex) -> None:
    gone = refusal_of(asked(index, ("trainer",)), Resolver(argv=("/none/uv",), kind="uv", text="uv 1"))
    assert (gone.trouble, gone.wrong) == ("undecided", False) and "/none/uv" in gone.reason


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("uv", "{}"), ("uv", "[[packages]]"), ("pip", '{"install": [{"metadata": {"name": "trainer"}}]}'), ("pip", "{}")],
)
def test_a_resolver_that_is_not_understood_refutes_nothing(kind: str, answer: str, tmp_path: Path) -> None:
    program = tmp_path / "resolver.py"
    program.write_text(
        "import sys\nwords = sys.argv\nname = next(one for one in ('--report', '--output-file') if one in words)\n"
        f"open(words[words.index(name) + 1], 'w').write({answer!r})\n"
    )
    request = LockRequest(lists=(RequirementList(name="list", lines=("trainer",)),), **HERE)
    odd = refusal_of(request, Resolver(argv=(sys.executable, str(program)), kind=kind, text="resolver 9"))
    assert (odd.trouble, odd.wrong) == ("undecided", False) and "is not understood" in odd.reason


@pytest.mark.parametrize("resolver", FIRST)
def test_the_images_variables_count_and_this_machines_do_not(
    index: PackageIndex, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_PRE", "true")
    index.put("logger", "0.6rc1")
    name = "PIP_INDEX_URL" if resolver.kind == "pip" else "UV_DEFAULT_INDEX"
    lock = lock_of(asked(index, ("logger",), arguments=(), environment={name: index.url, "PATH": "/none"}), resolver)
    assert lock.lines == ("logger==0.5",)


@needs_uv
def test_an_image_of_another_python_is_resolved_by_uv_also_for_pip(index: PackageIndex) -> None:
    index.put("trainer", "4.0", requires=["framework==3.0", "logger; python_version < '3.99'"])
    for installer in ("uv", "pip"):
        request = asked(index, ("trainer",), python="3.99", platform="manylinux_2_31_aarch64", installer=installer)
        resolver = resolver_for(request)
        assert resolver is not None and resolver.kind == "uv"
        assert lock_of(request, resolver).lines == ("framework==3.0", "trainer==4.0")


@needs_uv
def test_of_several_indexes_pip_takes_the_best_and_uv_the_first(index: PackageIndex, tmp_path: Path) -> None:
    with running_index(tmp_path / "other") as other:
        other.put("logger", "0.9+local")
        other.put("logger", "0.4")
        arguments = (f"--index-url={index.url}", f"--extra-index-url={other.url}")
        assert UV is not None
        for resolver in (UV, PIP):
            chosen = lock_of(asked(index, ("logger",), arguments=arguments, installer="pip"), resolver)
            assert chosen.lines == ("logger==0.9+local",), resolver.kind
        first = lock_of(asked(index, ("logger",), arguments=arguments), UV)
        assert first.lines == ("logger==0.9+local",), "uv asks the additional index first"
        other.put("logger", "0.3")
        swapped = (f"--index-url={other.url}", f"--extra-index-url={index.url}")
        assert lock_of(asked(index, ("logger",), arguments=swapped), UV).lines == ("logger==0.5",)


def test_digests_are_those_of_what_is_asked(index: PackageIndex) -> None:
    request = asked(index, ("trainer",))
    assert request.digest == asked(index, ("trainer",)).digest
    others = [
        asked(index, ("trainer>1",)),
        asked(index, ("trainer",), python="3.99"),
        asked(index, ("trainer",), platform="manylinux_2_28_x86_64"),
        asked(index, ("trainer",), installer="pip"),
        asked(index, ("trainer",), parent={"framework": "1.0"}),
        asked(index, ("trainer",), environment={"PIP_PRE": "1"}),
    ]
    assert len({request.digest, *(other.digest for other in others)}) == len(others) + 1
    assert asked(index, ("trainer",), environment={"PATH": "/bin"}).digest == request.digest


@pytest.mark.parametrize("resolver", FIRST)
def test_the_certificate_of_an_indexs_authority_is_this_machines_and_the_images(
    tmp_path: Path, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = certificate(tmp_path, "127.0.0.1")
    with running_index(tmp_path / "signed", signed.server()) as index:
        index.put("plain", "1.0")
        in_image = {"PIP_CERT": "/in/the/image.pem", "SSL_CERT_FILE": "/in/the/image.pem"}
        arguments = (f"--index-url={index.url}", *(["--cert=/in/the/image.pem"] if resolver.kind == "pip" else []))
        request = asked(index, ("plain",), arguments=arguments, environment=in_image)
        refused = refusal_of(request, resolver)
        assert refused.trouble == "unanswered" and "certificate" in refused.reason.lower()
        monkeypatch.setenv("PIP_CERT", str(signed.authority))
        monkeypatch.setenv("SSL_CERT_FILE", str(signed.authority))
        assert lock_of(request, resolver).lists[0].lines
