"""The induced tree of every sentence, found on the device with all sizes known beforehand.

The best split of a cell is its edge of highest score, of those that cut no atom (atoms.py says why
there is one in every cell of a tree); ties go to the smaller split. Exactly 2n - 1
cells of a sentence of n tokens are marked, so that nothing has to be copied to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gpst.chart.layout import ChartLayout
from gpst.kernels.choice import use_triton
from gpst.tree import Tree


@dataclass(frozen=True)
class InducedTrees:
    """The trees of all S sentences with N tokens; M = 2N - S nodes in post-order."""

    best_edge: Int64[Tensor, "I"]
    """Edge of the best split of each cell that is not a token."""
    marked: Int64[Tensor, "C"]
    """1 for cells of the trees, else 0."""
    nodes: Int64[Tensor, "M"]
    """Cells of the trees, sentence after sentence, each in post-order."""
    place: Int64[Tensor, "C"]
    """Place of each marked cell in `nodes`; meaningless for others."""


def without_cutting(layout: ChartLayout, scores: Float[Tensor, "E"]) -> Float[Tensor, "E"]:
    """The scores of edges, -inf for those that no tree may take."""
    return scores.index_fill(0, layout.cutting, -torch.inf) if len(layout.cutting) else scores


@torch.no_grad()
def decode(layout: ChartLayout, scores: Float[Tensor, "E"]) -> InducedTrees:
    """The best tree of each sentence under the edge scores."""
    scores = without_cutting(layout, scores)
    marked = torch.zeros_like(layout.outside_row)
    marked.index_fill_(0, layout.roots, 1)  # `marked[roots] = 1` makes the host wait for a GPU
    if use_triton(scores):
        from gpst.kernels.gpu.trees import best_trees

        starts = layout.edge_start, layout.level_starts
        best_edge = best_trees(scores, *starts, layout.left, layout.right, marked)
    else:
        best_edge = _best_trees(layout, scores, marked)
    ordered = marked[layout.postorder]
    ordered_place = torch.cumsum(ordered, 0) - ordered
    num_nodes = 2 * layout.num_tokens - layout.num_sentences
    # Cells outside the trees all write to one extra place behind the last node.
    target = torch.where(ordered == 1, ordered_place, num_nodes)
    nodes = torch.empty(num_nodes + 1, dtype=torch.int64, device=scores.device)
    nodes[target] = layout.postorder
    place = torch.empty_like(ordered_place)
    place[layout.postorder] = ordered_place
    return InducedTrees(best_edge, marked, nodes[:-1], place)


def _best_trees(
    layout: ChartLayout, scores: Float[Tensor, "E"], marked: Int64[Tensor, "C"]
) -> Int64[Tensor, "I"]:
    """The best edge of each cell; marks the nodes of the trees below the marked roots."""
    best_edge = torch.empty_like(layout.edge_start)
    for level in layout.levels:
        for block in level.blocks:
            inner = layout.internal(block.cells)
            best = scores[block.edges].view(block.shape).argmax(1)
            best_edge[inner] = layout.edge_start[inner] + best
    for level in reversed(layout.levels):
        edge = best_edge[layout.internal(level.cells)]
        # A node of a tree has one parent in it, so that the sums stay 0 or 1.
        is_node = marked[level.cells].clone()
        marked.index_add_(0, layout.left[edge], is_node)
        marked.index_add_(0, layout.right[edge], is_node)
    return best_edge


def trees_of(layout: ChartLayout, induced: InducedTrees) -> list[Tree]:
    """The induced trees as objects (copies them to the host), one a sentence."""
    spans = layout.spans[induced.nodes.cpu().numpy()]
    trees: list[Tree] = []
    first = 0
    roots = layout.spans[layout.roots.cpu().numpy()]
    for start, end in roots.tolist():
        size = 2 * (end - start + 1) - 1
        tree_spans = spans[first : first + size] - start
        trees.append(Tree(end - start + 1, tuple((i, j) for i, j in tree_spans.tolist())))
        first += size
    return trees
