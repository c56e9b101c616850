"""How projects of ZenML's are written: small modules, each with a pipeline and `result()`, which runs it and returns
what came of it. `test_zenml.py` migrates, plans and runs them, and runs them unchanged."""

from __future__ import annotations

import textwrap
from typing import Any, Final

_HEAD: Final = """
from typing import Annotated, Any, List, Optional, Tuple
import os
from zenml import pipeline, step
from zenml.client import Client
from zenml.logger import get_logger

logger = get_logger(__name__)

@step
def one() -> int:
    return 1

@step
def add(a: int, b: int = 10) -> int:
    return a + b

"""
IDIOMS: Final[dict[str, tuple[str, Any]]] = {
    "parameters": (
        """
        @pipeline
        def p(start: int = 2, text: str = None):
            logger.info(f"the first is {add(start)}")

        def result():
            return p(start=5).steps["add"].output.load()
        """,
        15,
    ),
    "named_outputs": (
        """
        @step
        def split(n: int) -> Tuple[Annotated[list, "low"], Annotated[int, "count_of_split"]]:
            return list(range(n)), n

        @pipeline
        def p():
            low, count = split(n=3)
            add(a=count)

        def result():
            run = p()
            outputs = run.steps["split"].outputs
            return [outputs["low"][0].load(), outputs["count_of_split"].load(), run.steps["add"].output.load()]
        """,
        [[0, 1, 2], 3, 13],
    ),
    "artifact_config": (
        """
        from zenml import ArtifactConfig
        from zenml.enums import ArtifactType

        @step
        def make() -> Annotated[dict, ArtifactConfig(name="configured", tags=["nightly"], run_metadata={"rows": 2},
                                                     artifact_type=ArtifactType.DATA)]:
            return {"a": 1}

        @pipeline
        def p():
            make()

        def result():
            p()
            version = Client().get_artifact_version("configured")
            return [version.load(), version.tags, version.run_metadata, version.version]
        """,
        [{"a": 1}, ["nightly"], {"rows": 2}, "1"],
    ),
    "step_with_options": (
        """
        @pipeline
        def p():
            add.with_options(enable_cache=False, parameters={"b": 5})(one.with_options(name="first")())

        def result():
            run = p()
            return [sorted(run.steps), run.steps["add"].output.load()]
        """,
        [["add", "first"], 6],
    ),
    "condition_by_environment": (
        """
        @pipeline
        def p():
            value = one()
            if os.environ.get("PRODUCTION") == "1":
                add(value)

        def result():
            return sorted(p().steps)
        """,
        ["one"],
    ),
    "loop_with_ids": (
        """
        @step
        def best(prefix: str) -> int:
            from zenml import get_step_context
            steps = get_step_context().pipeline_run.steps
            return max(step.output.load() for name, step in steps.items() if name.startswith(prefix))

        @pipeline
        def p(rates: List[int] = [1, 5, 3]):
            after = []
            for index, rate in enumerate(rates):
                add(a=rate, b=0, id=f"train_{index}")
                after.append(f"train_{index}")
            best("train_", after=after)

        def result():
            return p().steps["best"].output.load()
        """,
        5,
    ),
    "after": (
        """
        @pipeline
        def p():
            first = one()
            add(1, after="one")
            add(2, after=[first], id="second")

        def result():
            return sorted(p().steps)
        """,
        ["add", "one", "second"],
    ),
    "nested_pipelines": (
        """
        @pipeline
        def inner(start: int):
            return add(start)

        @pipeline
        def p():
            total = inner(1)
            add(total, after="add", id="last")

        def result():
            return p().steps["last"].output.load()
        """,
        21,
    ),
    "run_configuration": (
        """
        from zenml import get_pipeline_context, get_step_context

        @step
        def configured(size: int, name: str = "a") -> str:
            return f"{name}{size}{get_step_context().pipeline_run.config.extra['env']}"

        @pipeline
        def p(rows: int, env: str = "none"):
            configured()
            add(rows, id=get_pipeline_context().extra["env"])

        def result():
            run = p.with_options(config_path=os.path.join(os.path.dirname(__file__), "configs", "p.yaml"))()
            return [sorted(run.steps), run.steps["configured"].output.load(), run.steps["prod"].output.load()]
        """,
        [["configured", "prod"], "b7prod", 17],
    ),
    "configure": (
        """
        add.configure(parameters={"b": 100}, enable_cache=False)

        @pipeline
        def p():
            add(1)

        def result():
            p.configure(enable_cache=False, tags=["configured"])
            return p().steps["add"].output.load()
        """,
        101,
    ),
    "map": (
        """
        from zenml.execution.pipeline.utils import unmapped

        @step
        def numbers() -> List[int]:
            return [1, 2, 3]

        @step
        def total(values: List[int]) -> int:
            return sum(values)

        @pipeline
        def p():
            total(add.map(a=numbers(), b=unmapped(5)))

        def result():
            return p().steps["total"].output.load()
        """,
        21,
    ),
    "dynamic": (
        """
        @pipeline(dynamic=True)
        def p():
            value = one()
            while value.load() < 5:
                value = add(value, b=2)
            futures = [add.submit(value, b=index) for index in range(2)]
            for future in futures:
                logger.info("%s", future.result().load())

        def result():
            run = p()
            return [run.steps["add_3"].output.load(), len(run.steps)]
        """,
        [5, 5],
    ),
    "product": (
        """
        @pipeline
        def p():
            add.product(a=[1, 2], b=[10, 20])

        def result():
            return [element.load() for element in p().of.steps["add"]]
        """,
        [11, 21, 12, 22],
    ),
    "materializer": (
        """
        from zenml.enums import ArtifactType
        from zenml.materializers.base_materializer import BaseMaterializer

        class Net:
            def __init__(self, weight):
                self.weight = weight

        class NetMaterializer(BaseMaterializer):
            ASSOCIATED_TYPES = (Net,)
            ASSOCIATED_ARTIFACT_TYPE = ArtifactType.MODEL

            def load(self, data_type):
                with self.artifact_store.open(os.path.join(self.uri, "net.txt"), "r") as file:
                    return data_type(float(file.read()) + 0.5)

            def save(self, data):
                with self.artifact_store.open(os.path.join(self.uri, "net.txt"), "w") as file:
                    file.write(str(data.weight))

        @step(output_materializers=NetMaterializer)
        def train() -> Net:
            return Net(2)

        @step
        def weight(net: Net) -> float:
            return net.weight

        @pipeline
        def p():
            weight(train())

        def result():
            run = p()
            return [run.steps["weight"].output.load(), run.steps["train"].output.load().weight]
        """,
        [2.5, 2.5],
    ),
    "old_materializer": (
        """
        from zenml.io import fileio
        from zenml.materializers.base_materializer import BaseMaterializer

        class Words:
            def __init__(self, text):
                self.text = text

        class WordsMaterializer(BaseMaterializer):
            ASSOCIATED_TYPES = (Words,)
            SKIP_REGISTRATION = True

            def handle_input(self, data_type):
                super().handle_input
                with fileio.open(os.path.join(self.artifact.uri, "words"), "r") as file:
                    return Words(file.read() + "!")

            def handle_return(self, words):
                with fileio.open(os.path.join(self.artifact.uri, "words"), "w") as file:
                    file.write(words.text)

        @step(output_materializers={"output": WordsMaterializer})
        def make() -> Words:
            return Words("a")

        @pipeline
        def p():
            make()

        def result():
            return p().steps["make"].output.load().text
        """,
        "a!",
    ),
    "external_artifact": (
        """
        from zenml import ExternalArtifact

        @pipeline
        def p(id: Any = None):
            add(ExternalArtifact(value=4) if id is None else ExternalArtifact(id=id))

        def result():
            first = p().steps["add"].output
            return [first.load(), p(id=first.id).steps["add"].output.load()]
        """,
        [14, 24],
    ),
    "model": (
        """
        from zenml import Model, get_step_context, log_model_metadata
        from zenml.enums import ModelStages

        @step
        def train() -> Annotated[int, "weights"]:
            return 7

        @step
        def promote(weights: int, accuracy: float):
            model = get_step_context().model
            model.log_metadata({"accuracy": accuracy})
            try:
                Client().get_model_version(model.name, ModelStages.PRODUCTION)
            except KeyError:
                model.set_stage("production", force=True)

        @pipeline(model=Model(name="idiom", license="Apache", description="d", tags=["t"]))
        def p():
            promote(train(), 0.75)

        def result():
            p()
            p()
            model = Client().get_model_version("idiom", ModelStages.PRODUCTION)
            versions = Client().list_model_versions("idiom")
            return [model.number, model.stage, model.run_metadata, model.load_artifact("weights"), len(versions.items)]
        """,
        [1, "production", {"accuracy": 0.75}, 7, 2],
    ),
    "model_from_another_pipeline": (
        """
        from zenml import Model, get_pipeline_context

        @step
        def train() -> Annotated[int, "handed_over"]:
            return 3

        @pipeline(model=Model(name="handing"))
        def training():
            train()

        @pipeline(model=Model(name="handing", version="production"))
        def p():
            add(get_pipeline_context().model.get_artifact("handed_over"))

        def result():
            training()
            Client().get_model_version("handing").set_stage("production")
            return p().steps["add"].output.load()
        """,
        13,
    ),
    "artifact_that_comes_later": (
        """
        import time

        @step
        def make() -> Annotated[int, "made_in_this_run"]:
            time.sleep(0.5)  # what waits for it has not begun
            return 4

        @pipeline
        def p():
            make()
            add(Client().get_artifact_version("made_in_this_run"), after="make")

        def result():
            return p().steps["add"].output.load()
        """,
        14,
    ),
    "metadata": (
        """
        from zenml import log_artifact_metadata, log_metadata

        @step
        def make() -> Annotated[int, "with_metadata"]:
            log_metadata({"loss": 0.5, "too_long": ['"'] * 9000})
            log_artifact_metadata(artifact_name="with_metadata", metadata={"rows": 3})
            return 1

        @pipeline
        def p():
            make()

        def result():
            run = p()
            log_metadata({"later": True}, run_id_name_or_prefix=run.id)
            return Client().get_artifact_version("with_metadata").run_metadata
        """,
        {"rows": 3},
    ),
    "saved_artifacts": (
        """
        from zenml import load_artifact, save_artifact

        @step
        def use() -> int:
            return load_artifact("saved_outside")["n"] + 1

        @pipeline
        def p():
            use()

        def result():
            save_artifact({"n": 1}, "saved_outside", tags=["v"])
            save_artifact({"n": 2}, "saved_outside", version="second")
            names = [one.name for one in Client().list_artifacts(name="saved_outside")]
            return [p().steps["use"].output.load(), load_artifact("saved_outside", version="second")["n"],
                    load_artifact("saved_outside", version=1)["n"], names]
        """,
        [3, 2, 1, ["saved_outside"]],
    ),
    "step_context": (
        """
        from zenml import get_step_context

        @step
        def look() -> list:
            context = get_step_context()
            return [context.step_run.name, context.pipeline.name, context.pipeline_run.name == context.pipeline_run.id]

        @pipeline(name="looking")
        def p():
            look(id="looks")

        def result():
            return p().steps["looks"].output.load()
        """,
        ["looks", "looking", True],
    ),
    "hooks": (
        """
        from zenml import get_step_context, log_metadata
        from zenml.steps import StepContext

        class Refused(ValueError):
            def __init__(self, what: str, code: int):
                super().__init__(f"{what} ({code})")

        def failed(exception: BaseException) -> None:
            context = get_step_context()
            told = [type(exception).__name__, isinstance(exception, ValueError), str(exception)]
            log_metadata({"told": told})
            write([*told, context.step_run.name, context.pipeline.name])

        def succeeded(context: "StepContext") -> None:
            write(["succeeded", context.step_name])

        def write(told: list) -> None:
            with open("hooks.txt", "a") as file:
                file.write(repr(told) + "\\n")

        @step(on_failure="hooks.failed")
        def wrong():
            raise Refused("as meant", 7)

        @step(enable_cache=False)
        def lacks(there: int) -> int:
            return {}["no"]

        @pipeline(on_success=succeeded)
        def right():
            add(one(), id="added")

        @pipeline(on_failure=failed)
        def p():
            lacks(one())

        @pipeline
        def q():
            wrong()

        def result():
            right.with_options(enable_cache=False)()
            for pipeline in (p, q):
                try:
                    pipeline()
                except Exception:
                    pass
            told = Client().get_pipeline("q").last_run.steps["wrong"].run_metadata
            return [*sorted(open("hooks.txt").read().splitlines()), told]
        """,
        [
            "['KeyError', False, \"'no'\", 'lacks', 'p']",
            "['Refused', True, 'as meant (7)', 'wrong', 'q']",
            "['succeeded', 'added']",
            "['succeeded', 'one']",
            {"told": ["Refused", True, "as meant (7)"]},
        ],
    ),
    "retry": (
        """
        from zenml.config.retry_config import StepRetryConfig

        @step(retry=StepRetryConfig(max_retries=1, delay=0, backoff=0))
        def flaky() -> int:
            if not os.path.exists("flaky.txt"):
                open("flaky.txt", "w").close()
                raise ValueError("once")
            return 1

        @pipeline
        def p():
            flaky()

        def result():
            return p().steps["flaky"].output.load()
        """,
        1,
    ),
    "client_runs": (
        """
        @pipeline
        def listed():
            one()

        p = listed

        def result():
            run = p()
            p()
            page = Client().list_pipeline_runs(pipeline_name="listed", size=1)
            last = Client().get_pipeline("listed").last_successful_run
            again = Client().get_pipeline_run(run.id)
            return [len(page.items), last.steps["one"].outputs["output"][0].load(), again.status, last.id != run.id]
        """,
        [1, 1, "completed", True],
    ),
    "secrets": (
        """
        @step
        def use() -> str:
            return Client().get_secret("hub creds").secret_values["token"][:3]

        @pipeline
        def p():
            use()

        def result():
            os.environ["HUB_CREDS_TOKEN"] = "abcdef"
            return p().steps["use"].output.load()
        """,
        "abc",
    ),
    "active_stack": (
        """
        from zenml.integrations.mlflow.experiment_trackers import MLFlowExperimentTracker
        from zenml.integrations.mlflow.flavors.mlflow_experiment_tracker_flavor import MLFlowExperimentTrackerSettings

        tracker = Client().active_stack.experiment_tracker
        if not tracker or not isinstance(tracker, MLFlowExperimentTracker):
            raise RuntimeError("no tracker")

        settings = {"experiment_tracker": MLFlowExperimentTrackerSettings(nested=True), "alerter": {"channel": "a"}}

        @step(experiment_tracker=tracker.name, settings=settings)
        def tracked() -> bool:
            alerter = Client().active_stack.alerter
            return bool(alerter)

        @pipeline
        def p():
            tracked()

        def result():
            return [p().steps["tracked"].output.load(), Client().active_stack.orchestrator.flavor]
        """,
        [False, "local"],
    ),
    "settings_of_a_platform": (
        """
        from zenml.config import DockerSettings, ResourceSettings
        from zenml.config.docker_settings import PythonPackageInstaller
        from zenml.integrations.constants import SKLEARN
        from zenml.integrations.gcp.flavors.vertex_orchestrator_flavor import VertexOrchestratorSettings

        docker = DockerSettings(required_integrations=[SKLEARN], requirements=["zenml", "torch"],
                                python_package_installer=PythonPackageInstaller.UV, environment={"A": 1})

        @step(settings={"resources": ResourceSettings(cpu_count=4000, memory="9000TB", gpu_count=1),
                        "orchestrator.vertex": VertexOrchestratorSettings(labels={"a": "b"})},
              step_operator="nobody_has_it")
        def large() -> int:
            return 1

        @pipeline(settings={"docker": docker})
        def p():
            large()

        def result():
            return p().steps["large"].output.load()
        """,
        1,
    ),
    "visualizations": (
        """
        from zenml.types import HTMLString

        @step
        def report() -> Annotated[HTMLString, "page"]:
            return HTMLString("<b>1</b>")

        @pipeline
        def p():
            report()

        def result():
            page = p().steps["report"].outputs["page"][0].load()
            return [page, type(page).__name__]
        """,
        ["<b>1</b>", "HTMLString"],
    ),
    "files": (
        """
        from zenml.io import fileio
        from zenml.utils import io_utils, yaml_utils
        from zenml.utils.string_utils import random_str

        @pipeline
        def p():
            one()

        def result():
            io_utils.create_dir_recursive_if_not_exists("made/below")
            yaml_utils.write_yaml("made/below/a.yaml", {"a": [1]})
            fileio.copy("made/below/a.yaml", "made/b.yaml")
            return [yaml_utils.read_yaml("made/b.yaml"), fileio.exists("made/below"), len(random_str(5))]
        """,
        [{"a": [1]}, True, 5],
    ),
    "old_pipelines": (
        """
        from zenml.pipelines import pipeline
        from zenml.steps import BaseParameters, Output, step

        class TrainerConfig(BaseParameters):
            rate: float = 0.5
            epochs: int = 2

        @step
        def load() -> Output(rows=list, count=int):
            return [1, 2], 2

        @step
        def trainer(config: TrainerConfig, rows: list) -> float:
            open("trained.txt", "w").close()
            return config.rate * config.epochs * len(rows)

        @step
        def said() -> str:
            return "trained" if os.path.exists("trained.txt") else "not yet"

        @pipeline(enable_cache=False)
        def p(loader, train, report):
            train.after(loader)
            report.after(train)
            rows, count = loader()
            report()
            train(rows)

        def result():
            p(loader=load(), train=trainer(config=TrainerConfig(rate=2)), report=said()).run()
            last = Client().get_pipeline("p").last_run
            return [last.steps["trainer"].output.load(), last.steps["said"].output.load()]
        """,
        [8.0, "trained"],
    ),
    "class_based_steps": (
        """
        from zenml.steps import BaseStep

        try:
            class Trainer(BaseStep):
                def entrypoint(self) -> int:
                    return 1
        except Exception as error:
            said = str(error)

        @pipeline
        def p():
            one()

        def result():
            return "write the step as a function with @step" in said
        """,
        True,
    ),
    "enums": (
        """
        from zenml.enums import ExecutionStatus, ModelStages, StackComponentType

        @pipeline
        def p():
            one()

        def result():
            return [ModelStages("production").value, ModelStages.STAGING, StackComponentType.ORCHESTRATOR.value,
                    p().status == ExecutionStatus.COMPLETED]
        """,
        ["production", "staging", "orchestrator", True],
    ),
    "types_that_are_not_here": (
        """
        from zenml.integrations.mlflow.model_deployers import MLFlowModelDeployer
        from zenml.services import BaseService

        @step
        def find(service: Optional[BaseService] = None) -> str:
            try:
                MLFlowModelDeployer.get_active_model_deployer()
            except Exception as error:
                return str(error)

        @pipeline
        def p():
            find()

        def result():
            said = p().steps["find"].output.load()
            return "MLFlowModelDeployer" in said and "is not here: " in said
        """,
        True,
    ),
    "schedules_and_tags": (
        """
        from zenml.config.schedule import Schedule

        @pipeline(tags=["weekly"], substitutions={"a": "b"})
        def p():
            one()

        def result():
            p.with_options(schedule=Schedule(cron_expression="0 0 * * *"), run_name="run_{date}")()
            return len(Client().of.runs(tag="weekly"))
        """,
        1,
    ),
    "steps_without_a_pipeline": (
        """
        @pipeline
        def p():
            one()

        def result():
            return [add(1, b=2), add.entrypoint(3)]
        """,
        [3, 13],
    ),
    "the_module_itself": (
        """
        import zenml
        import zenml.config as settings

        @zenml.step(enable_cache=False)
        def two() -> int:
            return 2

        @zenml.pipeline
        def p():
            two()

        def result():
            return [p().steps["two"].output.load(), settings.ResourceSettings(cpu_count=1).cpu_count]
        """,
        [2, 1.0],
    ),
    "cache": (
        """
        @step
        def slow(n: int) -> int:
            return n

        @step(enable_cache=False)
        def always() -> int:
            return 1

        @pipeline
        def p():
            slow(17)
            always()

        def result():
            p()
            steps = p().of.steps
            return [steps["slow"].status, steps["always"].status]
        """,
        ["cached", "succeeded"],
    ),
    "helpers_in_a_package": (
        """
        from lib.steps import scaled

        @pipeline
        def p():
            scaled(one(), factor=3)

        def result():
            return p().steps["scaled"].output.load()
        """,
        6,
    ),
    "gathered_lists": (
        """
        @step
        def biggest(values: List[int], names: dict) -> int:
            return max(values) + len(names)

        @pipeline
        def p():
            biggest([add(index) for index in range(3)], {"a": one()})

        def result():
            return p().steps["biggest"].output.load()
        """,
        13,
    ),
    "steps_in_place_of_types": (
        """
        import dataclasses

        @dataclasses.dataclass
        class Options:
            rate: float = 0.5

        @step
        def use(options: Options, names: Optional[List[str]] = None) -> float:
            return options.rate

        @pipeline
        def p(rate: float = 0.25):
            use(Options(rate), names=None)

        def result():
            return p().steps["use"].output.load()
        """,
        0.25,
    ),
}
"""Name → (module, what `result()` returns)."""
HELPERS: Final = {
    "configs/p.yaml": """
        # how `p` runs
        settings:
          docker: {required_integrations: [sklearn]}
          orchestrator.kubeflow: {resources: {requests: {cpu: "2"}}}
        extra: {env: prod}
        parameters: {rows: 7}
        steps:
          one:
            # as it is
          configured:
            enable_cache: false
            retry: {max_retries: 1, delay: 0}
            parameters: {size: 7, name: b}
        """,
    "requirements.txt": "numpy\nzenml[server]>=0.50\n",
    "lib/__init__.py": "",
    "lib/steps.py": """
        from zenml import step
        from .numbers_of import DOUBLE

        @step
        def scaled(a: int, factor: int) -> int:
            return a * factor * DOUBLE
        """,
    "lib/numbers_of.py": "DOUBLE = 2\n",
    "run.py": """
        import importlib
        import json
        import sys
        import traceback

        import click
        from zenml.client import Client

        @click.command()
        @click.argument("names", nargs=-1)
        def main(names):
            results = {}
            for name in names:
                try:
                    results[name] = importlib.import_module(name).result()
                except Exception:
                    results[name] = traceback.format_exc()
            with open("results.json", "w") as file:
                json.dump(results, file)

        if __name__ == "__main__":
            main()
        """,
}
"""The other files of the project."""


def files() -> dict[str, str]:
    """The whole project, file by file."""
    modules = {
        f"{name}.py": _HEAD.lstrip() + textwrap.dedent(code).strip() + "\n" for name, (code, _) in IDIOMS.items()
    }
    return {**modules, **HELPERS}
