"""An interrupted evaluation of surprisals goes on from what it has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.evaluate.result_cache import ResultCache
from pipeline.evaluate.syntaxgym.result_cache import CachedSurprisals
from pipeline.evaluate.syntaxgym.surprisal import TokenSurprisals


class Counting:
    """A model that says how long a text is, and may be interrupted."""

    def __init__(self, stop_before: str | None = None):
        self.read: list[str] = []
        self.stop_before = stop_before

    def __call__(self, texts):
        if self.stop_before in texts:
            raise KeyboardInterrupt
        self.read += texts
        return [TokenSurprisals(((0, len(text)),), (float(len(text)),)) for text in texts]


TEXTS = ["ccc", "a", "bb", "a"]


def test_an_interrupted_evaluation_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    stopped = Counting(stop_before="ccc")
    with pytest.raises(KeyboardInterrupt):
        CachedSurprisals(stopped, ResultCache(file, "model 1"), 1)(TEXTS)
    assert stopped.read == ["a", "bb"]
    with open(file, "a") as lines:
        lines.write('{"key": "model 1", "item": "ccc", "val')  # a kill in the middle of a line

    again, done = Counting(), []
    found = CachedSurprisals(again, ResultCache(file, "model 1"), 1, done.append)(TEXTS)
    assert again.read == ["ccc"]
    assert done == [2]
    assert [one.bits for one in found] == [(3.0,), (1.0,), (2.0,), (1.0,)]
    assert found[0].spans == ((0, 3),)
    nothing = Counting()
    assert CachedSurprisals(nothing, ResultCache(file, "model 1"), 1)(TEXTS) == found
    assert nothing.read == []


def test_another_model_or_beam_reads_all_again(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    CachedSurprisals(Counting(), ResultCache(file, "model 1"), 1)(TEXTS)
    other = Counting()
    CachedSurprisals(other, ResultCache(file, "model 2"), 1)(TEXTS)
    assert sorted(other.read) == ["a", "bb", "ccc"]


def test_values_come_back_as_they_were_and_foreign_lines_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text(
        '[1]\n{"key": "k", "text": "older form"}\n{"key": "other", "item": "a", "value": 1}\n'
    )
    first = ResultCache(file, "k")
    assert first.entries == {}
    first.add({"a": (1, 0.1), "b": {"x": float("inf")}})
    assert first["a"] == [1, 0.1]
    again = ResultCache(file, "k")
    assert again.entries == first.entries == {"a": [1, 0.1], "b": {"x": float("inf")}}
    assert "b" in again
    assert "c" not in again
    assert ResultCache(file, "other")["a"] == 1


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    gone = ResultCache(tmp_path / "gone" / "kept.jsonl", "k")
    with pytest.raises(DataError, match=r"gone/kept\.jsonl: cannot be written \(No such file"):
        gone.add({"a": 1})
