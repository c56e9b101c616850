"""Integrations for Hugging Face's libraries; `steps` has the module path that ZenML's users import from."""

from stoker.integrations.huggingface.steps import run_with_accelerate

__all__ = ["run_with_accelerate"]
