"""Names for Hugging Face's libraries; `steps` is the module that ZenML's users import from."""

from stoker.integrations.huggingface.steps import run_with_accelerate

__all__ = ["run_with_accelerate"]
