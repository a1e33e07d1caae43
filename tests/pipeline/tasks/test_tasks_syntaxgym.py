"""Syntactic generalization: suites, regions, surprisals and scores against known answers."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn

from gpst.search.parse import search_text
from pipeline.errors import ConfigError, DataError
from pipeline.tasks import loading, syntactic_generalization
from pipeline.tasks.loading import LoadedModel
from pipeline.tasks.syntactic_generalization.score import (
    circuit_scores,
    evaluate_suites,
    overall,
    suite_scores,
)
from pipeline.tasks.syntactic_generalization.suites import (
    CIRCUITS,
    SuiteError,
    join_regions,
    read_suites,
)
from pipeline.tasks.syntactic_generalization.surprisal import (
    ModelSurprisals,
    TokenSurprisals,
    region_bits,
)


def suite(name: str, formulas: list[str], items: list[dict[str, list[str]]]) -> dict[str, Any]:
    """A suite in SyntaxGym's layout, from the regions' contents by condition."""
    regions = len(next(iter(items[0].values())))
    return {
        "meta": {"name": name, "metric": "sum", "comment": "", "author": ""},
        "region_meta": {str(k + 1): f"region_{k + 1}" for k in range(regions)},
        "predictions": [{"type": "formula", "formula": formula} for formula in formulas],
        "items": [
            {
                "item_number": number,
                "conditions": [
                    {
                        "condition_name": condition,
                        "regions": [
                            {"region_number": k, "content": content}
                            for k, content in enumerate(contents, 1)
                        ],
                    }
                    for condition, contents in item.items()
                ],
            }
            for number, item in enumerate(items, 1)
        ],
    }


AGREEMENT = suite(
    "number_prep",
    ["(2;%match%) < (2;%mismatch%)"],
    [
        {"match": ["The dog", "is", "here."], "mismatch": ["The dog", "are", "here."]},
        {"match": ["The cats", "are", ""], "mismatch": ["The cats", "is", ""]},
        {"match": ["", "is", ""], "mismatch": ["", "am", ""]},
    ],
)
PATHS = suite(
    "npz_obj",
    [
        "[(4;%plain%) > (4;%comma%)] & [(2;%comma%) = 3]",
        "(*;%plain%) = 12",
    ],
    [
        {"plain": ["As he ", "", " ran", "fell"], "comma": ["As he ", ",", " ran", "fell ."]},
        {"plain": ["As he he", "", " ran", "is"], "comma": ["As he he", ",", " ran", "am ."]},
    ],
)
ALONE = suite("my-own", ["(1;%a%) > (2;%a%)"], [{"a": ["is", "am"]}])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "suites"
    path.mkdir()
    for content in (AGREEMENT, PATHS, ALONE):
        (path / f"{content['meta']['name']}.json").write_text(json.dumps(content))
    (path / "notes.txt").write_text("no suite")
    return path


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


def test_pieces_of_words_belong_to_the_region_they_begin_in(byte_bpe: Callable) -> None:
    tokenizer = byte_bpe([("Ġ", "d"), ("o", "g"), ("Ġd", "og")])
    text = join_regions([(1, "a dog"), (2, ""), (3, "dé"), (4, ".")])
    encoding = tokenizer.encode(text.text)
    assert encoding.tokens == ["a", "Ġdog", "Ġd", "Ã", "©", "Ġ", "."]
    bits = tuple(float(2**k) for k in range(7))

    found, crossing = region_bits(text, TokenSurprisals(tuple(encoding.offsets), bits))

    # The lone space goes with the full stop that it stands before.
    assert found == {1: 1.0 + 2.0, 2: 0.0, 3: 4.0 + 8.0 + 16.0, 4: 32.0 + 64.0}
    assert crossing == 0


def test_a_token_over_two_regions_counts_where_it_begins_and_is_counted() -> None:
    text = join_regions([(1, "ab"), (2, "cd")])

    found, crossing = region_bits(text, TokenSurprisals(((0, 1), (1, 4), (4, 5)), (1.0, 2.0, 4.0)))

    assert found == {1: 3.0, 2: 4.0}
    assert crossing == 1


def test_gpt2_surprisals_are_those_of_single_texts(tiny_gpt2: Callable, pieces: Tokenizer) -> None:
    model = tiny_gpt2(pieces.get_vocab_size())
    texts = ["the dog.", "a", "the cat, the dog", "no dog is a cat"]
    done: list[int] = []

    found = ModelSurprisals(model, pieces, batch_tokens=12, progress=done.append)(texts)

    assert sum(done) == 4
    assert len(done) > 1
    for text, own in zip(texts, found, strict=True):
        ids = pieces.encode(text).ids
        assert own.spans == tuple(pieces.encode(text).offsets)
        with torch.no_grad():
            log_p = F.log_softmax(model.gpt2(torch.tensor([[0, *ids[:-1]]])).logits[0], -1)
        direct = [-float(log_p[k, token]) / math.log(2) for k, token in enumerate(ids)]
        assert own.bits == pytest.approx(direct, rel=1e-4)
        assert len(set(own.bits)) == len(ids)


def test_gpst_surprisals_are_ratios_of_prefix_probabilities(
    tiny_gpst: Callable, pieces: Tokenizer
) -> None:
    model = tiny_gpst(pieces.get_vocab_size())
    texts = ["the dog.", "a", "the cat"]

    found = ModelSurprisals(model, pieces, beam=50, batch_tokens=9)(texts)
    narrow = ModelSurprisals(model, pieces, beam=1)(texts)

    for text, own in zip(texts, found, strict=True):
        alone = search_text(model, [[pieces.encode(text).ids]], beam=50)[0]
        assert alone.prefix_log_p is not None
        assert own.bits == pytest.approx(alone.surprisals.tolist(), rel=1e-4)
        assert sum(own.bits) == pytest.approx(-alone.prefix_log_p[-1] / math.log(2), rel=1e-4)
    assert sum(narrow[0].bits) > sum(found[0].bits)


def test_texts_that_do_not_fit_the_model_are_named(tiny_gpt2: Callable, pieces: Tokenizer) -> None:
    surprisals = ModelSurprisals(tiny_gpt2(pieces.get_vocab_size()), pieces)

    with pytest.raises(DataError, match=r"'x y x.* has 80 tokens; the model takes 1 to 64"):
        surprisals(["a", "x y " * 40])
    with pytest.raises(DataError, match=r"'' has 0 tokens"):
        surprisals([""])
    other: Any = nn.Identity()
    other.config = surprisals._model.config
    with pytest.raises(ConfigError, match="no surprisals for a Identity"):
        ModelSurprisals(other, pieces)


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


def command(*arguments: str) -> int:
    parser = ArgumentParser()
    syntactic_generalization.add_arguments(parser)
    return syntactic_generalization.run(parser.parse_args(arguments))


@pytest.mark.parametrize("kind", ["gpst", "gpt2"])
def test_command_writes_results_predictions_and_tables(
    kind: str,
    folder: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = request.getfixturevalue(f"tiny_{kind}")(pieces.get_vocab_size())
    loaded = LoadedModel(model, pieces, "models/tiny", "f" * 64)
    monkeypatch.setattr(loading, "load_model", lambda path, device: loaded)
    config = tmp_path / "options.yaml"
    config.write_text(f"suites: {folder}\nbeam: 7\nmodel: [models/tiny]\n")
    output = tmp_path / "out"

    assert command("--config", str(config), "--output", str(output), "--beam", "5") == 0

    results = json.loads((output / "results.json").read_text())
    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert results["options"]["beam"] == 5
    (run,) = results["runs"]
    assert run["model"] == {"path": "models/tiny", "fingerprint": "f" * 64}
    assert run["suites"]["number_prep"]["num_items"] == 3
    assert len(lines) == 6
    # The score follows from the predictions.
    own = [line for line in lines if line["suite"] == "number_prep"]
    passed = [line["bits"]["match"]["2"] < line["bits"]["mismatch"]["2"] for line in own]
    assert [line["passes"] for line in own] == passed
    assert run["circuits"]["Agreement"] == pytest.approx(100 * sum(passed) / 3)
    assert results["circuits"]["Agreement"] == {
        "mean": pytest.approx(100 * sum(passed) / 3),
        "deviation": 0.0,
    }
    assert results["score"]["mean"] is run["score"] is None
    shown = capsys.readouterr().out
    for name in CIRCUITS:
        assert name in shown
    assert "The mean needs suites of all circuits." in shown


def test_several_models_give_mean_and_deviation(
    folder: Path,
    tmp_path: Path,
    tiny_gpt2: Callable,
    pieces: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny_gpt2(pieces.get_vocab_size())
    monkeypatch.setattr(
        loading, "load_model", lambda path, device: LoadedModel(model, pieces, path, path)
    )
    output = tmp_path / "out"

    command("--model", "a", "b", "--suites", str(folder), "--output", str(output))

    results = json.loads((output / "results.json").read_text())
    lines = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    assert [run["model"]["fingerprint"] for run in results["runs"]] == ["a", "b"]
    assert [line["model"] for line in lines] == ["a"] * 6 + ["b"] * 6
    assert "deviation" in capsys.readouterr().out

    some = dict.fromkeys(CIRCUITS, 40.0)
    none = {"score": None, "circuits": dict.fromkeys(CIRCUITS)}
    runs = [
        {"score": 40.0, "circuits": some, "first_formula": none},
        {"score": 50.0, "circuits": some | {"Licensing": 43.0}, "first_formula": none},
    ]
    found = syntactic_generalization.over_models(runs)
    assert found["score"] == {"mean": 45.0, "deviation": 5.0}
    assert found["circuits"]["Licensing"] == {"mean": 41.5, "deviation": 1.5}
    assert found["first_formula"]["score"] == {"mean": None, "deviation": None}


def test_command_line_is_checked(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model is missing"):
        command("--suites", str(folder))
    with pytest.raises(ConfigError, match="--suites is missing"):
        command("--model", "x")
    with pytest.raises(ConfigError, match="beam: 0 is not allowed"):
        command("--model", "x", "--suites", str(folder), "--beam", "0")
    output = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="no such folder"):
        command("--model", str(tmp_path / "x"), "--suites", str(folder), "--output", output)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        command("--model", "x", "--suites", "y", "--output", str(tmp_path / "file" / "out"))
    (tmp_path / "bad.yaml").write_text("beams: 3\n")
    with pytest.raises(ConfigError, match="unknown field beams; did you mean beam"):
        command("--config", str(tmp_path / "bad.yaml"))


def test_only_the_first_items_are_read(folder: Path) -> None:
    short = [syntactic_generalization.first_items(s, 1) for s in read_suites(folder)]

    assert [len(s.items) for s in short] == [1, 1, 1]
