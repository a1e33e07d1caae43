"""The environment variables that a run reads, and the checks of their values.

`check` before a run and `python -m pipeline doctor` report the same: a line for each wrong one.
"""

import re
import socket
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.arguments import Parser
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
    """DS_ACCELERATOR: cpu, cuda, or None for a GPU if the machine has one."""
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


def problems(environ: Environ) -> list[str]:
    """A line for each variable with a wrong value."""
    lines = []
    for read in _READERS:
        try:
            read(environ)
        except ConfigError as error:
            lines.append(str(error))
    return lines


def check(environ: Environ) -> None:
    """Raises ConfigError with the first of the `problems`."""
    for line in problems(environ):
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
    """Checks the options of the `deepspeed` command against the machines.

    They are in DEEPSPEED_ARGS, which ranks.bash sets, if only to nothing, before it starts
    deepspeed. Without its host file deepspeed only warns and goes on alone.

    Raises:
        ConfigError: names the option or the variable.
    """
    if "DEEPSPEED_ARGS" not in environ:
        return
    check_counts_ranks(environ)
    with _naming_the_arguments():
        options, _ = _launcher_parser().parse_known_args(environ["DEEPSPEED_ARGS"].split())
    _check_visible(environ, options)
    if options.hostfile is not None or options.include or options.exclude:
        with _naming_the_arguments():
            _check_machines(options)
    port = master_port(environ)
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


def check_counts_ranks(environ: Environ) -> None:
    """Refuses RANK and WORLD_SIZE of a platform (Kubeflow), which count machines, not ranks."""
    size = environ.get("WORLD_SIZE", "1")
    if "RANK" in environ and "LOCAL_RANK" not in environ and size != "1":
        raise ConfigError(
            f"RANK={environ['RANK']} and WORLD_SIZE={size} are set and LOCAL_RANK is not, so that "
            "they seem to count machines, as Kubeflow's do: start torchrun --nnodes $WORLD_SIZE "
            "--node-rank $RANK --nproc-per-node gpu --master-addr $MASTER_ADDR --master-port "
            "$MASTER_PORT, or unset both (where they count ranks: set LOCAL_RANK)"
        )


def _launcher_parser() -> Parser:
    """Those of deepspeed's options that can be wrong before anything has started."""
    parser = Parser("deepspeed", add_help=False, allow_abbrev=False)
    parser.add_argument("-H", "--hostfile")
    parser.add_argument("-i", "--include", default="")
    parser.add_argument("-e", "--exclude", default="")
    for name in ("--num_nodes", "--num_gpus", "--node_rank", "--master_port"):
        parser.add_argument(name, type=int)
    return parser


def _check_visible(environ: Environ, options: Namespace) -> None:
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
    wanted = local_size(environ) if on_cpu else None
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

    machines = runner.fetch_hostfile(options.hostfile or runner.DLTS_HOSTFILE)
    accelerator: Any = get_accelerator()
    machines = machines or {"localhost": accelerator.device_count()}
    if not runner.parse_inclusion_exclusion(machines, options.include, options.exclude):
        raise ConfigError(f"{chosen!r} leaves no rank: {', '.join(machines)} are there")


def check_interfaces(environ: Environ, device_type: str) -> None:
    """Checks that this machine has the network interfaces that collectives are told to use.

    Args:
        device_type: "cuda" reads NCCL_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME is read.
    Raises:
        ConfigError: it has no such interface.
    """
    name = "NCCL_SOCKET_IFNAME" if device_type == "cuda" else "GLOO_SOCKET_IFNAME"
    text = environ.get(name, "")
    interfaces = [interface for _, interface in socket.if_nameindex()]
    if device_type == "cuda":
        fits = any(_nccl_takes(interface, text) for interface in interfaces)
    else:
        fits = set(text.split(",")) <= set(interfaces)
    if text and not fits:
        raise ConfigError(
            f"{name}={text!r}: {socket.gethostname()} has no such network interface, only "
            f"{', '.join(interfaces)}; set it to what each machine has, or unset it"
        )


def _nccl_takes(interface: str, text: str) -> bool:
    """NCCL's reading: beginnings of names; after ^ those to leave out, after = whole names."""
    words = text.removeprefix("^")
    names = [word.partition(":")[0] for word in words.removeprefix("=").split(",")]
    if words.startswith("="):
        matches = interface in names
    else:
        matches = any(interface.startswith(name) for name in names)
    return matches != text.startswith("^")
