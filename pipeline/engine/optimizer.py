"""AdamW over the model's parameter groups, the parser with another learning rate."""

from typing import Any, Protocol

import torch
from torch import nn

from gpst.model.parameters import NO_DECAY, PARSER
from pipeline.config.sections import OptimConfig


class GroupedModel(Protocol):
    """A model that says which of its parameters are treated alike."""

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by group, as gpst/model/parameters.py names them."""
        ...

    def named_parameters(self) -> Any:
        """As of nn.Module."""
        ...


def build_optimizer(
    model: GroupedModel, config: OptimConfig, device: torch.device
) -> torch.optim.AdamW:
    """AdamW with the model's groups, named in `param_groups[i]["name"]`.

    torch's own AdamW, not DeepSpeed's: that one would be compiled at the first start, for minutes
    on a CPU.

    Raises:
        ValueError: a trainable parameter is not in exactly one group.
    """
    groups = model.parameter_groups()
    _check_complete(model, groups)
    options = {"fused": True} if device.type == "cuda" else {}
    optimizer = torch.optim.AdamW(
        [{"params": params, "name": name} for name, params in groups.items() if params],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        **options,
    )
    set_rates(optimizer, config, config.learning_rate, config.parser_learning_rate)
    return optimizer


def set_rates(
    optimizer: torch.optim.Optimizer, config: OptimConfig, rate: float, parser_rate: float
) -> None:
    """Sets learning rates and the config's other values: those of a checkpoint may differ."""
    for group in optimizer.param_groups:
        name = group["name"]
        group["lr"] = parser_rate if name.startswith(PARSER) else rate
        group["weight_decay"] = 0.0 if name.endswith(NO_DECAY) else config.weight_decay
        group["betas"], group["eps"] = tuple(config.betas), config.eps


def _check_complete(model: GroupedModel, groups: dict[str, list[nn.Parameter]]) -> None:
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    grouped = [id(p) for params in groups.values() for p in params]
    missing = [name for key, name in names.items() if key not in set(grouped)]
    if missing:
        raise ValueError(f"parameter_groups leaves out {', '.join(missing[:5])}")
    if len(set(grouped)) != len(grouped):
        raise ValueError("parameter_groups has a parameter twice")
