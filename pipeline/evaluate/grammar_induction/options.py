"""The options of `launch/evaluate.sh grammar_induction`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpst.config_reader import Count
from pipeline.config.paths import PathText
from pipeline.errors import ConfigError
from pipeline.evaluate.options import option


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    trees: PathText | None = option(
        None, "gold trees: a tree a line, a .mrg or .ptb file, or a folder of them"
    )
    model: tuple[PathText, ...] = option(
        (),
        "exported models, checkpoints or runs; none: baselines; of several (seeds): mean and "
        "deviation",
    )
    select_on: PathText | None = option(
        None,
        "gold trees to choose the best of several models (epochs) on, before it alone is tested on "
        "--trees",
    )
    predictions: PathText | None = option(
        None,
        "score these trees instead of a model's: '((the dog) barks)' a line, what parse writes as "
        "ptb or json, or a treebank",
    )
    parser: Literal["inside", "left-to-right", "both"] = option(
        "both", "the composition model's trees, or those of word-level search"
    )
    atoms: Literal["constrain_tree", "constrain_chart"] = option(
        "constrain_tree",
        "how the pieces of a word become a constituent of the inside trees: only the tree may not "
        "cut it (the authors' code), or the chart has no cell that crosses its edge",
    )
    beam: Count = option(20, "hypotheses kept in the search")
    sync: bool = option(True, "compare hypotheses word by word; no: action by action")
    punctuation: bool = option(False, "keep punctuation, which is told by its tags")
    lower: bool = option(True, "lower-case the words")
    leading_space: bool = option(
        True, "read sentences as inside a text, after a space; no: as documents of their own"
    )
    max_sentences: Count | None = option(None, "only the first so many trees, for a quick look")
    batch_tokens: Count = option(2048, "tokens parsed at once")
    num_random: Count = option(5, "random baselines, seeds 0, 1, ...")
    device: str | None = option(None, "cpu, cuda, ...; the GPU if there is one")
    output: PathText = option(
        "runs/evaluate/grammar_induction", "folder for results.json and trees"
    )

    def __post_init__(self) -> None:
        if self.trees is None:
            raise ConfigError("--trees is missing: give the gold trees to score against")
        if self.model and self.predictions:
            raise ConfigError("give either --model or --predictions, not both")
        if self.select_on and not self.model:
            raise ConfigError("--select-on chooses among models: give several with --model")

    @property
    def parsers(self) -> tuple[Literal["inside", "left-to-right"], ...]:
        return ("inside", "left-to-right") if self.parser == "both" else (self.parser,)
