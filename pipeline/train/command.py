"""The command line of a program that trains: one configuration, on one rank or many."""

import os
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.arguments import Parser
from pipeline.distributed import deepspeed_options, environment
from pipeline.distributed.placement import is_rank_of_launcher
from pipeline.errors import ConfigError
from pipeline.terminal import be_quiet

_EPILOG = """\
example:
  deepspeed launch/{name}.sh --config {example}

Started in any of these ways; the same command resumes a run that was stopped or killed.
  deepspeed launch/{name}.sh --config X        a rank per GPU; LOCAL_SIZE=2 before it: 2 CPU ranks
  bash launch/{name}.sh --config X             the same; DEEPSPEED_ARGS="--num_gpus 2" before it
  bash launch/{name}.sh --hosts FILE --config X    on the machines of a host file, by ssh
  torchrun --nproc-per-node 2 launch/{name}.sh --config X
  srun python launch/{name}.sh --config X      also mpirun; without a launcher: one rank
Variables that are read: LOCAL_SIZE, OMP_NUM_THREADS (of a rank), DEEPSPEED_TIMEOUT (minutes),
MASTER_ADDR, MASTER_PORT, DS_ACCELERATOR (cpu, cuda), GPST_KERNELS; bash: DEEPSPEED_ARGS.
Exit codes: 0 done, or stopped by a signal and saved; 1 failed; 2 wrong usage or configuration;
3 damaged data or checkpoint; 130 interrupted, and saved; 143 SIGTERM before there was a step.
"""


@dataclass(frozen=True)
class CommandLine:
    """`launch/NAME.sh --config YAML [key=value ...]`."""

    name: str
    description: str
    example: str
    """A config file for messages."""

    def parse(self, argv: Sequence[str]) -> Namespace:
        """The arguments; `asks` says that they only ask for --help, --print-config or --dry-run.

        Raises:
            ConfigError: they are wrong.
        """
        arguments = self._parser().parse_intermixed_args(argv)
        arguments.asks = arguments.help or arguments.print_config or arguments.dry_run
        be_quiet(arguments.quiet)
        if arguments.hosts is not None:
            raise ConfigError(
                f"command line: --hosts {arguments.hosts} is for bash: bash launch/{self.name}.sh "
                f"--hosts {arguments.hosts} ... (in Slurm, mpirun and torchrun it has no meaning)"
            )
        return arguments

    def help(self) -> str:
        """What --help prints."""
        return self._parser().format_help().rstrip("\n")

    def config_source(self, arguments: Namespace) -> tuple[str, list[str]]:
        """(config file, overrides).

        Raises:
            ConfigError: --config is missing, or a variable of the environment is wrong.
        """
        environment.check(os.environ)
        if arguments.config is None:
            raise ConfigError(f"command line: --config is missing, e.g. --config {self.example}")
        return arguments.config, arguments.overrides

    def _parser(self) -> Parser:
        parser = Parser(
            prog=self.name,
            description=self.description,
            epilog=_EPILOG.format(name=self.name, example=self.example),
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        parser.add_argument("--config", metavar="YAML", help=f"the run, e.g. {self.example}")
        parser.add_argument(
            "--hosts", metavar="FILE", help="lines HOST slots=N: start there by ssh (bash only)"
        )
        parser.add_argument("--dry-run", action="store_true", help="check all, print the plan, end")
        parser.add_argument("--print-config", action="store_true", help="print the config, end")
        parser.add_argument("--quiet", action="store_true", help="no progress; errors and warnings")
        parser.add_argument("-h", "--help", action="store_true", help="print this, end")
        parser.add_argument("--local_rank", help="given by the DeepSpeed launcher; not used")
        parser.add_argument(
            "overrides", nargs="*", metavar="field=value", help="over the config file"
        )
        return parser


def check_launcher() -> None:
    """Checks what `deepspeed` will be told: ranks.bash asks for --print-config before it starts it.

    Raises:
        ConfigError: names the option or the variable.
    """
    if not is_rank_of_launcher(os.environ):
        deepspeed_options.check_launcher(os.environ)
