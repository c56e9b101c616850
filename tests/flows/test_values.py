"""Values of flows that were measured against Metaflow 2.19.39: the same flow, the same values."""

from __future__ import annotations

from typing import Any

import pytest

PARAMETERS = """
import json

from stoker.flow import Config, FlowSpec, IncludeFile, JSONType, Parameter, step

class Values(FlowSpec):
    a = Parameter("a")
    b = Parameter("b", default=None)
    c = Parameter("c", type=int)
    d = Parameter("d", default="7", type=int)
    e = Parameter("e", default=[1, 2], type=JSONType)
    f = Parameter("f", default="", separator=",")
    g = Parameter("g", type=bool)
    h = Parameter("h-dash", default=2)
    k = Parameter("k", default=1, type=float)
    given = Config("given", default_value={"x": 2, "l": [{"q": 1}]})
    plain = Config("plain", default_value='{"a": 1}', plain=True)
    plain_dict = Config("plain-dict", default_value={"a": 1}, plain=True)
    plain_file = Config("plain-file", default="f.json", plain=True)
    i = Parameter("i", default=given.x, type=int)
    j = Parameter("j", default=given.x)
    text = IncludeFile("text", default="crlf.txt", is_text=True)

    @step
    def start(self):
        names = "a b c d e f g h plain plain_dict plain_file i j text k".split()
        print('values', json.dumps([getattr(self, name) for name in names] + [repr(self.k), self.given.l[0].q]))
        for target, name in ((self, "i"), (self.given, "x")):
            try:
                setattr(target, name, 5)
            except (AttributeError, TypeError):
                pass
            else:
                raise AssertionError(name)
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Values()
"""
DEFAULTS = [None, None, None, 7, [1, 2], "", None, 2, '{"a": 1}', '{"a": 1}', '{"z": 9}', 2, 2, "a\nb", 1.0, "1.0", 1]


@pytest.fixture
def values(project: Any) -> Any:
    project.write({"values.py": PARAMETERS, "f.json": '{"z": 9}'})
    (project.folder / "crlf.txt").write_bytes(b"a\r\nb")

    def run(*arguments: str, **variables: str) -> Any:
        import json

        ran = project.run("values.py", *(arguments or ("run",)), env=variables)
        output = (ran.stdout + ran.stderr).partition("values ")[2]
        return json.JSONDecoder().raw_decode(output)[0]

    run.project = project  # type: ignore[attr-defined]
    return run


def test_defaults_and_files(values: Any) -> None:
    assert values() == DEFAULTS


def test_environment_variables_give_parameters_and_configs(values: Any) -> None:
    variables = {
        "METAFLOW_RUN_A": "theirs",
        "STOKER_RUN_A": "ours",
        "METAFLOW_RUN_C": "12",
        "METAFLOW_RUN_H_DASH": "8",
        "METAFLOW_RUN_G": "f",
        "METAFLOW_RUN_B": "",
        "METAFLOW_RUN_TAG": "one two",
        "METAFLOW_FLOW_CONFIG_VALUE": '{"given": {"x": 77, "l": [{"q": 3}]}}',
    }
    assert values("run", "--c", "13", **variables) == [
        "ours",
        "",
        13,
        *DEFAULTS[3:6],
        False,
        8,
        *DEFAULTS[8:11],
        77,
        77,
        "a\nb",
        1.0,
        "1.0",
        3,
    ]
    assert {"one", "two"} <= set(values.project.client().runs()[0].tags)
    refused = values.project.run("values.py", "run", env={"METAFLOW_RUN_C": "x"}, code=2)
    assert "METAFLOW_RUN_C" in refused.stderr and "parameter 'c'" in refused.stderr


def test_a_file_that_is_not_there_or_no_text_is_refused_where_it_is_needed(project: Any) -> None:
    flow = """
    from stoker.flow import FlowSpec, IncludeFile, step

    class Text(FlowSpec):
        text = IncludeFile("text", is_text=True, required=True)

        @step
        def start(self):
            self.next(self.end)

        @step
        def end(self):
            pass

    if __name__ == "__main__":
        Text()
    """
    project.write({"text.py": flow})
    (project.folder / "binary").write_bytes(b"\xff\xfe\x00")
    assert "checked: it can run" in project.run("text.py", "check").stdout
    refused = project.run("text.py", "run", "--text", "binary", code=2).stderr
    assert "Traceback" not in refused and "the file binary cannot be read" in refused and "is_text=False" in refused


