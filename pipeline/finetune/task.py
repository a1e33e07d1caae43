"""What a task gives the trainer: examples, an evaluation after each epoch, and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gpst.chart.atoms import AtomRule
from pipeline.data.context_table import Split
from pipeline.distributed.world import World
from pipeline.evaluate.results import table
from pipeline.finetune.examples import Example
from pipeline.finetune.text import TextReader
from pipeline.train.trainer import TaskEvaluation


class FinetuneTask(ABC):
    """One kind of fine-tuning, made from its section of the config.

    Args:
        reader: what its texts go through.
        max_context_tokens: the longest text that the model takes.
    """

    name: str
    heading: str
    """Of the table's first column: what is scored."""
    protocol: str
    """The procedure in a sentence, for results.json."""
    num_labels: int | None = None
    """Classes of the examples' labels; None: the model stays a language model."""
    needs_trees = False
    """The model must be a GPST."""
    atoms: AtomRule = "constrain_tree"
    """Whether the chart's cells may cross the examples' atoms, if they have any."""
    selects = True
    """The evaluation gives SCORE, by which the best epoch is chosen; else the last."""

    def __init__(self, reader: TextReader, max_context_tokens: int):
        self.reader = reader
        self.max_context_tokens = max_context_tokens
        self.counters: Counter[str] = Counter()
        """What happened to training examples (cut, ...), once they have been read."""

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """The data's files; what is missing is an error.

        Raises:
            ConfigError, DataError: names the file that is missing, and what is expected.
        """

    @abstractmethod
    def key(self) -> Sequence[Any]:
        """What examples depend on besides files, tokenizer and segmenter."""

    @abstractmethod
    def examples(self) -> dict[Split, Iterable[Example]]:
        """Training examples, and held-out ones where their losses are to be watched."""

    def evaluation(self) -> TaskEvaluation | None:
        """Called by all ranks after each epoch."""
        return None

    @abstractmethod
    def finish(self, model: nn.Module, world: World, folder: Path) -> dict[str, Any] | None:
        """The final scores with the chosen epoch's model; all ranks call it.

        Args:
            folder: the seed's run; for predictions.jsonl and the like.
        Returns:
            on rank 0 "scores" (name -> number) and other entries of results.json.
        """

    def report(self, results: Mapping[str, Any]) -> str:
        """The table for the terminal, from the results over all seeds."""
        rows = [
            [name, score["mean"], score["deviation"], *score["values"]]
            for name, score in results["scores"].items()
        ]
        seeds = [f"seed {seed}" for seed in results["seeds"]]
        return table([self.heading, "mean", "deviation", *seeds], rows)


def shared(world: World, count: int) -> range:
    """The items that this rank takes of `count`."""
    return range(world.rank, count, world.size)


def gathered(world: World, results: Mapping[int, Any]) -> list[Any]:
    """The results of all ranks, by item number, in the order of the items."""
    merged: dict[int, Any] = {}
    for part in world.gather(dict(results)):
        merged |= part
    return [merged[number] for number in sorted(merged)]
