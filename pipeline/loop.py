"""The training loop: steps, and what is due after each of them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from pipeline.checkpoint import Checkpoints
from pipeline.config import RunConfig
from pipeline.engine import Engine
from pipeline.errors import TrainingError
from pipeline.evaluate import evaluate_model
from pipeline.monitor import Monitor
from pipeline.preflight import Plan
from pipeline.state import TrainerState
from pipeline.step import StepReport, take_step
from pipeline.world import World


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

    def run(self) -> Outcome:
        """Trains to the end, to `train.stop_at_step` or to a signal, and saves.

        Raises:
            TrainingError: too many steps in a row were skipped.
            CheckpointError: a checkpoint cannot be written.
        """
        train = self._config.train
        last = train.last_step
        started_at = self.state.step
        while self.state.step < last:
            if self.world.any(self.world.stop.requested):
                return self._stopped(started_at)
            report = take_step(
                self.engine,
                self.plan.source,
                self._config,
                self.plan.batches,
                self.world,
                self.state.step,
            )
            self._count(report)
            self._after_step(report, is_last=self.state.step == last)
        if self.state.step >= train.num_steps:
            return Outcome(self.state, f"done: {self.state.step} steps")
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
        )
        self.monitor.advance(self.state.step)
        if skipped:
            self._report_skip(report)

    def _report_skip(self, report: StepReport) -> None:
        first = report.step * self.plan.batches.global_batch
        where = f"samples {first}..{first + self.plan.batches.global_batch - 1}"
        self.monitor.say(
            f"step {self.state.step}: a loss or gradient is not finite: skipped ({where}; "
            f"{self.state.skipped_steps} so far)"
        )
        limit = self._config.train.max_nonfinite_steps
        if self.state.skipped_in_a_row >= limit:
            whole = self.checkpoints.last or "none yet"
            raise TrainingError(
                f"stopped at step {self.state.step}: {limit} steps in a row were not finite "
                f"(train.max_nonfinite_steps); last whole checkpoint: {whole}; lower "
                "optim.learning_rate, or look at the batches"
            )

    def _after_step(self, report: StepReport, is_last: bool) -> None:
        step, monitor = self.state.step, self.monitor
        if is_last or step % self._config.monitor.log_every_steps == 0 or step == 1:
            values = report.metrics(self.world)
            values["skipped_steps"] = float(self.state.skipped_steps)
            position = {"tokens": self.state.tokens, "samples": self.state.samples}
            monitor.log_step(step, **position, values=values)
        if _due(step, self._config.evaluate.every_steps, is_last):
            with monitor.pause():
                self._evaluate()
        if _due(step, self._config.monitor.sample_every_steps, is_last) and self.world.is_main:
            with monitor.pause():
                trees = self.plan.sentences.trees(self.engine.model, self.world.device)
                monitor.log_texts(step, trees)
        if is_last or _due(step, self._config.checkpoint.every_steps, is_last):
            self._save()

    def _evaluate(self) -> None:
        values: dict[str, float] = {}
        if self.plan.held_out is not None:
            values |= evaluate_model(
                self.engine.model,
                self.plan.held_out,
                max_contexts=self._config.evaluate.max_contexts,
                batch_contexts=self.plan.batches.micro_batch,
                device=self.world.device,
            ).metrics()
        if self.task_evaluation is not None:
            values |= self.task_evaluation(self.engine.model, self.world)
        self.monitor.log_evaluation(self.state.step, tokens=self.state.tokens, values=values)

    def _save(self) -> Path:
        with self.monitor.pause():
            # Lines up to this step must outlive a crash that the checkpoint outlives.
            self.monitor.sync()
            return self.checkpoints.save(self.engine, self.state)

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
