"""Exported models: folders in the layout of Hugging Face, and GPST as a transformers model.

Importing this package's names GPSTConfig, GPSTForCausalLM, ... loads transformers and registers the
Auto classes; reading exported folders (gpst.hf.files, gpst.hf.interface) needs no transformers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpst.hf.configuration import GPSTConfig
    from gpst.hf.modeling import GPSTForCausalLM, GPSTForSequenceClassification, register

__all__ = ["GPSTConfig", "GPSTForCausalLM", "GPSTForSequenceClassification", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gpst.hf import modeling

        modeling.register()
        return getattr(modeling, name)
    raise AttributeError(f"module 'gpst.hf' has no attribute {name!r}")
