"""Advice of flows, and of `stoker migrate`, that was followed: groups as in `tests.advice.cases`."""

from __future__ import annotations

from tests.advice.cases import BRANCHES, EACH, WAYS, Group, flow

RUN = "python f.py run; python f.py "
AFTER = """
    @step
    def a(self):
        self.next(self.end)
"""
ROUND = """
    @step
    def a(self):
        self.next(self.b)

    @step
    def b(self):
        @@
"""
FIRST = """
    @step
    def a(self):
        @@

    @step
    def j(self, inputs):
        self.next(self.end)
"""
LATER = """
    @step
    def a(self):
        self.items = [1]
        self.next(self.c, foreach="items")

    @step
    def c(self):
        @@

    @step
    def b(self):
        self.next(self.j)

    @step
    def j(self, inputs):
        self.next(self.end)
"""
SECOND = """
    @step
    def a(self):
        self.next(self.j)

    @step
    def b(self):
        @@

    @step
    def j(self, inputs):
        self.next(self.end)
"""
JOIN = """
    @step
    def a(self):
        self.next(self.j)

    @step
    def b(self):
        self.next(self.j)

    @step
    def j(self, inputs):
        self.next(self.end)
"""
PASSED = (
    """
from stoker.flow import FlowSpec, step, user_step_decorator

def instead(flow):
    @@

@user_step_decorator
def replaced(step_name, flow, inputs=None, attributes=None):
    yield instead

class F(FlowSpec):
    @replaced
    @step
    def start(self):
        self.c = 1
        self.items = [1]
        self.next({1: self.a, 2: self.end}, condition="c")
"""
    + AFTER
    + """
    @step
    def end(self):
        pass

if __name__ == "__main__":
    F()
"""
)
GO = """
    @step
    def go(self):
        self.next(self.a, foreach='items')
"""
LATE = """
class M(FlowMutator):
    def @@(self, flow):
        flow.add_parameter('x', Parameter('x', default=3))

@M
class F("""
RUNNER = """
from stoker.flow import *

runner = Runner('f.py', show_output=False)
print(@@)
runner.cleanup()
"""
ARTIFACTS = {**flow(next="self.x = 1; self.next(self.end)"), "art.py": "@@\n"}


def put(files: dict[str, str], old: str, new: str) -> dict[str, str]:
    """The files with another text in the place of one."""
    assert all(old in text for text in files.values())
    return {name: text.replace(old, new) for name, text in files.items()}


def other(files: dict[str, str]) -> dict[str, str]:
    """The file of a flow, and one of a flow G."""
    return {**files, "g.py": files["f.py"].replace("class F(", "class G(").replace("    F()", "    G()")}


def decorated(above: str, text: str) -> dict[str, str]:
    """The file of a flow with definitions above its class and a decorator of the first step."""
    return put(flow(above=above), "class F(", f"{text}\n\nclass F(")


