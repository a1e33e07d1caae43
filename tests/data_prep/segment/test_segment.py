"""Segmenters: the contract of all; the compiled rules are those that test_rules.py tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UsageError
from data_prep.segment.segmenters import NAMES, get_segmenter


def sentences(text: str, name: str = "fast", language: str = "en") -> list[str]:
    data = np.frombuffer(text.encode(), np.uint8)
    ends, documents = get_segmenter(name, language).cut(data, np.array([len(data)]))
    assert documents.tolist() == [len(ends)]
    raw, start, found = data.tobytes(), 0, []
    for end in ends.tolist():
        found.append(raw[start:end].decode())
        start = end
    return found


TEXTS = st.lists(
    st.sampled_from(
        ["a", "B", "I", "Mr", "1", "U.S", ".", "!", "?", "…", '"', "”", ")", "(", " ", "  ", "\n",
         "\n\n", "\t", "é", "É", "日", "😀", ",", "-", "e.g.", " The", ". ",
         "。", "！", "本", "の", "।", "؟"]
    ),
    min_size=1,
    max_size=40,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=100)
@given(documents=st.lists(TEXTS.filter(lambda t: t.strip()), min_size=1, max_size=4))
def test_contract(name, documents):
    """Cuts partition every document, fall before white space, and leave no blank sentence."""
    documents = [text.strip() for text in documents]
    data = np.frombuffer("".join(documents).encode(), np.uint8)
    bounds = np.cumsum([len(text.encode()) for text in documents])
    ends, counts = get_segmenter(name).cut(data, bounds)
    assert (np.diff(ends, prepend=0) > 0).all()
    assert ends[counts - 1].tolist() == bounds.tolist()
    raw, start = data.tobytes(), 0
    for end in ends.tolist():
        assert raw[start:end].strip(b" \t\n")
        behind_wide_stop = raw[:end].decode().rstrip('"”)-।؟')[-1:] in tuple("。！？!?")
        assert end in bounds or raw[end : end + 1] in (b" ", b"\t", b"\n") or behind_wide_stop
        start = end


@settings(deadline=None, max_examples=100)
@given(text=TEXTS.map(str.strip).filter(bool), language=st.sampled_from(["en", "de", "zh"]))
def test_compiled_rules_are_the_plain_ones(text, language, cut_plainly):
    assert sentences(text, language=language) == cut_plainly(text, language)[0]


def test_unknown_language():
    with pytest.raises(UsageError, match="language 'xx' is not known; choose from ar, de, en"):
        get_segmenter("fast", "xx")
    with pytest.raises(UsageError, match="nupunkt does not know language de"):
        get_segmenter("nupunkt", "de")
    assert sentences("Am 3. Mai kam er. Gut.", "punkt", "de") == ["Am 3. Mai kam er.", " Gut."]
    assert sentences("Was? Gut.", "sentencex", "de") == ["Was?", " Gut."]


def test_unknown_name():
    with pytest.raises(UsageError, match="'nltk' does not exist; choose from fast"):
        get_segmenter("nltk")
