"""Encoding: the tokens are those of the whole text, whatever the sentences, engines and pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.build.encode import Encoder
from data_prep.segment.segmenters import get_segmenter
from data_prep.tokenizer.engines import get_engine
from data_prep.tokenizer.load import load_tokenizer
from data_prep.tokenizer.reference import ReferenceEngine

TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["Mr. ", "a", " ", "\n\n", "\n", ". ", "! ", "… ", "“Q.” ", "x" * 60]),
        st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), max_size=6),
    ),
    max_size=25,
).map(lambda parts: "".join(parts).removeprefix("\ufeff").strip(" \n\t"))  # fmt: skip


@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(documents=st.lists(TEXTS.filter(bool), min_size=1, max_size=4), limit=st.integers(2, 9))
def test_tokens_are_those_of_the_whole_text(bpe_path, engine, documents, limit):
    """Sentences joined are the document's tokens; they decode to its text; none is too long."""
    loaded = load_tokenizer(bpe_path)
    if engine not in _engines:  # it is checked when it is made: seconds
        _engines[engine] = get_engine(engine, loaded)
    encoder = Encoder(loaded, _engines[engine], get_segmenter("fast"), limit)
    tokens = _lay_out(encoder, documents)
    reference = loaded.reference()
    start = 0
    for document, size in zip(documents, tokens.document_tokens.tolist(), strict=True):
        ids = tokens.tokens[start : start + size].tolist()
        assert ids == [*reference.encode(document).ids, loaded.end_of_document_id]
        assert reference.decode(ids[:-1], skip_special_tokens=False) == document
        start += size
    lengths = np.diff(tokens.sentence_ends, prepend=0)
    assert lengths.max() <= limit
    assert lengths.min() >= 1
    assert lengths.sum() == len(tokens.tokens)
    assert tokens.document_sentences.sum() == len(lengths)


_engines: dict = {}


def _lay_out(encoder, documents):
    data = np.frombuffer("".join(documents).encode(), np.uint8)
    ends = np.cumsum([len(d.encode()) for d in documents])
    return encoder.layout(encoder.encode(data, ends), np.ones(len(documents), np.bool_))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(documents=st.lists(TEXTS.filter(bool), min_size=1, max_size=3))
def test_wordpiece_tokens_are_those_of_the_whole_text(wordpiece_path, documents):
    loaded = load_tokenizer(wordpiece_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 256)
    tokens = _lay_out(encoder, documents)
    reference, start = loaded.reference(), 0
    for document, size in zip(documents, tokens.document_tokens.tolist(), strict=True):
        expected = reference.encode(document, add_special_tokens=False).ids
        assert tokens.tokens[start : start + size].tolist() == expected + [3] * bool(expected)
        start += size


def test_other_tokenizers_use_offsets(tmp_path):
    """A tokenizer that marks words with a prefix: sentences are cut by the offsets."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "</s>", "▁One", "▁two", ".", "▁É", "▁Three"]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 256)
    tokens = _lay_out(encoder, ["One two. Three É two.", "É. One"])
    assert loaded.kind == "other"
    expected = loaded.reference().encode("One two. Three É two.").ids
    assert tokens.tokens.tolist()[: len(expected)] == expected
    assert tokens.document_sentences.tolist() == [3, 3]


def test_long_sentences_are_cut_at_words(bpe_path):
    loaded = load_tokenizer(bpe_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 8)
    tokens = _lay_out(encoder, ["went " * 30 + "z" * 40])
    sentences = np.split(tokens.tokens, tokens.sentence_ends[:-1])
    pieces = [loaded.reference().decode(p.tolist()) for p in sentences]
    assert all(p.startswith(" ") for p in pieces[1:5])
    assert tokens.num_cut >= 4
    assert tokens.num_cut_words >= 4


def test_long_documents_are_encoded_in_pieces(bpe_path, monkeypatch):
    from data_prep.tokenizer import pieces

    monkeypatch.setattr(pieces, "PIECE_BYTES", 50)
    loaded = load_tokenizer(bpe_path)
    encoder = Encoder(loaded, ReferenceEngine(loaded), get_segmenter("fast"), 256)
    document = "Dr. Smith went to Washington,  and\n\nstayed. " * 30 + "end"
    tokens = _lay_out(encoder, [document])
    assert tokens.tokens.tolist()[:-1] == loaded.reference().encode(document).ids
    assert encoder.num_forced == 0
