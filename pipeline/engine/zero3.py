"""ZeRO 3 for a model whose modules are called another number of times on every rank.

DeepSpeed's stage 3 fetches a module's weights by all-gathers in hooks around each call of it, so
all ranks must make the same calls. The composition model is called once a level of the chart, the
parser once a group of sentence lengths: these differ between ranks (and DeepSpeed then crashes, or
trains on wrong gradients). So only the Transformer blocks, which every rank calls once a forward
pass, are fetched by DeepSpeed; everything else is *replicated*: whole on every rank from one update
to the next, without hooks. Gradients, master weights and moments of all parameters are split.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from gpst.layers.transformer import CausalBlock
from pipeline.errors import TrainingError


class ReplicatedParameters:
    """The parameters of a stage-3 engine that are whole on every rank.

    Args:
        raw: the DeepSpeedEngine, new.
    """

    def __init__(self, raw: Any) -> None:
        root: nn.Module = raw.module
        # Its import takes seconds; a model that has such blocks has imported it.
        gpt2 = sys.modules.get("transformers.models.gpt2.modeling_gpt2")
        fetched = (CausalBlock, gpt2.GPT2Block) if gpt2 else (CausalBlock,)
        blocks = [module for module in root.modules() if isinstance(module, fetched)]
        self._fetched = {module for block in blocks for module in block.modules()}
        in_blocks = {id(p) for block in blocks for p in block.parameters()}
        for module in root.modules():
            # The root keeps its hooks: they tell DeepSpeed where a forward pass begins.
            if module not in self._fetched and module is not root:
                module._forward_hooks.clear()
                module._forward_pre_hooks.clear()
        self._all: dict[str, Any] = {n: p for n, p in root.named_parameters() if p.requires_grad}
        self._replicated: list[Any] = [p for p in root.parameters() if id(p) not in in_blocks]
        # DeepSpeed gathers what is in its list after each update, and after saving.
        persistent: list[Any] = raw.optimizer.persistent_parameters
        known = {id(p) for p in persistent}
        for parameter in self._replicated:
            parameter.ds_persist = True
        persistent.extend(p for p in self._replicated if id(p) not in known)
        self._took_part: set[int] = set()
        for parameter in self._all.values():
            parameter.register_post_accumulate_grad_hook(lambda p: self._took_part.add(id(p)))
        self.gather()

    def gather(self) -> None:
        """Makes them whole where they are not; all ranks call it.

        DeepSpeed leaves them split after a step that it skipped, and at the start.
        """
        _gather(self._replicated)

    def check_all_took_part(self) -> None:
        """Called after each backward pass.

        Raises:
            TrainingError: a parameter got no gradient; DeepSpeed would use an old one, silently.
        """
        if len(self._took_part) < len(self._all):
            name = next(n for n, p in self._all.items() if id(p) not in self._took_part)
            raise TrainingError(
                f"{name} took no part in a backward pass, which DeepSpeed's stage 3 gets wrong; "
                "use engine.zero_stage 2 for this model"
            )
        self._took_part.clear()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights are whole inside, and no hook is called; all ranks enter together."""
        self.gather()
        split = [p for p in self._all.values() if p.ds_status.name != "AVAILABLE"]
        hooks = {m: (m._forward_hooks, m._forward_pre_hooks) for m in self._fetched}
        _gather(split)
        for module in hooks:
            module._forward_hooks, module._forward_pre_hooks = OrderedDict(), OrderedDict()
        try:
            yield
        finally:
            for module, (after, before) in hooks.items():
                module._forward_hooks, module._forward_pre_hooks = after, before
            if split:
                split[0].partition(split)


def _gather(parameters: list[Any]) -> None:
    split = [p for p in parameters if p.ds_status.name != "AVAILABLE"]
    if split:
        split[0].all_gather(split)
