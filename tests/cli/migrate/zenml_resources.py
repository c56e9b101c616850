from zenml.config import ResourceSettings
from zenml import step, pipeline

@step(settings={"resources": ResourceSettings(cpu_count=8, gpu_count=2, memory="8GB")})
def training_step(rate: float) -> float:
    # train a model
    return 1 - rate

@pipeline
def training(rate: float = 0.25):
    training_step(rate)

if __name__ == "__main__":
    training()
