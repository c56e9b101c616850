"""Advice of flows, and of `stoker migrate`, that was followed: groups as in `tests.advice.cases`."""

from __future__ import annotations

from tests.advice.cases import BRANCHES, EACH, WAYS, Group, flow

RUN = "python f.py run; python f.py "
AFTER = """
    @step
    def a(self):
        self.next(self.end)
"""
TWO_WAYS = """
    @step
    def a(self):
        self.next(self.@@)

    @step
    def b(self):
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
    Group(
        name="flow's split",
        files=flow(next="self.items = [1]; @@", more=EACH),
        call="python f.py show",
        entries=(
            ("self.next(self.a, self.a)", "use foreach=", "self.next(self.a, foreach='items')"),
            (
                "self.next(self.a, self.end, foreach='items')",
                "write self.next(self.another_step), foreach=…",
                "self.next(self.a, foreach='items')",
            ),
        ),
    ),
    Group(
        name="flow's first split",
        files=flow(
            next="self.items = [1]; @@",
            more=EACH.partition("    @step\n    def j")[2].join(("    @step\n    def j", "")),
        ),
        call="python f.py show",
        entries=(
            (
                "self.next(self.j, foreach='items')",
                "put a step between the two",
                "self.next(self.a, foreach='items')\n\n    @step\n    def a(self):\n        self.next(self.j)",
            ),
            (
                "self.next(self.j)",
                "write `def j(self):`, or split before",
                "self.next(self.a, foreach='items')\n\n    @step\n    def a(self):\n        self.next(self.j)",
            ),
        ),
    ),
    Group(
        name="flow's nodes",
        files=flow(next="self.next(self.a, num_parallel=2)", more=FIRST),
        call="python f.py show",
        entries=(
            (
                "self.next(self.b)\n\n    @step\n    def b(self):\n        self.next(self.j)",
                "end it with self.next(self.a_step_that_takes_inputs)",
                "self.next(self.j)",
            ),
        ),
    ),
    Group(
        name="flow's inner split",
        files=flow(next="self.next(self.a, self.b)", more=LATER),
        call="python f.py show",
        entries=(
            (
                "self.next(self.j)",
                "join what is split before steps meet",
                "self.next(self.k)\n\n    @step\n    def k(self, inputs):\n        self.next(self.j)",
            ),
        ),
    ),
    Group(
        name="flow's first step",
        files=put(
            flow(member="@step(start=True)\n    def first(self):\n        self.next(self.start)", above="@@"),
            "@@\n    @step\n",
            "@step@@\n",
        ),
        call="python f.py show",
        entries=(("(start=True)", "leave it at one", ""),),
    ),
    Group(
        name="flow's circle",
        files=flow(next="self.c = '1'; self.next({'1': self.a, '2': self.end}, condition='c')", more=ROUND),
        call="python f.py show",
        entries=(
            (
                "self.next(self.a)",
                "let a switch decide: self.next({True: self.again, False: self.done}, condition='more')",
                "self.more = False; self.next({True: self.a, False: self.end}, condition='more')",
            ),
        ),
    ),
    Group(
        name="flow's second branch",
        files=flow(next="self.next(self.a, self.b)", more=SECOND),
        call="python f.py show",
        entries=(
            (
                "self.next(self.k)\n\n    @step\n    def k(self, inputs):\n        self.next(self.end)",
                "let all of them meet in one step that takes `inputs`",
                "self.next(self.j)",
            ),
        ),
    ),
    Group(
        name="flow's elements",
        files=flow(
            next="self.items = [1]; self.next(self.a, foreach='items')", more=FIRST.partition("    @step\n    def j")[0]
        ),
        call="python f.py show",
        entries=(
            (
                "self.next(self.end)",
                "let the branches meet in a step that takes `inputs`",
                "self.next(self.j)\n\n    @step\n    def j(self, inputs):\n        self.next(self.end)",
            ),
        ),
    ),
    Group(
        name="flow's method",
        files=flow(next="self.next(self.a)", more=AFTER.replace("def a(self)", "@@")),
        call="python f.py show",
        entries=(
            ("def a(self, x, y)", "write `def a(self):`", "def a(self)"),
            ("async def a(self)", "write it with `def`", "def a(self)"),
        ),
    ),
    Group(
        name="flow's last step",
        files=put(flow(), "def end(", "def @@("),
        call="python f.py show",
        entries=(("last", "write a method `end` with @step", "end"),),
    ),
    Group(
        name="flow's source",
        files={
            **put(flow(), '\nif __name__ == "__main__":\n    F()', ""),
            "s.py": "@@\n\nif __name__ == '__main__':\n    F()\n",
        },
        call="python s.py check",
        entries=(
            ("exec(compile(open('f.py').read(), 'nowhere', 'exec'))", "define the flow in a file", "from f import F"),
        ),
    ),
    Group(
        name="flow of no file",
        files={
            **put(flow(), '\nif __name__ == "__main__":\n    F()', ""),
            "s.py": "@@\n\nif __name__ == '__main__':\n    F()\n",
        },
        call="python s.py run",
        entries=(
            (
                "del __file__; exec(compile(open('f.py').read(), 'f.py', 'exec'))",
                "put it into a file",
                "from f import F",
            ),
        ),
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
    Group(
        name="flow's own",
        files=flow(member="@@"),
        call="python f.py show",
        entries=(
            (
                "def __init__(self):\n        self.size = 1",
                "set what all steps see as attributes of the class, and artifacts in its first step",
                "size = 1",
            ),
        ),
    ),
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
        entries=(("metaflow", "write `from stoker.flow import retry`", "stoker.flow"),),
    ),
)

RUNNING = (
    Group(
        name="flow that ends early",
        files=flow(next="@@\n        self.next(self.end)"),
        call="python f.py run",
        code=1,
        entries=(("if 1: return", "call self.next(…) as its last statement", "if 1: pass"),),
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
        entries=(("1", "write --max-num-splits 2", "2"),),
    ),
    Group(
        name="flow that runs on nodes",
        files=flow(next="self.next(self.a, num_parallel=@@)", more=EACH),
        call="python f.py run",
        code=1,
        entries=(
            ("None", "write self.next(…) as it is meant", "1"),
            ("0", "write 2", "2"),
        ),
    ),
    Group(
        name="flow that goes on",
        files=flow(member="def go(self):\n        self.next(self.end)", next="@@; self.next(self.end)"),
        call="python f.py run",
        code=1,
        entries=(("self.go()", "call it once, at the end", "pass"),),
    ),
    Group(
        name="flow that joins",
        files=flow(next="self.next(self.a, self.b)", more=BRANCHES.format(join="self.merge_artifacts(@@)")),
        call="python f.py run",
        code=1,
        entries=(
            ("[]", "hand over the join's inputs", "inputs, exclude=['x']"),
            ("inputs, include=['y'], exclude=['x']", "leave one out", "inputs, exclude=['x']"),
        ),
    ),
    Group(
        name="flow's replaced step",
        files={"f.py": PASSED},
        call="python f.py run",
        code=1,
        entries=(
            ("flow.next()", "write self.next(self.another_step)", "flow.c = 1; flow.next({1: flow.a}, condition='c')"),
            (
                "flow.c = 1; flow.next(flow.a, condition='c')",
                "write self.next({'a': self.a, 'b': self.b}, condition='attribute')",
                "flow.c = 1; flow.next({1: flow.a, 2: flow.end}, condition='c')",
            ),
            (
                "flow.c = 1; flow.next({1: flow.a}, condition='c', num_parallel=2)",
                "keep one of them",
                "flow.c = 1; flow.next({1: flow.a}, condition='c')",
            ),
            ("flow.c = 1; return 5", "return None, True, or a dict of words for self.next", "flow.c = 1; return True"),
        ),
    ),
    Group(
        name="flow outside a step",
        files={
            "f.py": flow()["f.py"]
            .replace("    F()", "    @@\n    F()")
            .replace("pass\n\nif", "print(self.index)\n\nif")
        },
        call="python f.py run",
        entries=(("print(F(use_cli=False).index)", "use it in a step", "pass"),),
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
        entries=(("print(current.parameters)", "read it inside a step", "pass"),),
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
        entries=(
            (
                "yield; return 5",
                "return an exception, None, or (an exception or None, words for self.next)",
                "yield; return None",
            ),
            ("yield 5", "yield nothing, a function to call instead, or a dict to skip the step", "yield"),
            ("if 0: yield", "yield once; to skip the step: yield USER_SKIP_STEP", "yield USER_SKIP_STEP"),
        ),
    ),
    Group(
        name="flow's own generator",
        files=decorated(
            "@own", "@user_step_decorator\ndef own(step_name, flow, inputs=None, attributes=None):\n    @@"
        ),
        call="python f.py run",
        entries=(
            (
                "pass",
                "write `def name(step_name, flow, inputs=None, attributes=None):` with one yield",
                "yield",
            ),
        ),
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
        entries=(("yield USER_SKIP_STEP", 'yield {"num_parallel": 4}', 'yield {"num_parallel": 1}'),),
    ),
    Group(
        name="flow's own decorator's words",
        files=decorated("@Own(1)", "class Own(UserStepDecorator):\n    @@"),
        call="python f.py run",
        code=1,
        entries=(("pass", "write `def init(self, …):`", "def init(self, size):\n        self.size = size"),),
    ),
    Group(
        name="flow's decorator below",
        files=put(
            decorated("@step\n    @own", "import functools\n\ndef own(method):\n    @@"),
            "@own\n    @step",
            "@own",
        ),
        call="python f.py show",
        entries=(
            (
                "return functools.partial(method)",
                "let it be a method, or what functools.wraps makes of one",
                "@functools.wraps(method)\n    def call(*inputs):\n        return method(*inputs)\n    return call",
            ),
        ),
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
        entries=(("Own", "write a.Own or b.Own", "a.Own"),),
    ),
    Group(
        name="flow's mutator",
        files=put(
            flow(above="@retry"),
            "class F(",
            "class M(FlowMutator):\n    def pre_mutate(self, flow):\n        @@\n\n@M\nclass F(",
        ),
        call="python f.py check",
        entries=(
            (
                "flow.start.add_decorator(5)",
                "hand over a decorator, or its name as a text",
                "flow.start.add_decorator('timeout:minutes=1')",
            ),
            ("flow.nothing", "it was put there at f.py:", "flow.start"),
            ("flow.remove_decorator('M')", "leave it", "pass"),
            ("flow.add_decorator('cache')", "mutable_flow.start.add_decorator", "flow.start.add_decorator('cache')"),
            (
                "flow.start.add_decorator('project', deco_kwargs={'name': 'x'})",
                "use mutable_step.flow",
                "flow.start.flow.add_decorator('project', deco_kwargs={'name': 'x'})",
            ),
            (
                "flow.start.add_decorator('retry', duplicates=9)",
                "write MutableStep.OVERRIDE",
                "flow.start.add_decorator('retry', duplicates=MutableStep.OVERRIDE)",
            ),
            (
                "flow.start.add_decorator('retry', duplicates=MutableStep.ERROR)",
                "write duplicates=MutableStep.OVERRIDE",
                "flow.start.add_decorator('retry', duplicates=MutableStep.OVERRIDE)",
            ),
            (
                "flow.add_parameter('x', 3)",
                "write Parameter(…) or IncludeFile(…)",
                "flow.add_parameter('x', Parameter('x', default=3))",
            ),
            (
                "flow.start.add_decorator('timeout', [1])",
                "write deco_kwargs={…}",
                "flow.start.add_decorator('timeout', deco_kwargs={'minutes': 1})",
            ),
            (
                "flow.add_parameter('end', Parameter('x'))",
                "write overwrite=True",
                "flow.add_parameter('x', Parameter('x')); flow.add_parameter('x', Parameter('x'), overwrite=True)",
            ),
        ),
    ),
    Group(
        name="flow's late mutator",
        files=put(flow(), "class F(", LATE),
        call="python f.py check",
        entries=(("mutate", "move it there", "pre_mutate"),),
    ),
)

VALUES = (
    Group(
        name="flow's value",
        files={**flow(member="@@"), "data.txt": "ä\n"},
        call="python f.py check",
        entries=(
            (
                "data = IncludeFile('data', default='data.txt', encoding='unknown')",
                'encoding="utf-8", or another one that Python knows',
                "data = IncludeFile('data', default='data.txt', encoding=\"utf-8\")",
            ),
            (
                "data = IncludeFile('data', default='data.txt', encoding='ascii')",
                "is_text=False for its bytes, or encoding= of a text that is not ascii",
                "data = IncludeFile('data', default='data.txt', is_text=False)",
            ),
            (
                "data = IncludeFile('data', default='other.txt')",
                "name a file that is there and may be read",
                "data = IncludeFile('data', default='data.txt')",
            ),
            (
                "data = IncludeFile('data.txt')",
                "the file is its default: IncludeFile(\"data\", default='data.txt')",
                "data = IncludeFile(\"data\", default='data.txt')",
            ),
            ("index = Parameter('index')", "give another name", "place = Parameter('place')"),
            (
                "size = Parameter('size', default=(1, 2))",
                "give type=, such as type=JSONType",
                "size = Parameter('size', default=(1, 2), type=JSONType)",
            ),
            (
                "words = Parameter('words', separator=',', type=int)",
                "leave type out",
                "words = Parameter('words', separator=',')",
            ),
            (
                "size = Parameter('size', default=lambda context: 'a', type=int)",
                "let its default return that, or write type=str",
                "size = Parameter('size', default=lambda context: 'a', type=str)",
            ),
            (
                "config = Config('c', default_value='{}')\n    r = Parameter('r', default=config.rate)",
                "see the config's file",
                "config = Config('c', default_value='{\"rate\": 1}')\n    r = Parameter('r', default=config.rate)",
            ),
        ),
    ),
    Group(
        name="flow's words",
        files=flow(member="rate = Parameter('rate', type=float)\n    grid = Parameter('grid', type=JSONType)"),
        call="python f.py check @@",
        entries=(
            ("--grid '{a'", 'write {"a": 1}', "--grid '{\"a\": 1}'"),
            ("--rate", "write --rate float", "--rate 1.5"),
            ("--max-workers x", "write --max-workers 4", "--max-workers 4"),
        ),
    ),
    Group(
        name="flow's variable",
        files=flow(member="rate = Parameter('rate', type=float)"),
        call="python f.py check",
        env={"STOKER_RUN_RATE": "@@"},
        entries=(("much", "set STOKER_RUN_RATE to a value of the parameter's type, or unset it", "0.5"),),
    ),
    Group(
        name="flow's variable for configs",
        files={**flow(member="config = Config('config')"), "c.json": "{}"},
        call="python f.py check",
        env={"STOKER_FLOW_CONFIG": "@@"},
        entries=(("c.json", "write STOKER_FLOW_CONFIG='{\"NAME\": …}'", '{"config": "c.json"}'),),
    ),
    Group(
        name="flow's variable for production",
        files=put(flow(), "class F(", "@project(name='mine')\nclass F("),
        call="python f.py check",
        env={"STOKER_PRODUCTION": "@@"},
        entries=(("perhaps", "write STOKER_PRODUCTION=1, or unset it", "1"),),
    ),
    Group(
        name="flow's branch",
        files=put(flow(), "class F(", "@project(name='mine', branch='one')\nclass F("),
        call="python f.py check@@",
        entries=((" --branch two", "leave one out", ""),),
    ),
    Group(
        name="flow's config",
        files={**flow(member="config = Config('config', default_value='{}')"), "c.json": "{}"},
        call="python f.py check @@",
        entries=(
            ("--config-value other {}", "--config-value NAME …", "--config-value config {}"),
            ("--config other", "write --config NAME FILE for a Config", "--config config c.json"),
        ),
    ),
    Group(
        name="flow's earlier config",
        files={**flow(member="config = Config('config', default_value='{}')"), "c.json": "{}"},
        call=f"{RUN}spin start@@",
        entries=((" --config config c.json", "leave --config out", ""),),
    ),
    Group(
        name="flow's store",
        files={**flow(), "stoker.toml": '[stacks.here]\nartifact_store = "things"\ndatabase = "sqlite:///things.db"\n'},
        call="python f.py @@",
        entries=(
            (
                "check --metadata service",
                "write artifact_store and database into stoker.toml, and --stack NAME",
                "check --stack here",
            ),
        ),
    ),
)

DECORATORS = (
    Group(
        name="flow's decorators",
        files=flow(above="@@"),
        call="python f.py show",
        entries=(
            ("@retry\n    @retry", "remove one of the two", "@retry"),
            ("@pypi(python='3.11')\n    @conda(python='3.12')", "say it once", "@pypi(python='3.11')\n    @conda"),
            ("@checkpoint(temp_dir_root=3)", 'write "/local/scratch"', '@checkpoint(temp_dir_root="/local/scratch")'),
            (
                "@gpu_profile(artifact_prefix='1')",
                'write "gpu_profile_"',
                '@gpu_profile(artifact_prefix="gpu_profile_")',
            ),
            ("@retry(minutes_between_retries='x')", "write 2", "@retry(minutes_between_retries=2)"),
            ("@torchrun(nproc_per_node=0)", "write nproc_per_node=8", "@torchrun(nproc_per_node=8)"),
            ("@conda(channels='x')", "write channels=['x']", "@conda(channels=['x'])"),
            ("@slurm\n    @kubernetes", "keep one of the two decorators", "@slurm"),
            (
                "@resources(accelerators='H100')\n    @batch(trainium=1)",
                "say it once",
                "@batch(trainium=1)",
            ),
        ),
    ),
    Group(
        name="flow's schedule",
        files=put(flow(), "class F(", "@schedule(@@)\nclass F("),
        call="python f.py show",
        entries=(("daily=True, weekly=True", "say one of them", "daily=True"),),
    ),
    Group(
        name="flow's secret",
        files=flow(above="@secrets(sources=['env:TOKEN'])"),
        call="python f.py run",
        code=1,
        env={"@@": "value"},
        entries=(("OTHER", "export TOKEN=…", "TOKEN"),),
    ),
    Group(
        name="flow's secrets",
        files={**flow(above="@secrets(sources=[@@])"), ".env": "TOKEN=1\n"},
        call="python f.py run",
        code=1,
        entries=(
            ("'file:other'", "name another file", "'file:.env'"),
            (
                "'file:.env', {'type': 'inline', 'options': {'env_vars': {'TOKEN': '2'}}}",
                "remove one of them",
                "'file:.env'",
            ),
        ),
    ),
    Group(
        name="flow's file of secrets",
        files={**flow(above="@secrets(sources=['file:s.json'])"), "s.json": "@@\n"},
        call="python f.py run",
        code=1,
        entries=(("{TOKEN: 1}", 'write {"NAME": "value"}', '{"NAME": "value"}'),),
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
        entries=(
            (
                "current.checkpoint.save('x'); current.checkpoint.load(5)",
                "hand over what save() or list() returned, or its key",
                "saved = current.checkpoint.save('x'); current.checkpoint.load(saved)",
            ),
            (
                "current.checkpoint.save('x', metadata={'a': Path('x')})",
                "keep the value in a file",
                "current.checkpoint.save('x')",
            ),
            (
                "current.checkpoint.save('x', storage_format='zip')",
                'leave it out: files are kept as they are ("files")',
                "current.checkpoint.save('x')",
            ),
            (
                "current.checkpoint.save('x', name='a b')",
                'write "epoch_3"',
                "current.checkpoint.save('x', name=\"epoch_3\")",
            ),
            (
                "Checkpoint().save()",
                "name a path, or write `with Checkpoint() as found:`",
                "Checkpoint().save('x')",
            ),
        ),
    ),
    Group(
        name="checkpoints of a task",
        files={"s.py": "from stoker.flow import Checkpoint\n\nprint(Checkpoint().list(@@))\n"},
        call="python s.py",
        entries=(
            ("", 'name one: Checkpoint().list(task="Flow/run/step/task")', 'task="Flow/run/step/task"'),
            ("task='Flow/run'", 'write "Flow/run/step/task"', 'task="Flow/run/step/task"'),
        ),
    ),
)

COMMANDS = (
    Group(
        name="flow's command",
        files=flow(),
        call="python f.py @@",
        entries=(
            (
                "resume --run-id 5",
                "Stoker gives a run its id; --run-id-file FILE has it as soon as the run begins",
                "run; python f.py resume start --run-id-file id",
            ),
            ("resume --clone-only", "read the origin itself", "run; python f.py dump start"),
            ("package info", "code is read where it is; there is no package", "check"),
            (
                "resume --reentrant",
                "`stoker resume RUN` lets one driver of several go on",
                "run; stoker resume latest",
            ),
            ("step start", "tasks start by themselves", "run"),
            ("airflow create", "there is no deployer; start `python flow.py run`", "run"),
            ("kubernetes list", "`stoker runs` lists runs on every platform", "run; stoker runs"),
            ("--max-workers 2 run", "write it behind: run --max-workers …", "run --max-workers 2"),
            ("resume start 3", "write resume [STEP]", "run; python f.py resume start"),
            ("deploy", "python f.py help", "help"),
            ("dump", "write dump STEP, or RUN/STEP/TASK", "run; python f.py dump start"),
            (
                "run; python f.py tag replace a",
                "write tag replace OLD NEW, or --remove OLD --add NEW",
                "run --tag a; python f.py tag replace a b",
            ),
            ("tag list a b", "write tag list --all for every run", "run; python f.py tag list --all"),
            ("spin", "write spin STEP, RUN/STEP or RUN/STEP/TASK", "run; python f.py spin start"),
            (
                "spin start --alpha 3",
                "parameters are those of the earlier run; --artifacts-module FILE has other values",
                "run; python f.py spin start",
            ),
            ("spin start --persist --no-persist", "leave one out", "run; python f.py spin start --persist"),
            (
                "run; python f.py spin start --persist; python f.py spin latest/start",
                "name the run of a whole flow",
                "run; python f.py spin latest/start",
            ),
        ),
    ),
    Group(
        name="flow's run",
        files=flow(),
        call="python f.py @@",
        entries=(
            ("resume", "name one: --origin-run-id RUN", "run; python f.py resume start --origin-run-id latest"),
            ("run; python f.py dump other", "write dump RUN/STEP", "run; python f.py dump latest/start"),
            (
                "spin start",
                "`run` the flow once; --namespace= looks at everybody's runs",
                "run; python f.py spin start",
            ),
            ("spin start --namespace=", "`run` the flow once", "run; python f.py spin start --namespace="),
        ),
    ),
    Group(
        name="flow's page of a task",
        files=flow(next="self.items = [1, 2]; self.next(self.a, foreach='items')", more=EACH),
        call=f"{RUN}card get @@",
        entries=(("a", "write card get a/a[0]", "a/a[0]"),),
    ),
    Group(
        name="flow's other run",
        files=other(flow()),
        call="python @@",
        entries=(
            (
                "g.py run; python f.py resume start --origin-run-id latest",
                "name one of this flow",
                "f.py run; python f.py resume start --origin-run-id latest",
            ),
            (
                "g.py run; python f.py spin latest/start",
                "name one of this flow",
                "f.py run; python f.py spin latest/start",
            ),
        ),
    ),
)

SPINS = (
    Group(
        name="flow's run that came not so far",
        files=flow(next="self.next(self.a)", more=AFTER.replace("self.next", "@@; self.next")),
        call=f"{RUN}resume; python f.py spin end",
        entries=(("1 / 0", "`resume` the run", "pass"),),
    ),
    Group(
        name="flow's artifacts for a spin",
        files=ARTIFACTS,
        call=f"{RUN}spin end --artifacts-module art.py",
        entries=(
            ("ARTIFACTS = {'_transition': 1}", "leave it out", "ARTIFACTS = {'x': 1}"),
            ("1 / 0", "mend the module", "ARTIFACTS = {'x': 1}"),
            ("x = 1", 'write a Python file with ARTIFACTS = {"name": value}', 'ARTIFACTS = {"x": 1}'),
        ),
    ),
    Group(
        name="flow's spin that fails",
        files=flow(next="@@; self.next(self.end)"),
        call=f"{RUN}spin start",
        code=1,
        entries=(("1 / 0", "mend it, and spin it again: spin", "pass"),),
    ),
    Group(
        name="flow's spin that is stopped",
        files=put(
            put(flow(next="@@; self.next(self.end)"), "import threading", "import os, sys, time"),
            "    F()",
            "    Path('pid').write_text(str(os.getpid()))\n    F()",
        ),
        call=f"{RUN}spin start",
        code=130,
        entries=(("sys.stdin; os.kill(int(Path('pid').read_text()), 2); time.sleep(60)", "spin it again", "pass"),),
    ),
    Group(
        name="flow's spin of a step on no way",
        files=flow(
            member="way = Parameter('way', default='1')",
            next="self.c = self.way; self.next({'1': self.a, '2': self.b}, condition='c')",
            more=WAYS,
        ),
        call="python f.py @@",
        entries=(
            (
                "run; python f.py spin b",
                "run the flow with the step in it, or name another run: spin RUN/b",
                "run --way 2; python f.py spin b",
            ),
        ),
    ),
    Group(
        name="flow's spin of a node",
        files=flow(next="self.next(self.a, num_parallel=1)", more=EACH),
        call=f"{RUN}spin @@",
        entries=(("latest/a/a[0]", "spin all of them: spin", "latest/a/a"),),
    ),
    Group(
        name="flow's newer form",
        files={
            **flow(next="self.next(self.a)", more=AFTER.replace("self.next", "1 / 0; self.next")),
            "g.py": flow(next="self.next(self.b)", more=AFTER.replace("def a", "def b"))["f.py"],
        },
        call="python f.py run; python g.py @@",
        code=2,
        entries=(("resume", "start a new run of the flow as it is now", "run"),),
    ),
)

CLIENT = (
    Group(
        name="flow's client",
        files={
            **flow(),
            "c.py": "from stoker.flow import *\n@@\n",
        },
        call="python f.py run; python c.py",
        entries=(
            (
                "id = Flow('F').latest_run.id; namespace('user:nobody'); Run(f'F/{id}')",
                "namespace(None) looks everywhere, or name another",
                "id = Flow('F').latest_run.id; namespace(None); Run(f'F/{id}')",
            ),
            (
                "Flow('F').latest_run.add_tags('tested')",
                'write ["tested"]',
                "Flow('F').latest_run.add_tags([\"tested\"])",
            ),
            ("Flow('F').latest_run.replace_tags([], [])", "name one", "Flow('F').latest_run.replace_tags([], ['a'])"),
            (
                "Flow('F').latest_run.add_tags(map(str, range(51)))",
                "give fewer, or remove some",
                "Flow('F').latest_run.add_tags(map(str, range(50)))",
            ),
            ("Flow('F').latest_run.add_tag('')", "write 1 to 500 characters", "Flow('F').latest_run.add_tag('a')"),
            ("Flow('F').latest_run.add_tag(b'a')", "write it as a text", "Flow('F').latest_run.add_tag('a')"),
            (
                "Flow('F').latest_run.add_tag('\\udcff')",
                "write characters, not bytes",
                "Flow('F').latest_run.add_tag('ÿ')",
            ),
            (
                "Task(Flow('F').latest_run['start'].task.pathspec, attempt=-1)",
                "write 0 for the first",
                "Task(Flow('F').latest_run['start'].task.pathspec, attempt=0)",
            ),
            ("metadata('service@host')", 'write metadata("NAME") with the name of a stack', 'metadata("local")'),
            ("namespace('')", 'write namespace("user:ann") or namespace(None)', "namespace(None)"),
            ("Run(Flow('F').latest_run.id)", "write Run('Flow/RUN')", "Run('F/' + Flow('F').latest_run.id)"),
        ),
    ),
    Group(
        name="flow's runner",
        files={**flow(), "r.py": RUNNER},
        call="python r.py",
        entries=(
            ("runner.run(size=3).run", "look at .stderr", "runner.run().run"),
            (
                "runner.run(), runner.spin('start').task",
                "spin(…, persist=True)",
                "runner.run(), runner.spin('start', persist=True).task",
            ),
            ("runner.run().read_output('log')", 'write "stdout" or "stderr"', 'runner.run().read_output("stderr")'),
            ("Runner('f.py', profile='here')", "name a stack: Runner(…, stack='NAME')", "Runner('f.py', stack='here')"),
        ),
    ),
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
LAUNCHES = (
    Group(
        name="flow's ranks",
        files=RANKS,
        call="python f.py run",
        code=1,
        env={"PATH": "bin"},
        entries=(
            (
                "current.torch.run('t.py', accelerate_args={'max_restarts': 0})",
                "write torchrun_args",
                "current.torch.run('t.py', torchrun_args={'max_restarts': 0})",
            ),
            (
                "current.torch.run('t.py', torchrun_args=['max_restarts'])",
                "write --option=value; the script's own are entrypoint_args",
                "current.torch.run('t.py', torchrun_args=['--max-restarts=0'])",
            ),
            (
                "current.torch.run('t.py', torchrun_args='--max-restarts=0')",
                "write ['--max-restarts=0']",
                "current.torch.run('t.py', torchrun_args=['--max-restarts=0'])",
            ),
            ("current.torch.run('bad.py')", "see its log", "current.torch.run('t.py')"),
            (
                "sys.modules['torch'] = None; current.torch.run('t.py')",
                "pip install torch",
                "current.torch.run('t.py')",
            ),
            (
                "sys.modules['accelerate'] = None; current.accelerate.run('t.py')",
                "pip install 'stoker[accelerate]'",
                "current.accelerate.run('t.py')",
            ),
            ("current.mpi.broadcast_file('x')", "make it before", "Path('x').touch(); current.mpi.broadcast_file('x')"),
            (
                "current.mpi.cc([])",
                "install it",
                "os.chmod('bin/mpirun', 0o755); os.link('bin/mpirun', 'bin/mpicc'); current.mpi.cc([])",
            ),
            (
                "os.chmod('bin/mpirun', 0o755); current.mpi.run()",
                'write program="./hello", or a script',
                "os.chmod('bin/mpirun', 0o755); current.mpi.run(program=\"./hello\")",
            ),
            (
                "os.chmod('bin/mpirun', 0o755); current.mpi.run('t.py', args=['-np', 'all'])",
                "write -np 4",
                "os.chmod('bin/mpirun', 0o755); current.mpi.run('t.py', args=['-np', '4'])",
            ),
        ),
    ),
)

MIGRATION = (
    Group(
        name="migration",
        files={"m.py": "from zenml import step\n@@\n"},
        call="stoker migrate m.py",
        entries=(("def f(:", "mend it first; nothing was changed", "def f(): pass"),),
    ),
)

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
