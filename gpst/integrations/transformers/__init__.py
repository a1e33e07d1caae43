"""GPST as a transformers model.

Importing this package's names GPSTConfig, GPSTForCausalLM, ... loads transformers and registers the
Auto classes; reading exported folders (gpst.export.huggingface, gpst.api) needs no transformers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpst.integrations.transformers.causal_lm import GPSTForCausalLM
    from gpst.integrations.transformers.classification import GPSTForSequenceClassification
    from gpst.integrations.transformers.configuration import GPSTConfig
    from gpst.integrations.transformers.registration import register

__all__ = ["GPSTConfig", "GPSTForCausalLM", "GPSTForSequenceClassification", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gpst.integrations.transformers import registration

        registration.register()
        return getattr(registration, name)
    raise AttributeError(f"module 'gpst.integrations.transformers' has no attribute {name!r}")
