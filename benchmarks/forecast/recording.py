"""Runs real code on tensors without storage that claim to be on a GPU, and records what it does.

The tensors are PyTorch's meta tensors: shapes and types are those of the real thing. One mode
answers `device` with cuda:0 and takes care of what a machine without a GPU cannot do (pinned
memory, generators, the choice of an attention kernel); a second one sees each operation.
"""

from __future__ import annotations

import contextlib
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from forecast import kernels_written
from forecast.fused_costs import SENT
from forecast.gpus import Cost
from forecast.operations import cost_of, size_bytes, tensors_in, waits
from forecast.places import Place, place_of

GPU = torch.device("cuda", 0)
_META = torch.device("meta")


@dataclass(frozen=True)
class Event:
    """One operation, or one call of a Triton kernel."""

    name: str
    cost: Cost
    place: Place
    backward: bool


@dataclass
class Record:
    """All that happened."""

    events: list[Event] = field(default_factory=list)
    waits: list[Event] = field(default_factory=list)
    """Operations whose result the host waited for."""
    mixed: list[Event] = field(default_factory=list)
    """Operations with operands on the host and on the GPU."""
    pageable: list[Event] = field(default_factory=list)
    """Copies to the GPU from memory that is not pinned, or for which the host waits."""
    copies: list[Event] = field(default_factory=list)
    """All copies to the GPU."""
    waits_at: list[int] = field(default_factory=list)
    """Events before each wait."""
    held: int = 0
    """Bytes that are alive."""
    peak: int = 0
    """Most bytes that were alive at a time."""

    @property
    def launches(self) -> int:
        return sum(event.cost.launches for event in self.events)


class _Claims(TorchFunctionMode):
    """Meta tensors say that they are on a GPU, and are asked for under that name."""

    def __init__(self, pinned: weakref.WeakSet[Any]) -> None:
        super().__init__()
        self._pinned = pinned

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            device = func(*args)
            return GPU if device.type == "meta" else device
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].is_meta
        if name == "pin_memory":
            self._pinned.add(args[0].untyped_storage())
            return args[0]
        if name == "is_pinned":
            return args[0].untyped_storage() in self._pinned
        if name == "scaled_dot_product_attention":
            return _attention(*args, **kwargs)
        if name == "dropout" and args[0].is_meta:
            return _dropout(*args, **kwargs)
        if name in ("tolist", "numpy") and args[0].is_meta:
            return func(args[0].cpu())
        if func is torch.device:
            return func(*args, **kwargs)
        pin = kwargs.pop("pin_memory", False)
        out = func(*map(_to_meta, args), **{key: _to_meta(value) for key, value in kwargs.items()})
        if pin:
            self._pinned.add(out.untyped_storage())
        return out


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return _META
    return "meta" if isinstance(value, str) and value.startswith("cuda") else value


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """One kernel on a GPU; on meta tensors PyTorch would take three."""
    return torch.native_dropout(x, p, True)[0] if training and p > 0.0 else x


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """The kernel that PyTorch chooses on these GPUs: flash without a mask, else the efficient."""
    ops = torch.ops.aten
    if attn_mask is None and query.element_size() <= 2:
        flash = ops._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal)[0]
    efficient = ops._scaled_dot_product_efficient_attention
    grad = torch.is_grad_enabled() and query.requires_grad
    return efficient(query, key, value, None, grad, dropout_p, is_causal)[0]


