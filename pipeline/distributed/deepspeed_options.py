"""The options of the `deepspeed` command, checked before it starts.

It answers some mistakes with a traceback and others with nothing.
"""

import logging
import re
import shutil
import socket
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.arguments import Parser
from pipeline.distributed import environment
from pipeline.distributed.addresses import interface_of
from pipeline.errors import ConfigError


def check_launcher(environ: Mapping[str, str]) -> None:
    """Checks the options of the `deepspeed` command against the machines.

    They are in DEEPSPEED_ARGS, which ranks.bash sets, if only to nothing, before it starts
    deepspeed. Without its host file deepspeed only warns and goes on alone.

    Raises:
        ConfigError: names the option or the variable.
    """
    if "DEEPSPEED_ARGS" not in environ:
        return
    environment.check_counts_ranks(environ)
    with _naming_the_arguments():
        options, _ = _launcher_parser().parse_known_args(environ["DEEPSPEED_ARGS"].split())
    _check_visible(environ, options)
    if options.hostfile is not None or options.include or options.exclude:
        with _naming_the_arguments():
            _check_machines(options)
    port = environment.master_port(environ)
    if port is not None and options.master_port not in (None, port):
        raise ConfigError(
            f"MASTER_PORT={port}, and DEEPSPEED_ARGS has --master_port {options.master_port}: "
            "give one of them"
        )


@contextmanager
def _naming_the_arguments() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"DEEPSPEED_ARGS: {error}") from None


def _launcher_parser() -> Parser:
    """Those of deepspeed's options that can be wrong before anything has started."""
    parser = Parser("deepspeed", add_help=False, allow_abbrev=False)
    parser.add_argument("-H", "--hostfile")
    parser.add_argument("-i", "--include", default="")
    parser.add_argument("-e", "--exclude", default="")
    parser.add_argument("--launcher")
    for name in ("--num_nodes", "--num_gpus", "--node_rank", "--master_port"):
        parser.add_argument(name, type=int)
    for name in ("--no_ssh", "--force_multi"):
        parser.add_argument(name, action="store_true")
    return parser


def _check_visible(environ: Mapping[str, str], options: Namespace) -> None:
    """CUDA_VISIBLE_DEVICES, which deepspeed reads as an --include, or ignores beside options.

    On a CPU its numbers are those of the ranks.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible or options.hostfile is not None:
        return
    import torch

    variable = f"CUDA_VISIBLE_DEVICES={visible}"
    on_cpu = environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available()
    chosen = [
        f"--{name} {value}"
        for name in ("include", "exclude", "num_nodes", "num_gpus")
        if (value := getattr(options, name)) and not (name == "num_nodes" and value == 1)
    ]
    if chosen and not on_cpu:
        raise ConfigError(
            f"{variable} is ignored by deepspeed beside {chosen[0]}, which counts all GPUs of the "
            f"machine: give --include localhost:{visible} alone, or leave the option out"
        )
    numbers = visible.split(",")
    wanted = environment.local_size(environ) if on_cpu else None
    if not chosen and not all(number.isdigit() for number in numbers):
        raise ConfigError(
            f"{variable}: deepspeed takes it for numbers of GPUs: write 0 or 0,1, or unset it (to "
            "train on the CPU: DS_ACCELERATOR=cpu), or start with torchrun"
        )
    if not chosen and wanted not in (None, len(numbers)):
        raise ConfigError(
            f"{variable} and LOCAL_SIZE={wanted}: deepspeed would start {len(numbers)} ranks on "
            "this CPU: unset CUDA_VISIBLE_DEVICES"
        )


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

    machines = _fetched(runner, options.hostfile)
    accelerator: Any = get_accelerator()
    machines = machines or {"localhost": accelerator.device_count()}
    left = runner.parse_inclusion_exclusion(machines, options.include, options.exclude)
    if not left:
        raise ConfigError(f"{chosen!r} leaves no rank: {', '.join(machines)} are there")
    if options.hostfile is not None and not options.no_ssh:
        _check_remote(options, [*left][: options.num_nodes])


def _fetched(runner: Any, hostfile: str | None) -> dict[str, int] | None:
    """Machine -> its slots, as deepspeed reads them; None: no file."""
    log, logger = runner.logger.level, runner.logger
    logger.setLevel(logging.CRITICAL)  # it repeats the whole file beside its exception
    try:
        machines = runner.fetch_hostfile(hostfile or runner.DLTS_HOSTFILE)
    finally:
        logger.setLevel(log)
    if hostfile is not None:
        _check_lines(Path(hostfile))
    empty = [name for name, slots in (machines or {}).items() if slots == 0]
    if empty:
        raise ConfigError(
            f"--hostfile {hostfile}: {empty[0]} slots=0, which deepspeed leaves out silently: "
            "write the number of its GPUs (or ranks), or remove the line"
        )
    return machines


def _check_lines(hostfile: Path) -> None:
    """Of a line with several machines deepspeed takes the first."""
    for line in hostfile.read_text(encoding="utf-8", errors="replace").splitlines():
        slots = r"slots=[0-9]+(\s+max[_-]slots=[0-9]+)?"
        if not re.fullmatch(rf"\s*([\w.:@-]+\s+{slots}\s*)?(#.*)?", line):
            raise ConfigError(
                f"--hostfile {hostfile}: {line!r}: write HOST slots=N, a line for each machine"
            )


def _check_remote(options: Namespace, machines: list[str]) -> None:
    """What `deepspeed` needs to reach other machines."""
    if len(machines) == 1 and not options.force_multi and not _is_here(machines[0]):
        raise ConfigError(
            f"--hostfile {options.hostfile} has one machine, {machines[0]}, and deepspeed would "
            f"start the ranks on {socket.gethostname()}: give bash --hosts {options.hostfile}, or "
            "add --force_multi"
        )
    here = len(machines) == 1 and not options.force_multi
    for program in ("pdsh", "ssh") if options.launcher in (None, "pdsh") and not here else ():
        if shutil.which(program) is None:
            raise ConfigError(
                f"no program {program} here, with which deepspeed reaches {', '.join(machines)}: "
                f"install it (Debian: apt-get install pdsh openssh-client), or start on each "
                "machine N (from 0) with --no_ssh --node_rank N --master_addr "
                f"{machines[0]}"
            )


def _is_here(machine: str) -> bool:
    with suppress(OSError):
        return interface_of(socket.gethostbyname(machine)) is not None
    return machine == socket.gethostname()
