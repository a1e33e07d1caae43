"""Memory that runs out is a line, not a traceback."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpst.cli.commands import main
from gpst.memory import allocation_failure
from pipeline.errors import explain

ON_A_GPU = (
    "CUDA out of memory. Tried to allocate 2.20 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.94 GiB is free. Including non-PyTorch memory, this process has 77.21 GiB in use."
)


def ask(allocate) -> BaseException:
    """What comes of more bytes than any machine has."""
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    return caught.value


def test_what_was_asked_for_is_said():
    of_torch = ask(lambda: torch.empty(1 << 60, dtype=torch.int8))
    assert allocation_failure(of_torch) == "out of memory: 1.0 EiB asked for on this machine"
    of_numpy = ask(lambda: np.empty(1 << 60, np.int8))
    assert allocation_failure(of_numpy) == "out of memory: 1.00 EiB asked for on this machine"
    on_a_gpu = torch.OutOfMemoryError(ON_A_GPU)
    assert allocation_failure(on_a_gpu) == "out of memory: 2.20 GiB asked for on a GPU"
    of_a_library = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `create`")
    assert allocation_failure(of_a_library) == "out of memory on a GPU"
    assert allocation_failure(MemoryError()) == "out of memory on this machine"
    for other in (RuntimeError("CUDA error: invalid device ordinal"), ValueError("out of memory")):
        assert allocation_failure(other) is None


def test_commands_say_it_and_what_takes_less(capsys):
    line, code = explain(torch.OutOfMemoryError(ON_A_GPU)) or ("", 0)
    assert line.startswith("out of memory: 2.20 GiB asked for on a GPU; train.micro_batch_context")
    assert code == 1

    def opener(_):
        return torch.empty(1 << 60, dtype=torch.int8)

    assert main(["parse", "--model", "large", "-"], opener=opener) == 3  # pyright: ignore[reportArgumentType]
    said = capsys.readouterr().err
    assert said == (
        "parse: out of memory: 1.0 EiB asked for on this machine; a smaller --beam or shorter "
        "lines take less\n"
    )

    def fails(_):
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        main(["parse", "--model", "faulty", "-"], opener=fails)