GRAPH = (
    Group(name="flow's split", files=flow(next="self.items = [1]; @@", more=EACH), call="python f.py show"),
    Group(
        name="flow's first split",
        files=flow(
            next="self.items = [1]; @@",
            more=EACH.partition("    @step\n    def j")[2].join(("    @step\n    def j", "")),
        ),
        call="python f.py show",
    ),
    Group(
        name="flow's nodes", files=flow(next="self.next(self.a, num_parallel=2)", more=FIRST), call="python f.py show"
    ),
    Group(name="flow's inner split", files=flow(next="self.next(self.a, self.b)", more=LATER), call="python f.py show"),
    Group(
        name="flow's first step",
        files=put(
            flow(member="@step(start=True)\n    def first(self):\n        self.next(self.start)", above="@@"),
            "@@\n    @step\n",
            "@step@@\n",
        ),
        call="python f.py show",
    ),
    Group(
        name="flow's circle",
        files=flow(next="self.c = '1'; self.next({'1': self.a, '2': self.end}, condition='c')", more=ROUND),
        call="python f.py show",
    ),
    Group(
        name="flow's second branch", files=flow(next="self.next(self.a, self.b)", more=SECOND), call="python f.py show"
    ),
    Group(
        name="flow's elements",
        files=flow(
            next="self.items = [1]; self.next(self.a, foreach='items')", more=FIRST.partition("    @step\n    def j")[0]
        ),
        call="python f.py show",
    ),
    Group(
        name="flow's method",
        files=flow(next="self.next(self.a)", more=AFTER.replace("def a(self)", "@@")),
        call="python f.py show",
    ),
    Group(name="flow's last step", files=put(flow(), "def end(", "def @@("), call="python f.py show"),
    Group(
        name="flow's source",
        files={
            **put(flow(), '\nif __name__ == "__main__":\n    F()', ""),
            "s.py": "@@\n\nif __name__ == '__main__':\n    F()\n",
        },
        call="python s.py check",
    ),
    Group(
        name="flow of no file",
        files={
            **put(flow(), '\nif __name__ == "__main__":\n    F()', ""),
            "s.py": "@@\n\nif __name__ == '__main__':\n    F()\n",
        },
        call="python s.py run",
    ),
    Group(
        name="flow's options of a step",
        files=flow(
            next="self.items = [1]; @@self.next(self.a, foreach='items')", above="@catch(var='failure')", more=EACH
        ),
        call="python f.py show",
        entries=(
            (
                "",
                "put @catch on the step before or behind, or go on from here with self.next(self.a_step)",
                "self.next(self.go)\n\n    @step\n    def go(self):\n        ",
            ),
        ),
    ),
    Group(name="flow's own", files=flow(member="@@"), call="python f.py show"),
    Group(
        name="flow's foreign name",
        files={
            **put(
                flow(above="@retry"),
                "from stoker.flow import FlowSpec",
                "from @@ import retry\nfrom stoker.flow import FlowSpec",
            ),
            "metaflow.py": "def retry(step):\n    return step\n",
        },
        call="python f.py show",
    ),
)

RUNNING = (
    Group(
        name="flow that ends early", files=flow(next="@@\n        self.next(self.end)"), call="python f.py run", code=1
    ),
    Group(
        name="flow that runs over nothing",
        files=flow(next="self.items = []\n        @@", more=EACH),
        call="python f.py run",
        code=1,
        entries=(
            (
                "self.next(self.a, foreach='items')",
                "go another way by a switch",
                f"self.some = False\n        self.next({{True: self.go, False: self.end}}, condition='some')\n{GO}",
            ),
        ),
    ),
    Group(
        name="flow that splits much",
        files=flow(next="self.items = [1, 2]; self.next(self.a, foreach='items')", more=EACH),
        call="python f.py run --max-num-splits @@",
        code=1,
    ),
    Group(
        name="flow that runs on nodes",
        files=flow(next="self.next(self.a, num_parallel=@@)", more=EACH),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow that goes on",
        files=flow(member="def go(self):\n        self.next(self.end)", next="@@; self.next(self.end)"),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow that joins",
        files=flow(next="self.next(self.a, self.b)", more=BRANCHES.format(join="self.merge_artifacts(@@)")),
        call="python f.py run",
        code=1,
    ),
    Group(name="flow's replaced step", files={"f.py": PASSED}, call="python f.py run", code=1),
    Group(
        name="flow outside a step",
        files={
            "f.py": flow()["f.py"]
            .replace("    F()", "    @@\n    F()")
            .replace("pass\n\nif", "print(self.index)\n\nif")
        },
        call="python f.py run",
    ),
    Group(
        name="flow's current",
        files={
            "f.py": flow()["f.py"]
            .replace("    F()", "    @@\n    F()")
            .replace("pass\n\nif", "print(current.run_id)\n\nif")
            .replace("import FlowSpec", "import current, FlowSpec")
        },
        call="python f.py run",
    ),
)

