# Part of a page: what it uses was imported further up.
def my_settings(DockerSettings):
    return DockerSettings(parent_image="pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", requirements=["zenml==0.20.5"])
