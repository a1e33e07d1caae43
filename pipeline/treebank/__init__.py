"""Gold trees: reading, cleaning and converting treebanks, and the spans that scorers compare."""

from pipeline.treebank.read import (
    TreebankError,
    parse_brackets,
    read_trees,
    read_unlabelled,
    tree_files,
)
from pipeline.treebank.tree import PUNCTUATION_TAGS, Constituent, GoldTree

__all__ = [
    "PUNCTUATION_TAGS",
    "Constituent",
    "GoldTree",
    "TreebankError",
    "parse_brackets",
    "read_trees",
    "read_unlabelled",
    "tree_files",
]