class _Sees(TorchDispatchMode):
    def __init__(self, record: Record, pinned: weakref.WeakSet[Any], host_values: Any) -> None:
        super().__init__()
        self._record, self._pinned, self._host_values = record, pinned, host_values
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        """Storages that are counted; views are of the same one."""
        self._forward: tuple[list[int], list[Place]] = ([], [])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in((args, kwargs))
        name = func._schema.name.split("::")[1]
        on_gpu = any(tensor.is_meta for tensor in inputs)
        if not on_gpu and kwargs.get("device") != _META:
            return func(*args, **kwargs)
        event = self._event(name, Cost(0))
        to_host = name == "_local_scalar_dense" or kwargs.get("device") == torch.device("cpu")
        if on_gpu and to_host:
            return self._to_host(event, name, inputs[0])
        on_host = [tensor for tensor in inputs if not tensor.is_meta and tensor.ndim]
        if name in ("_to_copy", "copy_") and on_host:
            self._copy(event, on_host[0], kwargs.get("non_blocking", args[2:3] == (True,)))
        elif on_host and on_gpu:
            self._record.mixed.append(event)
            move = {id(tensor): tensor.to(_META) for tensor in on_host}
            args, kwargs = tree_map(lambda value: move.get(id(value), value), (args, kwargs))
        must_wait = waits(func, args)
        if must_wait:
            self._wait(event)
        if name == "nonzero":
            shape = inputs[0].numel() // 2, inputs[0].ndim
            out: Any = inputs[0].new_empty(shape, dtype=torch.int64)
        elif name == "index" and must_wait:  # by a mask: half of the rows
            out = inputs[0].new_empty(len(inputs[0]) // 2, *inputs[0].shape[1:])
        else:
            out = func(*args, **kwargs)
        if name == "_to_copy" and on_host:
            SENT[out.untyped_storage()] = on_host[0]
        self.hold(out)
        self.add(event.name, cost_of(func, args, kwargs, out))
        return out

    def add(self, name: str, cost: Cost) -> None:
        """Records a kernel."""
        if cost.launches:
            self._record.events.append(self._event(name, cost))

    def _event(self, name: str, cost: Cost) -> Event:
        node = torch._C._current_autograd_node()
        place, number = place_of(), torch.autograd._get_sequence_nr()
        numbers, places = self._forward
        if node is None:
            if not numbers or numbers[-1] != number:
                numbers.append(number)
                places.append(place)
            else:
                places[-1] = place
        elif not place.known and numbers:
            # The node was made just before the forward operation was seen.
            at = bisect_right(numbers, node._sequence_nr() + 1) - 1
            at_forward = places[max(at, 0)]
            place = at_forward if node._sequence_nr() < 2**62 else Place("sums", place.line, True)
        return Event(name, cost, place, node is not None)

    def _to_host(self, event: Event, name: str, source: Tensor) -> Any:
        self._wait(event)
        self.add("copy to the host", Cost(1, size_bytes(source)))
        if name == "_local_scalar_dense":
            return 1 if not source.dtype.is_floating_point else 1.0
        return self._host_values(source)

    def _wait(self, event: Event) -> None:
        self._record.waits.append(event)
        self._record.waits_at.append(len(self._record.events))

    def _copy(self, event: Event, source: Tensor, non_blocking: bool) -> None:
        self._record.copies.append(event)
        if not (non_blocking and source.untyped_storage() in self._pinned):
            self._record.pageable.append(event)

    def hold(self, out: Any) -> None:
        """Counts the memory of tensors until it is freed."""
        record = self._record
        for tensor in tensors_in(out):
            if not tensor.is_meta:
                continue
            storage = tensor.untyped_storage()
            if storage in self._alive:
                continue
            self._alive.add(storage)
            size = -(-storage.nbytes() // 512) * 512  # the allocator's rounding
            record.held += size
            record.peak = max(record.peak, record.held)
            weakref.finalize(storage, _release, record, size)


def _release(record: Record, size: int) -> None:
    record.held -= size


@contextmanager
def recording(
    host_values: Callable[[Tensor], Tensor], held: Sequence[Tensor] = ()
) -> Iterator[Record]:
    """Inside, tensors on the device `cuda` have no storage, and all that is done is recorded.

    Backward passes are started by `backward`.

    Args:
        host_values: what the host gets for a tensor that is copied to it.
        held: on the GPU before, as the parameters.
    """
    record, pinned = Record(), weakref.WeakSet()
    sees = _Sees(record, pinned, host_values)
    sees.hold(held)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_generators_on_the_host())
        # Saved tensors are packed where the mode is off, and would seem to have changed devices.
        checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
        stack.enter_context(mock.patch.dict(checks, default=lambda _: None))
        stack.enter_context(kernels_written.hooked(sees.add))
        stack.enter_context(_Claims(pinned))
        stack.enter_context(sees)
        yield record


def backward(loss: Tensor) -> None:
    """As loss.backward(), which would take the modes off for its time."""
    engine = torch.autograd.Variable._execution_engine
    options = {"allow_unreachable": True, "accumulate_grad": True}
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), **options)


@contextmanager
def _generators_on_the_host() -> Iterator[None]:
    real = torch.Generator

    class OnHost(real):  # a class: modules that are imported inside name it in annotations
        def __new__(cls, device: Any = None) -> Any:
            return real()

    torch.Generator = OnHost  # type: ignore[misc]
    try:
        yield
    finally:
        torch.Generator = real  # type: ignore[misc]
