"""The trees of models, by parser: of one, of the best of several, or of several seeds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gpst.model.gpst import GPSTModel
from pipeline.errors import ConfigError
from pipeline.evaluate import load_model
from pipeline.evaluate.grammar_induction.f1 import Span, score_trees
from pipeline.evaluate.grammar_induction.gold import gold_trees
from pipeline.evaluate.grammar_induction.options import Options
from pipeline.evaluate.grammar_induction.parse import Parser, parse, to_pieces
from pipeline.evaluate.load_model import LoadedModel
from pipeline.evaluate.result_cache import CACHE_FILE, ResultCache
from pipeline.terminal import shows_bars
from pipeline.treebank import GoldTree


@dataclass(frozen=True)
class Induced:
    """A model's trees."""

    spans: dict[str, list[list[Span]]]
    """By parser, of every sentence."""
    about: dict[str, dict[str, Any]]
    """By parser: path and fingerprint of the model, sentences a second, F1 it was chosen by."""


def induce(options: Options, gold: Sequence[GoldTree]) -> list[Induced]:
    """The trees of each model; where one is to be chosen, those of each parser's best alone.

    Raises:
        ConfigError: a model is no GPST.
    """
    if options.select_on is None:
        models = (load(path, options) for path in options.model)
        return [_induced(options, loaded, gold, options.parsers) for loaded in models]
    valid, _ = gold_trees(
        options.select_on, options.punctuation, options.lower, options.max_sentences
    )
    best: dict[Parser, tuple[float, LoadedModel]] = {}
    for path in options.model:
        loaded = load(path, options)
        for parser in options.parsers:
            f1 = score_trees(valid, _parse(options, loaded, valid, parser)[0]).sentence_f1
            if parser not in best or f1 > best[parser][0]:
                best[parser] = f1, loaded
    spans, about = {}, {}
    for parser, (f1, loaded) in best.items():
        induced = _induced(options, loaded, gold, (parser,))
        spans |= induced.spans
        about[parser] = induced.about[parser] | {"selection_f1": f1}
    return [Induced(spans, about)]


def load(path: str, options: Options) -> LoadedModel:
    """A GPST. Raises ConfigError for another model."""
    loaded = load_model.load_model(path, options.device)
    if not isinstance(loaded.model, GPSTModel):
        raise ConfigError(f"--model {path}: is no GPST and induces no trees")
    return loaded


def _induced(
    options: Options, loaded: LoadedModel, gold: Sequence[GoldTree], parsers: Sequence[Parser]
) -> Induced:
    spans, about = {}, {}
    for parser in parsers:
        spans[parser], rate = _parse(options, loaded, gold, parser)
        about[parser] = {
            "path": loaded.path,
            "fingerprint": loaded.fingerprint,
            "selection_f1": None,
            "sentences_per_second": rate,
        }
    return Induced(spans, about)


def _parse(
    options: Options, loaded: LoadedModel, gold: Sequence[GoldTree], parser: Parser
) -> tuple[list[list[Span]], float | None]:
    """Spans over words of each sentence, and sentences a second; None where some were cached."""
    assert isinstance(loaded.model, GPSTModel)
    sentences = [
        to_pieces(tree.words, loaded.tokenizer, f"sentence {number}", options.leading_space)
        for number, tree in enumerate(gold, 1)
    ]
    items = [f"{sentence.tokens} {sentence.word_of}" for sentence in sentences]
    settings = f" {options.atoms}" if parser == "inside" else f" {options.beam} {options.sync}"
    key = f"{loaded.fingerprint} {parser}{settings}"
    cache = ResultCache(Path(options.output) / CACHE_FILE, key)
    first = {item: number for number, item in reversed(list(enumerate(items))) if item not in cache}
    missing = sorted(first.values())
    began = time.perf_counter()
    with tqdm(desc=parser, total=len(missing), unit=" sentences", disable=not shows_bars()) as bar:
        for place, tree in parse(
            loaded.model,
            [sentences[number] for number in missing],
            parser=parser,
            atoms=options.atoms,
            beam=options.beam,
            sync=options.sync,
            batch_tokens=options.batch_tokens,
        ):
            cache.add({items[missing[place]]: tree.internal_spans})
            bar.update()
    seconds = time.perf_counter() - began
    spans = [[(i, j) for i, j in cache[item]] for item in items]
    return spans, len(gold) / seconds if len(missing) == len({*items}) else None
