"""Modes of models: training or evaluation, and made without values."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the model is in evaluation mode (no dropout); after it in the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class _SkipInit(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **kwargs or {})


@contextmanager
def skip_init() -> Iterator[None]:
    """Inside, the parameters of new models hold anything: models to be counted or loaded.

    It is quick, and memory is taken only where values are set. The meta device would take none, but
    import torch's compiler (seconds).
    """
    with _SkipInit():
        yield
