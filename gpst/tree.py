"""Binary trees over the tokens of a sentence, and the actions that write them.

Every index convention lives here.

A span (i, j) covers tokens i..j, both inclusive. A split k of (i, j) makes (i, k) and (k+1, j).
Post-order lists the left subtree, the right subtree, then the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from gpst.brackets import escape, unescape


class Action(IntEnum):
    """The type of an action: the two classes of the type head."""

    GEN = 0
    COMP = 1


@dataclass(frozen=True)
class Tree:
    """A full binary tree of `num_tokens` leaves.

    Args:
        num_tokens: n, at least 1.
        spans: the 2n - 1 spans in post-order, tokens included.

    Raises:
        ValueError: the spans are not the post-order of a binary tree over the tokens.

    >>> Tree(3, ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2))).brackets(["the", "old", "man"])
    '(the (old man))'
    """

    num_tokens: int
    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        children = self._children()
        if len(self.spans) != 2 * self.num_tokens - 1 or len(children) != len(self.spans):
            raise ValueError(f"{self.spans} is not the post-order of a binary tree")

    def _children(self) -> list[tuple[int, int] | None]:
        """For each node of the post-order, the positions of its children (None for a token)."""
        stack: list[int] = []
        children: list[tuple[int, int] | None] = []
        next_token = 0
        for position, (start, end) in enumerate(self.spans):
            if start == end == next_token:
                next_token += 1
                children.append(None)
            elif len(stack) >= 2:
                right, left = stack.pop(), stack.pop()
                (i, k), (m, j) = self.spans[left], self.spans[right]
                if (i, j) != (start, end) or m != k + 1:
                    raise ValueError(f"{self.spans}: ({start}, {end}) does not join its children")
                children.append((left, right))
            else:
                raise ValueError(f"{self.spans}: ({start}, {end}) does not come after its children")
            stack.append(position)
        if len(stack) != 1 or next_token != self.num_tokens:
            raise ValueError(f"{self.spans} is not one tree over {self.num_tokens} tokens")
        return children

    @classmethod
    def from_splits(cls, num_tokens: int, split_of: dict[tuple[int, int], int]) -> Tree:
        """The tree in which span (i, j) is split after token split_of[i, j]."""
        spans: list[tuple[int, int]] = []
        work: list[tuple[int, int, bool]] = [(0, num_tokens - 1, False)]
        while work:
            i, j, done = work.pop()
            if done or i == j:
                spans.append((i, j))
            else:
                k = split_of[i, j]
                work += [(i, j, True), (k + 1, j, False), (i, k, False)]
        return cls(num_tokens, tuple(spans))

    @classmethod
    def from_actions(cls, actions: Sequence[int]) -> Tree:
        """The tree that GEN and COMP actions build (`Action`)."""
        stack: list[tuple[int, int]] = []
        spans: list[tuple[int, int]] = []
        count = 0
        for action in actions:
            if action == Action.GEN:
                stack.append((count, count))
                count += 1
            else:
                if len(stack) < 2:
                    raise ValueError("COMP with fewer than two constituents on the stack")
                right, left = stack.pop(), stack.pop()
                stack.append((left[0], right[1]))
            spans.append(stack[-1])
        return cls(count, tuple(spans))

    @classmethod
    def from_brackets(cls, text: str) -> tuple[Tree, list[str]]:
        """The tree that `brackets` has written, and its words.

        Raises:
            ValueError: it is no bracketing of a binary tree.
        """
        words: list[str] = []
        actions: list[Action] = []
        for part in text.replace("(", " ").replace(")", " ) ").split():
            if part != ")":
                words.append(unescape(part))
            actions.append(Action.COMP if part == ")" else Action.GEN)
        return cls.from_actions(actions), words

    @property
    def internal_spans(self) -> tuple[tuple[int, int], ...]:
        """The spans of two tokens and more, in post-order."""
        return tuple(span for span in self.spans if span[0] < span[1])

    @property
    def height(self) -> int:
        """Edges from the root to its deepest token."""
        heights: list[int] = []
        for children in self._children():
            if children is None:
                heights.append(0)
            else:
                heights.append(1 + max(heights[children[0]], heights[children[1]]))
        return heights[-1]

    def brackets(self, words: Sequence[str]) -> str:
        """The tree as text, a pair of brackets for each internal node; those of words are escaped.

        Raises:
            ValueError: the number of words is not the number of tokens.
        """
        if len(words) != self.num_tokens:
            raise ValueError(f"{len(words)} words for a tree of {self.num_tokens} tokens")
        texts: list[str] = []
        for position, children in enumerate(self._children()):
            if children is None:
                texts.append(escape(words[self.spans[position][0]]))
            else:
                texts.append(f"({texts[children[0]]} {texts[children[1]]})")
        return texts[-1]

    def picture(self, words: Sequence[str]) -> str:
        """The tree drawn with box characters, a token or a node a line, for terminals."""
        lines: list[str] = []
        children = self._children()
        work: list[tuple[int, str, str]] = [(len(self.spans) - 1, "", "")]
        while work:
            position, first, rest = work.pop()
            below = children[position]
            if below is None:
                lines.append(first + words[self.spans[position][0]])
                continue
            # A node's line is shared with its left child: one line a token, no empty lines.
            work.append((below[1], rest + "└─", rest + "  "))
            work.append((below[0], first + "┬─", rest + "│ "))
        return "\n".join(lines)

    def contract(self, groups: Sequence[int]) -> Tree:
        """The tree over groups of neighbouring tokens (words instead of their pieces).

        Args:
            groups: (n,) the group of each token: 0, 0, 1, 2, 2, ..., rising by at most one.
        Raises:
            ValueError: groups that do not rise so, or one that is not a constituent.

        >>> Tree(3, ((0, 0), (1, 1), (0, 1), (2, 2), (0, 2))).contract([0, 0, 1]).spans
        ((0, 0), (1, 1), (0, 1))
        """
        steps = [b - a for a, b in zip([-1, *groups], groups, strict=False)]
        if len(groups) != self.num_tokens or steps[0] != 1 or not set(steps) <= {0, 1}:
            raise ValueError(f"{list(groups)} does not group {self.num_tokens} tokens in order")
        first = {group: token for token, group in reversed(list(enumerate(groups)))}
        last = {group: token for token, group in enumerate(groups)}
        for group in first:
            if (first[group], last[group]) not in self.spans:
                raise ValueError(
                    f"tokens {first[group]}..{last[group]} (group {group}) are no constituent"
                )
        spans = [
            (groups[i], groups[j])
            for i, j in self.spans
            if i == first[groups[i]] and j == last[groups[j]]
        ]
        return Tree(len(last), tuple(spans))
