"""What a rank loads, loaded before the forks: the imports of one start are 8 s of the processor."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: F401

from gpst.model.build import build_model
from gpst.model.losses import total_loss
from pipeline.config.run import load_config
from pipeline.train import pretrain  # noqa: F401
from pipeline.train.preflight import check_run


def warm_up(config: str) -> None:
    """A forward and backward pass of a run's model compiles its kernels or reads their cache."""
    checked = check_run(load_config(config), 1)
    batch = checked.source.batch([0])
    total_loss(build_model(checked.config.model)(batch).losses, batch.counts).backward()
