"""Addresses and network interfaces of this machine, as the others see them."""

import ipaddress
import socket
from contextlib import suppress

import psutil

LOCAL_HOST = "127.0.0.1"
_NOWHERE = "192.0.2.1"
"""An address of RFC 5737, which no machine has: only the way to it is asked for."""


def is_loopback(address: str) -> bool:
    """Whether an address means each machine itself; Debian's own name of a host is 127.0.1.1."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def resolve(name: str) -> str | None:
    """The address of a name that other machines can use; None: unknown here, or loopback."""
    with suppress(OSError):
        for *_, place in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
            if not is_loopback(str(place[0])):
                return str(place[0])
    return None


def outgoing_address() -> str | None:
    """The address of this machine's way out, or of its first network; None: it has none."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_NOWHERE, 9))  # sends nothing
        return probe.getsockname()[0]
    for interface, state in psutil.net_if_stats().items():
        for entry in psutil.net_if_addrs().get(interface, ()) if state.isup else ():
            if entry.family == socket.AF_INET and not is_loopback(entry.address):
                return entry.address
    return None


def interface_of(address: str) -> str | None:
    """The network interface with an address of this machine; None: it is not this machine's."""
    wanted = LOCAL_HOST if is_loopback(address) else address
    for interface, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == wanted for entry in entries):
            return interface
    return None


def why_unreachable(error: OSError, address: str) -> str:
    """The likely cause of a failed connection to rank 0, and its cure."""
    here = socket.gethostname()
    cure = "set MASTER_ADDR to an address of rank 0's machine"
    if isinstance(error, socket.gaierror):
        return f"{here} does not know the name {address}: {cure}"
    if isinstance(error, ConnectionRefusedError):
        with suppress(ValueError):
            if is_loopback(address):
                return f"rank 0 has not started, or is on another machine: then {cure}"
        return f"nothing listens there: rank 0 has not started, or is elsewhere: then {cure}"
    return (
        f"{here} gets no answer ({error.strerror or error}): a firewall, a cable, or an address of "
        f"another network: then {cure}"
    )
