"""Pre-training: `deepspeed launch/pretrain.sh --config configs/run/NAME.yaml [key=value ...]`."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from pipeline.config import RunConfig, config_to_yaml, load_config
from pipeline.errors import ConfigError, PipelineError
from pipeline.ranks import Placement

if TYPE_CHECKING:
    from pipeline.preflight import Plan
    from pipeline.world import World

_EPILOG = """\
Started in any of these ways; the same command resumes a run that was stopped or killed.
  deepspeed launch/pretrain.sh --config X        a rank per GPU; LOCAL_SIZE=2 before it: 2 CPU ranks
  bash launch/pretrain.sh --config X             the same; DEEPSPEED_ARGS="--num_gpus 2" before it
  torchrun --nproc-per-node 2 launch/pretrain.sh --config X
  srun python launch/pretrain.sh --config X      also mpirun; without a launcher: one rank
Exit codes: 0 done, or stopped by a signal and saved; 1 failed; 2 wrong usage or configuration;
3 damaged data or checkpoint; 130 interrupted, and saved.
"""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message} (see --help)")


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="pretrain",
        description="Pre-trains a GPST or a GPT-2 baseline on a dataset of data_prep.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("--config", metavar="YAML", help="the run, e.g. configs/run/demo.yaml")
    parser.add_argument("--dry-run", action="store_true", help="check all, print the plan, end")
    parser.add_argument("--print-config", action="store_true", help="print the config, end")
    parser.add_argument("-h", "--help", action="store_true", help="print this, end")
    parser.add_argument("--local_rank", help="given by the DeepSpeed launcher; not used")
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="over the config file")
    return parser


def _load(arguments: Namespace) -> RunConfig:
    if arguments.config is None:
        raise ConfigError("command line: --config is missing, e.g. --config configs/run/demo.yaml")
    return load_config(arguments.config, arguments.overrides)


def main(argv: Sequence[str]) -> int:
    """Runs the command on this rank and returns its exit code."""
    try:
        arguments = _parser().parse_intermixed_args(argv)
        if arguments.help or arguments.print_config:
            # Answered without starting anything; the ranks of a launcher leave it to the first.
            text = _parser().format_help() if arguments.help else config_to_yaml(_load(arguments))
            if os.environ.get("RANK", "0") == "0":
                print(text, end="", flush=True)
            return 0
    except PipelineError:
        pass  # rank 0 says it below, so that one line appears and not one a rank
    from pipeline.world import launch

    plans: list[Plan] = []

    def prepare(placement: Placement) -> int | None:
        arguments, plan = _check(argv, placement.size)
        plans.append(plan)
        if arguments.dry_run:
            print(plan.describe(), flush=True)
            return 0
        return None

    def body(world: World) -> int:
        plan = plans[0] if plans else _check(argv, world.size)[1]
        from pipeline.tasks.training import train

        return train(plan, world).exit_code

    return launch(prepare, body)


def _check(argv: Sequence[str], world_size: int) -> tuple[Namespace, Plan]:
    arguments = _parser().parse_intermixed_args(argv)
    config = _load(arguments)
    from pipeline.preflight import check_run

    return arguments, check_run(config, world_size)
