"""What is restored into engines of each stage, which are laid out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from saved_layouts import SCALER, SHAPES, STEP, WRITERS, saved_in, values

from pipeline.engine.restore import restore
from pipeline.engine.saved_state import MOMENTS, WEIGHT, SavedState


@pytest.fixture(params=WRITERS)
def saved(request, tmp_path) -> SavedState:
    return saved_in(tmp_path, request.param)


def fresh_parameters() -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}


def engine_of(stage: int, parameters: dict[str, Any], optimizer: Any) -> Any:
    """What `restore` sees of a DeepSpeedEngine."""
    return SimpleNamespace(
        zero_optimization_stage=lambda: stage,
        module=SimpleNamespace(named_parameters=lambda: parameters.items()),
        optimizer=optimizer,
        train_batch_size=lambda: 8,
        global_steps=0,
        global_samples=0,
    )


def state_of(optimizer: torch.optim.Optimizer, parameter: Any) -> dict[str, list[float]]:
    state = optimizer.state[parameter]
    assert float(state["step"]) == STEP
    return {kind: state[kind].flatten().tolist() for kind in MOMENTS}


def test_restored_whole_with_counters(saved):
    parameters = fresh_parameters()
    optimizer = torch.optim.AdamW(parameters.values())
    raw = engine_of(0, parameters, optimizer)
    restore(raw, saved, 9)
    for name, parameter in parameters.items():
        assert parameter.flatten().tolist() == values(name, WEIGHT).tolist()
        expected = {kind: values(name, kind).tolist() for kind in MOMENTS}
        assert state_of(optimizer, parameter) == expected
    assert (raw.global_steps, raw.global_samples) == (9, 72)
    assert not hasattr(optimizer, "loss_scaler")


def test_restored_slices_on_one_of_three_ranks(saved):
    """This rank's flat tensor: the last element of a, all of b, three of c, one of padding."""
    parameters = fresh_parameters()
    flat = torch.nn.Parameter(torch.full((7,), 0.5))
    adam = torch.optim.AdamW([flat])
    places = {"a": (4, 1, 1), "b": (0, 1, 2), "c": (2, 3, 3)}  # first element, count, in the flat
    for name, (first, count, start) in places.items():
        parameters[name]._hp_mapping = SimpleNamespace(  # type: ignore[attr-defined]
            lp_fragment_address=SimpleNamespace(start=first, numel=count),
            hp_fragment_address=SimpleNamespace(start=start, numel=count),
            param_group_index=0,
        )
    elsewhere = torch.nn.Parameter(torch.zeros(SHAPES["a"]))
    elsewhere._hp_mapping = None  # type: ignore[attr-defined]
    zero = SimpleNamespace(optimizer=adam, loss_scaler="new")
    restore(engine_of(2, {**parameters}, zero), saved, 9)
    assert flat.tolist() == [0.5, 5.0, 101.0, 203.0, 204.0, 205.0, 0.5]
    assert state_of(adam, flat)["exp_avg"] == [0.0, 1005.0, 1101.0, 1203.0, 1204.0, 1205.0, 0.0]
    for name, parameter in parameters.items():  # the model's own values are whole on every rank
        assert parameter.flatten().tolist() == values(name, WEIGHT).tolist()


def test_a_parameter_of_other_ranks_is_whole_in_the_model(saved):
    parameters = fresh_parameters()
    flat = torch.nn.Parameter(torch.full((1,), 0.5))
    for parameter in parameters.values():
        parameter._hp_mapping = None  # type: ignore[attr-defined]
    zero = SimpleNamespace(optimizer=torch.optim.AdamW([flat]))
    restore(engine_of(1, parameters, zero), saved, 9)
    assert flat.tolist() == [0.5]
    assert parameters["c"].flatten().tolist() == values("c", WEIGHT).tolist()


