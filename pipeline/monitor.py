"""What a run shows of itself: metrics.jsonl, TensorBoard, a progress bar or plain lines.

    with Monitor(run_dir, num_steps=300, start_step=100, start_tokens=1_500_000) as monitor:
        monitor.log_step(110, tokens=1_650_000, samples=1760, values={"loss": 7.2})

Only rank 0 gets a monitor that writes; the others' (`is_main=False`) do nothing.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from torch.utils.tensorboard.writer import SummaryWriter
from tqdm import tqdm

from pipeline.errors import ConfigError
from pipeline.metrics_file import MetricsFile

TENSORBOARD = "tensorboard"
BY_TOKENS = "by_tokens/"
_SHOWN = ("loss", "perplexity/token")


class Curves:
    """TensorBoard files: `tensorboard/steps` against steps, `tensorboard/tokens` against tokens.

    They are two event streams because each hides what lies past its own starting point when a run
    resumes. Tags against tokens start with `by_tokens/`.
    """

    def __init__(self, run_dir: Path, start_step: int, start_tokens: int) -> None:
        folder = run_dir / TENSORBOARD
        _wait_for_a_later_name(folder)
        # A fresh start hides everything of an earlier run in the same folder.
        fresh = start_step == 0
        self._steps = SummaryWriter(
            str(folder / "steps"), purge_step=0 if fresh else start_step + 1
        )
        self._tokens = SummaryWriter(
            str(folder / "tokens"), purge_step=0 if fresh else start_tokens + 1
        )

    def add(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._steps.add_scalar(name, value, step)
            self._tokens.add_scalar(BY_TOKENS + name, value, tokens)

    def add_texts(self, step: int, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            # Four spaces make a verbatim block of Markdown, which TensorBoard renders.
            indented = "".join(f"    {line}\n" for line in text.splitlines())
            self._steps.add_text(name, indented, step)

    def flush(self) -> None:
        self._steps.flush()
        self._tokens.flush()

    def close(self) -> None:
        self._steps.close()
        self._tokens.close()


def _wait_for_a_later_name(folder: Path) -> None:
    """Waits until new event files sort after the ones there (a second, and seldom at all).

    TensorBoard reads event files by name, and names start with the second they were made in.
    """
    stamps = [path.name.split(".")[3] for path in folder.glob("*/events.out.tfevents.*")]
    latest = max((int(stamp) for stamp in stamps if stamp.isdigit()), default=0)
    missing = latest + 1 - time.time()
    if 0 < missing <= 2:
        time.sleep(missing)


class Throughput:
    """Tokens per second since the last reading, without the time spent in `pause`."""

    def __init__(self, tokens: int, clock: float) -> None:
        self._tokens, self._clock, self._paused = tokens, clock, 0.0

    def pause(self, seconds: float) -> None:
        self._paused += seconds

    def read(self, tokens: int, clock: float) -> float:
        seconds = clock - self._clock - self._paused
        rate = (tokens - self._tokens) / seconds if seconds > 0 else 0.0
        self._tokens, self._clock, self._paused = tokens, clock, 0.0
        return rate


class Monitor:
    """Writes and shows the numbers of a run.

    Args:
        run_dir: folder of the run; made when missing.
        num_steps: optimizer steps of the whole run, for the bar.
        is_main: whether this rank writes.
        start_step, start_tokens: where this process starts; what an earlier process wrote past
            that is dropped, so that each step appears once.
        stream: where the bar or the lines go (standard error).

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        num_steps: int,
        is_main: bool = True,
        start_step: int = 0,
        start_tokens: int = 0,
        stream: TextIO | None = None,
    ) -> None:
        self.is_main = is_main
        if not is_main:
            return
        run_dir = Path(run_dir)
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run_dir: {run_dir} cannot be made ({error.strerror})") from None
        self._file = MetricsFile(run_dir, start_step)
        self._curves = Curves(run_dir, start_step, start_tokens)
        self._stream = stream or sys.stderr
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
        self, step: int, *, tokens: int, samples: int, values: Mapping[str, float]
    ) -> None:
        """Writes a line and points of training; adds `time_s` and `tokens_per_second`.

        Args:
            step: optimizer steps done.
            tokens, samples: tokens and contexts trained on so far, over all ranks.
            values: name -> number, e.g. "loss/parser", "learning_rate".
        """
        if not self.is_main:
            return
        self.advance(step)
        now = time.monotonic()
        rate = self._throughput.read(tokens, now)
        values = {**values, "tokens_per_second": rate}
        position = {"step": step, "tokens": tokens, "samples": samples, "time_s": self._time_s(now)}
        self._file.write({**position, **values})
        self._curves.add(step, tokens, values)
        shown = {name: f"{values[name]:.4g}" for name in _SHOWN if name in values}
        shown["tokens/s"] = f"{rate:,.0f}"
        if self._bar is not None:
            self._bar.set_postfix(shown)
        else:
            self._say(f"step {step}/{self._num_steps}", {**shown, "left": self._time_left(now)})

    def log_evaluation(self, step: int, *, tokens: int, values: Mapping[str, float]) -> None:
        """Writes a line and points of a held-out evaluation; names start with `eval/`."""
        if not self.is_main:
            return
        time_s = self._time_s(time.monotonic())
        self._file.write({"step": step, "tokens": tokens, "time_s": time_s, **values})
        self._curves.add(step, tokens, values)
        shown = {name: f"{value:.4g}" for name, value in values.items() if "perplexity" in name}
        self._say(f"step {step}/{self._num_steps} held out", shown)

    def log_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Shows texts in TensorBoard: name (e.g. "trees/0") -> text."""
        if self.is_main:
            self._curves.add_texts(step, texts)

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

    def close(self) -> None:
        """Ends the bar and closes the files; may be called twice."""
        if not self.is_main:
            return
        if self._bar is not None:
            self._bar.close()
        self._curves.close()
        self._file.close()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _time_s(self, now: float) -> float:
        """Seconds that the run has taken, those before a resume included."""
        return round(self._earlier_s + now - self._started, 3)

    def _time_left(self, now: float) -> str:
        done = self._step - self._first_step
        seconds = (now - self._started) / done * (self._num_steps - self._step) if done else 0.0
        return tqdm.format_interval(math.ceil(seconds))

    def _say(self, head: str, shown: Mapping[str, str]) -> None:
        self.say(" | ".join([head, *(f"{name} {text}" for name, text in shown.items())]))
