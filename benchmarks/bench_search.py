"""How fast is left-to-right parsing, and how fast are surprisals?

    python benchmarks/bench_search.py --config configs/model/gpst_tiny.yaml --vocab-size 4096
    python benchmarks/bench_search.py --model launch/demo_model/gpst --check 200 --start-up

CPU seconds a sentence of word-level search at a beam of 20 (parsing) and 300 (surprisal), batched
over sentences as `launch/parse.sh` does it, beside (1) the same search as a plain loop over
hypotheses, each with its own keys and values, and (2) GPT-2 of the same width and depth scoring the
same sentences one by one; and of one sentence of 21 words alone, beside its share of a batch. All
in one process with one thread, in turns; the sentences have 8 to 40 tokens. The model is exported
(--model) or random (--config); a random one is the harder case, because its hypotheses are nearly
alike. Prints a table and one JSON line.

--check N: trees and prefix probabilities of N sentences against a search that reads no node before
the one under it is chosen, and knows every score that may count; written ones for an exported model
(the constituents of launch/demo_trees.txt), else random ones.
--start-up: user and system time of the parse command on one word, beside that of `import torch`.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from hardware import describe
from plain_search import PlainLoop
from stepping import load_model_config, partner

from gpst.batch import ContextBatch
from gpst.export.huggingface import ModelFolder, open_model
from gpst.model.build import build_model
from gpst.model.gpst import GPSTModel
from gpst.search import parse
from gpst.search.batches import in_order, search_batches
from gpst.search.parse import TextResult
from gpst.search.precision import multiply_in

ROOT = Path(__file__).parents[1]
SENTENCE = (
    "The people of this country want a government that will protect their freedom and give every "
    "citizen an equal chance ."
)
"""Of 21 words."""
IN_A_BATCH = 24


def timed(function: Callable[[], object]) -> float:
    """CPU seconds."""
    start = time.process_time()
    function()
    return time.process_time() - start


def random_sentences(
    rng: np.random.Generator, vocab_size: int, lengths: Sequence[int]
) -> list[list[int]]:
    return [rng.integers(1, vocab_size, n).tolist() for n in lengths]


def written_sentences(opened: ModelFolder, number: int) -> list[list[int]]:
    """Token ids of the longest constituents of the demo's own trees, each once."""
    texts: dict[str, None] = {}
    for line in (ROOT / "launch" / "demo_trees.txt").read_text(encoding="utf-8").splitlines():
        starts: list[int] = []
        for bracket in re.finditer(r"[()]", line):
            if bracket[0] == "(":
                starts.append(bracket.start())
                continue
            words = re.findall(r"([^\s()]+)\)", line[starts.pop() : bracket.end()])
            if len(words) > 2:
                texts.setdefault(" ".join(words))
    longest = sorted(texts, key=len, reverse=True)[:number]
    codec = opened.codec()
    return [codec.sentence(text).tokens for text in longest]


@contextmanager
def nothing_left_out() -> Iterator[None]:
    """Each node is read after the one under it was chosen; no score is taken as expected."""
    saved = parse._ROWS_AHEAD, parse._JUDGED_DIM
    parse._ROWS_AHEAD, parse._JUDGED_DIM = dict.fromkeys(parse._ROWS_AHEAD, 0), sys.maxsize
    try:
        yield
    finally:
        parse._ROWS_AHEAD, parse._JUDGED_DIM = saved


@contextmanager
def always_judged() -> Iterator[None]:
    """Scores are taken as expected whatever the model's width."""
    saved, parse._JUDGED_DIM = parse._JUDGED_DIM, 0
    try:
        yield
    finally:
        parse._JUDGED_DIM = saved


def search(model: GPSTModel, sentences: Sequence[list[int]], beam: int) -> list[TextResult]:
    return in_order(search_batches(model, [[sentence] for sentence in sentences], beam=beam))


