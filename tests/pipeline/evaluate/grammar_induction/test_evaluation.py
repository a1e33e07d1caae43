"""Grammar induction: words and pieces, both parsers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from gpst.batch import ContextBatch
from pipeline.errors import DataError
from pipeline.evaluate.grammar_induction.parse import parse, to_pieces


def test_pieces_know_their_words(pieces: Tokenizer, byte_bpe: Callable) -> None:
    sentence = to_pieces(["the", "dogs", "a"], pieces, "here")
    assert [pieces.id_to_token(token) for token in sentence.tokens] == ["the", "dog", "##s", "a"]
    assert sentence.word_of == [0, 1, 1, 2]
    assert sentence.inside_word == [False, True, False, False]

    tokenizer = byte_bpe([("Ġ", "d")])
    sentence = to_pieces(["é", "do", "xy"], tokenizer, "here")
    tokens = [tokenizer.id_to_token(token) for token in sentence.tokens]
    assert tokens == ["Ã", "©", "Ġd", "o", "Ġ", "x", "y"]
    # The space alone is a piece of the word that it stands before.
    assert sentence.word_of == [0, 0, 1, 1, 2, 2, 2]

    sentence = to_pieces(["do", "é"], tokenizer, "here", leading_space=True)
    tokens = [tokenizer.id_to_token(token) for token in sentence.tokens]
    assert tokens == ["Ġd", "o", "Ġ", "Ã", "©"]
    assert sentence.word_of == [0, 0, 1, 1, 1]


def test_words_that_the_tokenizer_cannot_tell_apart_are_named(pieces: Tokenizer) -> None:
    joined = Tokenizer.from_str(pieces.to_str())
    joined.pre_tokenizer = None  # type: ignore[assignment]
    joined.normalizer = None  # type: ignore[assignment]
    with pytest.raises(DataError, match="sentence 3: the token 'a b' covers parts of two words"):
        to_pieces(["a", "b"], joined, "sentence 3")
    with pytest.raises(DataError, match=r"sentence 3: the tokenizer has no token for the word '\\"):
        to_pieces(["a", "\x00"], _without_controls(pieces), "sentence 3")


def _without_controls(pieces: Tokenizer) -> Tokenizer:
    from tokenizers import normalizers

    cleaned = Tokenizer.from_str(pieces.to_str())
    cleaned.normalizer = normalizers.BertNormalizer()  # type: ignore[assignment]
    return cleaned


@pytest.mark.parametrize("atoms", ["constrain_tree", "constrain_chart"])
@pytest.mark.parametrize("parser", ["inside", "left-to-right"])
def test_words_are_constituents_for_both_parsers(
    parser: Any, atoms: Any, tiny_gpst: Callable, pieces: Tokenizer
) -> None:
    model = tiny_gpst(pieces.get_vocab_size())
    texts = [
        "dogs saw big cats",
        "a",
        "dogs",
        "see dogs ran",
        "the cat ran to us",
        "ab cd ef gh ij",
    ]
    sentences = [to_pieces(text.split(), pieces, "here") for text in texts]

    how: dict[str, Any] = {"parser": parser, "atoms": atoms, "beam": 8, "sync": True}
    found = dict(parse(model, sentences, **how, batch_tokens=20))
    alone = [next(iter(parse(model, [s], **how, batch_tokens=1)))[1] for s in sentences]

    assert sorted(found) == list(range(len(texts)))
    for number, text in enumerate(texts):
        assert found[number].num_tokens == len(text.split())
        assert found[number] == alone[number]


def test_the_rule_of_atoms_reaches_the_chart(tiny_gpst: Callable, pieces: Tokenizer) -> None:
    model = tiny_gpst(pieces.get_vocab_size())
    sentences = [to_pieces(text.split(), pieces, "here") for text in ("dogs saw big cats",) * 2]
    sentences += [to_pieces(["ab", "cd", "dogs", "ef", "the", "cats", "gh", "ij"], pieces, "here")]
    trees = {}
    for rule in ("constrain_tree", "constrain_chart"):
        batch = ContextBatch.from_sentences(
            [[s.tokens] for s in sentences], [[s.inside_word] for s in sentences], rule
        )
        found = parse(
            model, sentences, parser="inside", atoms=rule, beam=1, sync=True, batch_tokens=99
        )
        direct = model.induced_trees(batch)
        trees[rule] = [tree for _, tree in sorted(found, key=lambda item: item[0])]
        assert trees[rule] == [
            t.contract(s.word_of) for t, s in zip(direct, sentences, strict=True)
        ]
    assert trees["constrain_tree"] != trees["constrain_chart"]


def test_inside_trees_are_those_of_the_model(tiny_gpst: Callable, pieces: Tokenizer) -> None:
    model = tiny_gpst(pieces.get_vocab_size())
    sentence = to_pieces(["the", "dog", "a", "cat", "the", "the", "a"], pieces, "here")
    direct = model.induced_trees(ContextBatch.from_sentences([[sentence.tokens]]))[0]

    found = parse(
        model,
        [sentence],
        parser="inside",
        atoms="constrain_tree",
        beam=1,
        sync=True,
        batch_tokens=99,
    )

    assert next(iter(found)) == (0, direct)
