"""parse, generate, surprisal and the web page (launch/, gpst-*): also on runs and checkpoints.

`python -m gpst` has the same commands on exported models alone: gpst knows no checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpst.cli.process import loading

if TYPE_CHECKING:
    from gpst.export.huggingface import ModelFolder


def open_any(path: str | Path) -> ModelFolder:
    """An exported model, or a checkpoint (a run's newest one) in the form of one.

    Raises:
        ModelFolderError: the path is neither, or it is damaged.
    """
    from gpst.export.errors import ModelFolderError
    from gpst.export.huggingface import open_model

    if (Path(path) / "config.json").is_file():
        return open_model(path)
    # What a checkpoint needs takes a while to import.
    from data_prep.errors import DataPrepError
    from pipeline.checkpoint.files import MANIFEST, list_checkpoints, named_folder
    from pipeline.errors import CheckpointError, ConfigError, DataError
    from pipeline.run_folder import CHECKPOINTS

    folder = named_folder(path)
    trained = (folder / MANIFEST).is_file() or any(
        list_checkpoints(place) for place in (folder, folder / CHECKPOINTS)
    )
    if not trained:
        return open_model(folder)
    from pipeline.evaluate.load_model import checkpoint_folder

    try:
        return checkpoint_folder(folder)
    except (CheckpointError, ConfigError, DataError, DataPrepError) as error:
        raise ModelFolderError(str(error)) from error


def main(argv: Sequence[str]) -> int:
    """COMMAND ...: runs it and returns its exit code."""
    name = argv[0] if argv else "gpst"
    if name == "demo":
        with loading(name):
            from gpst.web.server import main as serve
        return serve(argv[1:], open_any)
    with loading(name):
        from gpst.cli.commands import main as run
    return run(argv, open_any)
