"""What lets transformers load a model folder without gpst having been imported."""

REMOTE = "modeling_gpst.py"
_CLASSES = {
    "AutoConfig": "GPSTConfig",
    "AutoModel": "GPSTForCausalLM",
    "AutoModelForCausalLM": "GPSTForCausalLM",
    "AutoModelForSequenceClassification": "GPSTForSequenceClassification",
}
AUTO_MAP = {auto: f"{REMOTE.removesuffix('.py')}.{name}" for auto, name in _CLASSES.items()}
"""Of config.json: where `trust_remote_code=True` finds the classes."""
REMOTE_CODE = '''"""The classes of this model, which the package gpst has."""

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
'''
