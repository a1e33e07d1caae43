"""Starting from the weights of another run, and what is checked when a checkpoint is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from episodes import play

from gpst.export.huggingface import export
from gpst.model.build import build_model
from pipeline.checkpoint.files import list_checkpoints, whole_checkpoint
from pipeline.checkpoint.manager import load_init_weights, load_model_weights
from pipeline.config.run import load_config
from pipeline.engine.saved_state import SavedState
from pipeline.errors import CheckpointError, ConfigError, DataError
from pipeline.train.preflight import check_run
from pipeline.train.reload_check import NextBatchLoss


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], value) for name, value in expected.items()
    )


@pytest.mark.dist
def test_weights_alone_go_into_another_run(toy_config, tmp_path):
    first, second = tmp_path / "run", tmp_path / "second"
    new = [f"run_dir={second}", f"checkpoint.init_from={first}", "engine.precision=bf16"]
    still = "optim={learning_rate: 0.0, parser_learning_rate: 0.0}"
    other = [f"run_dir={tmp_path / 'third'}", f"checkpoint.init_from={first}"]
    episodes: list[dict[str, Any]] = [
        {"overrides": ["engine.zero_stage=3", "train.stop_at_step=3"], "ranks": 2},
        # Nothing moves at a learning rate of 0: what was begun from is what is saved.
        {"overrides": [*new, still, "train.stop_at_step=1"]},
        {"overrides": [*new, "train.stop_at_step=2"]},
        {"overrides": [*other, "model.composition.dim=32"]},
        {"overrides": ["engine.precision=bf16"]},
    ]
    seen = play(tmp_path, toy_config, episodes)
    assert [episode["codes"] for episode in seen] == [[0, 0], [0], [0], [2], [2]], seen
    # bf16 has the fp32 weights as its masters only as far as bf16 reaches.
    given, begun = load_model_weights(first)[1], list_checkpoints(second / "checkpoints")[0]
    assert same(load_model_weights(begun)[1], {n: w.bfloat16().float() for n, w in given.items()})
    assert whole_checkpoint(begun)[1].step == 1
    assert f"resumed from {begun}" in seen[2]["err"][0]  # and not begun again
    assert "checkpoint.init_from" in seen[3]["err"][0]
    assert "is [64] there and [128] here" in seen[3]["err"][0]
    assert "engine.precision" in seen[4]["err"][0]
    assert (
        f"checkpoint.init_from={list_checkpoints(first / 'checkpoints')[-1]}" in seen[4]["err"][0]
    )
    # An exported model serves as well.
    config = check_run(load_config(toy_config), 1).config
    tokenizer = Path(str(config.data.path)) / "tokenizer"
    export(tmp_path / "exported", config.model, given, tokenizer, 0)
    model = build_model(config.model)
    load_init_weights(model, str(tmp_path / "exported"))
    assert same(model.state_dict(), given)


def test_weights_of_other_tokens_are_refused(toy_config, tmp_path):
    """Two tokenizers of one size: every tensor fits, and the model is nonsense."""
    config = check_run(load_config(toy_config), 1).config
    model, source = build_model(config.model), str(tmp_path / "exported")
    own = Path(str(config.data.path)) / "tokenizer"
    export(source, config.model, model.state_dict(), own, 0)
    other = tmp_path / "other"
    other.mkdir()
    definition = json.loads((own / "tokenizer.json").read_text())
    words = list(definition["model"]["vocab"])
    definition["model"]["vocab"] = {word: n for n, word in enumerate([words[0], *words[:0:-1]])}
    (other / "tokenizer.json").write_text(json.dumps(definition))
    load_init_weights(model, source, own)
    with pytest.raises(ConfigError) as caught:
        load_init_weights(model, source, other)
    assert str(caught.value).startswith(f"checkpoint.init_from: {source} has another tokenizer (")
    assert f"than the data ({other})" in str(caught.value)
    load_init_weights(model, source, tmp_path)  # no tokenizer there: nothing to compare
    (other / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=rf"{other}/tokenizer.json: .*; copy it again"):
        load_init_weights(model, source, other)


def test_nothing_to_start_from(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        load_init_weights(torch.nn.Linear(1, 1), str(tmp_path))
    with pytest.raises(ConfigError, match=r"checkpoint\.init_from"):
        load_config_with(tmp_path, "")


def load_config_with(tmp_path: Path, init_from: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "{run_dir: r, model: {kind: gpst}, data: {path: d}, train: {num_steps: 1}, "
        f"checkpoint: {{init_from: '{init_from}'}}}}"
    )
    load_config(file)


class _Known(NextBatchLoss):
    """Finds a loss that is known."""

    def __init__(self, config, loss: float | None):
        super().__init__(SimpleNamespace(config=config), None)  # type: ignore[arg-type]
        self._loss = loss

    def loss(self, engine, step):
        return self._loss


@pytest.mark.parametrize(
    ("precision", "saved", "loaded", "fits"),
    [
        ("fp32", 5.0, 5.0, True),
        ("fp32", 5.0, 5.001, True),
        ("fp32", 5.0, 5.1, False),
        ("bf16", 5.0, 5.05, True),
        ("bf16", 5.0, 5.5, False),
        ("fp32", 5.0, None, False),
        ("fp32", None, 5.0, True),
    ],
)
def test_the_loss_of_the_next_batch_tells_a_wrong_model(
    toy_config, tmp_path, precision, saved, loaded, fits
):
    probe = _Known(load_config(toy_config, [f"engine.precision={precision}"]), loaded)
    arguments: Any = (None, 3, saved, tmp_path / "step-000000003")
    if fits:
        probe.check(*arguments)
        return
    with pytest.raises(CheckpointError, match=r"step-000000003: the loss of the next batch is"):
        probe.check(*arguments)


def test_files_of_another_layout_are_refused_by_name(tmp_path):
    torch.save({"module": {}}, tmp_path / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: its files are not as this DeepSpeed"):
        SavedState(tmp_path)
