#!/usr/bin/env bash
""":"
# Both bash and Python, as launch/pretrain.sh: ranks that meet, take empty steps, and save a word where
# a run would save a checkpoint. ranks.sh FOLDER [STEPS] [SECONDS of rank 0's checks]
. "$(dirname "${BASH_SOURCE[0]}")/../../launch/ranks.bash"
: << "# end of Python"
":"""

import os
import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))

import json  # noqa: E402
import socket  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

from gpst.cli.process import end_process  # noqa: E402
from pipeline.distributed.deepspeed_options import check_launcher  # noqa: E402
from pipeline.distributed.ranks import Ranks  # noqa: E402

TOLD = (
    *("PATH", "OMP_NUM_THREADS", "GPST_KERNELS", "NCCL_DEBUG", "HF_TOKEN", "CUDA_VISIBLE_DEVICES"),
    *("LOCAL_RANK", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
"""Variables that the tests ask for."""
SAVING_S = 3.0
"""How long a checkpoint takes: whoever told the ranks to end lets them live so long."""


def main(words: list[str]) -> int:
    arguments = [word for word in words if not word.startswith("--")]
    folder, steps, seconds = Path(arguments[0]), int((*arguments[1:2], "3")[0]), arguments[2:3]
    if "--print-config" in words:
        check_launcher(os.environ)
        return 0
    with Ranks("ranks") as ranks:
        ranks.rendezvous()
        if ranks.is_main:
            (folder / "checking").touch()
            time.sleep(float((*seconds, "0")[0]))
        world = ranks.connect()
        about = {"host": socket.gethostname(), "prefix": sys.prefix, "words": words}
        about |= {"process": os.getpid(), **{name: os.environ.get(name) for name in TOLD}}
        import torch

        about["ranks"], about["threads"] = int(world.sum(torch.ones(1))), torch.get_num_threads()
        (folder / f"rank-{world.rank}").write_text(json.dumps(about))
        world.barrier()
        for step in range(steps):
            if world.is_main:
                print(f"step {step}", file=sys.stderr, flush=True)
            if world.wishes()[0]:
                reasons = world.gather((world.stop.reason, world.stop.exit_code))
                reason, code = next(one for one in reasons if one[0])
                time.sleep(SAVING_S)
                if world.is_main:
                    (folder / "saved").write_text(str(reason))
                    print(f"stopped by {reason}", flush=True)
                ranks.exit_code = code
                return code
            time.sleep(0.1)
        if world.is_main:
            (folder / "saved").write_text("done")
            print("done", flush=True)
    return ranks.exit_code


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
# end of Python
