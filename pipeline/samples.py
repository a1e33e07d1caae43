"""The fixed sentences whose induced trees a run shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from gpst.batch import ContextBatch
from pipeline.errors import ConfigError


class FixedSentences:
    """Sentences, tokenized once with the dataset's own tokenizer.

    Args:
        texts: the sentences; each should have at least one token.
        tokenizer_path: folder of tokenizer.json.

    Raises:
        ConfigError: the dataset holds no tokenizer, or a sentence has no tokens.
    """

    def __init__(self, texts: Sequence[str], tokenizer_path: Path) -> None:
        self._ids: list[list[int]] = []
        self._pieces: list[list[str]] = []
        if not texts:
            return
        file = tokenizer_path / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(
                f"monitor.sentences: the dataset has no tokenizer ({file} is missing) to read "
                "them with; leave them out or build the dataset again"
            )
        tokenizer = Tokenizer.from_file(str(file))
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if not ids:
                raise ConfigError(f"monitor.sentences: {text!r} has no tokens")
            self._ids.append(ids)
            self._pieces.append([_piece(tokenizer, number) for number in ids])

    def trees(self, model: nn.Module, device: torch.device) -> dict[str, str]:
        """Name ("trees/0") -> the tree in brackets; nothing for a model without trees."""
        induce: Any = getattr(model, "induced_trees", None)
        if induce is None or not self._ids:
            return {}
        batch = ContextBatch.from_sentences([[ids] for ids in self._ids]).to(device)
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                trees = induce(batch)
        finally:
            model.train(was_training)
        pairs = zip(trees, self._pieces, strict=True)
        return {f"trees/{i}": tree.brackets(words) for i, (tree, words) in enumerate(pairs)}


def _piece(tokenizer: Tokenizer, number: int) -> str:
    """A token as a word of a bracketing: without spaces, and brackets spelt out."""
    text = "".join(tokenizer.decode([number], skip_special_tokens=False).split())
    return text.replace("(", "-LRB-").replace(")", "-RRB-") or "_"
