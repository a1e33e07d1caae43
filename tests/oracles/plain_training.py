"""Training as it should be: plain PyTorch in one process, without DeepSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gpst.model.build import build_model
from gpst.model.losses import total_loss
from pipeline.config.run import load_config
from pipeline.data.order import batch_samples, step_samples
from pipeline.engine.optimizer import build_optimizer, set_rates
from pipeline.train.preflight import check_run
from pipeline.train.schedule import schedule


class Reference(NamedTuple):
    """What a run gives."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]
    """After the first steps."""
    later: dict[str, torch.Tensor]
    """After all."""


def plain_adamw(
    config_file: Path, overrides: Sequence[str], steps: tuple[int, int], skipped: int
) -> Reference:
    """Plain AdamW on whole batches in one process.

    Args:
        steps: before the weights are looked at, and after.
        skipped: the step without an update.
    """
    checked = check_run(load_config(config_file, overrides), 1)
    config = checked.config
    torch.manual_seed(config.seed)
    model = build_model(config.model)
    groups = model.parameter_groups()  # type: ignore[operator]
    settings = [
        (groups.get("parser", []), 0.1, True),
        (groups.get("parser_no_decay", []), 0.0, True),
        (groups["decay"], 0.1, False),
        (groups["no_decay"], 0.0, False),
    ]
    optimizer = torch.optim.AdamW(
        [{"params": p, "weight_decay": decay, "parser": own} for p, decay, own in settings if p],
        betas=(0.9, 0.999),
        eps=1e-4,
    )
    losses, norms, trained = [], [], {}
    for step in range(sum(steps)):
        if step == steps[0]:
            trained = {name: value.clone() for name, value in model.state_dict().items()}
        contexts = checked.source.sample(config.seed, step_samples(step, 8))
        batch = checked.source.batch(contexts)
        loss = total_loss(model(batch).losses, batch.counts)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2).item())
        losses.append(loss.item())
        for group in optimizer.param_groups:
            now = schedule(config, step)
            group["lr"] = now.parser_learning_rate if group["parser"] else now.learning_rate
        if step != skipped:
            optimizer.step()
    return Reference(losses, norms, trained, model.state_dict())


def plain_bf16(config_file: Path, num_steps: int, skipped: int) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step: a bf16 model whose fp32 masters AdamW steps.

    Micro-batches as two ranks have them.
    """
    checked = check_run(load_config(config_file), 2)
    config, cut = checked.config, {"world_size": 2, "micro_batch": 2, "accumulation": 2}
    torch.manual_seed(config.seed)
    model = build_model(config.model).bfloat16()
    parameters = list(model.parameters())
    masters = [p.detach().float() for p in parameters]
    by_id = {id(p): master for p, master in zip(parameters, masters, strict=True)}
    groups = [
        {**group, "params": [by_id[id(p)] for p in group["params"]]}
        for group in build_optimizer(model, config.optim, torch.device("cpu")).param_groups  # type: ignore[arg-type]
    ]
    optimizer = torch.optim.AdamW(groups)
    seen = []
    for step in range(num_steps):
        counts = checked.source.counts(checked.source.sample(config.seed, step_samples(step, 8)))
        gradients, total = [torch.zeros_like(m) for m in masters], 0.0
        for rank, micro in ((r, m) for r in (0, 1) for m in (0, 1)):
            contexts = checked.source.sample(
                config.seed, batch_samples(step, micro, rank=rank, **cut)
            )
            loss = total_loss(model(checked.source.batch(contexts)).losses, counts)
            total += loss.item()
            for gradient, part in zip(
                gradients, torch.autograd.grad(loss, parameters), strict=True
            ):
                gradient += part.float()
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(masters, 0.2).item()
        seen.append((total, norm))
        now = schedule(config, step)
        set_rates(optimizer, config.optim, now.learning_rate, now.parser_learning_rate)
        if step != skipped:
            optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(parameters, masters, strict=True):
                parameter.copy_(master)
    return seen
