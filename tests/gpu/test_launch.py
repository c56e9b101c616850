"""Training on a real GPU under launchers and trainers that Stoker did not write, with receipts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import Machine, Note, needs

pytestmark = pytest.mark.gpu

TRAINING = """
    import time

    from stoker import context, pipeline, step
    from stoker.config import Accelerate, Monitor, ResourceSettings


    @step(
        resources=ResourceSettings(gpu_count=1),
        launch=Accelerate(mixed_precision="bf16"),
        monitor=Monitor(0.2),
        cache=False,
    )
    def train(seconds: float) -> dict:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        x = torch.randn(4096, 2048, device=accelerator.device)
        y = x[:, :1] * 2
        losses, started, computed = [], time.monotonic(), ""
        while time.monotonic() < started + seconds:
            with accelerator.autocast():
                computed = str(torch.nn.functional.linear(x[:1], x[:1]).dtype)
                loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return {
            "device": accelerator.device.type,
            "precision": accelerator.mixed_precision,
            "computed": computed,
            "ranks": [accelerator.num_processes, context.world_size],
            "first": losses[0],
            "last": losses[-1],
            "steps": len(losses),
        }


    @pipeline
    def training():
        train(8.0)


    if __name__ == "__main__":
        training()
"""


def test_bf16(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """The rank computes in bf16 on the leased GPU, the loss falls, and the receipt is of the rank's work."""
    needs("accelerate")
    if whole.device.capability is None or whole.device.capability < (8, 0):
        pytest.skip(f"{whole.device.model} does not compute in bf16")
    step = done(TRAINING).steps["train"]
    told, receipt = step.load(), step.receipt
    assert (told["device"], told["precision"], told["computed"]) == ("cuda", "bf16", "torch.bfloat16")
    assert told["ranks"] == [1, 1]
    assert told["last"] < told["first"]
    assert receipt.verdict == "used", receipt.evidence
    (use,) = receipt.devices
    note("bf16", steps=told["steps"], utilization_mean=use.utilization_mean, memory_peak=use.memory_peak)


RANKS = """
    import time

    from stoker import context, pipeline, step
    from stoker.config import Monitor, ResourceSettings, Torchrun


    @step(
        resources=ResourceSettings(gpu_count=1),
        launch=Torchrun(nproc_per_node=1),
        monitor=Monitor(0.2),
        cache=False,
        timeout=100,
    )
    def train() -> list:
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        device = torch.device("cuda", 0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4096, 4096).to(device), device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(4096, 4096, device=device)
        losses, started = [], time.monotonic()
        while time.monotonic() < started + 5.0:
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        total = torch.ones(1, device=device)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return [total.item(), losses[0], losses[-1], context.world_size]


    @pipeline
    def training():
        train()


    if __name__ == "__main__":
        training()
"""

TRAINER = """
    from stoker import context, pipeline, step
    from stoker.config import Monitor, ResourceSettings


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.2), cache=False)
    def tune() -> dict:
        import torch
        from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

        class Words(torch.utils.data.Dataset):
            def __len__(self):
                return 4096

            def __getitem__(self, index):
                torch.manual_seed(index)
                ids = torch.randint(0, 1000, (128,))
                return {"input_ids": ids, "attention_mask": torch.ones(128, dtype=torch.long), "labels": ids[0] % 2}

        sizes = dict(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
        model = BertForSequenceClassification(BertConfig(vocab_size=1000, **sizes))
        arguments = TrainingArguments(
            output_dir=str(context.checkpoint_dir), per_device_train_batch_size=64, num_train_epochs=1, bf16=True,
            logging_steps=10, save_steps=30, report_to=[], dataloader_num_workers=2,
        )
        result = Trainer(model=model, args=arguments, train_dataset=Words()).train()
        return {"device": str(model.device), "steps": result.global_step, "loss": result.training_loss}


    @pipeline
    def training():
        tune()


    if __name__ == "__main__":
        training()
"""

LIGHTNING = """
    import time

    from stoker import context, pipeline, step
    from stoker.config import Monitor, ResourceSettings


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.2), cache=False)
    def fit() -> dict:
        import lightning
        import torch

        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.Sequential(
                    torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
                )

            def training_step(self, batch, index):
                (x,) = batch
                loss = (self.layers(x) - x).square().mean()
                self.log("loss", loss)
                return loss

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())

        data = torch.utils.data.TensorDataset(torch.randn(1 << 16, 1024))
        batches = torch.utils.data.DataLoader(data, batch_size=1024, num_workers=2)
        net = Net()
        trainer = lightning.Trainer(
            accelerator="gpu", devices=1, precision="bf16-mixed", max_time={"seconds": 6}, max_epochs=-1, logger=False,
            enable_progress_bar=False, default_root_dir=str(context.checkpoint_dir),
        )
        trainer.fit(net, batches)
        return {"device": str(trainer.strategy.root_device), "steps": trainer.global_step}


    @pipeline
    def training():
        fit()


    if __name__ == "__main__":
        training()
"""


def test_torchrun_with_nccl(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """One rank under torchrun talks through NCCL on the leased GPU, and its receipt is `used`."""
    step = done(RANKS).steps["train"]
    total, first, last, world_size = step.load()
    assert (total, world_size) == (1.0, 1)
    assert last < first
    assert step.receipt.verdict == "used", step.receipt.evidence
    note("torchrun", first=first, last=last, utilization_mean=step.receipt.devices[0].utilization_mean)


def test_transformers_trainer(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """Hugging Face's Trainer finds the leased GPU by itself, its loader's workers run beside it, and it is `used`."""
    needs("transformers", "accelerate")
    step = done(TRAINER).steps["tune"]
    told = step.load()
    assert told["device"] == "cuda:0"
    assert told["steps"] == 64
    assert step.receipt.verdict == "used", step.receipt.evidence
    (use,) = step.receipt.devices
    note("trainer", **told, utilization_mean=use.utilization_mean, seconds=step.receipt.seconds)


def test_lightning(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """Lightning's Trainer finds the leased GPU, and it is `used`."""
    needs("lightning")
    step = done(LIGHTNING).steps["fit"]
    told = step.load()
    assert told["device"] == "cuda:0"
    assert step.receipt.verdict == "used", step.receipt.evidence
    note("lightning", **told, utilization_mean=step.receipt.devices[0].utilization_mean)