OF_ONES_OWN = (
    Group(
        name="flow's own decorator",
        files=decorated(
            "@own", "@user_step_decorator\ndef own(step_name, flow, inputs=None, attributes=None):\n    @@"
        ),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow's own generator",
        files=decorated(
            "@own", "@user_step_decorator\ndef own(step_name, flow, inputs=None, attributes=None):\n    @@"
        ),
        call="python f.py run",
    ),
    Group(
        name="flow's own decorator before nodes",
        files=put(
            decorated("@own", "@user_step_decorator\ndef own(step_name, flow, inputs=None, attributes=None):\n    @@"),
            "self.next(self.end)\n\n    \n",
            f"self.next(self.a, num_parallel=1)\n\n    {EACH.strip()}\n",
        ),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow's own decorator's words",
        files=decorated("@Own(1)", "class Own(UserStepDecorator):\n    @@"),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow's decorator below",
        files=put(
            decorated("@step\n    @own", "import functools\n\ndef own(method):\n    @@"), "@own\n    @step", "@own"
        ),
        call="python f.py show",
    ),
    Group(
        name="flow's attached decorator",
        files={
            **put(flow(), "class F(", "import a, b\n\nclass F("),
            **dict.fromkeys(
                ("a.py", "b.py"),
                "from stoker.flow import UserStepDecorator\n\nclass Own(UserStepDecorator):\n    pass\n",
            ),
        },
        call="python f.py check --with @@",
    ),
    Group(
        name="flow's mutator",
        files=put(
            flow(above="@retry"),
            "class F(",
            "class M(FlowMutator):\n    def pre_mutate(self, flow):\n        @@\n\n@M\nclass F(",
        ),
        call="python f.py check",
    ),
    Group(name="flow's late mutator", files=put(flow(), "class F(", LATE), call="python f.py check"),
)

VALUES = (
    Group(name="flow's value", files={**flow(member="@@"), "data.txt": "ä\n"}, call="python f.py check"),
    Group(
        name="flow's words",
        files=flow(member="rate = Parameter('rate', type=float)\n    grid = Parameter('grid', type=JSONType)"),
        call="python f.py check @@",
    ),
    Group(
        name="flow's variable",
        files=flow(member="rate = Parameter('rate', type=float)"),
        call="python f.py check",
        env={"STOKER_RUN_RATE": "@@"},
    ),
    Group(
        name="flow's variable for configs",
        files={**flow(member="config = Config('config')"), "c.json": "{}"},
        call="python f.py check",
        env={"STOKER_FLOW_CONFIG": "@@"},
    ),
    Group(
        name="flow's variable for production",
        files=put(flow(), "class F(", "@project(name='mine')\nclass F("),
        call="python f.py check",
        env={"STOKER_PRODUCTION": "@@"},
    ),
    Group(
        name="flow's branch",
        files=put(flow(), "class F(", "@project(name='mine', branch='one')\nclass F("),
        call="python f.py check@@",
    ),
    Group(
        name="flow's config",
        files={**flow(member="config = Config('config', default_value='{}')"), "c.json": "{}"},
        call="python f.py check @@",
    ),
    Group(
        name="flow's earlier config",
        files={**flow(member="config = Config('config', default_value='{}')"), "c.json": "{}"},
        call=f"{RUN}spin start@@",
    ),
    Group(
        name="flow's store",
        files={**flow(), "stoker.toml": '[stacks.here]\nartifact_store = "things"\ndatabase = "sqlite:///things.db"\n'},
        call="python f.py @@",
    ),
)

DECORATORS = (
    Group(name="flow's decorators", files=flow(above="@@"), call="python f.py show"),
    Group(name="flow's schedule", files=put(flow(), "class F(", "@schedule(@@)\nclass F("), call="python f.py show"),
    Group(
        name="flow's secret",
        files=flow(above="@secrets(sources=['env:TOKEN'])"),
        call="python f.py run",
        code=1,
        env={"@@": "value"},
    ),
    Group(
        name="flow's secrets",
        files={**flow(above="@secrets(sources=[@@])"), ".env": "TOKEN=1\n"},
        call="python f.py run",
        code=1,
    ),
    Group(
        name="flow's file of secrets",
        files={**flow(above="@secrets(sources=['file:s.json'])"), "s.json": "@@\n"},
        call="python f.py run",
        code=1,
    ),
)

