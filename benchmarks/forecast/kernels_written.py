"""Our own Triton kernels in the forecast: each call is one launch, seen where it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from forecast.fused_costs import COSTS
from forecast.gpus import Cost
from forecast.operations import size_bytes, tensors_in


def cost_of_call(name: str, arguments: dict[str, Any], grid: tuple[int, ...]) -> Cost:
    """Of one call; a plain kernel takes each of its tensors once through memory."""
    if name in COSTS:
        return COSTS[name](arguments, grid)
    tensors = {id(t.untyped_storage()): t for t in tensors_in(list(arguments.values()))}
    numbers = max((tensor.numel() for tensor in tensors.values()), default=0)
    return Cost(1, sum(map(size_bytes, tensors.values())), 20.0 * numbers)


@contextmanager
def hooked(add: Callable[[str, Cost], None]) -> Iterator[None]:
    """Inside, calls of Triton kernels are recorded and not made."""
    from triton.runtime.jit import KernelInterface

    real = KernelInterface.__getitem__

    def launcher(kernel: Any, grid: Any) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            names = kernel.arg_names
            arguments = dict(zip(names, args, strict=False)) | kwargs
            sizes = grid(arguments) if callable(grid) else grid
            name = kernel.fn.__name__
            add(f"triton {name}", cost_of_call(name, arguments, tuple(sizes)))

        return call

    KernelInterface.__getitem__ = launcher  # type: ignore[method-assign]
    try:
        yield
    finally:
        KernelInterface.__getitem__ = real  # type: ignore[method-assign]
