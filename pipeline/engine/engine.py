"""DeepSpeed behind the few verbs that training needs: forward, backward, update.

Only this folder, config/deepspeed.py and checkpoint/ know DeepSpeed; distributed/environment.py
asks its launcher about machines.
"""

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpst.batch import BatchCounts, ContextBatch
from gpst.model.losses import total_loss
from pipeline.config.batch_shape import BatchShape
from pipeline.config.deepspeed import deepspeed_config
from pipeline.config.run import ResolvedRun
from pipeline.distributed.world import World
from pipeline.engine.gpu import settle_arithmetic
from pipeline.engine.optimizer import build_optimizer, set_rates
from pipeline.engine.restore import restore
from pipeline.engine.saved_state import NAMES_KEY, SavedState
from pipeline.engine.zero3 import ReplicatedParameters
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Update:
    """What an optimizer step did."""

    applied: bool
    """False when a loss or gradient was not finite: parameters and moments are as before."""
    gradient_norm: float
    """Global norm before clipping; inf when it is not finite."""


class Objective(nn.Module):
    """The model with its loss, as DeepSpeed needs it.

    DeepSpeed finds the start of backward by hooks on the tensors in the forward's output, and it
    looks for them in tuples, lists and dicts only: were the loss hidden in an output dataclass,
    gradients would be reduced at the wrong micro-steps, silently.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        batch: ContextBatch,
        counts: BatchCounts,
        scale: float,
        noise: float,
        temperature: float,
    ) -> tuple[Tensor, Any]:
        output = self.model(batch, noise=noise, temperature=temperature)
        loss = total_loss(output.losses, counts) * scale
        # An infinite loss can have finite gradients; NaN reaches all of them, on every rank.
        poison = torch.where(loss.detach().isfinite(), 1.0, math.nan)
        return loss * poison, output


class Engine:
    """A model in training on all ranks."""

    def __init__(self, raw: Any, optimizer: torch.optim.Optimizer, config: ResolvedRun) -> None:
        self.raw = raw
        """The DeepSpeedEngine."""
        self.config = config
        self._optimizer = optimizer
        self._replicated = ReplicatedParameters(raw) if config.engine.zero_stage == 3 else None

    @contextmanager
    def whole_model(self) -> Iterator[nn.Module]:
        """The model itself, as gpst.model.gpst built it, with all of its weights.

        All ranks enter together; inside, a rank may call the model without the others.
        """
        with self._replicated.gathered() if self._replicated else nullcontext():
            yield self.raw.module.model

    def save(self, folder: Path, name: str) -> None:
        """Writes this rank's files into folder/name, which exists. All ranks call it.

        Raises:
            OSError, RuntimeError: this rank could not write, once no other rank waits for it.
        """
        raw, failures = self.raw, []
        writer = raw.checkpoint_engine
        write = writer.save

        def save(state_dict: Any, path: str) -> None:
            try:
                write(state_dict, path)
            except (OSError, RuntimeError) as error:
                failures.append(error)

        names = {id(p): name for name, p in raw.module.named_parameters()}
        order = [
            names.get(id(p)) for group in self._optimizer.param_groups for p in group["params"]
        ]
        writer.save, raw._copy_recovery_script = save, lambda *_: None
        try:
            # In stage 0 the file has moments by number only.
            raw.save_checkpoint(
                str(folder), tag=name, client_state={NAMES_KEY: order}, save_latest=False
            )
        finally:
            del writer.save, raw._copy_recovery_script
        if failures:
            raise failures[0]

    def restore(self, saved: SavedState, steps: int) -> None:
        """Takes over the weights and moments of a checkpoint written after `steps` steps."""
        restore(self.raw, saved, steps)
        if self._replicated is not None:
            self._replicated.gather()

    def set_rates(self, rate: float, parser_rate: float) -> None:
        """Sets the learning rates of the next update."""
        set_rates(self._optimizer, self.config.optim, rate, parser_rate)

    def forward(
        self,
        batch: ContextBatch,
        counts: BatchCounts,
        scale: float,
        noise: float,
        temperature: float,
    ) -> tuple[Tensor, Any]:
        """(loss for `backward`, the model's output) of one micro-batch.

        Args:
            counts: of the whole global batch.
            scale: factor that undoes DeepSpeed's means over ranks and micro-steps.
        """
        return self.raw(batch, counts, scale, noise, temperature)

    @property
    def model(self) -> nn.Module:
        """The model in its own precision; in stage 3 without the Transformer blocks' weights."""
        return self.raw.module.model

    def backward(self, loss: Tensor) -> Update | None:
        """Adds the gradient of a micro-step and, at the last one of a step, updates.

        Call it exactly once per micro-step: a second call would be reduced wrongly, silently.
        """
        self.raw.backward(loss)
        if self._replicated is not None:
            self._replicated.check_all_took_part()
        last = self.raw.is_gradient_accumulation_boundary()
        plain = self._clip_plainly() if last and self.config.engine.zero_stage == 0 else None
        self.raw.step()
        if not last:
            return None
        if self._replicated is not None:
            self._replicated.gather()
        return plain or Update(self.raw.was_step_applied(), float(self.raw.get_global_grad_norm()))

    def _clip_plainly(self) -> Update:
        """Clips in stage 0, where DeepSpeed reports no norm and applies what is not finite."""
        parameters = [p for p in self.raw.module.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not norm.isfinite():
            for parameter in parameters:
                parameter.grad = None  # AdamW passes over parameters without a gradient
            return Update(False, math.inf)
        if self.config.train.clip_norm > 0:
            nn.utils.clip_grads_with_norm_(parameters, self.config.train.clip_norm, norm)
        return Update(True, float(norm))

    def close(self) -> None:
        """Releases DeepSpeed's hooks and buffers."""
        self.raw.destroy()


def create_engine(
    model: nn.Module, config: ResolvedRun, batch_shape: BatchShape, world: World
) -> Engine:
    """The engine for a model, whose parameters become those of rank 0 everywhere.

    Raises:
        ConfigError: the device cannot do engine.precision.
    """
    check_precision(config.engine.precision, world.device)
    settle_arithmetic(config.engine, world.device)
    deepspeed = _import_deepspeed(world.device)
    objective = Objective(model).to(world.device)
    optimizer = build_optimizer(model, config.optim, world.device)  # type: ignore[arg-type]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the memory of every group
        raw, *_ = deepspeed.initialize(
            model=objective,
            optimizer=optimizer,
            config=deepspeed_config(config, batch_shape),
        )
    world.end_groups = _end_groups
    return Engine(raw, optimizer, config)


def _end_groups() -> None:
    """Ends DeepSpeed's process groups with torch's, and lets go of them: else their threads live
    on, and one that wants the interpreter while that is ending takes the process with it.
    """
    from deepspeed.comm import comm

    if comm.is_initialized():
        comm.destroy_process_group()
    comm.cdb = None


def check_precision(precision: str, device: torch.device) -> None:
    """Raises ConfigError for fp16 without a GPU."""
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError(
            "engine.precision: fp16 needs a GPU, and this rank trains on the CPU; use bf16 or fp32"
        )


def _import_deepspeed(device: torch.device) -> Any:
    # DeepSpeed 0.19 calls names that torch 2.13 deprecates: not for our users to read.
    gone = r"`torch\.distributed\.\w+` is deprecated"
    warnings.filterwarnings("ignore", gone, category=FutureWarning)
    import deepspeed

    with _compile_nothing():
        import deepspeed.runtime.zero.muon.muon_optimizer
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if device.type == "cpu":
        # Or it compiles a shared-memory op at the first start; a killed compile hangs all later.
        deepspeed.ops.__compatible_ops__ = {}  # type: ignore[attr-defined]
    return deepspeed


@contextmanager
def _compile_nothing() -> Iterator[None]:
    """torch.compile leaves functions as they are.

    DeepSpeed imports its Muon to see whether an optimizer is one; that applies torch.compile, which
    loads torch's compiler: seconds at every start of every rank. We never use Muon.
    """
    compiler = torch.compile
    torch.compile = lambda *functions, **_: functions[0] if functions else (lambda f: f)
    try:
        yield
    finally:
        torch.compile = compiler