CHECKPOINTS = (
    Group(
        name="flow's checkpoint",
        files=put(
            flow(above="@checkpoint", next="Path('x').touch(); @@; self.next(self.end)"),
            "import FlowSpec",
            "import current, FlowSpec",
        ),
        call="python f.py run",
        code=1,
    ),
    Group(
        name="checkpoints of a task",
        files={"s.py": "from stoker.flow import Checkpoint\n\nprint(Checkpoint().list(@@))\n"},
        call="python s.py",
    ),
)

COMMANDS = (
    Group(name="flow's command", files=flow(), call="python f.py @@"),
    Group(name="flow's run", files=flow(), call="python f.py @@"),
    Group(
        name="flow's page of a task",
        files=flow(next="self.items = [1, 2]; self.next(self.a, foreach='items')", more=EACH),
        call=f"{RUN}card get @@",
    ),
    Group(name="flow's other run", files=other(flow()), call="python @@"),
)

SPINS = (
    Group(
        name="flow's run that came not so far",
        files=flow(next="self.next(self.a)", more=AFTER.replace("self.next", "@@; self.next")),
        call=f"{RUN}resume; python f.py spin end",
    ),
    Group(name="flow's artifacts for a spin", files=ARTIFACTS, call=f"{RUN}spin end --artifacts-module art.py"),
    Group(name="flow's spin that fails", files=flow(next="@@; self.next(self.end)"), call=f"{RUN}spin start", code=1),
    Group(
        name="flow's spin that is stopped",
        files=put(
            put(flow(next="@@; self.next(self.end)"), "import threading", "import os, sys, time"),
            "    F()",
            "    Path('pid').write_text(str(os.getpid()))\n    F()",
        ),
        call=f"{RUN}spin start",
        code=130,
    ),
    Group(
        name="flow's spin of a step on no way",
        files=flow(
            member="way = Parameter('way', default='1')",
            next="self.c = self.way; self.next({'1': self.a, '2': self.b}, condition='c')",
            more=WAYS,
        ),
        call="python f.py @@",
    ),
    Group(
        name="flow's spin of a node",
        files=flow(next="self.next(self.a, num_parallel=1)", more=EACH),
        call=f"{RUN}spin @@",
    ),
    Group(
        name="flow's newer form",
        files={
            **flow(next="self.next(self.a)", more=AFTER.replace("self.next", "1 / 0; self.next")),
            "g.py": flow(next="self.next(self.b)", more=AFTER.replace("def a", "def b"))["f.py"],
        },
        call="python f.py run; python g.py @@",
        code=2,
    ),
)

CLIENT = (
    Group(
        name="flow's client",
        files={**flow(), "c.py": "from stoker.flow import *\n@@\n"},
        call="python f.py run; python c.py",
    ),
    Group(name="flow's runner", files={**flow(), "r.py": RUNNER}, call="python r.py"),
)

RANKS = {
    **put(
        flow(above="@torchrun\n    @accelerate\n    @mpi", next="@@; self.next(self.end)"),
        "import threading",
        "import os, sys\nfrom stoker.flow import current",
    ),
    "t.py": "",
    "bad.py": "raise SystemExit(3)\n",
    "bin/mpirun": '#!/bin/sh\necho "mpirun (Open MPI) 5.0.11"\n',
    **dict.fromkeys(
        (
            "torch/__init__.py",
            "torch/distributed/__init__.py",
            "accelerate/__init__.py",
            "accelerate/commands/__init__.py",
        ),
        "",
    ),
    "torch/distributed/run.py": "import runpy, sys\nrunpy.run_path(sys.argv[-1])\n",
    "accelerate/commands/launch.py": "",
}
"""A flow that starts ranks, and stand-ins for the launchers that start them."""
LAUNCHES = (Group(name="flow's ranks", files=RANKS, call="python f.py run", code=1, env={"PATH": "bin"}),)

MIGRATION = (Group(name="migration", files={"m.py": "from zenml import step\n@@\n"}, call="stoker migrate m.py"),)

GROUPS: tuple[Group, ...] = (
    *GRAPH,
    *RUNNING,
    *OF_ONES_OWN,
    *VALUES,
    *DECORATORS,
    *CHECKPOINTS,
    *COMMANDS,
    *SPINS,
    *CLIENT,
    *LAUNCHES,
    *MIGRATION,
)
