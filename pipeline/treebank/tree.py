"""A gold tree as flat lists: words, their tags, and labelled spans.

A span (i, j) covers words i..j, both inclusive, as in gpst.tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from gpst.brackets import escape
from gpst.brackets import unescape as unescape_brackets

PUNCTUATION_TAGS = frozenset(
    [",", ".", ":", "``", "''", "-LRB-", "-RRB-", "#", "$", "C$", "A$", "HYPH", "NFP"]
)
"""Tags of tokens that are not words: the Penn Treebank's punctuation and currency signs, as Kim et
al. (2019) leave them out, and the two that OntoNotes added (hyphens, superfluous punctuation)."""

TRACE_TAG = "-NONE-"
"""Tag of the Penn Treebank's empty elements."""

_WORD_SLASH = re.compile(r"\\([/*])")
_FUNCTION = re.compile(r"(?<=.)[-=|].*")


@dataclass(frozen=True)
class Constituent:
    """A labelled span of words."""

    start: int
    end: int
    """The last word, inclusive."""
    label: str

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end


@dataclass(frozen=True)
class GoldTree:
    """A tree of any arity over words with tags.

    Args:
        words: as in the text: brackets are "(" and ")", not -LRB- and -RRB-.
        tags: the words' parts of speech; "" where the treebank has none.
        constituents: in pre-order, so that of two with the same span the first is the parent.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    constituents: tuple[Constituent, ...]

    def keep(self, wanted: Callable[[str, str], bool]) -> GoldTree:
        """The tree of the words for which wanted(word, tag); constituents left empty vanish."""
        keeps = [wanted(word, tag) for word, tag in zip(self.words, self.tags, strict=True)]
        before = [0]
        for keep in keeps:
            before.append(before[-1] + keep)
        moved = [
            Constituent(before[c.start], before[c.end + 1] - 1, c.label)
            for c in self.constituents
            if before[c.end + 1] > before[c.start]
        ]
        return GoldTree(
            tuple(word for word, keep in zip(self.words, keeps, strict=True) if keep),
            tuple(tag for tag, keep in zip(self.tags, keeps, strict=True) if keep),
            tuple(moved),
        )

    def without_traces(self) -> GoldTree:
        """Without the empty elements of the Penn Treebank (-NONE-)."""
        return self.keep(lambda word, tag: tag != TRACE_TAG)

    def without_punctuation(self, tags: Collection[str] = PUNCTUATION_TAGS) -> GoldTree:
        """Without the words that have one of the tags."""
        return self.keep(lambda word, tag: tag not in tags)

    def lower(self) -> GoldTree:
        """With lower-case words."""
        return replace(self, words=tuple(word.lower() for word in self.words))

    def without_functions(self) -> GoldTree:
        """NP-SBJ-1, NP=2 and ADVP|PRT become NP, NP and ADVP; tags of words stay."""
        plain = (replace(c, label=_FUNCTION.sub("", c.label)) for c in self.constituents)
        return replace(self, constituents=tuple(plain))

    def spans(self) -> set[tuple[int, int]]:
        """The spans that count for F1: of two words and more, and not the whole sentence."""
        whole = (0, len(self.words) - 1)
        return {c.span for c in self.constituents if c.start < c.end and c.span != whole}

    def labelled_spans(self) -> set[tuple[tuple[int, int], str]]:
        """The same with their labels; a span has several under unary rules."""
        counted = self.spans()
        return {(c.span, c.label) for c in self.constituents if c.span in counted}

    def one_line(self) -> str:
        """The tree as "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"."""
        words = [f"({tag} {escape(word)})" for word, tag in zip(self.words, self.tags, strict=True)]
        return self._nested(words, lambda label: f"({label} ")

    def unlabelled(self) -> str:
        """The tree as "((the dog) barks)": a pair of brackets for each span of two and more."""
        spans = dict.fromkeys(c.span for c in self.constituents if c.start < c.end)
        if len(self.words) > 1:
            spans = dict.fromkeys([(0, len(self.words) - 1), *spans])
        bare = tuple(Constituent(i, j, "") for i, j in spans)
        words = [escape(word) for word in self.words]
        return replace(self, constituents=bare)._nested(words, lambda label: "(")

    def _nested(self, words: list[str], opening: Callable[[str], str]) -> str:
        before = [""] * len(words)
        after = [""] * len(words)
        for constituent in self.constituents:
            before[constituent.start] += opening(constituent.label)
            after[constituent.end] += ")"
        return " ".join(b + w + a for b, w, a in zip(before, words, after, strict=True))


def unescape(word: str) -> str:
    """The word that stands in a bracketing: -LRB- is "(", and "\\/" of the Penn Treebank "/"."""
    return unescape_brackets(_WORD_SLASH.sub(r"\1", word))
