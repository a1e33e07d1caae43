"""How fast is left-to-right parsing, and how fast are surprisals?

    python benchmarks/bench_search.py --config configs/model/gpst_tiny.yaml --vocab-size 4096

CPU seconds a sentence of word-level search at a beam of 20 (parsing) and 300 (surprisal), batched
over sentences as `launch/parse.sh` does it, beside (1) the same search as a plain loop over
hypotheses, each with its own keys and values, and (2) GPT-2 of the same width and depth scoring the
same sentences one by one. All in one process with one thread, in turns; the sentences have 8 to 40
tokens. The model is exported (--model) or random (--config); a random one is the harder case,
because its hypotheses are nearly alike. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from hardware import describe
from stepping import load_model_config, partner
from torch import Tensor

from gpst.batch import ContextBatch
from gpst.export.huggingface import open_model
from gpst.layers.composition import plain_norm
from gpst.model.build import build_model
from gpst.model.gpst import GPSTModel
from gpst.search.batches import in_order, search_batches
from gpst.search.history import History
from gpst.search.precision import multiply_in

COMP = -1


@dataclass
class Hypothesis:
    """Of the plain loop: everything its own."""

    log_p: float
    stack: list[Tensor]
    pending: int | None
    words: int
    types: History
    tokens: History


def cloned(history: History) -> History:
    """A hypothesis' own keys and values."""
    copied = copy.copy(history)
    copied.past = history.past.clone()
    copied.caches = [cache.clone() for cache in history.caches]
    return copied


class PlainLoop:
    """The same search, hypothesis by hypothesis."""

    def __init__(self, model: GPSTModel):
        self.model = model
        self.zero = torch.zeros(1, 1, dtype=torch.int64)

    def _step(self, history: History, x: Tensor) -> Tensor:
        out, slots = history.step(x.view(1, -1), self.zero, self.zero == 0)
        history.select(self.zero, slots)
        return out

    def _read(self, h: Hypothesis) -> Tensor:
        model = self.model
        if h.pending == COMP:
            right, left = h.stack.pop(), h.stack.pop()
            vector = plain_norm(model.composition.compose(left[None], right[None]))[0]
            node = model.scaling.up(vector)
            h.stack.append(vector)
        else:
            token = model.config.bos_token_id if h.pending is None else h.pending
            node = model.embedding.weight[token]
            if h.pending is not None:
                h.stack.append(model.scaling.down(node))
        x = model.generator.input_at(node, torch.tensor(h.words))
        return self._step(h.types, x)

    def _grown(self, h: Hypothesis, log_p: float, pending: int, tokens: History) -> Hypothesis:
        words = h.words + (pending != COMP)
        return Hypothesis(log_p, list(h.stack), pending, words, cloned(h.types), cloned(tokens))

    def _expand(self, h: Hypothesis, token: int | None) -> list[Hypothesis]:
        generator = self.model.generator
        hidden = self._read(h)
        gen, comp = F.log_softmax(generator.type_logits(hidden), -1).flatten().tolist()
        grown = []
        if len(h.stack) > 1:
            grown.append(self._grown(h, h.log_p + comp, COMP, h.tokens))
        if token is not None:
            tokens = cloned(h.tokens)
            features = generator.token_features(self._step(tokens, hidden))
            scores = F.log_softmax(features @ self.model.embedding.weight.T, -1).flatten()
            grown.append(self._grown(h, h.log_p + gen + float(scores[token]), token, tokens))
        return grown

    @torch.no_grad()
    def parse(self, sentence: list[int], beam: int) -> float:
        """Log of the sum over the beam."""
        weight, generator = self.model.embedding.weight, self.model.generator
        histories = (
            History(generator.type_layers, 1, 1, weight),
            History(generator.token_layers, 1, 1, weight),
        )
        hypotheses = [Hypothesis(0.0, [], None, 0, *histories)]
        for token in [*sentence, None]:
            done: list[Hypothesis] = []
            active = hypotheses
            while active:
                pool = done + [new for h in active for new in self._expand(h, token)]
                hypotheses = sorted(pool, key=lambda h: -h.log_p)[:beam]
                # The last COMP of a sentence leaves one constituent: nothing more to do.
                going = [
                    h.pending == COMP and (token is not None or len(h.stack) != 2)
                    for h in hypotheses
                ]
                active = [h for h, g in zip(hypotheses, going, strict=True) if g]
                done = [h for h, g in zip(hypotheses, going, strict=True) if not g]
            hypotheses = done
        return float(torch.logsumexp(torch.tensor([h.log_p for h in hypotheses]), 0))


def timed(function: Callable[[], object]) -> float:
    """CPU seconds."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="exported GPST")
    parser.add_argument("--config", default="configs/model/gpst_tiny.yaml")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--sentences", type=int, default=24)
    parser.add_argument("--naive-sentences", type=int, default=1)
    parser.add_argument("--beams", type=int, nargs="+", default=[20, 300])
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of the search")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.model:
        model = open_model(options.model).model()
    else:
        model = build_model(load_model_config(options.config, options.vocab_size)).eval()
    assert isinstance(model, GPSTModel)
    rng = np.random.default_rng(0)
    sentences = [
        rng.integers(1, model.config.vocab_size, n).tolist()
        for n in rng.integers(8, 41, options.sentences)
    ]
    gpt2, plain = build_model(partner(model.config)).eval(), PlainLoop(model)
    naive = sorted(sentences, key=len)[len(sentences) // 2 :][: options.naive_sentences]
    searched = multiply_in(copy.deepcopy(model), options.dtype)
    seconds: dict[str, list[float]] = {}

    def score() -> None:
        with torch.no_grad():
            for sentence in sentences:
                gpt2(ContextBatch.from_sentences([[sentence]]))

    def record(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(value)
        print(f"{name:36s} {value:.4f} CPU s a sentence", flush=True)

    for turn in range(options.repeat):
        record("GPT-2 scoring", timed(score) / len(sentences))
        for beam in options.beams:
            contexts = [[sentence] for sentence in sentences]
            spent = timed(lambda b=beam, c=contexts: [*search_batches(searched, c, beam=b)])
            record(f"word-level search, beam {beam}", spent / len(sentences))
        if turn == 0:
            beam = options.beams[0]
            for sentence in naive:
                spent = timed(lambda s=sentence, b=beam: plain.parse(s, b))
                record(f"plain loop, beam {beam}, {len(sentence)} tokens", spent)
            if not naive:
                continue
            [check] = in_order(search_batches(model, [[naive[0]]], beam=beam))
            assert abs(check.log_p - plain.parse(naive[0], beam)) < 1e-2, "the two disagree"
    median = {name: statistics.median(values) for name, values in seconds.items()}
    spread = {name: max(values) - min(values) for name, values in seconds.items()}
    result = {
        "benchmark": "search",
        "cpu_s_per_sentence": median,
        "spread": spread,
        "num_sentences": len(sentences),
        "tokens_per_sentence": statistics.mean(map(len, sentences)),
        "vocab_size": model.config.vocab_size,
        "hidden_dim": model.config.hidden_dim,
        "model": options.model or options.config,
        "dtype": options.dtype,
        "threads": 1,
        "torch": torch.__version__,
        "hardware": describe(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
