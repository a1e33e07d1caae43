"""Loading tokenizers from every format, training them, and engines that agree with the library."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from data_prep.errors import SourceError, TokenizerError, UsageError
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import BERT_SPECIALS, load_tokenizer
from data_prep.tokenizer.reference import ReferenceEngine
from data_prep.tokenizer.train import train_tokenizer


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def gpt2_files(folder, bpe_path):
    """vocab.json and merges.txt of a trained tokenizer."""
    model = json.loads((bpe_path / "tokenizer.json").read_text())["model"]
    merges = "\n".join(" ".join(merge) for merge in model["merges"])
    write(folder / "vocab.json", json.dumps(model["vocab"]))
    write(folder / "merges.txt", f"#version: 0.2\n{merges}\n")
    return folder


def test_trained_bpe(bpe_path):
    loaded = load_tokenizer(bpe_path)
    assert (loaded.kind, loaded.bos_id, loaded.end_of_document_id) == ("byte_bpe", 0, 0)
    assert loaded.vocab_size > 257
    ids = loaded.reference().encode("<|endoftext|>").ids
    assert 0 not in ids
    assert len(ids) > 1


def test_trained_wordpiece(wordpiece_path):
    loaded = load_tokenizer(wordpiece_path / "tokenizer.json")
    assert (loaded.kind, loaded.bos_token, loaded.end_of_document_token) == (
        "wordpiece", "[CLS]", "[SEP]",
    )  # fmt: skip
    assert [loaded.bos_id, loaded.end_of_document_id] == [2, 3]
    assert loaded.end_of_document_id not in loaded.reference().encode("[SEP] Dr").ids


def test_bert_vocabulary(tmp_path):
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "hello", "##s", ",", "a"]
    loaded = load_tokenizer(write(tmp_path / "vocab.txt", "\n".join(lines) + "\n"))
    assert (loaded.kind, loaded.vocab_size, loaded.end_of_document_id) == ("wordpiece", 10, 3)
    assert loaded.reference().encode("Hellos, a", add_special_tokens=False).ids == [6, 7, 8, 9]


def test_gpt2_vocabulary(tmp_path, bpe_path):
    loaded = load_tokenizer(gpt2_files(tmp_path, bpe_path))
    expected = load_tokenizer(bpe_path)
    text = "Dr. Smith <|endoftext|>  went\n\nto é"
    assert loaded.vocab_size == expected.vocab_size
    assert loaded.reference().encode(text).ids == expected.reference().encode(text).ids


def test_saved_form_loads_in_transformers(tmp_path, bpe_path):
    import transformers

    loaded = load_tokenizer(bpe_path)
    loaded.save(tmp_path / "out")
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    assert fast.eos_token_id == loaded.end_of_document_id
    assert fast.decode(fast("Dr. Smith  went.")["input_ids"]) == "Dr. Smith  went."


def test_other_tokenizers_are_told_apart(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "</s>": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert (loaded.kind, loaded.end_of_document_id) == ("other", 2)


BROKEN = [
    ("tokenizer.json", "{not json", "is not JSON"),
    ("tokenizer.json", '{"version": "1.0"}', "is not a tokenizer.json"),
    ("tokenizer.json", "", "is not JSON"),
    ("vocab.txt", "hello\nworld\n", "lacks \\[PAD\\]"),
    ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n", "lists a token twice"),
    ("vocab.json", '{"a": 0}', "merges.txt is missing"),
    ("vocab.json", "[]", "is not a mapping"),
    ("readme.md", "x", "no tokenizer.json, vocab.txt, or vocab.json"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_broken_files(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)


def test_merges_that_do_not_fit(tmp_path, bpe_path):
    gpt2_files(tmp_path, bpe_path)
    write(tmp_path / "merges.txt", "#version: 0.2\nq zz\n")
    with pytest.raises(TokenizerError, match="merge 1 'q zz' does not fit"):
        load_tokenizer(tmp_path)


def test_missing_and_unknown_tokens(tmp_path, bpe_path):
    with pytest.raises(TokenizerError, match=r"nowhere does not exist; train one"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match=r"'<eot>' is not in its vocabulary"):
        load_tokenizer(bpe_path, end_of_document="<eot>")


def test_training_refuses_nonsense():
    with pytest.raises(UsageError, match="--vocab-size 100 is too small"):
        train_tokenizer(lambda: ["a"], kind="bpe", vocab_size=100)
    with pytest.raises(UsageError, match="kind 'unigram' does not exist"):
        train_tokenizer(lambda: ["a"], kind="unigram", vocab_size=1000)
    with pytest.raises(SourceError, match="holds no text"):
        train_tokenizer(list, kind="wordpiece", vocab_size=1000)


def vocabulary(text: str, vocab_size: int) -> list[str]:
    trained = train_tokenizer(lambda: [text], kind="wordpiece", vocab_size=vocab_size)
    ids = json.loads(trained)["model"]["vocab"]
    assert sorted(ids.values()) == list(range(len(ids)))
    return sorted(ids, key=ids.__getitem__)


def test_a_wordpiece_vocabulary_is_the_same_each_time():
    # equally frequent: which ones are joined is decided by the numbers of the letters inside
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = " ".join("X" + letter for letter in reversed(letters)) + " (x)"
    alphabet = [*("##" + letter for letter in letters), "(", ")", *letters]
    joined = [f"x{letter}" for letter in "abcdefghij"]
    wanted = [*BERT_SPECIALS, *alphabet, *joined]
    assert vocabulary(text, len(wanted)) == wanted
    assert vocabulary(text, len(wanted)) == wanted


def test_a_wordpiece_vocabulary_has_the_most_frequent_letters():
    many = [chr(code) for code in range(0x1400, 0x1400 + 1100)]  # Canadian syllabics and others
    text = "".join(many) + "".join(many[:500]) + " a a a"
    tokens = set(vocabulary(text, 4096))
    letters = {token for token in tokens if len(token) == 1}
    assert len(letters) == 1000
    assert letters >= {"a", *many[:500]}


STRINGS = st.text(
    st.one_of(
        st.sampled_from(" \n\t.,'\"-_!?aAeEsStTdDrR0123456789éß😀日あ한ا\u0301\u200d\u00a0\u3000"),
        st.characters(codec="utf-8", exclude_categories=("Cc",)),
    ),
    max_size=40,
)


@pytest.mark.parametrize(
    ("engine", "fixture"), [("gigatoken", "bpe_path"), ("tokie", "wordpiece_path")]
)
@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces=st.lists(STRINGS, max_size=6))
def test_engines_agree(engine, fixture, request, pieces):
    """What ``auto`` takes gives the ids of ``tokenizers``, also for empty pieces."""
    if engine not in _engines:  # it is checked when it is made: seconds
        loaded = load_tokenizer(request.getfixturevalue(fixture))
        _engines[engine] = (get_engine("auto", loaded), ReferenceEngine(loaded))
    fast, reference = _engines[engine]
    assert fast.name == engine
    raw = [piece.encode() for piece in pieces]
    data = np.frombuffer(b"".join(raw), np.uint8)
    ends = np.cumsum([len(piece) for piece in raw], dtype=np.int64)
    for found, expected in zip(fast.encode(data, ends), reference.encode(data, ends), strict=True):
        np.testing.assert_array_equal(found, expected)


_engines: dict = {}


def test_an_engine_that_disagrees_is_not_used(monkeypatch, bpe_path):
    from data_prep.tokenizer import engines

    class Wrong(ReferenceEngine):
        name = "gigatoken"

        def encode(self, data, ends):
            ids, bounds = super().encode(data, ends)
            return ids[::-1], bounds

    monkeypatch.setattr(engines, "GigatokenEngine", Wrong)
    loaded = load_tokenizer(bpe_path)
    assert get_engine("auto", loaded).name == "tokenizers"
    with pytest.raises(UsageError, match="gives other ids"):
        get_engine("gigatoken", loaded)


def test_unknown_engine(bpe_path):
    with pytest.raises(UsageError, match="engine 'x' does not exist"):
        get_engine("x", load_tokenizer(bpe_path))


def test_a_new_encoder_now_and_then_changes_nothing(monkeypatch, bpe_path):
    from data_prep.tokenizer.gigatoken_engine import GigatokenEngine

    monkeypatch.setattr(GigatokenEngine, "RENEW_BYTES", 20)
    loaded = load_tokenizer(bpe_path)
    engine, reference = GigatokenEngine(loaded), ReferenceEngine(loaded)
    first = engine._encoder
    data = np.frombuffer(b"Dr. Smith went home.", np.uint8)
    for _ in range(4):
        found, expected = (e.encode(data, np.array([9, 20])) for e in (engine, reference))
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
    assert engine._encoder is not first


def test_characters_that_unicode_tables_disagree_on(bpe_path):
    """gigatoken knows Unicode 17, which has letters that are nothing to the library."""
    pieces = [
        "a\U00032f1a\u93f1 b",
        "\u088f\ua7ce x",
        "\u0378 1",
        "\U000e0041\U000f0000 z",
        "plain é",
    ]
    data = np.frombuffer("".join(pieces).encode(), np.uint8)
    ends = np.cumsum([len(piece.encode()) for piece in pieces])
    loaded = load_tokenizer(bpe_path)
    engine, reference = get_engine("gigatoken", loaded), ReferenceEngine(loaded)
    for found, expected in zip(
        engine.encode(data, ends), reference.encode(data, ends), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_file_that_may_not_be_read_is_not_called_broken(bpe_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("denied")

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(TokenizerError, match="cannot be read: no permission; chmod it"):
        load_tokenizer(bpe_path)
