"""Languages whose trees are known: probabilistic grammars of about 30 words.

A grammar is weighted rules over symbols; a symbol that is no left side is a class of words.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pipeline.treebank import Constituent, GoldTree

Rules = dict[str, list[tuple[float, tuple[str, ...]]]]
_DEEPEST = 40


@dataclass(frozen=True)
class Language:
    """A grammar with its words; sentences have shortest..longest words."""

    name: str
    rules: Rules
    classes: dict[str, list[str]]
    shortest: int = 5
    longest: int = 14

    @property
    def vocabulary(self) -> list[str]:
        """<bos>, then the words; a word's place is its id."""
        return ["<bos>", *(word for words in self.classes.values() for word in words)]

    def ids(self, tree: GoldTree) -> list[int]:
        """A sentence as token ids."""
        places = {word: place for place, word in enumerate(self.vocabulary)}
        return [places[word] for word in tree.words]

    def sample(self, source: random.Random) -> GoldTree:
        """A sentence with its tree; what is too short or too long is drawn again."""
        while True:
            words: list[str] = []
            spans: list[Constituent] = []
            grown = self._grow("S", source, words, spans, 0)
            if grown and self.shortest <= len(words) <= self.longest:
                spans.sort(key=lambda c: (c.start, -c.end))
                return GoldTree(tuple(words), ("",) * len(words), tuple(spans))

    def held_out(self, count: int) -> list[GoldTree]:
        """The same test sentences for every seed of training."""
        source = random.Random("held out")
        return [self.sample(source) for _ in range(count)]

    def _grow(
        self,
        symbol: str,
        source: random.Random,
        words: list[str],
        spans: list[Constituent],
        depth: int,
    ) -> bool:
        """Appends what the symbol stands for; False when it gets too long."""
        if len(words) > self.longest or depth > _DEEPEST:
            return False
        if symbol not in self.rules:
            words.append(source.choice(self.classes[symbol]))
            return True
        rules = self.rules[symbol]
        (_, right) = source.choices(rules, [weight for weight, _ in rules])[0]
        start = len(words)
        if not all(self._grow(child, source, words, spans, depth + 1) for child in right):
            return False
        if len(right) > 1:
            spans.append(Constituent(start, len(words) - 1, symbol))
        return True

    def num_trees(self, words: Sequence[str]) -> int:
        """How many trees the grammar has for a sentence (1: it is unambiguous)."""

        @cache
        def count(symbols: tuple[str, ...], i: int, j: int) -> int:
            """Ways in which the symbols, one after another, make the words i..j."""
            first, *rest = symbols
            if rest:
                return sum(
                    count((first,), i, k) * count(tuple(rest), k + 1, j)
                    for k in range(i, j + 1 - len(rest))
                )
            if first not in self.rules:
                return int(i == j and words[i] in self.classes[first])
            return sum(count(right, i, j) for _, right in self.rules[first])

        return count(("S",), 0, len(words) - 1)


def phrases(kinds: int = 5, words: int = 3, shortest: int = 5, longest: int = 14) -> Language:
    """A phrase of one of several kinds has an opening and a closing word of its kind.

    It holds nothing, a phrase or two: constituents are what belongs together, as in a dependency
    of a determiner and its noun. Nothing says whether what a phrase holds goes with its opening or
    its closing word, so that the gold tree has the three side by side (the best binary trees
    therefore stay below 100).
    """
    rules: Rules = {
        "S": [(1.0, ("P", "Q"))],
        "Q": [(0.6, ("P",)), (0.4, ("P", "P"))],
        "P": [(1.0, (f"P{k}",)) for k in range(kinds)],
    }
    for k in range(kinds):
        rules[f"P{k}"] = [(0.5, (f"O{k}", f"C{k}")), (0.5, (f"O{k}", "Q", f"C{k}"))]
    classes = {
        f"{edge}{k}": [f"{edge.lower()}{k}{'xyzuvw'[n]}" for n in range(words)]
        for k in range(kinds)
        for edge in "OC"
    }
    return Language("phrases", rules, classes, shortest, longest)


