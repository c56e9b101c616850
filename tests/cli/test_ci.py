"""`stoker run` in CI: a JUnit file, a summary, annotations, exit codes, and the difference from the main branch."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from stoker.run.revision import revision

FAILING = """
    from stoker import log_metrics, pipeline, step


    @step(cache=False)
    def good(n: int) -> int:
        log_metrics({"loss": 1 / n})
        return n


    @step
    def broken(n: int) -> int:
        raise ValueError("no <such> `thing` | \\x00]]> 100%, at: " + str(n))


    @step
    def after(n: int) -> int:
        return n


    @pipeline
    def training(n: int = 1, bad: bool = False):
        value = good(n)
        if bad:
            after(broken(value))


    @pipeline
    def named(compare: str = "x"):
        good(1)
"""
SUITE = {"name", "tests", "failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id", "package"}
CASE = {"name", "assertions", "time", "classname", "status"}
ORDER = ("properties", "testcase", "system-out", "system-err")
"""Attributes and order of elements of Jenkins' junit-10.xsd."""


def checked(path: Path) -> ET.Element:
    """The root of a JUnit file that the schema takes."""
    root = ET.parse(path).getroot()
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite" and set(suite.attrib) <= SUITE and "name" in suite.attrib
        places = [ORDER.index(child.tag) for child in suite]
        assert places == sorted(places)
        cases = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(cases)
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
        for case in cases:
            assert set(case.attrib) <= CASE and {"name", "classname"} <= set(case.attrib)
            assert {child.tag for child in case} <= {"skipped", "error", "failure", "system-out", "system-err"}
            assert float(case.attrib["time"]) >= 0
        for one in suite.iter("property"):
            assert set(one.attrib) == {"name", "value"}
        if "timestamp" in suite.attrib:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    return root


@pytest.fixture
def ci(stoker: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("GITHUB_SHA", "GITHUB_REF_NAME", "GITHUB_HEAD_REF", "CI_COMMIT_SHA", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    stoker.project.write({"ci.py": FAILING})
    return stoker


def test_a_failed_run(ci: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = ci.project.folder / "summary.md"
    summary.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_SHA", "a" * 40)
    monkeypatch.setenv("GITHUB_HEAD_REF", "feature/x")
    finished = ci("run", "ci.py:training", "--bad", "--junit", "out/junit.xml", code=1)
    (run,) = ci.json("runs")
    assert (run["revision"], run["branch"]) == ("a" * 40, "feature/x")
    (suite,) = checked(ci.project.folder / "out" / "junit.xml")
    cases = {case.attrib["name"]: case for case in suite.findall("testcase")}
    assert list(cases) == ["good", "broken", "after"]
    (failure,) = cases["broken"]
    assert "no <such> `thing`" in failure.attrib["message"]
    assert 'raise ValueError("no <such>' in (failure.text or "")
    assert cases["after"][0].tag == "skipped" and not list(cases["good"])
    text = summary.read_text()
    assert text.startswith("# before\n## training: failed in ")
    assert f"run `{run['id']}`" in text and "| good | succeeded |" in text
    assert "### broken failed:" in text and "&lt;such>" in text and "ci.py" in text
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("::error")]
    assert re.match(r"::error file=ci\.py,line=12,title=training%3A broken::no <such>", line), line
    assert "100%25, at: 1" in line


def test_what_is_refused_before_it_runs(ci: Any) -> None:
    ci("run", "ci.py:training", "--junit", "junit.xml", "--set", "steps.good.resources.gpu_count=64", code=3)
    (suite,) = checked(ci.project.folder / "junit.xml")
    (case,) = suite
    assert case.attrib["name"] == "plan" and case[0].tag == "error" and "64" in (case[0].text or "")
    refused = ci("run", "ci.py:named", "--compare", "main", code=2).stderr
    assert "--compare is an option of every run, and pipeline 'named' has a parameter 'compare'" in refused
    assert "cannot be written" in ci("run", "ci.py:training", "--junit", "/dev/null/x.xml", code=4).stderr


def test_how_a_run_differs_from_the_main_branch(ci: Any) -> None:
    folder = ci.project.folder

    def git(*words: str) -> str:
        named = ["-c", "user.name=n", "-c", "user.email=e@x"]
        return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout

    git("init", "-q", "-b", "main")
    git("add", "ci.py")
    git("commit", "-qm", "first")
    said = ci("run", "ci.py:training", "--compare", "main").stdout
    assert "no other run of 'training' has succeeded on branch 'main'" in said
    ci("run", "ci.py:training", "--bad", code=1)  # is not compared with
    git("checkout", "-qb", "feature/faster")
    ci("run", "ci.py:training", "--n", "3")
    said = ci("run", "ci.py:training", "--n", "2", "--compare", "main", "--summary").stdout
    first = ci.json("runs")[-1]
    assert (first["revision"], first["branch"]) == (git("rev-parse", "main").strip(), "main")
    assert f"### Compared with main: run `{first['id']}`, commit `{first['revision'][:12]}`" in said
    assert "| loss of good | 1 | 0.5 | -0.5 |" in said
    assert "| parameter n | 1 | 2 |  |" in said
    assert "the run took" in said and "## training: succeeded in" in said
    git("pack-refs", "--all")
    git("worktree", "add", "-q", "../other", "-b", "other")
    assert revision(folder.parent / "other", {}) == (first["revision"], "other")
    git("checkout", "-q", "--detach")
    assert revision(folder, {}) == (first["revision"], "")
    (folder / ".git" / "HEAD").unlink()
    assert revision(folder, {}) == ("", "")
