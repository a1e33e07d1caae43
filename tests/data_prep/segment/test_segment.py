"""Segmenters: rules of the default one, the contract of all."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UsageError
from data_prep.segment.segmenters import NAMES, get_segmenter


def sentences(text: str, name: str = "fast") -> list[str]:
    data = np.frombuffer(text.encode(), np.uint8)
    ends, documents = get_segmenter(name).cut(data, np.array([len(data)]))
    assert documents.tolist() == [len(ends)]
    raw, start, found = data.tobytes(), 0, []
    for end in ends.tolist():
        found.append(raw[start:end].decode())
        start = end
    return found


@pytest.mark.parametrize(
    "marked",
    [
        "Hello world.| My name is Jonas.",
        "There it is!| I found it.| What is it?| A cat.",
        "Mr. Smith met Dr. J. R. Jones at 5 p.m. in St. Louis.| They spoke.",
        "He lives in the U.S. now.| The weather is fine in the U.S.| He likes it.",
        "It costs $3.50 or 1.000.000 yen, e.g. at Ford Motor Co. or at Sears Inc.| The end.",
        "He said: “Go home.”| She did.| (They all did.)| Then nothing.",
        'She asked "Why?" and left.| "No!" he said.',
        "See https://a.example.com/x.html?y=1. for more, or www.b.org.| Good.",
        "Wait... what?| I don't know…| You do.| . . .| Well.",
        "First line of a paragraph\n\nSecond paragraph.|\n\nThird".replace("\n\nS", "|\n\nS"),
        "1. Preheat the oven.| 2. Mix it.",
        "Items:|\n- First thing|\n- Second thing",
        "a long line of wrapped text that goes on and on without a stop and is then\n"
        "Continued in the next one.",
        "No. 5 is alive.| See Fig. 3 and pp. 4 to 6.| The answer is no.| Stop.",
        "He was born on Jan. 5.| In Feb. he left.",
        "Ça va?| Été comme hiver.| Да.| Нет.",
        "He has a Ph.D. in chemistry.| You and I.| It is so.",
    ],
)
def test_rules(marked):
    expected = marked.split("|")
    if marked.startswith("Wait"):
        expected = ["Wait... what?", " I don't know…", " You do. . . .", " Well."]
    assert sentences("".join(marked.split("|"))) == expected


TEXTS = st.lists(
    st.sampled_from(
        ["a", "B", "I", "Mr", "1", "U.S", ".", "!", "?", "…", '"', "”", ")", "(", " ", "  ", "\n",
         "\n\n", "\t", "é", "É", "日", "😀", ",", "-", "e.g.", " The", ". "]
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
        assert end in bounds or raw[end : end + 1] in (b" ", b"\t", b"\n")
        start = end


@pytest.mark.parametrize(
    "piece", ["?!", "a", ". ", "\n", "x\n", ". (", "A. ", "!\n\n", "…", "…) ", "1.", '"', "e.g. "]
)
def test_linear_time(piece):
    segmenter = get_segmenter("fast")
    times = []
    for size in (50_000, 400_000):
        data = np.frombuffer((piece * (size // len(piece.encode())) + "x").encode(), np.uint8)
        ends = np.array([len(data)])
        tries = []
        for _ in range(4):
            start = time.thread_time()  # other processes do not count
            segmenter.cut(data, ends)
            tries.append(time.thread_time() - start)
        times.append(min(tries))
    # eight times the text: eight times the time, with much room for noise; quadratic would be 64
    assert times[1] < 30 * times[0] + 0.02


def test_unknown_name():
    with pytest.raises(UsageError, match="'nltk' does not exist; choose from fast"):
        get_segmenter("nltk")
