"""The section `grammar_induction` of a fine-tuning's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpst.config_reader import Count, require
from pipeline.config.paths import PathText


@dataclass(frozen=True)
class GrammarInductionConfig:
    """Whose words are trained on, and whose trees the model's are scored against."""

    train: PathText
    """Trees of which only the words are read: a tree a line, a .mrg or .ptb file, or a folder of
    them."""
    valid: PathText
    """Gold trees that choose the best epoch."""
    test: PathText
    """Gold trees that the best epoch is scored on."""
    parsers: tuple[Literal["inside", "left-to-right"], ...] = ("inside", "left-to-right")
    """The composition model's trees, those of word-level search."""
    select_by: Literal["inside", "left-to-right"] = "left-to-right"
    """The parser whose F1 chooses the best epoch."""
    beam: Count = 20
    """Hypotheses kept in the search."""
    sync: bool = True
    """Hypotheses are compared word by word; false: action by action (ablation)."""
    punctuation: bool = False
    """Keep punctuation, which is told by its tags."""
    lower: bool = True
    """Lower-case the words."""
    leading_space: bool = True
    """Sentences are read as inside a text, after a space."""
    atoms: Literal["constrain_tree", "constrain_chart"] = "constrain_tree"
    """How the word pieces of a word become a constituent of the inside trees: only the tree may not
    cut it (the authors' code), or the chart has no cell that crosses its edge."""
    train_with_atoms: bool = True
    """The word pieces of a word are a constituent in training, as they always are in parsing."""
    max_sentences: Count | None = None
    """Only the first so many trees of each file, for a quick look."""
    batch_tokens: Count = 2048
    """Tokens parsed at once."""

    def __post_init__(self) -> None:
        known = self.select_by in self.parsers
        allowed = f"one of grammar_induction.parsers {list(self.parsers)}"
        require(known, "grammar_induction.select_by", self.select_by, allowed)

    @property
    def segmenter(self) -> str:
        """Trees say where sentences end."""
        return "none"
