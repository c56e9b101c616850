from zenml import step, pipeline
from zenml.integrations.huggingface.steps import run_with_accelerate

@run_with_accelerate(num_processes=4, multi_gpu=True)
@step
def training_step(some_param: int):
    # your training code is below
    print("training with", some_param)

@pipeline
def training_pipeline(some_param: int = 3):
    training_step(some_param=some_param)
