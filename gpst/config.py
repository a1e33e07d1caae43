"""Sizes and switches of the models: frozen dataclasses that check themselves.

The sizes of the paper (small, medium) are in configs/model/.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gpst.parsing import ConfigError, build, check_types, refusal

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


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ConfigError(refusal(name, value, allowed))


def _check_sizes(owner: str, config: Any, names: tuple[str, ...], least: int = 1) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value >= least, owner + name, value, f"a whole number of at least {least}")


def _check_heads(owner: str, width_name: str, width: int, num_heads: int, multiple: int) -> None:
    ok = width % (num_heads * multiple) == 0
    what = f"a multiple of {multiple} times the number of heads ({num_heads})"
    _require(ok, owner + width_name, width, what)


def _check_rate(name: str, value: float) -> None:
    _require(0.0 <= value < 1.0, name, value, "a number in [0, 1)")


@dataclass(frozen=True)
class CompositionConfig:
    """The composition model: inside and outside passes over the pruned chart (paper 3.1)."""

    dim: int = 256
    """D, width of constituent vectors."""
    num_heads: int = 8
    ffn_dim: int = 1024
    num_layers: int = 4
    """Layers of f_alpha (inside)."""
    num_decomposition_layers: int = 1
    """Layers of f_beta (outside)."""
    score_dim: int = 128
    """Width in which the two children are compared by phi_alpha and phi_beta."""
    window: int = 2
    """W: the chart holds a cell for every run of 2..W+1 neighbouring units."""
    schedule: str = "score"
    """Merge schedule of the chart: score (one boundary at a time) or height (levels at once)."""
    max_height: int = 15
    """Trees higher than this pay the height loss."""
    dropout: float = 0.1
    """Of attention weights, feed-forward activations and residuals; none in phi's MLPs."""

    def __post_init__(self) -> None:
        owner = "composition."
        check_types(self, owner)
        sizes = ("dim", "num_heads", "ffn_dim", "num_layers", "num_decomposition_layers")
        _check_sizes(owner, self, (*sizes, "score_dim", "window", "max_height"))
        _check_heads(owner, "dim", self.dim, self.num_heads, 1)
        _require(
            self.schedule in ("score", "height"),
            owner + "schedule",
            self.schedule,
            "score or height",
        )
        _check_rate(owner + "dropout", self.dropout)


@dataclass(frozen=True)
class ParserConfig:
    """The top-down parser that scores the boundaries of a sentence (paper 3.1)."""

    dim: int = 128
    num_heads: int = 8
    ffn_dim: int = 512
    num_layers: int = 4
    score_dim: int | None = None
    """Width of the MLP that scores a boundary; null: four times dim."""
    dropout: float = 0.1
    """In the MLP that scores a boundary, and nowhere else."""

    def __post_init__(self) -> None:
        check_types(self, "parser.")
        _check_sizes("parser.", self, ("dim", "num_heads", "ffn_dim", "num_layers"))
        if self.score_dim is not None:
            _check_sizes("parser.", self, ("score_dim",))
        # Rotary positions turn pairs of features, so a head needs an even width.
        _check_heads("parser.", "dim", self.dim, self.num_heads, 2)
        _check_rate("parser.dropout", self.dropout)

    @property
    def score_width(self) -> int:
        """score_dim, or what stands for null."""
        return self.score_dim or 4 * self.dim


@dataclass(frozen=True)
class GPSTConfig:
    """A Generative Pretrained Structured Transformer."""

    vocab_size: int
    bos_token_id: int
    """The token that stands before the first action of a context."""
    max_context_tokens: int = 1024
    """Longest context, in tokens (size of the table of positions w_t)."""
    hidden_dim: int = 768
    """H, width of the generative model."""
    num_heads: int = 12
    ffn_dim: int = 3072
    num_type_layers: int = 3
    num_token_layers: int = 9
    init: str = "width_scaled"
    """How weights start: width_scaled or paper (the authors' code); see how_it_works.md."""
    dropout: float = 0.1
    """In the generative model: inputs of type and token layers, attention weights, residuals."""
    head_dropout: float = 0.2
    """Dropout inside the MLPs of the type, token and auto-encoding heads."""
    token_head_dim: int | None = None
    """Width inside the MLP of the token head; null: four times hidden_dim."""
    gradient_stop: bool = True
    """Keep the auto-regression loss from the split weights (paper 3.3); false is an ablation."""
    surrogate: bool = True
    """Feed constituent vectors to the generative model; false: one learned COMP embedding."""
    composition: CompositionConfig = field(default_factory=CompositionConfig)
    parser: ParserConfig = field(default_factory=ParserConfig)
    kind: str = "gpst"

    def __post_init__(self) -> None:
        _check_common(self)
        _check_sizes("", self, ("num_type_layers", "num_token_layers"))
        if self.token_head_dim is not None:
            # Under width_scaled it starts as the identity, which takes two units a feature.
            least = 1 if self.init == "paper" else 2 * self.hidden_dim
            _check_sizes("", self, ("token_head_dim",), least)
        _check_rate("head_dropout", self.head_dropout)
        _require(self.kind == "gpst", "kind", self.kind, "gpst")

    @property
    def token_head_width(self) -> int:
        """token_head_dim, or what stands for null."""
        return self.token_head_dim or 4 * self.hidden_dim


@dataclass(frozen=True)
class GPT2Config:
    """A GPT-2 baseline on the same contexts and vocabulary."""

    vocab_size: int
    bos_token_id: int
    max_context_tokens: int = 1024
    hidden_dim: int = 768
    num_heads: int = 12
    ffn_dim: int = 3072
    num_layers: int = 12
    init: str = "width_scaled"
    """How weights start: N(0, 0.02), GPT-2's own (paper), or as 1 / sqrt(width) (width_scaled)."""
    dropout: float = 0.1
    kind: str = "gpt2"

    def __post_init__(self) -> None:
        _check_common(self)
        _check_sizes("", self, ("num_layers",))
        _require(self.kind == "gpt2", "kind", self.kind, "gpt2")


ModelConfig = GPSTConfig | GPT2Config
_INITS = ("width_scaled", "paper")


def _check_common(config: ModelConfig) -> None:
    check_types(config)
    _check_sizes(
        "",
        config,
        ("vocab_size", "max_context_tokens", "hidden_dim", "num_heads", "ffn_dim"),
    )
    _check_sizes("", config, ("bos_token_id",), least=0)
    _require(
        config.bos_token_id < config.vocab_size,
        "bos_token_id",
        config.bos_token_id,
        f"below vocab_size ({config.vocab_size})",
    )
    _check_heads("", "hidden_dim", config.hidden_dim, config.num_heads, 1)
    _require(config.init in _INITS, "init", config.init, " or ".join(_INITS))
    _check_rate("dropout", config.dropout)


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
