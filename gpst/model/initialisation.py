"""How weights start: `width_scaled`, by the modules' own constructors, or `paper`, by this module.

`paper` is what the authors' code does: N(0, 0.02) for the token embedding and the generative model
whatever the width, and elsewhere the defaults of the PyTorch modules that it is made of: random
heads, maps between the widths that know nothing of each other, parser embeddings N(0, 1). One thing
is not as there: the layers of the composition model start different from each other, and not as
copies of one. docs/how_it_works.md sets the two side by side; benchmarks/LOG.md measures them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import nn

from gpst.layers.transformer import CausalStack

if TYPE_CHECKING:
    from gpst.layers.composition import PairModel
    from gpst.model.gpst import GPSTModel

PAPER_STD = 0.02
"""GPT-2's standard deviation of initial weights, at every width."""


def start_as_in_paper(model: GPSTModel, parts: Iterable[str] | None = None) -> None:
    """Draws the weights of `init: paper` anew, from PyTorch's generator.

    Args:
        parts: names of `PARTS`, to find out what each of them does; by default all.
    """
    for name in PARTS if parts is None else parts:
        PARTS[name](model)


def _embeddings(model: GPSTModel) -> None:
    generator = model.generator
    for table in (model.embedding, generator.position):
        nn.init.normal_(table.weight, std=PAPER_STD)
    if generator.comp_embedding is not None:
        nn.init.normal_(generator.comp_embedding, std=PAPER_STD)


def _blocks(model: GPSTModel) -> None:
    for stack in (model.generator.type_layers, model.generator.token_layers):
        _stack(stack)


def _stack(stack: CausalStack) -> None:
    residual_std = PAPER_STD / math.sqrt(2 * len(stack.blocks))
    for name, layer in _linears(stack):
        is_residual = name.endswith(("attention_out", "ffn_out"))
        nn.init.normal_(layer.weight, std=residual_std if is_residual else PAPER_STD)


def _heads(model: GPSTModel) -> None:
    generator = model.generator
    _as_torch(generator.type_head, generator.token_head, model.autoencoding_head)


def _scaling(model: GPSTModel) -> None:
    _as_torch(model.scaling)


def _composition(model: GPSTModel) -> None:
    for part in (model.composition, model.decomposition):
        _pair_model(part)
    nn.init.uniform_(model.decomposition.root)


def _pair_model(part: PairModel) -> None:
    _as_torch(part)
    for layer in part.pair_layers:
        # Xavier of query, key and value as one matrix of 3 D rows and D columns.
        bound = math.sqrt(6 / (4 * layer.value.in_features))
        for linear in (layer.query_key, layer.value):
            nn.init.uniform_(linear.weight, -bound, bound)
        for linear in (layer.query_key, layer.value, layer.attention_out):
            nn.init.zeros_(linear.bias)
    nn.init.normal_(part.role)


def _parser(model: GPSTModel) -> None:
    _as_torch(model.parser)
    nn.init.normal_(model.parser.embedding.weight)


def _linears(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]


def _as_torch(*modules: nn.Module) -> None:
    """All linear layers as PyTorch makes them: U(-b, b), b = 1 / sqrt(inputs), biases too."""
    for module in modules:
        for _, layer in _linears(module):
            layer.reset_parameters()


PARTS: dict[str, Callable[[GPSTModel], None]] = {
    "embeddings": _embeddings,
    "blocks": _blocks,
    "heads": _heads,
    "scaling": _scaling,
    "composition": _composition,
    "parser": _parser,
}
"""What `paper` does, part by part of the model."""
