import metaflow as mf
from metaflow import (
    FlowSpec,
    Deployer,  # not here
    batch, current,
    step)
from metaflow.cards import Markdown, VegaChart
from gpu_profile import gpu_profile


class TrainiumFlow(mf.FlowSpec):
    alpha = mf.Parameter("alpha", default=0.5)

    @gpu_profile(interval=1)
    @batch(trainium=16, queue="trn1")
    @step
    def start(self):
        assert Deployer is not None
        current.card.append(Markdown("# hello"))
        current.card.append(VegaChart({}))
        current.card.refresh()
        self.next(self.end)

    @mf.step
    def end(self):
        pass


if __name__ == "__main__":
    TrainiumFlow()
