"""A copy of the metrics in Weights & Biases, if `monitor.wandb` names a project."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.files import write_atomically
from data_prep.packages import PackageError, import_package
from pipeline.errors import ConfigError
from pipeline.run_folder import WANDB_ID


def import_wandb() -> Any:
    """The wandb module.

    Raises:
        ConfigError: it is not installed; a folder named wandb, as W&B makes one, is no package.
    """
    try:
        return import_package("wandb", "init")
    except PackageError as error:
        raise ConfigError(
            f"monitor.wandb: the package wandb {error}; or leave monitor.wandb out"
        ) from None


class WandbRun:
    """A run in a W&B project; its id is in the run's folder, for restarts.

    When W&B fails, training continues, and one line says so.
    """

    def __init__(self, project: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._wandb = import_wandb()
        self._failed = False
        id_file = run_dir / WANDB_ID
        run_id = id_file.read_text().strip() if id_file.exists() else self._wandb.util.generate_id()
        write_atomically(id_file, (run_id + "\n").encode())
        try:
            self._run = self._wandb.init(
                project=project,
                id=run_id,
                name=run_dir.name,
                dir=str(run_dir),
                config=dict(config),
                resume="allow",
            )
            for axis in ("step", "tokens"):
                self._run.define_metric(axis)
            # W&B's step cannot go back, as ours does when a run resumes.
            self._run.define_metric("*", step_metric="step")
        except Exception as error:
            raise ConfigError(
                f"monitor.wandb: {project!r}: W&B cannot start a run: "
                f"{' '.join(str(error).split())}; see wandb login, or set WANDB_MODE=offline"
            ) from error

    def log(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """A point of each curve, against steps and tokens."""
        self._try(lambda: self._run.log({"step": step, "tokens": tokens, **values}))

    def log_samples(
        self,
        step: int,
        tokens: int,
        texts: Mapping[str, str],
        pictures: Mapping[str, NDArray[np.uint8]],
    ) -> None:
        """Trees as pictures, other samples as text."""

        def send() -> None:
            images = {name: self._wandb.Image(picture) for name, picture in pictures.items()}
            others = {
                name: self._wandb.Html(f"<pre>{escape(text, quote=False)}</pre>")
                for name, text in texts.items()
                if name not in images
            }
            self._run.log({"step": step, "tokens": tokens, **images, **others})

        self._try(send)

    def close(self, exit_code: int = 0) -> None:
        """Sends the rest and ends the run in W&B."""
        self._try(lambda: self._run.finish(exit_code=exit_code))

    def _try(self, action: Any) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:
            self._failed = True
            reason = " ".join(str(error).split())
            print(
                f"pretrain: W&B gets no more of this run: {reason}; metrics.jsonl and TensorBoard "
                "have everything",
                file=sys.stderr,
                flush=True,
            )
