"""Two ranks that train two steps and end, again and again: what their exit codes are.

    worker_ends.py CONFIG RUN_DIR TIMES BUSY     prints the exit codes of each time, as JSON

BUSY processes do nothing but take the processor. Torch and DeepSpeed are imported once and every
rank is a fork, which ends as launch/pretrain.sh lets it end.
"""

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "oracles"))

from loaded import warm_up  # before torch  # isort: skip
from gpst.cli.process import end_process
from pipeline.train import pretrain


def rank(number: int, port: int, config: str, run_dir: Path) -> None:
    log = os.open(f"{run_dir}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    options = ["train.num_steps=2", "monitor.peak_tflops_per_rank=1", f"run_dir={run_dir}"]
    end_process(pretrain.main(["--config", config, *options]))


def start(*arguments: object) -> int:
    child = os.fork()
    if child == 0:
        try:
            rank(*arguments)  # type: ignore[arg-type]
        finally:
            os._exit(99)
    return child


def busy() -> int:
    child = os.fork()
    while child == 0 and os.getppid() != 1:
        sum(range(100_000))
    return child


def main(config: str, run_dir: Path, times: int, num_busy: int) -> None:
    warm_up(config)
    others = [busy() for _ in range(num_busy)]
    codes = []
    try:
        for _ in range(times):
            shutil.rmtree(run_dir, ignore_errors=True)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            ranks = [start(number, port, config, run_dir) for number in (0, 1)]
            codes.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks])
            print(len(codes), codes[-1], file=sys.stderr, flush=True)
    finally:
        for child in others:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    print(json.dumps(codes))


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
