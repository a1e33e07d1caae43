"""Fine-tuning: `deepspeed launch/finetune.sh --config configs/finetune/NAME.yaml init=MODEL ...`.

All kinds go through the one trainer: same engine, checkpoints, resume and monitoring as
pre-training. A kind is a FinetuneTask: examples, an evaluation after each epoch, final scores.
"""

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from pipeline.distributed.placement import check_local_size
from pipeline.distributed.ranks import Ranks
from pipeline.train.command import CommandLine, check_launcher

# What takes seconds to import comes after the checks of the command line.

_COMMAND = CommandLine(
    name="finetune",
    description="Fine-tunes a GPST or a GPT-2 baseline on GLUE, summarization or a treebank's "
    "words, with several seeds, and evaluates it.",
    example="configs/finetune/glue_cola.yaml",
)


def main(argv: Sequence[str]) -> int:
    """Runs the command on this rank and returns its exit code."""
    with Ranks(_COMMAND.name) as ranks:
        arguments = _COMMAND.parse(argv)
        if not arguments.asks:
            ranks.exit_code = _finetune(arguments, ranks)
        elif ranks.is_first:
            print(_answer(arguments, ranks), flush=True)
    return ranks.exit_code


def _finetune(arguments: Namespace, ranks: Ranks) -> int:
    """Trains together with the other ranks."""
    from pipeline.finetune.config import load_finetune_config
    from pipeline.finetune.run import check_finetune, finetune, share_finetune
    from pipeline.run_folder import only_run

    ranks.rendezvous()  # the others wait here until rank 0 has checked the run
    config = load_finetune_config(*_COMMAND.config_source(arguments))
    checked = None
    if ranks.is_main:
        ranks.enter(only_run(Path(config.run_dir)))
        checked = check_finetune(config, ranks.size)
    world = ranks.connect(config.engine.timeout_minutes)
    return finetune(share_finetune(config, checked, world), world)


def _answer(arguments: Namespace, ranks: Ranks) -> str:
    """What --help, --print-config and --dry-run print."""
    if arguments.help:
        return _COMMAND.help()

    from pipeline.finetune.config import finetune_to_yaml, load_finetune_config

    if arguments.dry_run and not arguments.print_config:
        check_local_size(ranks.placement, os.environ)
    config = load_finetune_config(*_COMMAND.config_source(arguments))
    if arguments.print_config:
        check_launcher()
        return finetune_to_yaml(config).rstrip("\n")

    from pipeline.finetune.run import check_finetune

    return check_finetune(config, ranks.size).describe()