class Parts:
    """Stage 3's optimizer on rank `rank` of 4: a and b in one group, c in another."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter]):
        self.calls: list[str] = []
        self.fp16_groups = [[parameters["a"], parameters["b"]], [parameters["c"]]]
        self.fp32_partitioned_groups_flat = [
            torch.nn.Parameter(torch.full((size,), 0.5)) for size in (3, 2)
        ]
        self.optimizer = torch.optim.AdamW(self.fp32_partitioned_groups_flat)
        for name, parameter in parameters.items():
            part = -(-SHAPES[name].numel() // 4)
            parameter.partition_numel = lambda part=part: part  # type: ignore[attr-defined]
            parameter.ds_tensor = torch.full((part,), 0.5)  # type: ignore[attr-defined]

    def checkpoint_event_prologue(self) -> None:
        self.calls.append("prologue")

    def checkpoint_event_epilogue(self) -> None:
        self.calls.append("epilogue")


@pytest.mark.parametrize(
    ("rank", "flats", "second_moments"),
    [
        # a in parts of 2 (5 elements), b of 1, c of 2 (6 elements): zeros are padding.
        (0, [[1.0, 2.0, 101.0], [201.0, 202.0]], [[2001.0, 2002.0, 2101.0], [2201.0, 2202.0]]),
        (2, [[5.0, 0.0, 0.0], [205.0, 206.0]], [[2005.0, 0.0, 0.0], [2205.0, 2206.0]]),
        (3, [[0.0, 0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_restored_parts(rank, flats, second_moments, saved, monkeypatch):
    parameters = fresh_parameters()
    zero = Parts(parameters)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    restore(engine_of(3, parameters, zero), saved, 9)
    found = zero.fp32_partitioned_groups_flat
    assert [flat.tolist() for flat in found] == flats
    states = [state_of(zero.optimizer, flat)["exp_avg_sq"] for flat in found]
    assert states == second_moments
    own = [parameters[name].ds_tensor.tolist() for name in SHAPES]  # type: ignore[attr-defined]
    assert own == [flats[0][:2], flats[0][2:], flats[1]]
    assert zero.calls == ["prologue", "epilogue"]


def test_the_loss_scaler_goes_on(tmp_path):
    saved = saved_in(tmp_path, 2)
    parameters = fresh_parameters()
    for parameter in parameters.values():
        parameter._hp_mapping = None  # type: ignore[attr-defined]
    flat = torch.nn.Parameter(torch.zeros(1))
    zero = SimpleNamespace(optimizer=torch.optim.AdamW([flat]), loss_scaler="new")
    restore(engine_of(2, parameters, zero), saved, 9)
    assert zero.loss_scaler == SCALER


def test_a_loss_scaler_stays_new_after_a_run_without_one(tmp_path):
    saved = saved_in(tmp_path, 3)
    zero = Parts(parameters := fresh_parameters())
    zero.loss_scaler = "new"  # type: ignore[attr-defined]
    restore(engine_of(3, parameters, zero), saved, 9)
    assert zero.loss_scaler == "new"  # type: ignore[attr-defined]


def test_moments_that_exist_are_overwritten(saved):
    """An engine that has made a step already, e.g. to warm up."""
    parameters = fresh_parameters()
    optimizer = torch.optim.AdamW(parameters.values())
    sum(p.sum() for p in parameters.values()).backward()  # type: ignore[union-attr]
    optimizer.step()
    restore(engine_of(0, parameters, optimizer), saved, 9)
    assert state_of(optimizer, parameters["b"]) == {
        kind: values("b", kind).tolist() for kind in MOMENTS
    }


def test_a_fused_adam_counts_on_the_parameters_device(saved):
    parameters = {
        name: torch.nn.Parameter(torch.zeros(shape, device="meta"))
        for name, shape in SHAPES.items()
    }
    optimizer = torch.optim.AdamW(parameters.values())
    for fused, device in ((True, "meta"), (False, "cpu")):
        optimizer.state.clear()
        optimizer.defaults["fused"] = fused
        restore(engine_of(0, parameters, optimizer), saved, 9)
        assert {optimizer.state[p]["step"].device.type for p in parameters.values()} == {device}
