"""The authors' values, all of them, from their weights as `launch/convert.sh` exports them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from authors_values import BOS, CASES, HEADS, AuthorsValues, authors_values
from slow_gpst import SlowLosses
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

import gpst.integrations.transformers
from gpst.batch import ContextBatch
from gpst.export.huggingface import open_model
from gpst.integrations.released_weights.read import convert as converted
from gpst.model.gpst import GPSTModel
from pipeline.cli import convert


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    words = Tokenizer(models.WordLevel({f"w{k}": k for k in range(97)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "w0", "eos_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def values(case: str) -> AuthorsValues:
    return authors_values(case)


@pytest.fixture
def export(tmp_path: Path, tokenizer: Path, values: AuthorsValues, capsys) -> Path:
    """The folder that `from-reference` makes; its report is checked."""
    torch.save(values.tensors, tmp_path / "model.bin")
    argv = ["from-reference", tmp_path / "model.bin", tmp_path / "ours", "--tokenizer", tokenizer]
    code = convert.main([*map(str, argv), "--num-heads", *map(str, HEADS)])
    out, err = capsys.readouterr()
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines()[1:]]
    assert {row[0] for row in rows} == set(values.tensors)
    # The head is the embedding itself; a constant on all boundary scores changes nothing.
    assert [(row[0], row[3]) for row in rows if row[2] == "-"] == [
        ("classifier.weight", "tied to embeddings.weight"),
        ("r2d2.parser.score_mlp.3.bias", "not used: no order sees it"),
    ]
    assert "2 of them not needed" in err
    return tmp_path / "ours"


@pytest.mark.parametrize("way", ["gpst", "transformers"])
@torch.no_grad()
def test_the_export_has_the_authors_values(case, values: AuthorsValues, export: Path, way: str):
    if way == "gpst":
        model = open_model(export).model()
    else:
        assert gpst.integrations.transformers.GPSTForCausalLM is not None  # registers
        model = AutoModelForCausalLM.from_pretrained(export).eval().gpst
    assert isinstance(model, GPSTModel)
    batch = ContextBatch.from_sentences(values.contexts)
    output, counts = model(batch), batch.counts
    for name, expected in values.losses.items():
        units = {"type": counts.actions, "parser": counts.splits}.get(name, counts.tokens)
        assert float(output.losses[name].sum) / units == pytest.approx(expected, abs=1e-5), name
    log_p = torch.log_softmax(output.features @ model.embedding.weight.T, 1)
    of_tokens = log_p.gather(1, batch.tokens[:, None]).squeeze(1)
    expected = torch.tensor([value for context in values.log_p for value in context])
    tolerance = 1e-5 if case == "plain" else 1e-4
    torch.testing.assert_close(of_tokens, expected, atol=tolerance, rtol=0)
    scores = model.parser(batch).split(batch.sentence_lengths.tolist())
    for found, wanted in zip(scores, values.parser_scores, strict=True):
        torch.testing.assert_close(found[:-1], torch.tensor(wanted), atol=1e-5, rtol=0)
    for tree, spans in zip(model.induced_trees(batch), values.spans, strict=True):
        assert {(i, j) for i, j in tree.spans if i < j} == spans


@torch.no_grad()
def test_the_oracle_has_the_authors_values(values: AuthorsValues):
    found = converted(values.tensors, bos_token_id=BOS, heads=HEADS)
    model = GPSTModel(found.config)
    model.load_state_dict(found.weights)
    slow = SlowLosses(model.double().eval(), values.contexts)
    counts = ContextBatch.from_sentences(values.contexts).counts
    for name, total in (slow.composition_side() | slow.auto_regression()).items():
        if name in values.losses:  # the authors average heights over other pairs
            units = {"type": counts.actions, "parser": counts.splits}.get(name, counts.tokens)
            assert float(total) / units == pytest.approx(values.losses[name], abs=1e-5), name
