"""A run of the trainer: what it needs is made, then the loop takes steps and does what is due."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from data_prep.files import write_atomically
from pipeline.checkpoint.manager import Checkpoints
from pipeline.checkpoint.trainer_state import TrainerState
from pipeline.config.run import ResolvedRun, config_to_dict, config_to_yaml
from pipeline.cost.peak_flops import device_peak
from pipeline.data.order import step_samples
from pipeline.data.prefetch import Batches, BatchReader, Prefetcher
from pipeline.distributed.world import World
from pipeline.engine.engine import Engine
from pipeline.errors import CheckpointError, TrainingError
from pipeline.evaluate.held_out import evaluate_model
from pipeline.monitor.monitor import Monitor
from pipeline.train.loss_spike import LossAverage
from pipeline.train.preflight import CheckedRun
from pipeline.train.reload_check import NextBatchLoss
from pipeline.train.start import new_model, start
from pipeline.train.step import StepReport, take_step

MAX_NAMED = 32
"""Contexts of a skipped step that are named."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended."""

    state: TrainerState
    message: str
    exit_code: int = 0


TaskEvaluation = Callable[[nn.Module, World], dict[str, float]]
"""The evaluation of a task, called by all ranks: names that start with `eval/` -> numbers."""


def train(
    checked: CheckedRun,
    world: World,
    build: Callable[[ResolvedRun], nn.Module] = new_model,
    evaluation: TaskEvaluation | None = None,
    finish: Callable[[nn.Module, RunEnd], None] | None = None,
) -> RunEnd:
    """Trains, or goes on training, until the run ends or is stopped. All ranks call it.

    Args:
        build: makes the model, with the weights that a fresh run starts from.
        evaluation: see Trainer.
        finish: gets the trained model before the engine is closed.
    """
    config, run_dir = checked.config, Path(checked.config.run_dir)
    reload_check = NextBatchLoss(checked, world)
    checkpoints = Checkpoints(run_dir, config.checkpoint, world, reload_check)
    engine, state = start(checked, world, checkpoints, build)
    if world.is_main:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(run_dir / "config.yaml", config_to_yaml(config).encode())
    peak = device_peak(world.device, config.engine.precision, config.monitor.peak_tflops_per_rank)
    monitor = Monitor(
        run_dir,
        num_steps=config.train.num_steps,
        is_main=world.is_main,
        start_step=state.step,
        start_tokens=state.tokens,
        config=config_to_dict(config),
        peak_flops=world.size * peak.flops_per_second,
        wandb=config.monitor.wandb,
    )
    with monitor:
        if state.step:
            monitor.say(f"resumed from {checkpoints.last} (step {state.step})")
        end = Trainer(checked, world, engine, checkpoints, monitor, state, evaluation).run()
    if world.is_main:
        print(
            f"{end.message}\n"
            f"checkpoints: {run_dir / 'checkpoints'} | metrics: {run_dir / 'metrics.jsonl'} | "
            f"tensorboard --logdir {run_dir / 'tensorboard'}",
            flush=True,
        )
    if finish is not None:
        with engine.whole_model() as model:
            finish(model, end)
    engine.close()
    return end


