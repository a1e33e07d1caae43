"""Syntactic generalization: suites, regions and scores against known answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_suites import AGREEMENT, ALONE, write_suites

from pipeline.errors import DataError
from pipeline.evaluate.syntaxgym import evaluation as syntactic_generalization
from pipeline.evaluate.syntaxgym.score import circuit_scores, evaluate_suites, overall, suite_scores
from pipeline.evaluate.syntaxgym.suites import CIRCUITS, SuiteError, join_regions, read_suites
from pipeline.evaluate.syntaxgym.surprisal import TokenSurprisals


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_suites(tmp_path / "suites")


class KnownModel:
    """A language model whose tokens are words and whose surprisals are in a table."""

    def __init__(self) -> None:
        self.bits = {"is": 2.0, "are": 5.0, "am": 1.0, ",": 3.0, "fell": 4.0, ".": 0.5}
        self.read: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[TokenSurprisals]:
        self.read += texts
        found = []
        for text in texts:
            spans, bits, at = [], [], 0
            for number, word in enumerate(text.split(" ")):
                # As byte-level tokens do, a token takes the space before it.
                spans.append((max(0, at - 1), at + len(word)))
                # "fell" costs 1 bit less for every word before it.
                bits.append(self.bits.get(word, 2.0) - (number if word == "fell" else 0))
                at += len(word) + 1
            found.append(TokenSurprisals(tuple(spans), tuple(bits)))
        return found


def test_known_surprisals_give_known_scores(folder: Path) -> None:
    suites = read_suites(folder)
    model = KnownModel()

    results, crossing = evaluate_suites(suites, model)

    by_name = {(r.suite, r.number): r for r in results}
    # is 2 < are 5; are 5 < is 2 fails; is 2 < am 1 fails.
    assert [by_name["number_prep", n].passes for n in (1, 2, 3)] == [True, False, False]
    assert by_name["number_prep", 1].bits == {
        "match": {1: 4.0, 2: 2.0, 3: 2.0},
        "mismatch": {1: 4.0, 2: 5.0, 3: 2.0},
    }
    # Item 1: fell 4 - 3 = 1 without a comma, 4 - 4 + 0.5 = 0.5 after one, the comma 3; in all
    # 2 + 2 + 2 + 1 = 7, not 12. Item 2: is 2 against am 1 and 0.5; in all 2 * 4 + 2 = 10.
    assert by_name["npz_obj", 1].bits["comma"] == {1: 4.0, 2: 3.0, 3: 2.0, 4: 0.5}
    assert by_name["npz_obj", 1].formulas == (True, False)
    assert by_name["npz_obj", 2].formulas == (True, False)
    assert by_name["npz_obj", 2].bits["plain"][2] == 0.0
    assert by_name["my-own", 1].passes
    assert crossing == 0
    assert len(model.read) == len(set(model.read)) == 11

    scores = suite_scores(suites, results)
    assert scores["number_prep"].score == pytest.approx(100 / 3)
    assert (scores["npz_obj"].score, scores["npz_obj"].formulas) == (0.0, (100.0, 0.0))
    circuits = circuit_scores(scores)
    assert circuits["Agreement"] == pytest.approx(100 / 3)
    assert circuits["Garden-Path Effects"] == 0.0
    assert circuits["Licensing"] is None
    assert overall(circuits) is None
    assert circuit_scores(scores, first_formula=True)["Garden-Path Effects"] == 100.0
    full = dict.fromkeys(CIRCUITS, 50.0) | {"Agreement": 80.0}
    assert overall(full) == pytest.approx(55.0)


@pytest.mark.parametrize(
    ("name", "circuit"),
    [
        ("number_orc", "Agreement"),
        ("center_embed_mod", "Center Embedding"),
        ("npz_ambig", "Garden-Path Effects"),
        ("mvrr", "Garden-Path Effects"),
        ("subordination_pp-pp", "Gross Syntactic Expectation"),
        ("npi_orc_any", "Licensing"),
        ("reflexive_prep_fem", "Licensing"),
        ("fgd-embed3", "Long-Distance Dependencies"),
        ("fgd_pp", "Long-Distance Dependencies"),
        ("cleft_modifier", "Long-Distance Dependencies"),
        ("nn-nv-rpl", None),
    ],
)
def test_suites_know_their_circuit(tmp_path: Path, name: str, circuit: str | None) -> None:
    (tmp_path / "x.json").write_text(json.dumps(ALONE | {"meta": {"name": name, "metric": "sum"}}))

    assert read_suites(tmp_path / "x.json")[0].circuit == circuit


def test_regions_are_stripped_and_joined_unless_empty() -> None:
    text = join_regions([(1, ""), (2, " As he"), (3, ""), (4, ","), (5, "ran  away ."), (6, "")])

    assert text.text == "As he , ran away ."
    assert text.regions == ((1, 0, 0), (2, 0, 5), (3, 5, 5), (4, 6, 7), (5, 8, 18), (6, 18, 18))
    attached = join_regions([(1, "As he"), (2, ""), (3, ", she ran ."), (4, "?")], True)
    assert attached.text == "As he, she ran.?"
    assert [attached.text[i:j] for _, i, j in attached.regions] == ["As he", "", ", she ran.", "?"]


def broken(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    copy = json.loads(json.dumps(AGREEMENT))
    change(copy)
    return copy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["meta"].update(metric="mean"), "metric 'mean' is not known"),
        (lambda s: s.pop("items"), "not in SyntaxGym's format"),
        (lambda s: s["items"].clear(), "no items or no predictions"),
        (lambda s: s["predictions"].clear(), "no items or no predictions"),
        (lambda s: s["predictions"][0].update(formula="(2;%match%)"), "compares nothing"),
        (lambda s: s["predictions"][0].update(formula="(9;%match%) > 0"), "has no region 9"),
        (
            lambda s: s["predictions"][0].update(formula="0 > 1 & (2;%mach%) > 0"),
            "item 1: formula '0 > 1 & .*': there is no condition 'mach'",
        ),
        (
            lambda s: s["items"][2]["conditions"][0]["regions"][1].update(content=" "),
            "item 3, match: has no text",
        ),
    ],
)
def test_broken_suites_are_named(tmp_path: Path, change: Callable, message: str) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(broken(change)))

    with pytest.raises(DataError, match=message) as caught:
        read_suites(tmp_path)
    assert str(caught.value).startswith(f"suite {tmp_path / 'bad.json'}: ")


def test_missing_suites_are_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"holds no \.json files"):
        read_suites(tmp_path)
    with pytest.raises(SuiteError, match="cannot be read"):
        read_suites(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(SuiteError, match="is not JSON"):
        read_suites(tmp_path)


def test_only_the_first_items_are_read(folder: Path) -> None:
    short = [syntactic_generalization.first_items(s, 1) for s in read_suites(folder)]

    assert [len(s.items) for s in short] == [1, 1, 1]
