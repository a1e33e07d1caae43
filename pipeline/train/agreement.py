"""What must be the same on all ranks of a run."""

import platform
import socket

import torch

from gpst.config_reader import shown
from pipeline.config.overrides import flat
from pipeline.config.run import ResolvedRun, config_to_dict
from pipeline.distributed.world import World
from pipeline.errors import ConfigError

_PATHS = (
    *("run_dir", "data.path", "data.datasets", "evaluate.treebank"),
    *("checkpoint.resume", "checkpoint.init_from"),
)
"""They may differ between machines."""


def check_ranks_agree(world: World, config: ResolvedRun, fingerprint: str) -> None:
    """Refuses ranks that read other data or another configuration. All ranks call it.

    Machines without a common file system have copies of both, and a stale one trains unnoticed.
    mpirun takes the other machine's own Python, which may have another torch.

    Args:
        config: as this rank has read it.
        fingerprint: of this rank's data (ContextSource.fingerprint).

    Raises:
        ConfigError: on all ranks; names a rank, its machine, the field and both values.
    """
    settings = {"data (fingerprint)": fingerprint[:12]} | flat(config_to_dict(config))
    settings |= {"Python": platform.python_version(), "torch": torch.__version__}
    settings = {name: value for name, value in settings.items() if name not in _PATHS}
    of_ranks = world.gather((socket.gethostname(), settings))
    host, first = of_ranks[0]
    for rank, (machine, other) in enumerate(of_ranks):
        for name in first | other:
            if first.get(name) != other.get(name):
                raise ConfigError(
                    f"{name}: {shown(other.get(name))} for rank {rank} on {machine}, but "
                    f"{shown(first.get(name))} for rank 0 on {host}; give all machines the same "
                    "configuration, the same data and the same Python environment"
                )
