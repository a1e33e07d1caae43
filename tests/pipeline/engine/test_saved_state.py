"""What is read from DeepSpeed's files, which are written by hand in each stage's layout."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from saved_layouts import KINDS, SHAPES, STEP, WRITERS, saved_in, values

from pipeline.engine.saved_state import WEIGHT, SavedState
from pipeline.errors import CheckpointError


@pytest.fixture(params=WRITERS)
def saved(request, tmp_path) -> SavedState:
    return saved_in(tmp_path, request.param)


def test_every_layout_gives_the_same_parameters(saved):
    assert saved.shapes == SHAPES
    assert saved.adam_step == STEP
    for name, shape in SHAPES.items():
        for kind in KINDS:
            assert torch.equal(saved.whole(name, kind), values(name, kind).view(shape)), (
                name,
                kind,
            )


def test_parts_may_cross_ranks_and_end_in_padding(saved):
    assert saved.part("a", WEIGHT, 1, 4).tolist() == [2.0, 3.0, 4.0, 5.0]
    assert saved.part("a", "exp_avg", 4, 1).tolist() == [1005.0]
    assert saved.part("a", WEIGHT, 3, 3).tolist() == [4.0, 5.0, 0.0]
    assert saved.part("b", WEIGHT, 1, 1).tolist() == [0.0]
    assert saved.part("b", WEIGHT, 5, 2).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("stage", [0, 2])
def test_tied_parameters_are_told_and_share_their_storage(stage, tmp_path):
    saved = saved_in(tmp_path, stage)
    assert saved.tied == {"tied": "c"}
    weights = dict(saved.weights())
    assert set(weights) == {*SHAPES, "tied"}
    assert weights["tied"].data_ptr() == weights["c"].data_ptr()


def test_ranks_are_read_in_their_order_not_in_that_of_names(tmp_path):
    torch.save(
        {"param_shapes": [{"a": torch.Size((11,))}], "shared_params": {}},
        tmp_path / "mp_rank_00_model_states.pt",
    )
    for rank in range(11):
        flat = torch.tensor([float(rank)])
        moments = {"step": torch.tensor(STEP), "exp_avg": flat + 100, "exp_avg_sq": flat + 200}
        state = {
            "single_partition_of_fp32_groups": [flat],
            "param_slice_mappings": [{"a": SimpleNamespace(start=0, numel=1)}],
            "base_optimizer_state": {"state": {0: moments}},
        }
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state}, tmp_path / name)
    assert SavedState(tmp_path).whole("a").tolist() == [float(rank) for rank in range(11)]


def test_another_layout_is_named(tmp_path):
    torch.save({"module": {}}, tmp_path / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match=r"not as this DeepSpeed writes them \(KeyError"):
        SavedState(tmp_path)
