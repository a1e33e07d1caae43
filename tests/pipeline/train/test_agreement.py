"""Ranks whose machines have other copies of the data or of the configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.config.run import load_config
from pipeline.distributed.world import World
from pipeline.errors import ConfigError
from pipeline.train.agreement import check_ranks_agree

PRETRAIN = Path(__file__).parents[3] / "launch" / "pretrain.sh"


class _Ranks:
    """A world in which the other rank has already said what it has."""

    def __init__(self, other: Any = None) -> None:
        self.other, self.said = other, None

    def gather(self, value: Any) -> list[Any]:
        self.said = value
        return [value] if self.other is None else [("first", self.other[1]), value]


def test_every_difference_but_of_paths_is_refused(toy_config):
    def said(fingerprint: str, *overrides: str, other: Any = None) -> Any:
        ranks = _Ranks(other)
        check_ranks_agree(cast(World, ranks), load_config(toy_config, overrides), fingerprint)
        return ranks.said

    first = said("a" * 64)
    said("a" * 64, "data.path=/scratch/copy", "run_dir=/mnt/runs", other=first)
    line = r"^data \(fingerprint\): 'bbbbbbbbbbbb' for rank 1 on .*, but 'aaaaaaaaaaaa' for rank 0 "
    with pytest.raises(ConfigError, match=line + "on first; give all machines the same"):
        said("b" * 64, other=first)
    with pytest.raises(ConfigError, match=r"^optim\.learning_rate: 0\.5 for rank 1 on .*0\.01 for"):
        said("a" * 64, "optim.learning_rate=0.5", other=first)


@pytest.mark.dist
def test_a_stale_copy_of_the_data_on_one_machine_trains_nothing(
    toy_config, toy_dataset, tmp_path, free_port, clean_environment
):
    from data_prep.format.shard import write_dataset

    stale = tmp_path / "stale"
    write_dataset(stale, [[[1, 2, 3]] * 40] * 9, vocab_size=64, validation=[[[1]]])
    shutil.copytree(toy_dataset / "tokenizer", stale / "tokenizer")
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, PRETRAIN, "--config", toy_config, f"data.path={path}"],
            env=os.environ | clean_environment | common | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, path in (("0", toy_dataset), ("1", stale))
    ]  # fmt: skip
    seen = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2], seen
    said = "".join(err for _, err in seen)
    assert said.count("\n") == 1, said
    assert "data (fingerprint): " in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
