"""What the benchmarks of training share: batches of sentences, steps, clocks, times by part."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import yaml

from gpst.batch import ContextBatch
from gpst.config import GPSTConfig, GPT2Config, ModelConfig, config_from_dict
from gpst.model.losses import total_loss


def load_model_config(path: str, vocab_size: int, schedule: str | None = None) -> GPSTConfig:
    values = yaml.safe_load(Path(path).read_text())
    values |= {"vocab_size": vocab_size, "bos_token_id": 0}
    if schedule:
        values["composition"]["schedule"] = schedule
    config = config_from_dict(values)
    if not isinstance(config, GPSTConfig):
        raise SystemExit(f"{path}: kind {values['kind']!r}; a configuration of kind gpst is needed")
    return config


def partner(config: GPSTConfig) -> GPT2Config:
    """The GPT-2 that a GPST is compared with: the generator's width and number of layers."""
    return GPT2Config(
        vocab_size=config.vocab_size,
        bos_token_id=config.bos_token_id,
        max_context_tokens=config.max_context_tokens,
        hidden_dim=config.hidden_dim,
        num_heads=config.num_heads,
        ffn_dim=config.ffn_dim,
        num_layers=config.num_type_layers + config.num_token_layers,
        init=config.init,
        dropout=config.dropout,
    )


def sentence_lengths(rng: np.random.Generator, tokens: int) -> list[int]:
    """Lengths like English prose in word pieces (mean 24, long tail), `tokens` in all."""
    lengths: list[int] = []
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, int(np.clip(rng.lognormal(2.98, 0.65), 1, 256))))
    return lengths


def make_batch(config: ModelConfig, tokens: int, context_tokens: int, seed: int) -> ContextBatch:
    rng = np.random.default_rng(seed)
    contexts = []
    for start in range(0, tokens, context_tokens):
        lengths = sentence_lengths(rng, min(context_tokens, tokens - start))
        contexts.append([rng.integers(0, config.vocab_size, n).tolist() for n in lengths])
    return ContextBatch.from_sentences(contexts)


class Clock:
    """Seconds between laps: of the CPU on one thread, of the wall on more or on a GPU."""

    def __init__(self, device: str):
        self.device = device
        self.last = self.now()

    def now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        elif torch.get_num_threads() == 1:
            return time.process_time()
        return time.perf_counter()

    def lap(self) -> float:
        now = self.now()
        passed, self.last = now - self.last, now
        return passed


class Trainer:
    """Forward, backward, clipping and AdamW of one model."""

    def __init__(self, model: torch.nn.Module, device: str, bf16: bool):
        self.model = model.to(device).train()
        fused = {"fused": True} if device == "cuda" else {}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
        self.device, self.bf16 = device, bf16
        self.laps: dict[str, list[float]] = defaultdict(list)

    def step(self, batch: ContextBatch) -> float:
        """Seconds of one step."""
        start, clock = Clock(self.device), Clock(self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bf16):
            loss = total_loss(self.model(batch, noise=1.0).losses, batch.counts)
        self.laps["forward"].append(clock.lap())
        loss.backward()
        self.laps["backward"].append(clock.lap())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.laps["optimizer"].append(clock.lap())
        return start.lap()


class Parts:
    """Times of the parts of GPST, summed over steps; on a GPU each part is waited for."""

    def __init__(self, model: torch.nn.Module, device: str):
        from gpst.chart import inside, outside
        from gpst.chart.pair_pass import PairPass
        from gpst.model import gpst as parts
        from gpst.model import losses

        self.device = device
        self.active = True
        """Off while another model takes its turn: the parts are replaced for all."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.levels: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        """(pass, level): pairs and seconds, forward."""
        for name in ("inside", "outside", "decode", "build_layout", "split_loss"):
            setattr(parts, name, self._timed(name, getattr(parts, name)))
        for name in ("parser", "generator"):
            module = getattr(model, name)
            module.forward = self._timed(name, module.forward)
        losses._VocabularyLoss.apply = self._timed("heads", losses._VocabularyLoss.apply)
        for name, function in (("inside", inside._Inside), ("outside", outside._Outside)):
            timed = self._timed(f"{name} backward", function.backward)
            function.backward = staticmethod(timed)  # type: ignore[method-assign]
        PairPass.forward = self._by_level(PairPass.forward)  # type: ignore[method-assign]

    def _timed(self, name: str, function: Callable) -> Callable:
        def wrapper(*args, **kwargs):
            if not self.active:
                return function(*args, **kwargs)
            clock = Clock(self.device)
            result = function(*args, **kwargs)
            self.seconds[name] += clock.lap()
            return result

        return wrapper

    def _by_level(self, function: Callable) -> Callable:
        def wrapper(passage, pairs):
            which = "inside" if pairs.side is None else "outside"
            number = len(passage._levels)
            clock = Clock(self.device)
            result = function(passage, pairs)
            record = self.levels[which, number]
            record[0] += len(pairs.first)
            record[1] += clock.lap()
            return result

        return wrapper