STEPS = """
from stoker.flow import FlowSpec, Parameter, current, project, step

def outcome(call):
    try:
        return call()
    except AttributeError:
        return "refused"

@project(name="p")
class Steps(FlowSpec):
    LIST = [1]
    NUMBER = 3
    NOTHING = None
    p = Parameter("p", default=4)

    @step
    def start(self):
        assert outcome(lambda: setattr(self, "NUMBER", 4)) == "refused"
        assert outcome(lambda: setattr(self, "NOTHING", 4)) == "refused"
        self.LIST.append(2)
        self.text = "ab"
        self.next(self.each, foreach="text")

    @step
    def each(self):
        assert self.LIST == [1] and self.NUMBER == 3 and self.NOTHING is None
        assert (self.input, self.foreach_stack()) == ("ab"[self.index], [(self.index, 2, self.input)])
        self.same, self.other = 1, self.index
        self.next(self.join)

    @step
    def join(self, inputs):
        assert [task.input for task in inputs] == ["a", "b"] and inputs.each.other == 1
        assert (inputs[0].p, inputs[0].NUMBER, inputs[0].name) == (4, 3, "Steps")
        assert [task.foreach_stack() for task in inputs] == [[(0, 2, "a")], [(1, 2, "b")]]
        try:
            self.merge_artifacts(inputs)
        except Exception as error:
            assert "other" in str(error)
        assert not hasattr(self, "same") and not hasattr(self, "text")
        self.other = 5
        self.merge_artifacts(inputs, include=["same", "other"])
        assert (self.same, self.other) == (1, 5)
        self.next(self.node, num_parallel=2)

    @step
    def node(self):
        self.saw = self.input, self.index, self.foreach_stack()
        self.next(self.nodes)

    @step
    def nodes(self, inputs):
        assert sorted(task.saw for task in inputs) == [(0, 0, [(0, 2, 0)]), (1, 1, [(1, 2, 1)])]
        assert sorted(task.input for task in inputs) == [0, 1]
        assert self.input is None and self.index is None
        self.branch = current.branch_name, current.is_production, current.is_user_branch, sorted(current.tags)
        self.next(self.end)

    @step
    def end(self):
        print("branch", *self.branch)

if __name__ == "__main__":
    Steps()
"""


def test_steps_see_what_they_see_under_metaflow(project: Any) -> None:
    project.write({"steps.py": STEPS})
    ran = project.run("steps.py", "run", "--tag", "mine", env={"METAFLOW_BRANCH": "eb", "METAFLOW_PRODUCTION": "1"})
    assert "branch prod.eb True False ['mine']" in ran.stdout + ran.stderr
    refused = project.run("steps.py", "--branch", "A-b", "run", code=2).stderr
    assert "branch" in refused and "Traceback" not in refused


def test_a_foreach_over_a_dict_is_refused_with_what_to_choose(project: Any) -> None:
    project.write({"dict.py": STEPS.replace('self.text = "ab"', 'self.text = {0: "a", 1: "b"}')})
    refused = project.run("dict.py", "run", code=1).stderr
    assert "list(self.text)" in refused and "list(self.text.values())" in refused


def test_a_default_function_is_called_once(project: Any) -> None:
    flow = """
    from stoker.flow import FlowSpec, Parameter, step

    def number(context):
        with open("calls", "a") as file:
            file.write("x")
        return 5

    class Once(FlowSpec):
        n = Parameter("n", default=number, type=int)

        @step
        def start(self):
            self.next(self.end)

        @step
        def end(self):
            assert self.n == 5

    if __name__ == "__main__":
        Once()
    """
    project.write({"once.py": flow}).run("once.py", "run")
    assert (project.folder / "calls").read_text() == "x"


FORMS = '''
from stoker.flow import Config, FlowSpec, IncludeFile, Parameter, config_expr, current, project, pypi, step
from stoker.flow.metaflow_config import DATATOOLS_S3ROOT, DEFAULT_METADATA

@project(name=config_expr("project.name"))
class Forms(FlowSpec):
    settings = Config("project", default_value='{"name": "team"}')
    fast = Parameter("fast", is_flag=True)
    rate = Parameter("rate", default=0.5, envvar="TEAM_RATE", metavar="SHARE")
    quiet = Parameter("silence", default="x", hidden=True)
    data = IncludeFile("data", default="data.txt")

    @pypi(python=">=3.10,<4")
    @step
    def only(self):
        text = """
further left
"""
        self.found = [text.strip(), self.fast, self.rate, self.data, DATATOOLS_S3ROOT, DEFAULT_METADATA]
        self.found.append(current.project_name)

if __name__ == "__main__":
    Forms()
'''


def test_forms_of_public_flows(project: Any) -> None:
    project.write({"old.py": FORMS.replace(">=3.10,<4", "3.8.10")})
    (project.folder / "forms.py").write_text(FORMS.replace('    @pypi(python=">=3.10,<4")\n', ""), encoding="utf-8")
    assert "--data FILE must be given: there is no data.txt" in project.run("forms.py", "check").stdout
    shown = project.run("forms.py", "--help").stdout
    assert "--rate SHARE" in shown and "--fast" in shown and "--silence" not in shown
    project.write({"data.txt": "content"})
    variables = {"TEAM_RATE": "0.25", "METAFLOW_DATATOOLS_S3ROOT": "s3://bucket/team"}
    project.run("forms.py", "run", "--fast", env=variables)
    found = project.client().runs()[0].steps["only"].outputs["found"].load()
    assert found == ["further left", True, 0.25, "content", "s3://bucket/team", "local", "team"]
    assert "@pypi" in project.run("old.py", "show").stdout
    refused = project.run("old.py", "run", code=2).stderr
    assert "3.10 or later" in refused and "--without pypi" in refused
    project.write({"wrong.py": FORMS.replace("is_flag=True", "is_flags=True")})
    wrong = project.run("wrong.py", "check", code=2).stderr
    assert "parameter 'fast' takes no is_flags=, did you mean 'is_flag'" in wrong
