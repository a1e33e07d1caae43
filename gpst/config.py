"""Sizes and switches of the models: frozen dataclasses that check themselves.

The sizes of the paper (small, medium) are in configs/model/.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from gpst.config_reader import (
    ConfigError,
    Count,
    DropoutRate,
    build,
    check_types,
    refusal,
    require,
)

__all__ = [
    "CompositionConfig",
    "ConfigError",
    "GPSTConfig",
    "GPT2Config",
    "ModelConfig",
    "ParserConfig",
    "config_from_dict",
    "config_to_dict",
]


# Beyond any model, so that a slip of the pen is an error and not an hour of allocating.
Layers = Annotated[int, Ge(1), Le(1_000)]
Width = Annotated[int, Ge(1), Le(1_000_000)]
Tokens = Annotated[int, Ge(1), Le(10_000_000)]


def _check_heads(owner: str, width_name: str, width: int, num_heads: int, multiple: int) -> None:
    fits = width % (num_heads * multiple) == 0
    what = f"a multiple of {multiple} times the number of heads ({num_heads})"
    require(fits, owner + width_name, width, what)


@dataclass(frozen=True)
class CompositionConfig:
    """The composition model: inside and outside passes over the pruned chart (paper 3.1)."""

    dim: Width = 256
    """D, width of constituent vectors."""
    num_heads: Width = 8
    ffn_dim: Width = 1024
    num_layers: Layers = 4
    """Layers of f_alpha (inside)."""
    num_decomposition_layers: Layers = 1
    """Layers of f_beta (outside)."""
    score_dim: Width = 128
    """Width in which the two children are compared by phi_alpha and phi_beta."""
    window: Count = 2
    """W: the chart holds a cell for every run of 2..W+1 neighbouring units."""
    schedule: str = "score"
    """Merge schedule of the chart: score (one boundary at a time) or height (levels at once)."""
    max_height: Count = 15
    """Trees higher than this pay the height loss."""
    dropout: DropoutRate = 0.1
    """Of attention weights, feed-forward activations and residuals; none in phi's MLPs."""

    def __post_init__(self) -> None:
        check_types(self, "composition.")
        _check_heads("composition.", "dim", self.dim, self.num_heads, 1)
        known = self.schedule in ("score", "height")
        require(known, "composition.schedule", self.schedule, "score or height")


@dataclass(frozen=True)
class ParserConfig:
    """The top-down parser that scores the boundaries of a sentence (paper 3.1)."""

    dim: Width = 128
    num_heads: Width = 8
    ffn_dim: Width = 512
    num_layers: Layers = 4
    score_dim: Width | None = None
    """Width of the MLP that scores a boundary; null: four times dim."""
    dropout: DropoutRate = 0.1
    """In the MLP that scores a boundary, and nowhere else."""

    def __post_init__(self) -> None:
        check_types(self, "parser.")
        # Rotary positions turn pairs of features, so a head needs an even width.
        _check_heads("parser.", "dim", self.dim, self.num_heads, 2)

    @property
    def score_width(self) -> int:
        """score_dim, or what stands for null."""
        return self.score_dim or 4 * self.dim


@dataclass(frozen=True)
class GPSTConfig:
    """A Generative Pretrained Structured Transformer."""

    vocab_size: Count
    bos_token_id: Annotated[int, Ge(0)]
    """The token that stands before the first action of a context."""
    max_context_tokens: Tokens = 1024
    """Longest context, in tokens (size of the table of positions w_t)."""
    hidden_dim: Width = 768
    """H, width of the generative model."""
    num_heads: Width = 12
    ffn_dim: Width = 3072
    num_type_layers: Layers = 3
    num_token_layers: Layers = 9
    init: str = "width_scaled"
    """How weights start: width_scaled or paper (the authors' code); see how_it_works.md."""
    dropout: DropoutRate = 0.1
    """In the generative model: inputs of type and token layers, attention weights, residuals."""
    head_dropout: DropoutRate = 0.2
    """Dropout inside the MLPs of the type, token and auto-encoding heads."""
    token_head_dim: Width | None = None
    """Width inside the MLP of the token head; null: four times hidden_dim."""
    gradient_stop: bool = True
    """Keep the auto-regression loss from the split weights (paper 3.3); false is an ablation."""
    surrogate: bool = True
    """Feed constituent vectors to the generative model; false: one learned COMP embedding."""
    last_word: bool = False
    """Add the embedding of a constituent's last token to what the generative model reads of it, so
    that the word before the next one is always at hand, as in GPT-2; not in the paper."""
    composition: CompositionConfig = field(default_factory=CompositionConfig)
    parser: ParserConfig = field(default_factory=ParserConfig)
    kind: Literal["gpst"] = "gpst"

    def __post_init__(self) -> None:
        _check_common(self)
        if self.token_head_dim is not None and self.init != "paper":
            # Under width_scaled it starts as the identity, which takes two units a feature.
            least = 2 * self.hidden_dim
            fits = self.token_head_dim >= least
            require(fits, "token_head_dim", self.token_head_dim, f"at least {least}")

    @property
    def token_head_width(self) -> int:
        """token_head_dim, or what stands for null."""
        return self.token_head_dim or 4 * self.hidden_dim


@dataclass(frozen=True)
class GPT2Config:
    """A GPT-2 baseline on the same contexts and vocabulary."""

    vocab_size: Count
    bos_token_id: Annotated[int, Ge(0)]
    max_context_tokens: Tokens = 1024
    hidden_dim: Width = 768
    num_heads: Width = 12
    ffn_dim: Width = 3072
    num_layers: Layers = 12
    init: str = "width_scaled"
    """How weights start: N(0, 0.02), GPT-2's own (paper), or as 1 / sqrt(width) (width_scaled)."""
    dropout: DropoutRate = 0.1
    kind: Literal["gpt2"] = "gpt2"

    def __post_init__(self) -> None:
        _check_common(self)


ModelConfig = GPSTConfig | GPT2Config
_INITS = ("width_scaled", "paper")


def _check_common(config: ModelConfig) -> None:
    check_types(config)
    require(
        config.bos_token_id < config.vocab_size,
        "bos_token_id",
        config.bos_token_id,
        f"below vocab_size ({config.vocab_size})",
    )
    _check_heads("", "hidden_dim", config.hidden_dim, config.num_heads, 1)
    require(config.init in _INITS, "init", config.init, " or ".join(_INITS))


_KINDS: dict[str, type[GPSTConfig] | type[GPT2Config]] = {"gpst": GPSTConfig, "gpt2": GPT2Config}


def config_from_dict(values: dict[str, Any]) -> ModelConfig:
    """The configuration that a plain mapping describes; its `kind` is gpst or gpt2.

    Raises:
        ConfigError: an unknown kind or field (with the nearest name), or a value of another type
            or out of range.
    """
    kind = values.get("kind", "gpst")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(refusal("kind", kind, f"one of {', '.join(_KINDS)}"))
    return build(_KINDS[kind], values)


def config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """The plain mapping from which `config_from_dict` makes the same configuration."""
    return asdict(config)
