"""Batches of similar length, formed so that little is padded; results come in the given order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from gpst.model.gpst import GPSTModel
from gpst.search.constraints import Context, InsideWord
from gpst.search.parse import TextResult, search_text
from gpst.search.score import TextScore, score_text

Result = TypeVar("Result")

_CPU_ROWS, _GPU_ROWS = 1024, 8192
_CPU_BYTES = 1 << 30
"""Of keys and values of a batch; on a GPU it is the rows that count."""


def batches(
    lengths: Sequence[int],
    max_items: int | None = None,
    *,
    max_tokens: int | None = None,
    even: bool = True,
) -> Iterator[list[int]]:
    """Numbers of items, longest first: a batch that is too large for the device comes at once.

    Args:
        max_items: of a batch.
        max_tokens: of a batch, each item padded to its longest; a single item may have more.
        even: none in a batch is under half as long as another.
    """
    batch: list[int] = []
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        longest = lengths[batch[0]] if batch else 0
        full = len(batch) == max_items or (even and 2 * lengths[k] < longest)
        if batch and (full or (max_tokens and (len(batch) + 1) * longest > max_tokens)):
            yield batch
            batch = []
        batch.append(k)
    if batch:
        yield batch


def search_batches(
    model: GPSTModel,
    contexts: Sequence[Context],
    *,
    beam: int = 20,
    sync: bool = True,
    inside_word: Sequence[InsideWord] | None = None,
    num_best: int = 1,
) -> Iterator[tuple[list[int], list[TextResult]]]:
    """`search_text` for any number of contexts: numbers and results of a batch at a time."""
    for batch in _context_batches(model, contexts, beam):
        batch_inside_word = None if inside_word is None else [inside_word[k] for k in batch]
        results = search_text(
            model,
            [contexts[k] for k in batch],
            beam=beam,
            sync=sync,
            inside_word=batch_inside_word,
            num_best=num_best,
        )
        yield batch, results


def score_batches(
    model: GPSTModel,
    contexts: Sequence[Context],
    *,
    beam: int = 20,
    sentence_beam: int = 1,
    compare: bool = False,
) -> Iterator[tuple[list[int], list[TextScore]]]:
    """`score_text` for any number of contexts: numbers and scores of a batch at a time."""
    for batch in _context_batches(model, contexts, beam):
        of_batch = [contexts[k] for k in batch]
        yield (
            batch,
            score_text(model, of_batch, beam=beam, sentence_beam=sentence_beam, compare=compare),
        )


def in_order(
    batch_results: Iterable[tuple[list[int], list[Result]]],
    on_done: Callable[[int], object] | None = None,
) -> list[Result]:
    """Results of batches in the order of their contexts.

    Args:
        on_done: hears after each batch how many contexts it had.
    """
    results: dict[int, Result] = {}
    for batch, results_of_batch in batch_results:
        results.update(zip(batch, results_of_batch, strict=True))
        if on_done is not None:
            on_done(len(batch))
    return [results[k] for k in range(len(results))]


def _context_batches(
    model: GPSTModel, contexts: Sequence[Context], beam: int
) -> Iterator[list[int]]:
    """Numbers of contexts that are searched together."""
    on_cpu = model.embedding.weight.device.type == "cpu"
    most = (_CPU_ROWS if on_cpu else _GPU_ROWS) // max(1, beam)
    lengths = [sum(len(sentence) for sentence in context) for context in contexts]
    if on_cpu:
        longest = max(lengths, default=0) + 1
        most = min(most, int(_CPU_BYTES / (longest * _bytes_of_token(model, max(1, beam)))))
    # Nothing is padded on a CPU, and many rows make better use of the weights that are read.
    return batches(lengths, max(1, most), even=not on_cpu)


def _bytes_of_token(model: GPSTModel, beam: int) -> float:
    """Of keys and values of a context, for each of its tokens."""
    config = model.config
    slot = 8 * config.hidden_dim * (config.num_type_layers + config.num_token_layers)
    # Of a trained model 12 nodes a token stay in the pasts of 20 hypotheses.
    return 0.6 * beam * slot
