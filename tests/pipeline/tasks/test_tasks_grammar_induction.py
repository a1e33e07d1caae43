"""Grammar induction: words and pieces, both parsers, the command."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gpst.batch import ContextBatch
from pipeline.errors import ConfigError, DataError
from pipeline.tasks import grammar_induction, loading
from pipeline.tasks.batches import batches
from pipeline.tasks.grammar_induction.parse import parse, to_pieces
from pipeline.tasks.loading import LoadedModel

TREES = """\
(S (NP (DT The) (NN dog)) (VP (VBD saw) (NP (DT a) (JJ big) (NN cat))) (. .))
(NP (DT the) (NN dog))
(INTJ (UH Ah) (. !))
(S (NP (NN it)) (, ,) (VP (VBD ran) (PP (IN to) (NP (PRP us)))))
(X (: --))
"""


def test_pieces_know_their_words(pieces: Tokenizer, byte_bpe: Callable) -> None:
    sentence = to_pieces(["the", "dogs", "a"], pieces, "here")
    assert [pieces.id_to_token(token) for token in sentence.tokens] == ["the", "dog", "##s", "a"]
    assert sentence.word_of == [0, 1, 1, 2]
    assert sentence.inner == [False, True, False, False]

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


@pytest.mark.parametrize("parser", ["inside", "left-to-right"])
def test_words_are_constituents_for_both_parsers(
    parser: Any, tiny_gpst: Callable, pieces: Tokenizer
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

    found = dict(parse(model, sentences, parser=parser, beam=8, sync=True, batch_tokens=20))
    alone = [
        next(iter(parse(model, [s], parser=parser, beam=8, sync=True, batch_tokens=1)))[1]
        for s in sentences
    ]

    assert sorted(found) == list(range(len(texts)))
    for number, text in enumerate(texts):
        assert found[number].num_tokens == len(text.split())
        assert found[number] == alone[number]


def test_inside_trees_are_those_of_the_model(tiny_gpst: Callable, pieces: Tokenizer) -> None:
    model = tiny_gpst(pieces.get_vocab_size())
    sentence = to_pieces(["the", "dog", "a", "cat", "the", "the", "a"], pieces, "here")
    direct = model.induced_trees(ContextBatch.from_sentences([[sentence.tokens]]))[0]

    found = parse(model, [sentence], parser="inside", beam=1, sync=True, batch_tokens=99)

    assert next(iter(found)) == (0, direct)


def test_batches_are_full_and_sorted() -> None:
    assert list(batches([5, 1, 3, 2, 9, 2], 6)) == [[1, 3, 5], [2], [0], [4]]
    assert list(batches([], 6)) == []


def command(*arguments: str) -> int:
    parser = ArgumentParser()
    grammar_induction.add_arguments(parser)
    return grammar_induction.run(parser.parse_args(arguments))


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    file = tmp_path / "trees.txt"
    file.write_text(TREES)
    return file


def test_command_scores_a_model_and_baselines(
    trees: Path,
    tmp_path: Path,
    tiny_gpst: Callable,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded = LoadedModel(tiny_gpst(pieces.get_vocab_size()), pieces, "m", "f" * 64)
    monkeypatch.setattr(loading, "load_model", lambda path, device: loaded)
    output = tmp_path / "out"

    given = ["--model", "m", "--trees", str(trees), "--output", str(output), "--beam", "3"]
    assert command(*given) == 0

    results = json.loads((output / "results.json").read_text())
    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert results["data"] | {"sha256": "", "path": ""} == {
        "sha256": "", "path": "", "trees": 4, "one_word": 1, "no_words": 1
    }  # fmt: skip
    # Without punctuation, by hand, right branching: (1,5) (2,5) (3,5) (4,5) against (0,1) (2,5)
    # (3,5), F1 4/7; 1; and (1,3) (2,3), all right.
    right = results["baselines"]["right branching"]
    assert right["sentence_f1"] == pytest.approx(100 * (4 / 7 + 1 + 1) / 3)
    assert lines[0]["words"] == ["the", "dog", "saw", "a", "big", "cat"]
    assert set(results["scores"]) == {"inside", "left-to-right"}
    for parser, scores in results["scores"].items():
        # The score follows from the kept trees.
        f1 = []
        for line in lines:
            whole = [0, len(line["words"]) - 1]
            mine = [span for span in line["spans"][parser] if span != whole]
            common = len([span for span in mine if span in line["gold"]])
            if len(line["words"]) > 2:
                f1.append(2 * common / (len(mine) + len(line["gold"])))
        assert scores["sentence_f1"] == pytest.approx(100 * (sum(f1) + 1) / 3)
        assert results["model"][parser]["fingerprint"] == "f" * 64
    shown = capsys.readouterr().out
    assert "5 trees: 1 of one word and 1 without words are not scored" in shown
    for name in ("inside", "left-to-right", "right branching", "oracle"):
        assert f"\n{name} " in shown


def test_the_best_of_several_models_on_other_trees_is_tested(
    trees: Path,
    tmp_path: Path,
    tiny_gpst: Callable,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = {
        str(seed): LoadedModel(tiny_gpst(pieces.get_vocab_size(), seed), pieces, str(seed), "")
        for seed in range(4)
    }
    monkeypatch.setattr(loading, "load_model", lambda path, device: models[path])
    output = tmp_path / "out"
    shared = ["--trees", str(trees), "--output", str(output), "--parser", "inside"]
    alone = {}
    for name in models:
        assert command("--model", name, *shared) == 0
        results = json.loads((output / "results.json").read_text())
        alone[name] = results["scores"]["inside"]["sentence_f1"]
    assert len(set(alone.values())) > 1

    assert command("--model", *models, "--select-on", str(trees), *shared) == 0

    results = json.loads((output / "results.json").read_text())
    best = max(alone.values())
    assert results["scores"]["inside"]["sentence_f1"] == pytest.approx(best)
    assert results["model"]["inside"]["selection_f1"] == pytest.approx(best)
    assert alone[results["model"]["inside"]["path"]] == pytest.approx(best)


def test_trees_of_another_parser_are_scored(trees: Path, tmp_path: Path) -> None:
    file, output = tmp_path / "theirs.txt", tmp_path / "out"
    file.write_text("((the dog) (saw (a (big cat))))\n(the dog)\nah\n((it ran) (to us))\n")

    assert command("--trees", str(trees), "--predictions", str(file), "--output", str(output)) == 0

    results = json.loads((output / "results.json").read_text())
    # (0,1) (2,5) (3,5) of four: 6/7; 1; (2,3) of two: 1/2.
    f1 = results["scores"]["predictions"]["sentence_f1"]
    assert f1 == pytest.approx(100 * (6 / 7 + 1 + 1 / 2) / 3)

    file.write_text("(the dog)\n(the dog)\nah\n((it ran) (to us))\n")
    with pytest.raises(DataError, match="tree 1 has 2 words, the gold tree 6"):
        command("--trees", str(trees), "--predictions", str(file), "--output", str(output))
    file.write_text("(the dog)\n")
    with pytest.raises(DataError, match="1 trees, but there are 4 sentences"):
        command("--trees", str(trees), "--predictions", str(file), "--output", str(output))


def test_punctuation_and_case_can_stay(trees: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"

    command(
        "--trees", str(trees), "--punctuation", "--no-lower", "--max-sentences", "3",
        "--output", str(output),
    )  # fmt: skip

    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert [line["words"][-1] for line in lines] == [".", "dog", "!"]
    assert lines[0]["words"][0] == "The"
    assert lines[0]["gold"] == [[0, 1], [2, 5], [3, 5]]


def test_wrong_usage_is_one_line(
    trees: Path,
    tmp_path: Path,
    tiny_gpt2: Callable,
    tiny_gpst: Callable,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = ["--trees", str(trees), "--output", str(tmp_path / "out")]
    with pytest.raises(ConfigError, match="--trees is missing"):
        command("--model", "m")
    with pytest.raises(ConfigError, match="several models need --select-on"):
        command("--model", "a", "b", *shared)
    with pytest.raises(ConfigError, match="either --model or --predictions"):
        command("--model", "a", "--predictions", "b", *shared)
    with pytest.raises(ConfigError, match="num_random: 0 is not allowed"):
        command("--num-random", "0", *shared)
    size = pieces.get_vocab_size()
    for model, message, kind in (
        (tiny_gpt2(size), "is no GPST and induces no trees", ConfigError),
        (
            tiny_gpst(size, max_context_tokens=8),
            "sentence 1 has 10 tokens, but the .* 8",
            DataError,
        ),
    ):
        loaded = LoadedModel(model, pieces, "m", "")
        monkeypatch.setattr(loading, "load_model", lambda path, device, loaded=loaded: loaded)
        with pytest.raises(kind, match=message):
            command("--model", "m", *shared)
