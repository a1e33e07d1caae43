"""The environment's variables that a run reads, held against what they may be, in one place.

`check` before a run and `python -m pipeline doctor` say the same: a line for each wrong one.
"""

import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.command_line import Parser
from pipeline.errors import ConfigError

Environ = Mapping[str, str]
DEFAULT_TIMEOUT_MINUTES = 10


def threads(environ: Environ) -> int | None:
    """OMP_NUM_THREADS: threads of a rank; None when it is not set."""
    return _whole(environ, "OMP_NUM_THREADS", "the ranks then share the machine's cores")


def timeout_minutes(environ: Environ) -> int:
    """DEEPSPEED_TIMEOUT: longest wait for another rank, in minutes."""
    cure = f"it is then {DEFAULT_TIMEOUT_MINUTES} (minutes)"
    return _whole(environ, "DEEPSPEED_TIMEOUT", cure) or DEFAULT_TIMEOUT_MINUTES


def local_size(environ: Environ) -> int | None:
    """LOCAL_SIZE: ranks that deepspeed starts on this machine's CPU; None when it is not set."""
    return _whole(environ, "LOCAL_SIZE", "deepspeed then chooses the number of ranks")


def master_port(environ: Environ) -> int | None:
    """MASTER_PORT: where rank 0 listens; None when it is not set."""
    return _whole(environ, "MASTER_PORT", "a port is then chosen", most=65535)


def accelerator(environ: Environ) -> str | None:
    """DS_ACCELERATOR: cpu, cuda, or None for a GPU where there is one."""
    return _choice(environ, "DS_ACCELERATOR", ("cpu", "cuda"))


def kernels(environ: Environ) -> str | None:
    """GPST_KERNELS, see gpst/kernels."""
    return _choice(environ, "GPST_KERNELS", ("auto", "torch", "triton", "numba"))


_READERS: tuple[Callable[[Environ], object], ...] = (
    threads,
    timeout_minutes,
    local_size,
    master_port,
    accelerator,
    kernels,
)


def faults(environ: Environ) -> list[str]:
    """A line for each variable that has a value which it may not have."""
    found = []
    for read in _READERS:
        try:
            read(environ)
        except ConfigError as error:
            found.append(str(error))
    return found


def check(environ: Environ) -> None:
    """Raises ConfigError with the first of the `faults`."""
    for line in faults(environ):
        raise ConfigError(line)


def _whole(environ: Environ, name: str, unset: str, most: int | None = None) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    upto = f" and at most {most}" if most else ""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= (most or int(text)):
        raise ConfigError(
            f"{name}={text!r}: a whole number of at least 1{upto} is needed; set it, or unset it: "
            f"{unset}"
        )
    return int(text)


def _choice(environ: Environ, name: str, choices: tuple[str, ...]) -> str | None:
    text = environ.get(name)
    if text is not None and text not in choices:
        raise ConfigError(f"{name}={text!r}: must be one of {', '.join(choices)}; or unset it")
    return text


def check_launcher(environ: Environ) -> None:
    """Holds DEEPSPEED_ARGS, options of the `deepspeed` command, against the machines there are.

    deepspeed goes on alone, and only warns, when its host file is not there.

    Raises:
        ConfigError: names the option.
    """
    words = environ.get("DEEPSPEED_ARGS", "").split()
    if not words:
        return
    try:
        options, _ = _launcher_parser().parse_known_args(words)
        if options.hostfile is not None or options.include or options.exclude:
            _check_machines(options)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"DEEPSPEED_ARGS: {error}") from None


def _launcher_parser() -> Parser:
    """Those of deepspeed's options that can be wrong before anything has started."""
    parser = Parser("deepspeed", add_help=False, allow_abbrev=False)
    parser.add_argument("-H", "--hostfile")
    parser.add_argument("-i", "--include", default="")
    parser.add_argument("-e", "--exclude", default="")
    for name in ("--num_nodes", "--num_gpus", "--node_rank", "--master_port"):
        parser.add_argument(name, type=int)
    return parser


def _check_machines(options: Namespace) -> None:
    if options.hostfile is not None and not Path(options.hostfile).is_file():
        raise ConfigError(
            f"--hostfile {options.hostfile}: no such file, and deepspeed would go on on this "
            "machine alone: give the right path"
        )
    chosen = options.include or options.exclude
    if not re.fullmatch(r"([^\s:@]+(:[0-9]+(,[0-9]+)*)?(@|$))*", chosen):
        raise ConfigError(f"{chosen!r}: write HOST, HOST:0,1 or HOST:0@HOST2:1 (numbers of GPUs)")
    if chosen and (options.num_nodes is not None or options.num_gpus is not None):
        raise ConfigError("give --include or --exclude, or else --num_nodes and --num_gpus")
    from deepspeed.accelerator import get_accelerator
    from deepspeed.launcher import runner

    machines = runner.fetch_hostfile(options.hostfile or runner.DLTS_HOSTFILE)
    accelerator: Any = get_accelerator()
    machines = machines or {"localhost": accelerator.device_count()}
    if not runner.parse_inclusion_exclusion(machines, options.include, options.exclude):
        raise ConfigError(f"{chosen!r} leaves no rank: {', '.join(machines)} are there")
