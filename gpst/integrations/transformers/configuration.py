"""The configuration of exported GPST models, as transformers knows it."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from gpst.config import CompositionConfig, ParserConfig
from gpst.config import GPSTConfig as CoreConfig
from gpst.export.huggingface import TOKEN_IDS, core_config, token_ids


@strict
class GPSTConfig(PreTrainedConfig):
    """Fields of `gpst.config.GPSTConfig`, and what generation needs to know about the tokens."""

    model_type = "gpst"
    keys_to_ignore_at_inference = ["trees", "search"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "hidden_size": "hidden_dim",
        "num_attention_heads": "num_heads",
        "max_position_embeddings": "max_context_tokens",
        "num_hidden_layers": "num_token_layers",
    }

    vocab_size: int = 50257
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = None
    """The token that ends a document."""
    pad_token_id: int | None = None
    max_context_tokens: int = 1024
    hidden_dim: int = 768
    num_heads: int = 12
    ffn_dim: int = 3072
    num_type_layers: int = 3
    num_token_layers: int = 9
    init: str = "width_scaled"
    dropout: float | int = 0.1
    head_dropout: float | int = 0.2
    token_head_dim: int | None = None
    gradient_stop: bool = True
    surrogate: bool = True
    last_word: bool = False
    composition: dict[str, Any] | None = None
    parser: dict[str, Any] | None = None
    sentence_final_token_ids: list[int] | None = None
    """Tokens that may end a sentence."""
    tie_word_embeddings: bool = True

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: a saved folder names the package's classes, it holds no copy of them."""

    def core(self) -> CoreConfig:
        """The configuration of the core model.

        Raises:
            gpst.config.ConfigError: a field out of range.
        """
        values = self.to_dict()
        for name in TOKEN_IDS:
            token_ids(values, name, self.vocab_size)
        for name, default in (("composition", CompositionConfig), ("parser", ParserConfig)):
            values[name] = values.get(name) or default()
        config = core_config(values | {"model_type": "gpst"})
        assert isinstance(config, CoreConfig)
        return config
