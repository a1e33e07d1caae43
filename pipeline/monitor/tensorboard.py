"""A run's TensorBoard files: curves, texts, pictures, and the HParams tab."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import SummaryWriter

from pipeline.config.overrides import flat
from pipeline.run_folder import TENSORBOARD

BY_TOKENS = "by_tokens/"


class Curves:
    """TensorBoard files: `tensorboard/steps` against steps, `tensorboard/tokens` against tokens.

    They are two event streams because each hides what comes after its starting point when a run
    resumes. Tags against tokens start with `by_tokens/`.
    """

    def __init__(self, run_dir: Path, start_step: int, start_tokens: int) -> None:
        folder = self._folder = run_dir / TENSORBOARD
        self._broken = False
        _end_writers_quietly()
        _wait_for_later_name(folder)
        # A fresh start hides everything of an earlier run in the same folder.
        fresh = start_step == 0
        self._steps = SummaryWriter(
            str(folder / "steps"), purge_step=0 if fresh else start_step + 1
        )
        self._tokens = SummaryWriter(
            str(folder / "tokens"), purge_step=0 if fresh else start_tokens + 1
        )
        self._session_end: Any = None

    def add(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        with self._unless_broken():
            for name, value in values.items():
                self._steps.add_scalar(name, value, step)
                self._tokens.add_scalar(BY_TOKENS + name, value, tokens)

    def add_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Texts, shown verbatim."""
        with self._unless_broken():
            for name, text in texts.items():
                # Four spaces make a verbatim block of Markdown, which TensorBoard renders.
                indented = "".join(f"    {line}\n" for line in text.splitlines())
                self._steps.add_text(name, indented, step)

    def add_pictures(self, step: int, pictures: Mapping[str, NDArray[np.uint8]]) -> None:
        """Pictures, each (height, width, 3)."""
        with self._unless_broken():
            for name, picture in pictures.items():
                self._steps.add_image(name, picture, step, dataformats="HWC")

    def add_hparams(self, values: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Opens the run's row in the HParams tab.

        Args:
            values: nested plain values, e.g. of `config_to_dict`; lists become text.
            metrics: curves whose newest values the row shows.
        """
        experiment, start, self._session_end = hparams(flatten(values), dict.fromkeys(metrics, 0))
        for summary in (experiment, start):
            self._steps._get_file_writer().add_summary(summary)

    def end_hparams(self) -> None:
        """Marks the run as complete in the HParams tab."""
        if self._session_end is not None:
            self._steps._get_file_writer().add_summary(self._session_end)
            self._session_end = None

    def flush(self) -> None:
        with self._unless_broken():
            self._steps.flush()
            self._tokens.flush()

    def close(self) -> None:
        with self._unless_broken():
            self._steps.close()
            self._tokens.close()

    @contextmanager
    def _unless_broken(self) -> Iterator[None]:
        """Training continues without curves when they cannot be written (a full disk)."""
        try:
            yield
        except OSError as error:
            if not self._broken:
                self._broken = True
                reason = error.strerror or error
                message = f"{self._folder} cannot be written ({reason})"
                print(f"{message}: no more curves until a restart", file=sys.stderr, flush=True)


def _end_writers_quietly() -> None:
    """Hides the traceback of the thread that writes event files, which dies of a full disk."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, OSError):
            before(args)

    threading.excepthook = hook


def flatten(values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Nested values as "optim.learning_rate": 1e-3; lists as text, without None and empty lists.

    >>> flatten({"optim": {"betas": [0.9, 0.95], "decay": "cosine"}, "seed": 0, "stop": None})
    {'optim.betas': '0.9, 0.95', 'optim.decay': 'cosine', 'seed': 0}
    """
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in flat(values).items()
        if value is not None and value != []
    }


def _wait_for_later_name(folder: Path) -> None:
    """Waits until new event files sort after existing ones: a second at most, and seldom.

    TensorBoard reads event files in order of their names, which start with the time in seconds.
    """
    stamps = [path.name.split(".")[3] for path in folder.glob("*/events.out.tfevents.*")]
    latest = max((int(stamp) for stamp in stamps if stamp.isdigit()), default=0)
    missing = latest + 1 - time.time()
    if 0 < missing <= 2:
        time.sleep(missing)
