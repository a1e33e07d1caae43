"""Puts saved weights and moments into a DeepSpeed engine of any ZeRO stage and number of ranks."""

from typing import Any

import torch
from torch import Tensor, nn

from pipeline.engine.saved_state import MOMENTS, WEIGHT, SavedState


def restore(raw: Any, saved: SavedState, steps: int) -> None:
    """Sets parameters, master weights, moments and counters; every rank reads its part.

    Args:
        raw: the DeepSpeedEngine, new, with torch's AdamW.
        steps: optimizer steps taken, skipped ones included.
    """
    stage = raw.zero_optimization_stage()
    parameters = dict(raw.module.named_parameters())
    with torch.no_grad():
        if stage == 3:
            _restore_parts(raw.optimizer, saved, parameters)
        elif hasattr(next(iter(parameters.values())), "_hp_mapping"):
            _restore_slices(raw.optimizer.optimizer, saved, parameters)
        else:
            _restore_whole(raw.optimizer, saved, parameters)
    if saved.loss_scaler is not None and hasattr(raw.optimizer, "loss_scaler"):
        raw.optimizer.loss_scaler = saved.loss_scaler
    raw.global_steps = steps
    raw.global_samples = steps * raw.train_batch_size()


def _restore_whole(optimizer: Any, saved: SavedState, parameters: dict[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(saved.whole(name))
        state = _adam_state(optimizer, parameter, saved)
        for key in MOMENTS:
            state[key].copy_(saved.whole(name, key))


def _restore_slices(optimizer: Any, saved: SavedState, parameters: dict[str, nn.Parameter]) -> None:
    """Stages 1 and 2: the optimizer has one flat tensor a group, this rank's part of it."""
    flats = [group["params"][0] for group in optimizer.param_groups]
    states = [_adam_state(optimizer, flat, saved) for flat in flats]
    for name, parameter in parameters.items():
        parameter.copy_(saved.whole(name))
        mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            continue  # other ranks have all of it
        fragment, address = mapping.lp_fragment_address, mapping.hp_fragment_address
        group = mapping.param_group_index
        for key, flat in {WEIGHT: flats[group], **_moments(states[group])}.items():
            target = flat.detach().narrow(0, address.start, address.numel)
            target.copy_(saved.part(name, key, fragment.start, fragment.numel))


def _restore_parts(zero: Any, saved: SavedState, parameters: dict[str, nn.Parameter]) -> None:
    """Stage 3: every rank has a part of each parameter, and flat tensors of these parts."""
    zero.checkpoint_event_prologue()  # splits what is whole
    names = {id(parameter): name for name, parameter in parameters.items()}
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    for flat, group in zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True):
        state = _adam_state(zero.optimizer, flat, saved)
        offset = 0
        for parameter in group:
            name, numel = names[id(parameter)], parameter.partition_numel()
            for key, target in {WEIGHT: flat.detach(), **_moments(state)}.items():
                values = saved.part(name, key, rank * numel, numel)
                target.narrow(0, offset, numel).copy_(values)
                if key == WEIGHT:
                    parameter.ds_tensor.data.copy_(values)
            offset += numel
    zero.checkpoint_event_epilogue()


def _adam_state(optimizer: Any, parameter: Tensor, saved: SavedState) -> dict[str, Tensor]:
    """Adam's state of a tensor, with the saved number of updates; made where it has none yet."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    for key in MOMENTS:
        if key not in state:
            state[key] = torch.zeros_like(parameter)
    # A fused Adam counts on the tensor's device, any other one on the CPU.
    device = state["step"].device if "step" in state else torch.device("cpu")
    if optimizer.defaults.get("fused"):
        device = parameter.device
    state["step"] = torch.tensor(saved.adam_step, dtype=torch.float32, device=device)
    return state


def _moments(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: state[key] for key in MOMENTS}
