"""The model's tree over the words of a sentence, by the composition model or by search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer

from gpst.batch import ContextBatch
from gpst.chart.atoms import AtomRule
from gpst.model.gpst import GPSTModel
from gpst.search.batches import batches
from gpst.search.parse import search_text
from gpst.tree import Tree
from pipeline.errors import DataError

Parser = Literal["inside", "left-to-right"]


@dataclass(frozen=True)
class Sentence:
    """A sentence in word pieces."""

    tokens: list[int]
    word_of: list[int]
    """The word that each token belongs to: 0, 0, 1, ..."""

    @property
    def inside_word(self) -> list[bool]:
        """Whether the boundary after a token lies inside a word."""
        return [a == b for a, b in zip(self.word_of, self.word_of[1:], strict=False)] + [False]


def to_pieces(
    words: Sequence[str], tokenizer: Tokenizer, place: str, leading_space: bool = False
) -> Sentence:
    """Tokenizes the words, joined by spaces, and finds the word of each token.

    Args:
        leading_space: read them as a sentence inside a text, not as its first one.
    Raises:
        DataError: a word has no tokens, or shares one with another word: no tree over the words
            exists.
    """
    text = " " * leading_space + " ".join(words)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    word_at = np.cumsum([character == " " for character in text]) - leading_space
    # A space belongs to the word after it.
    word_of = []
    for start, end in encoding.offsets:
        first = int(word_at[start])
        if int(word_at[max(start, end - 1)]) != first:
            raise DataError(
                f"{place}: the token {text[start:end]!r} covers parts of two words; a tree over "
                "words needs a tokenizer whose tokens end with them"
            )
        word_of.append(first)
    for number, word in enumerate(words):
        if number not in word_of:
            raise DataError(
                f"{place}: the tokenizer has no token for the word {word!r}; use one that knows "
                "its characters, or remove the sentence"
            )
    return Sentence(encoding.ids, word_of)


@torch.no_grad()
def parse(
    model: GPSTModel,
    sentences: Sequence[Sentence],
    *,
    parser: Parser,
    atoms: AtomRule,
    beam: int,
    sync: bool,
    batch_tokens: int,
) -> Iterator[tuple[int, Tree]]:
    """(position, tree over words) of every sentence; similar lengths share a batch.

    Raises:
        DataError: a sentence longer than the model's contexts.
    """
    limit = model.config.max_context_tokens
    for number, sentence in enumerate(sentences):
        if len(sentence.tokens) > limit:
            raise DataError(
                f"sentence {number + 1} has {len(sentence.tokens)} tokens, but the model takes "
                f"{limit} (max_context_tokens)"
            )
    lengths = [len(sentence.tokens) for sentence in sentences]
    for numbers in batches(lengths, max_tokens=batch_tokens, even=False):
        group = [sentences[number] for number in numbers]
        if parser == "inside":
            trees = _inside(model, group, atoms)
        else:
            trees = _search(model, group, beam, sync)
        for number, sentence, tree in zip(numbers, group, trees, strict=True):
            yield number, tree.contract(sentence.word_of)


def _inside(model: GPSTModel, group: Sequence[Sentence], atoms: AtomRule) -> list[Tree]:
    batch = ContextBatch.from_sentences(
        [[sentence.tokens] for sentence in group],
        [[sentence.inside_word] for sentence in group],
        atoms,
    )
    return model.induced_trees(batch.to(model.embedding.weight.device))


def _search(model: GPSTModel, group: Sequence[Sentence], beam: int, sync: bool) -> list[Tree]:
    results = search_text(
        model,
        [[sentence.tokens] for sentence in group],
        beam=beam,
        sync=sync,
        inside_word=[[sentence.inside_word] for sentence in group],
    )
    return [result.parses[0].trees[0] for result in results]
