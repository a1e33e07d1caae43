"""The loss of the next batch: written into a checkpoint, and checked when it has been loaded.

Sizes and hashes show that the files are as they were written; this shows that what was read from
them is the model that was saved, whatever the ZeRO stage and the number of ranks.
"""

import math
from pathlib import Path

import torch

from gpst.model.losses import total_loss
from gpst.model.modes import evaluating
from pipeline.data.order import step_samples
from pipeline.distributed.world import World
from pipeline.engine.engine import Engine
from pipeline.errors import CheckpointError
from pipeline.train.preflight import CheckedRun

MAX_CONTEXTS = 2
"""Contexts of the next batch that are looked at."""
_TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
"""Largest relative difference: other machines and numbers of threads round otherwise."""


class NextBatchLoss:
    """The first contexts of the batch that comes after a step.

    Args:
        checked: the run; its source has `sample`, `batch` and `counts`.
    """

    def __init__(self, checked: CheckedRun, world: World) -> None:
        self._checked, self._world = checked, world

    def loss(self, engine: Engine, step: int) -> float | None:
        """Loss after `step` steps, without dropout and noise; None when it is not finite.

        All ranks call it and get rank 0's loss.
        """
        checked = self._checked
        samples = step_samples(step, checked.batch_shape.global_batch)[:MAX_CONTEXTS]
        batch = checked.source.batch(checked.source.sample(checked.config.seed, samples))
        batch = batch.to(self._world.device)
        with engine.whole_model() as model, torch.no_grad(), evaluating(model):
            loss = float(total_loss(model(batch).losses, batch.counts))
        return self._world.broadcast(loss if math.isfinite(loss) else None)

    def check(self, engine: Engine, step: int, saved: float | None, checkpoint: Path) -> None:
        """Compares with the loss that was `saved` with the parameters.

        Raises:
            CheckpointError: they differ by more than rounding.
        """
        loss = self.loss(engine, step)
        tolerance = _TOLERANCE[self._checked.config.engine.precision]
        if saved is None or (loss is not None and math.isclose(loss, saved, rel_tol=tolerance)):
            return
        loss_now = "not finite" if loss is None else f"{loss:.6g}"
        raise CheckpointError(
            f"checkpoint {checkpoint}: the loss of the next batch is {loss_now} after loading and "
            f"was {saved:.6g} at saving, so the model is not the one that was saved (another "
            "version of this program, torch or deepspeed? state.json names them)"
        )
