"""Trees over words from trees over their pieces."""

import pytest
from known_trees import left_branching, right_branching

from gpst.tree import Tree


def test_pieces_vanish_into_their_words():
    tree = Tree.from_splits(6, {(0, 5): 1, (0, 1): 0, (2, 5): 4, (2, 4): 2, (3, 4): 3})
    words = tree.contract([0, 0, 1, 1, 1, 2])
    assert words.spans == ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2))
    assert tree.contract([0, 0, 0, 0, 0, 0]).spans == ((0, 0),)
    assert tree.contract([0, 1, 2, 3, 4, 5]) == tree
    assert tree.contract([0, 0, 1, 2, 2, 3]).num_tokens == 4


@pytest.mark.parametrize("make", [left_branching, right_branching])
def test_a_word_that_is_no_constituent_is_refused(make):
    with pytest.raises(ValueError, match=r"tokens 1\.\.2 \(group 1\) are no constituent"):
        make(5).contract([0, 1, 1, 2, 3])


@pytest.mark.parametrize("groups", [[0, 0], [1, 1, 2], [0, 2, 2], [0, 1, 0], [0, 0, 1, 1]])
def test_groups_that_do_not_rise_are_refused(groups):
    with pytest.raises(ValueError, match="does not group 3 tokens"):
        left_branching(3).contract(groups)