@dataclass
class Trainer:
    """A run in progress. All ranks step through it alike; rank 0 writes."""

    checked: CheckedRun
    world: World
    engine: Engine
    checkpoints: Checkpoints
    monitor: Monitor
    state: TrainerState
    task_evaluation: TaskEvaluation | None = None
    """Added to the losses on held-out contexts."""
    _flops: float = field(default=0.0, init=False)
    """Arithmetic of this rank since the last line of metrics.jsonl."""

    def run(self) -> RunEnd:
        """Trains to the end, to `train.stop_at_step` or to a signal, and saves.

        Raises:
            TrainingError: too many steps in a row were skipped.
            CheckpointError: a checkpoint cannot be written.
        """
        with closing(self._batches()) as batches:
            return self._run(batches)

    def _batches(self) -> BatchReader | Prefetcher:
        checked, config, ahead = self.checked, self._config, self._config.data.prefetch_batches
        reader = BatchReader(
            checked.source, config.seed, checked.batch_shape, self.world.rank, checked.phrase_edges
        )
        if ahead == 0:
            return reader
        gpu = self.world.device if self.world.device.type == "cuda" else None
        return Prefetcher(reader, self.state.step, config.train.last_step, ahead=ahead, gpu=gpu)

    def _run(self, batches: Batches) -> RunEnd:
        train = self._config.train
        last, started_at = train.last_step, self.state.step
        while self.state.step < last:
            end, save = self.world.wishes()
            if end:
                return self._stopped(started_at)
            if save and self.state.step > started_at:
                self._save(must=False)
            spikes = LossAverage.from_dict(self.state.spikes)
            report = take_step(
                self.engine, self.checked, self.world, self.state.step, batches, spikes
            )
            if report.spike is not None and train.spike_action == "stop":
                self._stop_at_spike(report)
            self._count(report)
            self._after_step(report, is_last=self.state.step == last)
        if self.state.step >= train.num_steps:
            return RunEnd(self.state, f"done: {self.state.step} steps")
        if started_at >= last:
            return RunEnd(
                self.state,
                f"nothing to do: step {started_at} of {train.num_steps} is taken, and "
                f"train.stop_at_step {train.stop_at_step} is no further; the same command without "
                "it goes on",
            )
        return RunEnd(
            self.state,
            f"stopped at step {self.state.step} of {train.num_steps} (train.stop_at_step); "
            "the same command without it goes on",
        )

    @property
    def _config(self) -> ResolvedRun:
        return self.checked.config

    def _count(self, report: StepReport) -> None:
        state, skipped = self.state, not report.update.applied
        self.state = replace(
            state,
            step=state.step + 1,
            samples=state.samples + self.checked.batch_shape.global_batch,
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
        self.monitor.say(
            f"step {self.state.step}: {report.why_skipped()}: skipped ({self._samples_of(report)}; "
            f"{self.state.skipped_steps} so far)"
        )
        limit = self._config.train.max_nonfinite_steps
        if self.state.skipped_in_a_row >= limit:
            last = self.checkpoints.last or "none yet"
            what = "were not finite" if report.spike is None else "were not finite or spiked"
            raise TrainingError(
                f"stopped at step {self.state.step}: {limit} steps in a row {what} "
                f"(train.max_nonfinite_steps); last whole checkpoint: {last}; lower "
                "optim.learning_rate, or look at the batches"
            )

    def _stop_at_spike(self, report: StepReport) -> None:
        """Saves the state before the step, which was not applied, and ends the run."""
        self._save()
        raise TrainingError(
            f"stopped before step {report.step + 1}: {report.why_skipped()} "
            f"(train.spike_deviations {self._config.train.spike_deviations:g}; "
            f"{self._samples_of(report)}); last whole checkpoint: {self.checkpoints.last}; go on "
            "with train.spike_action=skip, or a lower optim.learning_rate"
        )

    def _samples_of(self, report: StepReport) -> str:
        samples = step_samples(report.step, self.checked.batch_shape.global_batch)
        contexts = self.checked.source.sample(self._config.seed, samples).tolist()
        more = "" if len(contexts) <= MAX_NAMED else ", ..."
        named = ", ".join(map(str, contexts[:MAX_NAMED]))
        return f"samples {samples[0]}..{samples[-1]}, which are contexts {named}{more}"

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
        totals = torch.zeros(1 + self.world.size, dtype=torch.float64)
        totals[0], self._flops = self._flops, 0.0
        totals[1 + self.world.rank] = self.world.peak_memory_gib()
        flops, *memory = self.world.sum(totals.to(self.world.device)).tolist()
        values |= {"skipped_steps": float(self.state.skipped_steps), "memory_gib": max(memory)}
        position = {"tokens": self.state.tokens, "samples": self.state.samples}
        self.monitor.log_step(self.state.step, **position, values=values, flops=flops)

    def _evaluate(self) -> bool:
        """Evaluates on held-out contexts; whether checkpoint.best_metric is the best so far."""
        values: dict[str, float] = {}
        with self.engine.whole_model() as model:
            if self.checked.held_out is not None:
                values |= evaluate_model(
                    model,
                    self.checked.held_out,
                    max_contexts=self._config.evaluate.max_contexts,
                    batch_contexts=self.checked.batch_shape.micro_batch,
                    device=self.world.device,
                ).metrics()
            if self.task_evaluation is not None:
                values |= self.task_evaluation(model, self.world)
        self.monitor.log_evaluation(self.state.step, tokens=self.state.tokens, values=values)
        best = self.state.with_best(self._config.checkpoint, self.world.broadcast(values))
        self.state = best or self.state
        return best is not None

    def _sample(self) -> None:
        """Trees and continuations, by rank 0."""
        sentences = self.checked.sentences
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

    def _stopped(self, started_at: int) -> RunEnd:
        stop = self.world.stop
        wishes = self.world.gather((stop.reason, stop.exit_code))
        reason, exit_code = next(wish for wish in wishes if wish[0] is not None)
        trained = self.state.step > started_at
        saved = f"saved {self._save()}" if trained else "nothing new to save"
        message = (
            f"stopped by {reason} at step {self.state.step} of {self._config.train.num_steps}: "
            f"{saved}; the same command goes on from here"
        )
        return RunEnd(self.state, message, exit_code)


def _due(step: int, every: int | None, is_last: bool) -> bool:
    return every is not None and (is_last or step % every == 0)
