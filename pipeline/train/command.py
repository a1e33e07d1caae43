"""The command line of a task that trains: one configuration, on one rank or many."""

from __future__ import annotations

import os
import signal
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pipeline.arguments import Parser
from pipeline.distributed import environment
from pipeline.distributed.placement import (
    Placement,
    check_local_size,
    find_placement,
    is_rank_of_launcher,
)
from pipeline.errors import EXIT_INTERRUPTED, ConfigError, PipelineError, report
from pipeline.terminal import be_quiet, outliving_the_terminal

if TYPE_CHECKING:
    from pipeline.distributed.world import World

_EPILOG = """\
example:
  deepspeed launch/{name}.sh --config {example}

Started in any of these ways; the same command resumes a run that was stopped or killed.
  deepspeed launch/{name}.sh --config X        a rank per GPU; LOCAL_SIZE=2 before it: 2 CPU ranks
  bash launch/{name}.sh --config X             the same; DEEPSPEED_ARGS="--num_gpus 2" before it
  torchrun --nproc-per-node 2 launch/{name}.sh --config X
  srun python launch/{name}.sh --config X      also mpirun; without a launcher: one rank
Variables that are read: LOCAL_SIZE, OMP_NUM_THREADS (of a rank), DEEPSPEED_TIMEOUT (minutes),
MASTER_ADDR, MASTER_PORT, DS_ACCELERATOR (cpu, cuda), GPST_KERNELS; bash: DEEPSPEED_ARGS.
Exit codes: 0 done, or stopped by a signal and saved; 1 failed; 2 wrong usage or configuration;
3 damaged data or checkpoint; 130 interrupted, and saved.
"""


class Described(Protocol):
    """A plan that says what it is in words."""

    def describe(self) -> str:
        """What `--dry-run` prints."""
        ...


class Configured(Protocol):
    """A configuration of a run."""

    @property
    def run_dir(self) -> str:
        """Where it writes."""
        ...


C = TypeVar("C", bound=Configured)
P = TypeVar("P")


def _is_alone() -> bool:
    """Whether this process is the only rank, as far as its variables say."""
    try:
        return find_placement(os.environ).size == 1
    except ConfigError:
        return False  # said when the ranks meet


@dataclass(frozen=True)
class TrainingCommand(Generic[C, P]):
    """`launch/NAME.sh --config YAML [key=value ...]`."""

    name: str
    description: str
    example: str
    """A config file for messages."""
    load: Callable[[str, Sequence[str]], C]
    """The configuration in a file, with overrides."""
    to_yaml: Callable[[C], str]
    check: Callable[[C, int], P]
    """The plan of a run on so many ranks; rank 0 makes it before the others."""
    run: Callable[[P, World], int]
    """Trains on all ranks and returns the exit code."""
    check_dry: Callable[[C, int], Described]
    """What `--dry-run` checks: it may do with less than a run."""

    def main(self, argv: Sequence[str]) -> int:
        """Runs the command on this rank and returns its exit code."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._main(argv)
        except KeyboardInterrupt as error:  # before the ranks meet: the first says it
            alone = os.environ.get("RANK", "0") == "0"
            return report(error, self.name) if alone else EXIT_INTERRUPTED

    def _main(self, argv: Sequence[str]) -> int:
        try:
            arguments = self._parser().parse_intermixed_args(argv)
            be_quiet(arguments.quiet)
            if arguments.help or arguments.print_config:
                # Answered without starting anything; a launcher's ranks leave it to the first.
                text = self._parser().format_help() if arguments.help else self._config(arguments)
                if not is_rank_of_launcher(os.environ) and not arguments.help:
                    environment.check_launcher(os.environ)  # ranks.bash asks before it starts
                if os.environ.get("RANK", "0") == "0":
                    print(text, end="", flush=True)
                return 0
            if arguments.dry_run:
                return self._dry_run(arguments)
        except (PipelineError, ConfigError) as error:
            if _is_alone():
                return report(error, self.name)
            # Of several ranks the first says it below, so that one line appears.
        except BrokenPipeError as error:
            return report(error, self.name)
        with outliving_the_terminal(), ExitStack() as held:
            return self._train(argv, held)

    def _train(self, argv: Sequence[str], held: ExitStack) -> int:
        from pipeline.distributed.world import launch
        from pipeline.run_folder import only_run

        plans: list[P] = []

        def prepare(placement: Placement) -> None:
            config = self._load(self._parser().parse_intermixed_args(argv))
            held.enter_context(only_run(Path(config.run_dir)))
            plans.append(self.check(config, placement.size))

        def body(world: World) -> int:
            if plans:
                return self.run(plans[0], world)
            arguments = self._parser().parse_intermixed_args(argv)
            return self.run(self.check(self._load(arguments), world.size), world)

        return launch(prepare, body, self.name)

    def _dry_run(self, arguments: Namespace) -> int:
        """The first rank knows how many there are, and plans without meeting the others."""
        try:
            placement = find_placement(os.environ)
            if placement.rank == 0:
                check_local_size(placement, os.environ)
                print(self.check_dry(self._load(arguments), placement.size).describe(), flush=True)
            return 0
        except Exception as error:
            return report(error, self.name)

    def _parser(self) -> ArgumentParser:
        parser = Parser(
            prog=self.name,
            description=self.description,
            epilog=_EPILOG.format(name=self.name, example=self.example),
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        parser.add_argument("--config", metavar="YAML", help=f"the run, e.g. {self.example}")
        parser.add_argument("--dry-run", action="store_true", help="check all, print the plan, end")
        parser.add_argument("--print-config", action="store_true", help="print the config, end")
        parser.add_argument("--quiet", action="store_true", help="no progress; errors and warnings")
        parser.add_argument("-h", "--help", action="store_true", help="print this, end")
        parser.add_argument("--local_rank", help="given by the DeepSpeed launcher; not used")
        parser.add_argument(
            "overrides", nargs="*", metavar="field=value", help="over the config file"
        )
        return parser

    def _load(self, arguments: Namespace) -> C:
        environment.check(os.environ)
        if arguments.config is None:
            raise ConfigError(f"command line: --config is missing, e.g. --config {self.example}")
        return self.load(arguments.config, arguments.overrides)

    def _config(self, arguments: Namespace) -> str:
        return self.to_yaml(self._load(arguments))
