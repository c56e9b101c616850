"""A pipeline that uses what the plugin adds: its backend (stoker.toml), its launcher, its serializer."""

import resource

from acme.launcher import Acmerun
from acme.values import Curve

from stoker import context, pipeline, step


@step(cache=False)
def measure() -> Curve:
    return Curve("loss", (0.5, 0.25, 0.125))


@step(cache=False, launch=Acmerun(num_processes=2, nice=1, outputs="all"))
def train(curve: Curve) -> str:
    return f"rank {context.rank} of {context.world_size} got {len(curve.points)} points"


@step(cache=False, settings={"orchestrator.acme": {"open_files": 256}})
def keep(reports: list[str]) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{len(reports)} ranks, at most {limit} files"


@pipeline
def training():
    keep(train(measure()))


if __name__ == "__main__":
    run = training()
    print(run.steps["measure"].output.serializer, run.steps["train"].output.load(), run.steps["keep"].output.load())
