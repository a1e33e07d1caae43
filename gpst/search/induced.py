"""The composition model's own trees with the vectors of their constituents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gpst.batch import ContextBatch
from gpst.chart.atoms import AtomRule
from gpst.chart.decode import decode, trees_of
from gpst.jit.compiled import interpreted
from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.vocabulary import numbers
from gpst.tree import Tree

_INTERPRETED = 128
"""Tokens for which Python takes less time than the import of numba."""


@dataclass(frozen=True)
class InsideParse:
    """The induced tree of a sentence."""

    tree: Tree
    vectors: Float[Tensor, "nodes D"]
    """Inside vectors of the tree's nodes, in post-order."""


@torch.no_grad()
def inside_parse(
    model: GPSTModel,
    sentences: Sequence[Sequence[int]],
    inside_word: Sequence[Sequence[bool]] | None = None,
    atoms: AtomRule = "constrain_tree",
) -> list[InsideParse]:
    """Parses sentences with the inside pass, all at once; no noise, dropout is off.

    Args:
        sentences: token ids.
        inside_word: whether the boundary after a token lies inside an atom, which becomes a
            constituent.
        atoms: whether the chart's cells may cross atoms; see gpst/chart/atoms.py.
    Raises:
        ValueError: no sentence, or an empty one; scores or vectors are not numbers.
    """
    device = model.embedding.weight.device
    nested = None if inside_word is None else [[boundaries] for boundaries in inside_word]
    batch = ContextBatch.from_sentences([[list(sentence)] for sentence in sentences], nested, atoms)
    batch = batch.to(device)
    with evaluating(model), interpreted(batch.num_tokens <= _INTERPRETED):
        layout = model.layout(batch, numbers(model.parser(batch)))
        chart = model._inside(layout, model.embedding(batch.tokens), 1.0, False)
        induced = decode(layout, chart.scores)
    vectors = numbers(chart.inside_ar.index_select(0, induced.nodes))
    trees = trees_of(layout, induced)
    sizes = [2 * tree.num_tokens - 1 for tree in trees]
    return list(map(InsideParse, trees, vectors.split(sizes)))
