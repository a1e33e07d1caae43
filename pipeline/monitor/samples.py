"""Samples of a model in training: trees of fixed sentences, continuations of prompts."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn

from gpst.batch import ContextBatch
from gpst.export.codec import Codec
from gpst.model.gpst import GPSTModel
from gpst.model.modes import evaluating
from gpst.search.generate import generate
from gpst.search.sampling import Sampling, drawn_from
from gpst.tree import Tree
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from gpst.model.gpt2 import GPT2Baseline  # transformers takes seconds to import

_PROMPT_BEAM = 5
_SEED = 0


@dataclass(frozen=True)
class SentenceTree:
    """A tree over the tokens of a sentence."""

    words: list[str]
    tree: Tree

    def __str__(self) -> str:
        return self.tree.brackets(self.words)

    @property
    def spans(self) -> set[tuple[int, int]]:
        """The spans of two tokens and more, without the whole sentence, which every tree has."""
        whole = (0, self.tree.num_tokens - 1)
        return set(self.tree.internal_spans) - {whole}


@dataclass(frozen=True)
class Samples:
    """Trees of the fixed sentences and continuations of the prompts, at one step."""

    trees: list[SentenceTree] = field(default_factory=list)
    continuations: list[str] = field(default_factory=list)

    def texts(self, prompts: Sequence[str]) -> dict[str, str]:
        """By their names in TensorBoard: trees/0, ..., continuations/0, ..."""
        shown = {f"trees/{i}": str(tree) for i, tree in enumerate(self.trees)}
        pairs = enumerate(zip(prompts, self.continuations, strict=True))
        return shown | {f"continuations/{i}": f"{start} ...\n{text}" for i, (start, text) in pairs}

    def pictures(self) -> dict[str, NDArray[np.uint8]]:
        """The trees drawn: (height, width, 3), by the names of their texts."""
        return {f"trees/{i}": draw(tree) for i, tree in enumerate(self.trees)}

    def to_line(self) -> dict[str, Any]:
        """Plain values for samples.jsonl."""
        return {
            "trees": [str(tree) for tree in self.trees],
            "spans": [sorted(tree.spans) for tree in self.trees],
            "continuations": self.continuations,
        }


def tree_change(before: Mapping[str, Any] | None, now: Samples) -> float | None:
    """Share of the trees' spans that are new; 0 when nothing changed.

    Args:
        before: the line of the earlier samples (`Samples.to_line`), perhaps of another process.
    Returns:
        None without earlier samples of these sentences, or if no sentence has two possible trees.
    """
    spans = [tree.spans for tree in now.trees]
    earlier = (before or {}).get("spans") or []
    total = sum(map(len, spans))
    if len(earlier) != len(spans) or total == 0:
        return None
    pairs = zip(spans, earlier, strict=True)
    return sum(len(new - {(i, j) for i, j in old}) for new, old in pairs) / total


def draw(tree: SentenceTree) -> NDArray[np.uint8]:
    """A picture of a tree: (height, width, 3)."""
    from PIL import Image

    from gpst.api import ParsedSentence
    from gpst.render import as_png

    png = as_png([ParsedSentence(tree.words, tree.tree)])
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


class FixedSentences:
    """Sentences and prompts, tokenized once with the dataset's tokenizer.

    Args:
        texts: the sentences; each should have at least one token.
        tokenizer_path: folder of tokenizer.json.
        prompts: beginnings to continue; "" is the start of a text.
        num_tokens: of each continuation.
        max_tokens: the longest context of the model.

    Raises:
        ConfigError: the dataset has no tokenizer, a sentence has no tokens, or a prompt leaves no
            room for its continuation.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer_path: Path,
        prompts: Sequence[str] = (),
        num_tokens: int = 32,
        max_tokens: int | None = None,
    ) -> None:
        self.prompts, self._num_tokens = list(prompts), num_tokens
        self._ids: list[list[int]] = []
        self._pieces: list[list[str]] = []
        self._codec: Codec | None = None
        self._final: list[int] = []
        if not texts and not prompts:
            return
        file = tokenizer_path / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(
                f"monitor.sentences: the dataset has no tokenizer ({file} is missing) to read "
                "sentences and prompts with; leave them out or build the dataset again"
            )
        if prompts:
            self._codec = Codec.load(tokenizer_path)
            self._final = self._codec.final_tokens()
            self._check_prompts(max_tokens)
        tokenizer = Tokenizer.from_file(str(file))
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if not ids:
                raise ConfigError(f"monitor.sentences: {text!r} has no tokens")
            self._ids.append(ids)
            self._pieces.append([_piece(tokenizer, number) for number in ids])

    def _check_prompts(self, max_tokens: int | None) -> None:
        assert self._codec is not None
        for prompt in self.prompts:
            length = len(self._codec.tokenizer.encode(prompt, add_special_tokens=False).ids)
            if max_tokens is not None and length >= max_tokens:
                raise ConfigError(
                    f"monitor.prompts: {prompt[:40]!r} has {length} tokens and the model takes "
                    f"{max_tokens} with the continuation; shorten it"
                )

    def __bool__(self) -> bool:
        """Whether there is anything to sample."""
        return bool(self._ids or self.prompts)

    def sample(self, model: nn.Module, device: torch.device) -> Samples:
        """Trees and continuations; leaves the random state of the training alone."""
        return Samples(self.trees(model, device), self.continuations(model, device))

    def trees(self, model: nn.Module, device: torch.device) -> list[SentenceTree]:
        """The induced trees; none for a model without trees."""
        induce: Any = getattr(model, "induced_trees", None)
        if induce is None or not self._ids:
            return []
        batch = ContextBatch.from_sentences([[ids] for ids in self._ids]).to(device)
        pairs = zip(self._pieces, induce(batch), strict=True)
        return [SentenceTree(words, tree) for words, tree in pairs]

    def continuations(self, model: nn.Module, device: torch.device) -> list[str]:
        """A text for each prompt, sampled with the same seed each time."""
        if self._codec is None:
            return []
        texts = []
        for prompt in self.prompts:
            sentences = self._codec.sentences(prompt) if prompt.strip() else []
            ids = [sentence.tokens for sentence in sentences]
            tokens = self._continued(model, ids, device)
            texts.append(self._codec.decode(tokens))
        return texts

    def _continued(self, model: nn.Module, prompt: list[list[int]], device: torch.device) -> Any:
        sampling, count = Sampling(seed=_SEED), self._num_tokens
        if isinstance(model, GPSTModel):
            (one,) = generate(
                model,
                prompt,
                max_new_tokens=count,
                final_tokens=self._final,
                sampling=sampling,
                beam=_PROMPT_BEAM,
            )
            return one.tokens
        from gpst.model.gpt2 import GPT2Baseline

        if isinstance(model, GPT2Baseline):
            flat = [token for sentence in prompt for token in sentence]
            return _continued_by_gpt2(model, flat, count, sampling, device)
        return []


@torch.no_grad()
def _continued_by_gpt2(
    model: GPT2Baseline, prompt: list[int], count: int, sampling: Sampling, device: torch.device
) -> list[int]:
    random = torch.Generator(device).manual_seed(sampling.seed)
    limit = model.config.max_context_tokens
    ids = torch.tensor([[model.config.bos_token_id, *prompt]], device=device)
    with evaluating(model):
        while ids.shape[1] <= min(limit - 1, len(prompt) + count):
            logits = model.gpt2(input_ids=ids).logits[:, -1].float()
            ids = torch.cat((ids, drawn_from(logits, sampling, random)[:, None]), 1)
    return ids[0, 1 + len(prompt) :].tolist()


def _piece(tokenizer: Tokenizer, number: int) -> str:
    """A token as a word of a tree: without spaces, and not empty."""
    return "".join(tokenizer.decode([number], skip_special_tokens=False).split()) or "_"
