"""The commands, in one table.

`python -m pipeline NAME`, the console scripts of an installation (pyproject.toml) and
docs/reference/commands.md come from it. A module is imported when its command is run.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from gpst.cli.process import CLOSED_OUTPUT, end_process, loading
from pipeline.config.run import REPOSITORY
from pipeline.errors import EXIT_USAGE
from pipeline.evaluate.registry import EVALUATIONS


@dataclass(frozen=True)
class Command:
    """A command of pipeline."""

    name: str
    summary: str
    typed: str
    """How it is started in a checkout."""
    script: str
    """The console script of an installation."""
    target: str
    """module:function that takes the arguments and returns the exit code."""
    first: tuple[str, ...] = ()
    """Arguments before those of the user."""
    subcommands: tuple[str, ...] = ()
    has_ranks: bool = False
    """The console script runs launch/NAME.sh, which starts the ranks."""

    def run(self, argv: Sequence[str]) -> int:
        """Runs the command in this process and returns its exit code."""
        if sys.stdout is None:
            print(f"{self.name}: {CLOSED_OUTPUT}", file=sys.stderr)
            return EXIT_USAGE
        with loading(self.name):
            target = resolve_name(self.target)
        return target([*self.first, *argv])

    def __call__(self) -> int:
        """The console script."""
        return self._launch() if self.has_ranks else end_process(self.run(sys.argv[1:]))

    def _launch(self) -> int:
        """Becomes launch/NAME.sh, with this Python's folder, where deepspeed is, first in PATH."""
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        script = str(REPOSITORY / "launch" / f"{self.name}.sh")
        try:
            os.execvpe("bash", ["bash", script, *sys.argv[1:]], {**os.environ, "PATH": path})
        except OSError as error:
            reason = error.strerror
            print(f"{self.name}: bash cannot be started ({reason}); install it", file=sys.stderr)
            return EXIT_USAGE


def _model_command(name: str, summary: str, typed: str | None = None) -> Command:
    """A command on a trained model."""
    target = "pipeline.cli.model_commands:main"
    typed = typed or f"bash launch/{name}.sh"
    return Command(name, summary, typed, f"gpst-{name}", target, first=(name,))


pretrain = Command(
    "pretrain",
    "pre-trains a GPST or a GPT-2 baseline (launch/pretrain.sh)",
    typed="deepspeed launch/pretrain.sh",
    script="gpst-train",
    target="pipeline.train.pretrain:main",
    has_ranks=True,
)
finetune = Command(
    "finetune",
    "fine-tunes and evaluates one (launch/finetune.sh)",
    typed="deepspeed launch/finetune.sh",
    script="gpst-finetune",
    target="pipeline.finetune.command:main",
    has_ranks=True,
)
evaluate = Command(
    "evaluate",
    "perplexity, F1 of trees, SyntaxGym",
    typed="bash launch/evaluate.sh",
    script="gpst-evaluate",
    target="pipeline.cli.evaluate:main",
    subcommands=tuple(EVALUATIONS),
)
convert = Command(
    "convert",
    "exports checkpoints, reads exported and released models",
    typed="bash launch/convert.sh",
    script="gpst-convert",
    target="pipeline.cli.convert:main",
    subcommands=("to-hf", "from-hf", "from-reference", "inspect"),
)
parse = _model_command("parse", "trees of sentences")
generate = _model_command("generate", "text with its trees")
surprisal = _model_command("surprisal", "bits of each word")
demo = _model_command(
    "demo", "a web page on which a model parses and writes", "python -m launch.demo"
)
report = Command(
    "report",
    "tables, curves and trees of runs on a page",
    typed="python -m pipeline report",
    script="gpst-report",
    target="pipeline.report.command:main",
)
doctor = Command(
    "doctor",
    "what of this machine would break a run",
    typed="python -m pipeline doctor",
    script="gpst-doctor",
    target="pipeline.cli.doctor:main",
)
treebank = Command(
    "treebank",
    "gold trees, one a line",
    typed="python -m pipeline.treebank",
    script="gpst-treebank",
    target="pipeline.treebank.__main__:main",
)
COMMANDS = {
    command.name: command
    for command in (
        *(pretrain, finetune, evaluate, convert, parse, generate, surprisal, demo),
        *(report, doctor, treebank),
    )
}
