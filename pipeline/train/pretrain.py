"""Pre-training: `deepspeed launch/pretrain.sh --config configs/run/NAME.yaml [key=value ...]`.

From here to the model: train/trainer.py (engine, checkpoints and monitor are made, and the loop
runs), train/step.py (a step), engine/engine.py (DeepSpeed), gpst/model/gpst.py (forward pass).
"""

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.run import config_to_yaml, load_config
from pipeline.distributed.placement import check_local_size
from pipeline.distributed.ranks import Ranks
from pipeline.train.command import CommandLine, check_launcher

# What takes seconds to import comes after the checks of the command line.

_COMMAND = CommandLine(
    name="pretrain",
    description="Pre-trains a GPST or a GPT-2 baseline on a dataset of data_prep.",
    example="configs/run/demo.yaml",
)


def main(argv: Sequence[str]) -> int:
    """Runs the command on this rank and returns its exit code."""
    with Ranks(_COMMAND.name) as ranks:
        arguments = _COMMAND.parse(argv)
        if not arguments.asks:
            ranks.exit_code = _pretrain(arguments, ranks)
        elif ranks.is_first:
            print(_answer(arguments, ranks), flush=True)
    return ranks.exit_code


def _pretrain(arguments: Namespace, ranks: Ranks) -> int:
    """Trains together with the other ranks."""
    from pipeline.evaluate.treebank_probe import check_best_metric, open_treebank_probe
    from pipeline.run_folder import only_run
    from pipeline.train.preflight import check_run, share_run
    from pipeline.train.trainer import train

    ranks.rendezvous()  # the others wait here until rank 0 has checked the run
    config = load_config(*_COMMAND.config_source(arguments))
    checked = treebank = None
    if ranks.is_main:
        ranks.enter(only_run(Path(config.run_dir)))
        checked = check_run(config, ranks.size)
        check_best_metric(checked.config)
        treebank = open_treebank_probe(checked.config, checked.source)
    world = ranks.connect(config.engine.timeout_minutes)
    checked = share_run(config, checked, world)
    return train(checked, world, evaluation=treebank and treebank.evaluate).exit_code


def _answer(arguments: Namespace, ranks: Ranks) -> str:
    """What --help, --print-config and --dry-run print."""
    if arguments.help:
        return _COMMAND.help()
    if arguments.dry_run and not arguments.print_config:
        check_local_size(ranks.placement, os.environ)
    config = load_config(*_COMMAND.config_source(arguments))
    if arguments.print_config:
        check_launcher()
        return config_to_yaml(config).rstrip("\n")

    from pipeline.evaluate.treebank_probe import check_best_metric, open_treebank_probe
    from pipeline.train.dry_run import check_dry_run

    run = check_dry_run(config, ranks.size)
    check_best_metric(run.config)
    if run.source is not None:
        open_treebank_probe(run.config, run.source)
    return run.describe()
