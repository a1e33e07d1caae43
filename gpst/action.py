"""The generative model's actions: GEN(x) writes a token, COMP joins the top two constituents."""

from __future__ import annotations

from enum import IntEnum

from gpst.tree import Tree


class Action(IntEnum):
    """The type of an action: the two classes of the type head."""

    GEN = 0
    COMP = 1


def actions_of(tree: Tree) -> list[Action]:
    """The 2n - 1 actions that build a tree: its post-order, GEN for tokens, COMP for others.

    >>> actions_of(Tree(2, ((0, 0), (1, 1), (0, 1))))
    [<Action.GEN: 0>, <Action.GEN: 0>, <Action.COMP: 1>]
    """
    return [Action.GEN if i == j else Action.COMP for i, j in tree.spans]
