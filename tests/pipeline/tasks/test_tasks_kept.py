"""An interrupted evaluation of surprisals goes on from what it has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.tasks.syntactic_generalization import kept
from pipeline.tasks.syntactic_generalization.kept import KeptSurprisals
from pipeline.tasks.syntactic_generalization.surprisal import TokenSurprisals


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


def test_an_interrupted_evaluation_goes_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kept, "_CHUNK_TEXTS", 1)
    file = tmp_path / "surprisals.jsonl"
    stopped = Counting(stop_before="ccc")
    with pytest.raises(KeyboardInterrupt):
        KeptSurprisals(stopped, file, "model 1")(TEXTS)
    assert stopped.read == ["a", "bb"]
    with open(file, "a") as lines:
        lines.write('{"key": "model 1", "text": "ccc", "spa')  # a kill in the middle of a line

    again, done = Counting(), []
    found = KeptSurprisals(again, file, "model 1", done.append)(TEXTS)
    assert again.read == ["ccc"]
    assert done == [2]
    assert [one.bits for one in found] == [(3.0,), (1.0,), (2.0,), (1.0,)]
    assert found[0].spans == ((0, 3),)
    nothing = Counting()
    assert KeptSurprisals(nothing, file, "model 1")(TEXTS) == found
    assert nothing.read == []


def test_another_model_or_beam_reads_all_again(tmp_path: Path) -> None:
    file = tmp_path / "surprisals.jsonl"
    KeptSurprisals(Counting(), file, "model 1")(TEXTS)
    other = Counting()
    KeptSurprisals(other, file, "model 2")(TEXTS)
    assert sorted(other.read) == ["a", "bb", "ccc"]
