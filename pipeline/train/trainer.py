"""The training loop: steps, and what is due after each of them."""

import resource
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from pipeline.checkpoint.manager import Checkpoints
from pipeline.checkpoint.trainer_state import TrainerState
from pipeline.config.run import RunConfig
from pipeline.data.order import step_samples
from pipeline.data.prefetch import Batches, BatchReader, Prefetcher
from pipeline.distributed.world import World
from pipeline.engine.engine import Engine
from pipeline.errors import CheckpointError, ConfigError, TrainingError
from pipeline.evaluate.held_out import evaluate_model
from pipeline.monitor.monitor import Monitor
from pipeline.train.loss_spike import LossAverage
from pipeline.train.preflight import Plan
from pipeline.train.step import StepReport, take_step

MAX_NAMED = 32
"""Contexts of a skipped step that are named."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: TrainerState
    message: str
    exit_code: int = 0


TaskEvaluation = Callable[[nn.Module, World], dict[str, float]]
"""A task's own evaluation, called by all ranks: names that start with `eval/` -> numbers."""


@dataclass
class Trainer:
    """A run in progress. All ranks step through it alike; rank 0 writes."""

    plan: Plan
    world: World
    engine: Engine
    checkpoints: Checkpoints
    monitor: Monitor
    state: TrainerState
    task_evaluation: TaskEvaluation | None = None
    """Added to the losses on held-out contexts."""
    _flops: float = field(default=0.0, init=False)
    """Arithmetic of this rank since the last line of metrics.jsonl."""

    def run(self) -> Outcome:
        """Trains to the end, to `train.stop_at_step` or to a signal, and saves.

        Raises:
            TrainingError: too many steps in a row were skipped.
            CheckpointError: a checkpoint cannot be written.
        """
        with closing(self._batches()) as batches:
            return self._run(batches)

    def _batches(self) -> BatchReader | Prefetcher:
        config, ahead = self._config, self._config.data.prefetch_batches
        reader = BatchReader(self.plan.source, config.seed, self.plan.batches, self.world.rank)
        if ahead == 0:
            return reader
        pin = self.world.device.type == "cuda"
        return Prefetcher(reader, self.state.step, config.train.last_step, ahead=ahead, pin=pin)

    def _run(self, batches: Batches) -> Outcome:
        train = self._config.train
        last, started_at = train.last_step, self.state.step
        while self.state.step < last:
            end, save = self.world.wishes()
            if end:
                return self._stopped(started_at)
            if save and self.state.step > started_at:
                self._save(must=False)
            report = take_step(
                self.engine,
                self.plan.source,
                self._config,
                self.plan.batches,
                self.world,
                self.state.step,
                batches=batches,
                spikes=LossAverage.from_dict(self.state.spikes),
            )
            if report.spike is not None and train.spike_action == "stop":
                self._stop_at_spike(report)
            self._count(report)
            self._after_step(report, is_last=self.state.step == last)
        if self.state.step >= train.num_steps:
            return Outcome(self.state, f"done: {self.state.step} steps")
        if started_at >= last:
            return Outcome(
                self.state,
                f"nothing to do: step {started_at} of {train.num_steps} is taken, and "
                f"train.stop_at_step {train.stop_at_step} is no further; the same command without "
                "it goes on",
            )
        return Outcome(
            self.state,
            f"stopped at step {self.state.step} of {train.num_steps} (train.stop_at_step); "
            "the same command without it goes on",
        )

    @property
    def _config(self) -> RunConfig:
        return self.plan.config

    def _count(self, report: StepReport) -> None:
        state, skipped = self.state, not report.update.applied
        self.state = replace(
            state,
            step=state.step + 1,
            samples=state.samples + self.plan.batches.global_batch,
            tokens=state.tokens + report.counts.tokens,
            skipped_steps=state.skipped_steps + skipped,
            skipped_in_a_row=state.skipped_in_a_row + 1 if skipped else 0,
            spikes=report.spikes.to_dict() if report.spikes.count else {},
        )
        self._flops += report.sums.flops
        self.monitor.advance(self.state.step)
        if skipped:
            self._report_skip(report)

    def _report_skip(self, report: StepReport) -> None:
        what = "a loss or gradient is not finite" if report.spike is None else _spike(report)
        self.monitor.say(
            f"step {self.state.step}: {what}: skipped ({self._samples_of(report)}; "
            f"{self.state.skipped_steps} so far)"
        )
        limit = self._config.train.max_nonfinite_steps
        if self.state.skipped_in_a_row >= limit:
            what = "were not finite" if report.spike is None else "were not finite or spiked"
            raise TrainingError(
                f"stopped at step {self.state.step}: {limit} steps in a row {what} "
                f"(train.max_nonfinite_steps); last whole checkpoint: {self._last_whole}; lower "
                "optim.learning_rate, or look at the batches"
            )

    def _stop_at_spike(self, report: StepReport) -> None:
        """Saves what was there before the step, which was not applied, and ends the run."""
        self._save()
        raise TrainingError(
            f"stopped before step {report.step + 1}: {_spike(report)} "
            f"(train.spike_deviations {self._config.train.spike_deviations:g}; "
            f"{self._samples_of(report)}); last whole checkpoint: {self._last_whole}; go on with "
            "train.spike_action=skip, or a lower optim.learning_rate"
        )

    def _samples_of(self, report: StepReport) -> str:
        samples = step_samples(report.step, self.plan.batches.global_batch)
        contexts = self.plan.source.sample(self._config.seed, samples).tolist()
        more = "" if len(contexts) <= MAX_NAMED else ", ..."
        named = ", ".join(map(str, contexts[:MAX_NAMED]))
        return f"samples {samples[0]}..{samples[-1]}, which are contexts {named}{more}"

    @property
    def _last_whole(self) -> Path | str:
        return self.checkpoints.last or "none yet"

    def _after_step(self, report: StepReport, is_last: bool) -> None:
        step, config = self.state.step, self._config
        if is_last or step % config.monitor.log_every_steps == 0 or step == 1:
            self._log(report)
        improved = False
        if _due(step, config.evaluate.every_steps, is_last):
            with self.monitor.pause():
                improved = self._evaluate()
        if _due(step, config.monitor.sample_every_steps, is_last):
            with self.monitor.pause():
                self._sample()
        if is_last or improved or _due(step, config.checkpoint.every_steps, is_last):
            self._save(must=is_last)

    def _log(self, report: StepReport) -> None:
        values = report.metrics(self.world)
        own = torch.zeros(1 + self.world.size, dtype=torch.float64)
        own[0], self._flops = self._flops, 0.0
        own[1 + self.world.rank] = _memory_gib(self.world.device)
        flops, *memory = self.world.sum(own.to(self.world.device)).tolist()
        values |= {"skipped_steps": float(self.state.skipped_steps), "memory_gib": max(memory)}
        position = {"tokens": self.state.tokens, "samples": self.state.samples}
        self.monitor.log_step(self.state.step, **position, values=values, flops=flops)

    def _evaluate(self) -> bool:
        """Evaluates on held-out contexts; whether checkpoint.best_metric is the best so far."""
        values: dict[str, float] = {}
        with self.engine.whole_model() as model:
            if self.plan.held_out is not None:
                values |= evaluate_model(
                    model,
                    self.plan.held_out,
                    max_contexts=self._config.evaluate.max_contexts,
                    batch_contexts=self.plan.batches.micro_batch,
                    device=self.world.device,
                ).metrics()
            if self.task_evaluation is not None:
                values |= self.task_evaluation(model, self.world)
        self.monitor.log_evaluation(self.state.step, tokens=self.state.tokens, values=values)
        return self._is_best(self.world.broadcast(values))

    def _is_best(self, values: dict[str, float]) -> bool:
        config = self._config.checkpoint
        if config.best_metric is None:
            return False
        if config.best_metric not in values:
            raise ConfigError(
                f"checkpoint.best_metric: {config.best_metric!r} is not measured here; known are "
                f"{', '.join(sorted(values))}"
            )
        value, best = values[config.best_metric], self.state.best.get("value")
        sign = 1.0 if config.best_is == "lowest" else -1.0
        # NaN is never better, and anything is better than it.
        if not (best is None or best != best or sign * value < sign * best):
            return False
        new = {"value": value, "step": self.state.step, "by": config.best_by}
        self.state = replace(self.state, best=new)
        return True

    def _sample(self) -> None:
        """Trees and continuations, by rank 0."""
        sentences = self.plan.sentences
        if not sentences:
            return
        with self.engine.whole_model() as model:
            if not self.world.is_main:
                return
            samples = sentences.sample(model, self.world.device)
        self.monitor.log_samples(
            self.state.step, tokens=self.state.tokens, samples=samples, prompts=sentences.prompts
        )

    def _save(self, must: bool = True) -> Path | None:
        """Saves; None when that failed and the run goes on without (not if it `must` succeed)."""
        with self.monitor.pause():
            # Lines up to this step must outlive a crash that the checkpoint outlives.
            self.monitor.sync()
            try:
                return self.checkpoints.save(self.engine, self.state)
            except CheckpointError as error:
                if must or self._config.checkpoint.on_save_failure == "stop":
                    raise
                self.monitor.say(f"{error}; going on (checkpoint.on_save_failure: continue)")
                return None

    def _stopped(self, started_at: int) -> Outcome:
        stop = self.world.stop
        wishes = self.world.gather((stop.reason, stop.exit_code))
        reason, exit_code = next(wish for wish in wishes if wish[0] is not None)
        anything = self.state.step > started_at
        saved = f"saved {self._save()}" if anything else "nothing new to save"
        message = (
            f"stopped by {reason} at step {self.state.step} of {self._config.train.num_steps}: "
            f"{saved}; the same command goes on from here"
        )
        return Outcome(self.state, message, exit_code)


def _spike(report: StepReport) -> str:
    average = report.spikes
    distance = ((report.spike or 0.0) - average.mean) / average.deviation
    return (
        f"the loss {report.spike:.4g} is {distance:.1f} deviations above its average "
        f"{average.mean:.4g}"
    )


def _memory_gib(device: torch.device) -> float:
    """Most memory so far: of the GPU since the last call, or of the process."""
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return most / (1 << 30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def _due(step: int, every: int | None, is_last: bool) -> bool:
    return every is not None and (is_last or step % every == 0)


def print_summary(outcome: Outcome, run_dir: Path) -> None:
    """The last lines of a run: how it ended and where its results are."""
    print(
        f"{outcome.message}\n"
        f"checkpoints: {run_dir / 'checkpoints'} | metrics: {run_dir / 'metrics.jsonl'} | "
        f"tensorboard --logdir {run_dir / 'tensorboard'}",
        file=sys.stdout,
        flush=True,
    )
