import gc
import torch

from zenml import step


def cleanup_memory() -> None:
    while gc.collect():
        torch.cuda.empty_cache()


@step
def training_step() -> int:
    cleanup_memory()
    # train a model
    return 1
