"""The classes of this model, which the package gpst has."""

try:
    from gpst.integrations.transformers import (
        GPSTConfig,
        GPSTForCausalLM,
        GPSTForSequenceClassification,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "gpst":
        raise
    raise ImportError("this model needs the package gpst: pip install gpst") from error

__all__ = ["GPSTConfig", "GPSTForCausalLM", "GPSTForSequenceClassification"]