_SUFFIXES = "aoe"
_NOUNS = (("queen", "cow", "bird"), ("king", "horse", "dog"), ("child", "fish", "house"))


def clauses(
    genders: int = 3,
    verb_agrees: bool = True,
    function_words: bool = True,
    shortest: int = 5,
    longest: int = 14,
) -> Language:
    """English and Japanese mixed: the object before its verb, a relative clause before its noun.

    Args:
        genders: 3: determiner, adjective and noun agree; 1: words depend on their class alone.
        verb_agrees: a verb has its object's gender.
        function_words: possessive phrases ('s) and relative clauses (who).
    """
    kinds = range(genders)
    sees = [f"SEE{g}" if verb_agrees else "SEE" for g in kinds]
    rules: Rules = {
        "S": [(1.0, (f"NP{g}", "VP")) for g in kinds],
        "SUB": [(1.0, ("THAT", "S"))],
        "VP": [
            (0.25, ("RUN",)),
            (0.35, ("SAY", "SUB")),
            *((0.4 / genders, (f"NP{g}", sees[g])) for g in kinds),
        ],
    }
    if function_words:
        rules["REL"] = [(1.0, ("VP", "WHO"))]
        rules["OF"] = [(1.0, (f"NP{g}", "'S")) for g in kinds]
    for g in kinds:
        rules[f"NP{g}"] = [(0.75, (f"DET{g}", f"NB{g}"))]
        rules[f"NB{g}"] = [(0.55, (f"N{g}",)), (0.27, (f"ADJ{g}", f"NB{g}"))]
        if function_words:
            rules[f"NP{g}"].append((0.25, ("OF", f"NB{g}")))
            rules[f"NB{g}"].append((0.18, ("REL", f"NB{g}")))
    return Language("clauses", rules, _words_of_clauses(genders, verb_agrees, function_words),
                    shortest, longest)  # fmt: skip


def _words_of_clauses(
    genders: int, verb_agrees: bool, function_words: bool
) -> dict[str, list[str]]:
    """The same words, shared out among the genders."""
    classes: dict[str, list[str]] = {}
    for g in range(genders):
        mine = [k for k in range(3) if k % genders == g]
        classes[f"DET{g}"] = [f"{word}-{_SUFFIXES[k]}" for word in ("the", "this") for k in mine]
        classes[f"N{g}"] = [noun for k in mine for noun in _NOUNS[k]]
        classes[f"ADJ{g}"] = [f"old-{_SUFFIXES[k]}" for k in mine]
        if verb_agrees:
            classes[f"SEE{g}"] = [f"sees-{_SUFFIXES[k]}" for k in mine]
    if not verb_agrees:
        classes["SEE"] = [f"sees-{suffix}" for suffix in _SUFFIXES]
    classes["RUN"] = ["runs", "sleeps", "sings", "falls"]
    classes["SAY"] = ["says", "thinks"]
    classes["THAT"] = ["that"]
    if function_words:
        classes |= {"'S": ["'s"], "WHO": ["who"]}
    return classes


LANGUAGES = {
    "phrases": phrases,
    "phrases 1 word a class": lambda: phrases(words=1),
    "phrases 6 words a class": lambda: phrases(words=6),
    "phrases 2 kinds": lambda: phrases(kinds=2),
    "phrases 1 kind": lambda: phrases(kinds=1),
    "clauses": clauses,
    "clauses, short": lambda: clauses(shortest=3, longest=8),
    "clauses, verb does not agree": lambda: clauses(verb_agrees=False),
    "clauses, no function words": lambda: clauses(function_words=False),
    "clauses, neither": lambda: clauses(verb_agrees=False, function_words=False),
    "clauses, no agreement": lambda: clauses(genders=1, verb_agrees=False),
}
"""By the name that --language takes."""
