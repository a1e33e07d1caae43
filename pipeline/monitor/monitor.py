"""Records and shows a run: metrics.jsonl, TensorBoard, W&B, a progress bar or plain lines.

    with Monitor(run_dir, num_steps=300, start_step=100, start_tokens=1_500_000) as monitor:
        monitor.log_step(110, tokens=1_650_000, samples=1760, values={"loss": 7.2})

Only rank 0 gets a monitor that writes; the others' (`is_main=False`) do nothing.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from pipeline import terminal
from pipeline.errors import ConfigError
from pipeline.monitor.metrics import shown_in
from pipeline.monitor.metrics_file import MetricsFile
from pipeline.monitor.samples import Samples, tree_change
from pipeline.monitor.tensorboard import Curves
from pipeline.monitor.wandb import WandbRun
from pipeline.run_folder import SAMPLES


class Throughput:
    """Tokens per second since the last reading, without the time spent in `pause`."""

    seconds: float = 0.0
    """Between the last two readings, without pauses."""

    def __init__(self, tokens: int, clock: float) -> None:
        self._tokens, self._clock, self._paused = tokens, clock, 0.0

    def pause(self, seconds: float) -> None:
        self._paused += seconds

    def read(self, tokens: int, clock: float) -> float:
        seconds = clock - self._clock - self._paused
        rate = (tokens - self._tokens) / seconds if seconds > 0 else 0.0
        self.seconds = max(0.0, seconds)
        self._tokens, self._clock, self._paused = tokens, clock, 0.0
        return rate


class Monitor:
    """Writes and shows the metrics of a run.

    Args:
        run_dir: folder of the run; made when missing.
        num_steps: optimizer steps of the whole run, for the bar.
        is_main: whether this rank writes.
        start_step, start_tokens: where this process starts; lines of an earlier process past that
            are dropped, so that each step appears once.
        config: the run's plain values, for TensorBoard's HParams tab and W&B.
        peak_flops: FLOP/s of all ranks that are an MFU of 1; None: no MFU.
        wandb: a W&B project that gets a copy.
        stream: for the bar or the lines; by default standard error.

    Raises:
        ConfigError: the folder cannot be made, or W&B cannot start.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        num_steps: int,
        is_main: bool = True,
        start_step: int = 0,
        start_tokens: int = 0,
        config: Mapping[str, Any] | None = None,
        peak_flops: float | None = None,
        wandb: str | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.is_main, self._closed = is_main, False
        if not is_main:
            return
        run_dir = Path(run_dir)
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run_dir: {run_dir} cannot be made ({error.strerror})") from None
        self._wandb = None if wandb is None else WandbRun(wandb, run_dir, config or {})
        self._file = MetricsFile(run_dir, start_step)
        self._samples = MetricsFile(run_dir, start_step, SAMPLES)
        self._last_samples = self._samples.last_line
        self._curves = Curves(run_dir, start_step, start_tokens)
        if config is not None:
            self._curves.add_hparams(config, [metric.name for metric in shown_in("hparams")])
        self._peak_flops = peak_flops
        self._stream = stream or terminal.stream()
        self._num_steps, self._step = num_steps, start_step
        self._first_step = start_step
        self._started = time.monotonic()
        last = self._file.last_line or {}
        self._earlier_s = float(last.get("time_s") or 0.0)
        self._throughput = Throughput(start_tokens, self._started)
        self._bar: tqdm | None = None
        if self._stream.isatty():
            self._bar = tqdm(
                total=num_steps, initial=start_step, unit="step", file=self._stream, smoothing=0.1
            )

    def advance(self, step: int) -> None:
        """Moves the bar: `step` optimizer steps are done. Cheap; call it every step."""
        if self.is_main:
            if self._bar is not None:
                self._bar.update(step - self._step)
            self._step = step

    def log_step(
        self,
        step: int,
        *,
        tokens: int,
        samples: int,
        values: Mapping[str, float],
        flops: float = 0.0,
    ) -> None:
        """Writes a line and points of training.

        Adds `time_s`, `tokens_per_second` and, if `flops` is known, `tflops` and `mfu`.

        Args:
            step: optimizer steps done.
            tokens, samples: tokens and contexts trained on so far, over all ranks.
            values: by the names of pipeline/monitor/metrics.py.
            flops: arithmetic of all ranks since the last line (pipeline/cost/flops.py).
        """
        if not self.is_main:
            return
        self.advance(step)
        now = time.monotonic()
        rate = self._throughput.read(tokens, now)
        values = {**values, "tokens_per_second": rate, **self._speed(flops)}
        position = {"step": step, "tokens": tokens, "samples": samples, "time_s": self._time_s(now)}
        self._file.write({**position, **values})
        self._add(step, tokens, values)
        names = [metric.name for metric in shown_in("terminal") if metric.name in values]
        shown = {name: f"{values[name]:.4g}" for name in names}
        shown["tokens/s"] = f"{rate:,.0f}"
        if self._bar is not None:
            self._bar.set_postfix(shown)
        else:
            if step - self._first_step > 1:  # the first step compiles
                shown["left"] = self._time_left(now)
            self._say(f"step {step}/{self._num_steps}", shown)

    def log_evaluation(self, step: int, *, tokens: int, values: Mapping[str, float]) -> None:
        """Writes a line and points of a held-out evaluation; names start with `eval/`."""
        if not self.is_main:
            return
        time_s = self._time_s(time.monotonic())
        self._file.write({"step": step, "tokens": tokens, "time_s": time_s, **values})
        self._add(step, tokens, values)
        names = [name for name in values if "perplexity" in name] or list(values)
        shown = {name: f"{values[name]:.4g}" for name in names}
        self._say(f"step {step}/{self._num_steps} held out", shown)

    def log_samples(
        self, step: int, *, tokens: int, samples: Samples, prompts: Sequence[str] = ()
    ) -> None:
        """Writes a line of samples.jsonl; shows trees and continuations.

        Adds the curve `trees/change`: the share of the trees' spans that are new since the last
        samples, those of an earlier process included.
        """
        if not self.is_main:
            return
        change = tree_change(self._last_samples, samples)
        self._last_samples = {"step": step, "tokens": tokens, **samples.to_line()}
        self._samples.write(self._last_samples)
        texts, pictures = samples.texts(prompts), samples.pictures()
        self._curves.add_texts(step, texts)
        self._curves.add_pictures(step, pictures)
        if self._wandb is not None:
            self._wandb.log_samples(step, tokens, texts, pictures)
        if change is not None:
            values = {"trees/change": change}
            self._file.write({"step": step, "tokens": tokens, **values})
            self._add(step, tokens, values)

    def say(self, message: str) -> None:
        """Prints a line without breaking the bar."""
        if self.is_main:
            tqdm.write(message, file=self._stream)
            self._stream.flush()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time inside (evaluation, checkpoints) does not count in tokens per second."""
        started = time.monotonic()
        try:
            yield
        finally:
            if self.is_main:
                self._throughput.pause(time.monotonic() - started)

    def sync(self) -> None:
        """Makes everything written so far durable; call it before a checkpoint is published."""
        if self.is_main:
            self._curves.flush()
            self._file.sync()
            self._samples.sync()

    def close(self, failed: bool = False) -> None:
        """Ends the bar and closes the files; may be called twice."""
        if not self.is_main or self._closed:
            return
        self._closed = True
        if self._bar is not None:
            self._bar.close()
        if self._step >= self._num_steps and not failed:
            self._curves.end_hparams()
        self._curves.close()
        self._file.close()
        self._samples.close()
        if self._wandb is not None:
            self._wandb.close(int(failed))

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.close(failed=error is not None)

    def _add(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        self._curves.add(step, tokens, values)
        if self._wandb is not None:
            self._wandb.log(step, tokens, values)

    def _speed(self, flops: float) -> dict[str, float]:
        """TFLOP/s and MFU since the last line, without pauses."""
        seconds = self._throughput.seconds
        if flops <= 0 or seconds <= 0:
            return {}
        speed = {"tflops": flops / seconds / 1e12}
        if self._peak_flops is not None:
            speed["mfu"] = flops / seconds / self._peak_flops
        return speed

    def _time_s(self, now: float) -> float:
        """Seconds since the start of the run, those before a resume included."""
        return round(self._earlier_s + now - self._started, 3)

    def _time_left(self, now: float) -> str:
        rate = (now - self._started) / (self._step - self._first_step)
        seconds = rate * (self._num_steps - self._step)
        return tqdm.format_interval(math.ceil(seconds))

    def _say(self, head: str, shown: Mapping[str, str]) -> None:
        self.say(" | ".join([head, *(f"{name} {text}" for name, text in shown.items())]))
