"""The console scripts of an installation: gpst-train, gpst-parse, ... (pyproject.toml).

Those that start ranks run the shell script that the checkout has too (launch/), the others call
the function behind it.
"""

import os
import sys

from pipeline.config.run import REPOSITORY


def train() -> int:
    """`gpst-train`: launch/pretrain.sh."""
    return _launch("pretrain")


def finetune() -> int:
    """`gpst-finetune`: launch/finetune.sh."""
    return _launch("finetune")


def _launch(name: str) -> int:
    """Becomes the script, with this Python's folder in front of PATH: deepspeed lies there."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    script = str(REPOSITORY / "launch" / f"{name}.sh")
    try:
        os.execvpe("bash", ["bash", script, *sys.argv[1:]], {**os.environ, "PATH": path})
    except OSError as error:
        print(f"{name}: bash cannot be started ({error.strerror}); install it", file=sys.stderr)
        return 2


def evaluate() -> int:
    """`gpst-evaluate TASK`."""
    from pipeline.cli.evaluate import main

    return main(sys.argv[1:])


def convert() -> int:
    """`gpst-convert`."""
    from pipeline.cli.convert import main

    return main(sys.argv[1:])


def parse() -> int:
    """`gpst-parse`."""
    return _model_command("parse")


def generate() -> int:
    """`gpst-generate`."""
    return _model_command("generate")


def surprisal() -> int:
    """`gpst-surprisal`."""
    return _model_command("surprisal")


def _model_command(name: str) -> int:
    from pipeline.cli.model_commands import main

    return main([name, *sys.argv[1:]])


def demo() -> int:
    """`gpst-demo`: the web page."""
    return _model_command("demo")


def report() -> int:
    """`gpst-report RUNS`."""
    from pipeline.report.command import main

    return main(sys.argv[1:])


def doctor() -> int:
    """`gpst-doctor`."""
    from pipeline.cli.doctor import main

    return main(sys.argv[1:])


def treebank() -> int:
    """`gpst-treebank`."""
    from pipeline.treebank.__main__ import main

    return main(sys.argv[1:])
