"""The environment variables that a run reads, and the checks of their values.

`check` before a run and `python -m pipeline doctor` report the same: a line for each wrong one.
"""

import re
import socket
from collections.abc import Callable, Mapping

from pipeline.errors import ConfigError

Environ = Mapping[str, str]
DEFAULT_TIMEOUT_MINUTES = 10.0


def threads(environ: Environ) -> int | None:
    """OMP_NUM_THREADS: threads of a rank; None when it is not set."""
    return _whole(environ, "OMP_NUM_THREADS", "the ranks then share the machine's cores")


def timeout_minutes(environ: Environ, configured: float = DEFAULT_TIMEOUT_MINUTES) -> float:
    """DEEPSPEED_TIMEOUT: longest wait for another rank, in minutes; else what is configured.

    Whole: DeepSpeed itself takes nothing else.
    """
    cure = "it is then engine.timeout_minutes"
    return _whole(environ, "DEEPSPEED_TIMEOUT", cure) or configured


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
