"""What the page shows of a text, as events of plain values, in the order in which they are known.

Trees are strings of actions, `g` for a token and `c` for joining the top two constituents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpst.api import GPST
from gpst.export.codec import Sentence
from gpst.model.modes import evaluating
from gpst.search.candidates import COMP
from gpst.search.induced import inside_parse
from gpst.search.parse import Prefix, search_text
from gpst.search.sampling import Sampling
from gpst.search.words import ENDS, GOES_ON, OPEN, WordSearch
from gpst.tree import Tree

Emit = Callable[[dict[str, Any]], None]
"""Takes an event; what it raises ends the computation."""
_NUM_EXPECTED = 8
_MAX_NEW_TOKENS = 60
_CHARACTERS_A_PIECE = 50
"""More of a text are refused without looking for its words, which takes seconds for a million."""


def sentences_of(model: GPST, text: str, limit: int) -> list[Sentence]:
    """The sentences of a text, as the commands read lines: after a space.

    Raises:
        ValueError: there are no words, or more tokens than `limit` or the model takes.
    """
    if len(text) > limit * _CHARACTERS_A_PIECE:
        raise ValueError(
            f"the text has {len(text)} characters, and at most {limit * _CHARACTERS_A_PIECE}"
            " are read here; shorten it"
        )
    sentences = model.codec.sentences(" ".join(text.split()), inside=True) if text.strip() else []
    if not sentences:
        raise ValueError("write a sentence first")
    number = sum(len(sentence.tokens) for sentence in sentences)
    # One place stays free for what comes next.
    most = min(limit, model.model.config.max_context_tokens - 1)
    if number > most:
        raise ValueError(
            f"the text has {number} word pieces, and at most {most} are read here; shorten it"
        )
    return sentences


def analyse(model: GPST, sentences: Sequence[Sentence], beam: int, emit: Emit) -> None:
    """Events: `text`, `inside`, a `piece` for each token, `next`, and a `prefix` for each token.

    A `piece` has the surprisal of a token and what was expected in its place; `next`, what is
    expected after the text; a `prefix`, the trees in the beam when the token has been read, and
    one more the finished trees. Those keep the pieces of a word together, as `parse` does.
    """
    tokens = [s.tokens for s in sentences]
    words = [word for sentence in sentences for word in sentence.words]
    counts = [len(sentence.words) for sentence in sentences]
    emit(
        {
            "event": "text",
            "words": words,
            "pieces": [model.codec.piece(token)[0] for sentence in tokens for token in sentence],
            "word_of_piece": [
                sum(counts[:number]) + word
                for number, sentence in enumerate(sentences)
                for word in sentence.word_of_token
            ],
            "sentence_lengths": counts,
        }
    )
    inside_word = [s.inside_word for s in sentences]
    trees = [parse.tree for parse in inside_parse(model.model, tokens, inside_word)]
    emit({"event": "inside", "actions": "".join(map(actions_of, trees))})
    _score(model, tokens, beam, emit)

    told: dict[str, Any] = {}

    def tell(prefix: Prefix) -> None:
        hypotheses = [
            [p, "".join("c" if action == COMP else "g" for action in actions)]
            for p, actions in prefix.hypotheses
        ]
        told.update(event="prefix", pieces=prefix.num_tokens, trees=hypotheses)
        emit(dict(told))

    search_text(model.model, [tokens], beam=beam, inside_word=[inside_word], on_prefix=tell)
    # A last sentence of one token has nothing to join: its trees are finished when it is read,
    # and the search ends there.
    if told["pieces"] == sum(map(len, tokens)):
        emit({**told, "pieces": told["pieces"] + 1})


@torch.inference_mode()
def _score(model: GPST, sentences: Sequence[Sequence[int]], beam: int, emit: Emit) -> None:
    with evaluating(model.model):
        search = WordSearch(model.model, 1, beam, final_tokens=model.final_tokens)
        place, before = GOES_ON, 0.0
        for number, sentence in enumerate(sentences):
            for position, token in enumerate(sentence):
                expected = _look(search, place)
                search.write(torch.tensor([token], device=expected.device))
                after = float(search.log_p[0])
                emit(
                    {
                        "event": "piece",
                        "bits": (before - after) / math.log(2.0),
                        "p": float(expected[token].exp()),
                        "rank": int((expected > expected[token]).sum()) + 1,
                        "expected": _best(model, expected),
                    }
                )
                before, ends = after, position + 1 == len(sentence)
                place = (OPEN if number + 1 == len(sentences) else ENDS) if ends else GOES_ON
        emit({"event": "next", "expected": _best(model, _look(search, place))})


def _look(search: WordSearch, place: int) -> Tensor:
    """(V,) log p of the next token."""
    places = torch.full_like(search.words, place)
    while not bool(search.ready.all()):
        search.go_up(places, ~search.ready)
    search.look(search.ready)
    return search.next_log_p()[0]


def _best(model: GPST, log_p: Tensor) -> list[list[Any]]:
    """What to show, what it adds to the text, and probability, of the likeliest tokens."""
    best = log_p.topk(min(_NUM_EXPECTED, len(log_p)))
    return [
        [*model.codec.piece(token), p]
        for token, p in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
    ]


def continue_text(model: GPST, text: str, seed: int, beam: int, emit: Emit) -> None:
    """Events: `written` with more of the text, and `trees` at the end."""
    [one] = model.generate(
        text,
        max_new_tokens=_MAX_NEW_TOKENS,
        sampling=Sampling(temperature=0.8, top_k=40, seed=seed),
        beam=beam,
        on_text=lambda more: emit({"event": "written", "text": more}),
    )
    emit({"event": "end", "text": one.text})


def actions_of(tree: Tree) -> str:
    """The actions that write a tree."""
    return "".join("g" if i == j else "c" for i, j in tree.spans)