def check(model: GPSTModel, sentences: Sequence[list[int]], beam: int) -> dict[str, object]:
    """How far the search alone with each sentence is from one that leaves nothing out."""
    other_trees, gap = 0, 0.0
    for sentence in sentences:
        with always_judged():
            [found] = search(model, [sentence], beam)
        with nothing_left_out():
            [expected] = search(model, [sentence], beam)
        other_trees += found.parses[0].trees != expected.parses[0].trees
        assert found.prefix_log_p is not None
        gap = max(gap, float(np.abs(found.prefix_log_p - expected.prefix_log_p).max()))
    print(f"{len(sentences)} sentences: {other_trees} other trees, prefixes to {gap:.1e} nats")
    return {"sentences": len(sentences), "other_trees": other_trees, "prefix_gap": gap}


def children_time(command: Sequence[str]) -> float:
    """User and system time of a command, seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, input="word\n", text=True, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="exported GPST")
    parser.add_argument("--config", default="configs/model/gpst_tiny.yaml")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--sentences", type=int, default=24, help="0: one sentence alone only")
    parser.add_argument("--naive-sentences", type=int, default=1)
    parser.add_argument("--beams", type=int, nargs="+", default=[20, 300])
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of the search")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--check", type=int, default=0, metavar="N", help="sentences to compare")
    parser.add_argument("--start-up", action="store_true", help="of the parse command (--model)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    opened = open_model(options.model) if options.model else None
    if opened:
        model = opened.model()
        one = opened.codec().sentence(SENTENCE).tokens
    else:
        model = build_model(load_model_config(options.config, options.vocab_size)).eval()
        [one] = random_sentences(rng, options.vocab_size, [21])
    assert isinstance(model, GPSTModel)
    vocab_size, beam = model.config.vocab_size, options.beams[0]
    sentences = random_sentences(rng, vocab_size, rng.integers(8, 41, options.sentences))
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
        print(f"{name:44s} {value:.4f} CPU s", flush=True)

    alone, share = f"one sentence, {len(one)} tokens", f"the same, one of {IN_A_BATCH}"
    plainly = "the same, nothing left out"
    search(searched, [one[:3]], beam)
    for turn in range(options.repeat):
        record(alone, timed(lambda: search(searched, [one], beam)))
        with nothing_left_out():
            record(plainly, timed(lambda: search(searched, [one], beam)))
        if not sentences:
            continue
        batch = timed(lambda: search(searched, [one] * IN_A_BATCH, beam))
        record(share, batch / IN_A_BATCH)
        record("GPT-2 scoring, a sentence", timed(score) / len(sentences))
        for width in options.beams:
            spent = timed(lambda b=width: search(searched, sentences, b))
            record(f"word-level search, beam {width}, a sentence", spent / len(sentences))
        for sentence in naive if turn == 0 else []:
            spent = timed(lambda s=sentence: plain.parse(s, beam))
            record(f"plain loop, beam {beam}, {len(sentence)} tokens", spent)
        if turn == 0 and naive:
            [found] = search(model, naive[:1], beam)
            assert abs(found.log_p - plain.parse(naive[0], beam)) < 1e-2, "the two disagree"
    if options.start_up and opened:
        commands = {
            "start-up of parse": ["-m", "gpst", "parse", "--model", options.model, "-"],
            "start-up of torch": ["-c", "import torch"],
        }
        for _ in range(options.repeat):
            for name, command in commands.items():
                record(name, children_time([sys.executable, *command]))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    spread = {name: max(values) - min(values) for name, values in seconds.items()}
    ratios = {"alone to nothing left out": median[alone] / median[plainly]}
    if sentences:
        ratios["alone to its share of a batch"] = median[alone] / median[share]
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    checked = None
    if options.check:
        lengths = rng.integers(8, 25, options.check)
        texts = (
            written_sentences(opened, options.check)
            if opened
            else random_sentences(rng, vocab_size, lengths)
        )
        checked = check(searched, texts, beam)
    result = {
        "benchmark": "search",
        "cpu_s": median,
        "spread": spread,
        "ratios": ratios,
        "check": checked,
        "num_sentences": len(sentences),
        "tokens_per_sentence": statistics.mean(map(len, sentences)) if sentences else None,
        "vocab_size": vocab_size,
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
