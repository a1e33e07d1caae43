"""The actions that write a tree."""

from gpst.tree import Action, Tree


def actions_of(tree: Tree) -> list[Action]:
    """The tree's post-order: GEN for tokens, COMP for constituents."""
    return [Action.GEN if i == j else Action.COMP for i, j in tree.spans]
