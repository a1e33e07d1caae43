"""The text-level interface on an exported model."""

import json
from pathlib import Path

import numpy as np
import pytest

from gpst import GPST
from gpst.export.codec import Codec
from gpst.export.errors import ModelFolderError
from gpst.search.sampling import Sampling

DEMO = Path(__file__).resolve().parents[2] / "launch" / "demo_model" / "gpst"
SENTENCE = "The unbelievable cats weren't sleeping."


@pytest.fixture(scope="module")
def model(exported):
    return GPST.from_pretrained(exported, device="cpu")


def test_words_of_a_sentence(tokenizer_folder):
    codec = Codec.load(tokenizer_folder)
    sentence = codec.sentence("  The   unbelievable cats weren't sleeping.\n")
    assert sentence.words == ["The", "unbelievable", "cats", "weren", "'t", "sleeping", "."]
    assert codec.decode(sentence.tokens) == " The unbelievable cats weren't sleeping."
    assert len(sentence.tokens) > 7
    assert sentence.inside_word.count(False) == 7
    assert not sentence.inside_word[-1]
    with pytest.raises(ValueError, match="empty"):
        codec.sentence("   ")
    # A character of several tokens is still one word.
    assert codec.sentence("a 日本 b").words == ["a", "日本", "b"]


@pytest.mark.parametrize("wordpiece", [True, False])
def test_a_continuation_begins_with_its_space(tokenizer_folder, wordpiece):
    codec = Codec.load(DEMO if wordpiece else tokenizer_folder)
    text = "my friends, the world is new."
    tokens = codec._encode(text).ids
    for cut in range(len(tokens) + 1):
        before, after = tokens[:cut], tokens[cut:]
        assert codec.decode(before) + codec.continuation(before, after) == text


def test_sentences_of_a_text_keep_its_tokens(tokenizer_folder):
    codec = Codec.load(tokenizer_folder)
    text = 'He said "Go." Then 3.14 came! Did it? yes (no.) End'
    found = codec.sentences(text)
    assert [codec.decode(s.tokens) for s in found] == [
        'He said "Go."', " Then 3.14 came!", " Did it? yes (no.)", " End",
    ]  # fmt: skip
    joined = [token for s in found for token in s.tokens]
    assert joined == codec.tokenizer.encode(text).ids
    assert codec.sentences("") == []


def test_final_tokens_end_sentences(tokenizer_folder):
    codec = Codec.load(tokenizer_folder)
    texts = {codec.decode([token]) for token in codec.final_tokens()}
    assert {".", "!", "?"} <= texts
    assert not {",", "a", '"', ""} & texts


@pytest.mark.parametrize("method", ["inside", "left-to-right"])
def test_parse_gives_a_tree_over_words(model, method):
    parsed = model.parse(SENTENCE, method)
    assert parsed.words == ["The", "unbelievable", "cats", "weren", "'t", "sleeping", "."]
    assert parsed.tree.num_tokens == 7
    assert str(parsed).count("(") == 6
    assert len(parsed.picture().splitlines()) == 7
    assert (parsed.log_p is None) == (method == "inside")


@pytest.mark.parametrize("method", ["inside", "left-to-right"])
def test_many_sentences_are_parsed_as_one_by_one(model, method):
    texts = ["The man.", SENTENCE, "Go", "The old man sailed the boats of the harbour. " * 3]
    done: list[int] = []
    together = model.parse_all(texts, method, beam=4, on_done=done.append)
    assert sum(done) == 4
    assert len(done) > (method == "inside")  # a search pads nothing: lengths may differ
    for text, parsed in zip(texts, together, strict=True):
        alone = model.parse(text, method, beam=4)
        assert (alone.words, alone.tree) == (parsed.words, parsed.tree)


def test_parse_refuses(model):
    with pytest.raises(ValueError, match="method: 'up'"):
        model.parse("a", "up")
    with pytest.raises(ValueError, match=r"a sentence has .* tokens, but the model takes 128"):
        model.parse("boats " * 200)
    for beam in (0, -1):
        with pytest.raises(ValueError, match=f"beam: {beam} is not allowed"):
            model.parse("a", "left-to-right", beam=beam)


def test_embed_gives_words_and_constituents_with_vectors(model):
    found = model.embed(SENTENCE)
    parsed = model.parse(SENTENCE)
    assert [c.span for c in found] == list(parsed.tree.spans)
    assert found[-1].text == "The unbelievable cats weren 't sleeping ."
    assert all(c.vector.shape == (8,) and np.isfinite(c.vector).all() for c in found)


def test_surprisal_of_words_sums_to_that_of_the_tokens(model):
    found = model.surprisal(SENTENCE + " The man sailed!")
    assert [w.word for w in found][-4:] == ["The", "man", "sailed", "!"]
    # About log2 of the vocabulary per token for a random model, plus the actions.
    assert all(w.bits > 3 for w in found)
    one = model.surprisal(["The man.", "He did!"])
    assert [w.word for w in one] == ["The", "man", ".", "He", "did", "!"]
    with pytest.raises(ValueError, match="empty"):
        model.surprisal("")


def test_generate_streams_what_it_returns(model):
    heard: list[str] = []
    [one] = model.generate(
        "The man.", max_new_tokens=12, sampling=Sampling(seed=1), on_text=heard.append
    )
    assert one.text.startswith("".join(heard))
    assert one.sentences[0].words[:3] == ["The", "man", "."]
    assert sum(s.tree.num_tokens for s in one.sentences) >= 4
    best = model.generate("", max_new_tokens=3, beam=3, num_samples=3)
    assert len(best) == 3
    assert best[0].log_p >= best[1].log_p


def test_a_gpt2_baseline_has_no_trees(tmp_path, make_export):
    make_export(tmp_path, "gpt2")
    with pytest.raises(ModelFolderError, match="no trees"):
        GPST.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.parse(["the man sat"]),
        lambda m: m.parse(None),
        lambda m: m.embed(("the man",)),
        lambda m: m.generate(["the man"]),
        lambda m: m.surprisal(b"the man"),
        lambda m: m.surprisal([["the man"]]),
    ],
)
def test_what_is_not_one_text_is_refused(model, call):
    with pytest.raises(TypeError, match=r"texts? \((a list of )?str\) (is|are) wanted, not "):
        call(model)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.parse_all("the man sat"),
        lambda m: m.surprisal(None),
        lambda m: m.surprisal({"a": "the man"}),
        lambda m: m.surprisals(["the man sat"]),
        lambda m: m.surprisals("the man sat"),
        lambda m: m.surprisals(None),
    ],
)
def test_one_text_is_not_taken_for_texts_of_a_letter(model, call):
    with pytest.raises(TypeError, match=r"several texts \(a list of str\) are wanted, not "):
        call(model)


def test_a_tokenizer_of_another_model_is_refused(tmp_path, make_export):
    make_export(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    tokenizer = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["more"] = config["vocab_size"]
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelFolderError, match=r"has tokens up to .* it is another model's"):
        GPST.from_pretrained(tmp_path / "model")
