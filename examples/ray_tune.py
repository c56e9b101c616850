"""Ray Tune and Ray Train inside steps: each step is a task of a Ray cluster, and its trials and workers run there too.

    python examples/ray_tune.py --workers 2

Run it with a stack whose orchestrator is `ray`. `ray.init(address="auto")` joins the cluster on which the step runs.
What Ray is to run elsewhere is defined inside the step: it travels with it, and the nodes need no file of yours.
The step holds the CPUs that it asks for itself; trials and workers get theirs from Ray.
"""

import argparse

from stoker import context, pipeline, step
from stoker.config import ResourceSettings

SMALL = ResourceSettings(cpu_count=0.1)


@step(resources=SMALL)
def best_rate(rates: list[float]) -> float:
    """Try learning rates, a trial each, and return the one with the smallest loss."""
    import ray
    from ray import tune

    def trial(config: dict) -> dict:
        weight = 0.0
        for _ in range(20):
            weight -= config["rate"] * 2 * (weight - 3.0)
        return {"loss": (weight - 3.0) ** 2}

    ray.init(address="auto")
    tuner = tune.Tuner(
        trial,
        param_space={"rate": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=str(context.checkpoint_dir), verbose=0),
    )
    rate: float = tuner.fit().get_best_result().config["rate"]
    ray.shutdown()
    return rate


@step(resources=SMALL)
def train(rate: float, workers: int) -> float:
    """Fit one weight with as many workers of Ray Train, which average their gradients; return the weight."""
    import tempfile
    from pathlib import Path

    from ray.train import Checkpoint, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    import ray

    def loop(config: dict) -> None:
        import torch
        import torch.distributed as dist

        from ray import train as here

        weight = torch.zeros(1, requires_grad=True)
        target = torch.tensor([2.0 + 2.0 * here.get_context().get_world_rank()])
        for _ in range(50):
            loss = (weight - target).pow(2).sum()
            (gradient,) = torch.autograd.grad(loss, weight)
            dist.all_reduce(gradient)
            with torch.no_grad():
                weight -= config["rate"] * gradient / dist.get_world_size()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(weight, Path(folder) / "weight.pt")
            here.report({"weight": float(weight.detach())}, checkpoint=Checkpoint.from_directory(folder))

    ray.init(address="auto")
    trainer = TorchTrainer(
        loop,
        train_loop_config={"rate": rate},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
        run_config=RunConfig(storage_path=str(context.checkpoint_dir)),
    )
    weight: float = trainer.fit().metrics["weight"]
    ray.shutdown()
    return weight


@pipeline
def tuned(rates: list[float], workers: int = 2) -> float:
    """The best rate, and training with it."""
    return train(best_rate(rates), workers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", default="0.01,0.1,0.4")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    run = tuned([float(rate) for rate in options.rates.split(",")], workers=options.workers)
    print(f"weight {run.steps['train'].output.load():.2f}")
