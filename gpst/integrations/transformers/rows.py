"""From what transformers' users give (padded ids, masks, labels) to rows of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from gpst.batch import ContextBatch

IGNORED = -100
"""The label of a token without a loss, as everywhere in transformers."""
_WITHOUT_EFFECT = ("use_cache", "num_items_in_batch")
_WHY = {
    "output_attentions": "constituents attend, not tokens",
    "output_hidden_states": "its layers run over the nodes of trees; gpst.GPST.embed gives the "
    "vectors of constituents",
    "inputs_embeds": "trees are searched over token ids",
    "position_ids": "positions follow from the tokens",
    "neftune_noise_alpha": "a batch is one row of tokens, so that its noise would be another one",
    "past_key_values": "a search keeps its own past, from token to token of one call",
    "cache_implementation": "a search keeps its own past",
    "guidance_scale": "it reads the last token of a text alone",
}


@dataclass(frozen=True)
class Rows:
    """The tokens of B rows, cut into sentences."""

    sentences: list[list[list[int]]]
    inside: Bool[Tensor, "B T"]
    """True for tokens, false for padding."""

    def batch(self, following: int, labels: Tensor | None = None) -> ContextBatch:
        """The rows, each with a one-token sentence behind it: its last token predicts something.

        Args:
            following: that token; it has no loss itself.
            labels: (B, T) input ids, or -100 for tokens without a loss; only with them has the
                batch losses of a part of its tokens.
        """
        batch = ContextBatch.from_sentences([[*row, [following]] for row in self.sentences])
        if labels is None:
            return batch
        labelled = np.zeros(batch.num_tokens, bool)
        labelled[self.numbers(batch)] = (labels[self.inside] != IGNORED).cpu().numpy()
        return batch.with_labels(labelled)

    def numbers(self, batch: ContextBatch) -> Int64[np.ndarray, "N"]:
        """Numbers of the rows' own tokens in `batch`."""
        return np.delete(np.arange(batch.num_tokens), batch.context_token_ends - 1)

    def after_tokens(self, batch: ContextBatch) -> Int64[np.ndarray, "N"]:
        """Numbers of the tokens in `batch` that stand after each of the rows' own tokens."""
        return self.numbers(batch) + 1


def rows_of(
    config: Any,
    input_ids: Int64[Tensor, "B T"],
    attention_mask: Tensor | None,
    sentence_ends: Bool[Tensor, "B T"] | None = None,
    labels: Tensor | None = None,
    reserved: int = 0,
) -> Rows:
    """Checks what was given and cuts it into sentences.

    Args:
        config: of the model.
        attention_mask: (B, T), 1 for tokens and 0 for padding, on either side of them.
        sentence_ends: true at the last token of a sentence; by default at every token that may end
            one (`sentence_final_token_ids`).
        labels: (B, T), see `Rows.batch`; those of padding stand for nothing.
        reserved: places of a context that the model itself needs.
    Raises:
        ValueError: a mask, ids or labels that cannot be used; a row that is empty or too long.
    """
    inside = _tokens_in(input_ids, attention_mask)
    tokens = input_ids[inside]
    wrong = tokens[(tokens < 0) | (tokens >= config.vocab_size)]
    if len(wrong):
        raise ValueError(
            f"input_ids: {int(wrong[0])} is no token; the vocabulary has {config.vocab_size} "
            "(resize_token_embeddings makes room for new ones)"
        )
    if labels is not None:
        if labels.shape != input_ids.shape:
            raise ValueError(
                f"labels: shape {tuple(labels.shape)} is not that of input_ids, "
                f"{tuple(input_ids.shape)}"
            )
        of_tokens = labels.to(input_ids.device)[inside]
        if bool(((of_tokens != tokens) & (of_tokens != IGNORED)).any()):
            raise ValueError(
                f"labels: each must be its token's id, or {IGNORED} where no loss is wanted; the "
                "model shifts them itself"
            )
    if sentence_ends is None:
        final = torch.tensor(config.sentence_final_token_ids or [], device=input_ids.device)
        sentence_ends = torch.isin(input_ids, final)
    rows, limit = [], config.max_context_tokens - reserved
    given = zip(input_ids, sentence_ends.bool(), inside, strict=True)
    for number, (ids, ends, mask) in enumerate(given):
        row: list[int] = ids[mask].tolist()
        if not 0 < len(row) <= limit:
            raise ValueError(
                f"input_ids: row {number} has {len(row)} tokens; the model takes 1 to "
                f"{limit} (max_context_tokens)"
            )
        cuts = [k + 1 for k, end in enumerate(ends[mask].tolist()[:-1]) if end]
        parts = zip([0, *cuts], [*cuts, len(row)], strict=True)
        rows.append([row[a:b] for a, b in parts])
    return Rows(rows, inside)


def check_ids(input_ids: Any) -> None:
    """Raises ValueError for what is no (B, T) tensor of whole numbers."""
    if not isinstance(input_ids, Tensor):
        kind = type(input_ids).__name__
        raise ValueError(f"input_ids: a tensor is needed, not a {kind} (return_tensors='pt')")
    if input_ids.ndim != 2:
        raise ValueError(f"input_ids: shape {tuple(input_ids.shape)} is not (rows, tokens)")
    if input_ids.is_floating_point() or input_ids.is_complex():
        raise ValueError(f"input_ids: token ids are whole numbers, not {input_ids.dtype}")


def check_prompt(input_ids: Any, mask: Any) -> None:
    """Raises ValueError for what `generate` cannot continue; None: the model begins itself."""
    if input_ids is None:
        return
    check_ids(input_ids)
    if input_ids.shape[0] == 0:
        raise ValueError("input_ids: no rows")
    if input_ids.shape[1] == 0:
        raise ValueError("input_ids: an empty text; without input_ids the model begins itself")
    if mask is not None:
        _check_mask(mask, input_ids)


def _tokens_in(input_ids: Int64[Tensor, "B T"], mask: Tensor | None) -> Bool[Tensor, "B T"]:
    if mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    _check_mask(mask, input_ids)
    mask = mask.to(input_ids.device)
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("attention_mask: values must be 1 for tokens and 0 for padding")
    inside = mask.bool()
    begins = inside & ~inside.roll(1, 1)
    begins[:, 0] = inside[:, 0]
    if bool((begins.sum(1) > 1).any()):
        raise ValueError(
            "attention_mask: padding must come before or after the tokens of a row; to generate, "
            "pad on the left"
        )
    return inside


def _check_mask(mask: Any, input_ids: Tensor) -> None:
    if mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask: shape {tuple(mask.shape)} is not that of input_ids, "
            f"{tuple(input_ids.shape)}; masks of more dimensions are not supported"
        )


def refuse_rows(_: nn.Module, arguments: Any, options: dict[str, Any]) -> None:
    """Before the core model's forward: it takes batches of trees, not rows of ids.

    Raises:
        ValueError: rows, as a trainer gives them that computes a loss of its own.
    """
    if "input_ids" in options:
        raise ValueError(
            "the losses of trees are in the model's own loss: a trainer that computes another from"
            " the hidden states, as trl's SFTTrainer, cannot train it; use transformers' Trainer"
        )


def refuse(options: dict[str, Any], known: Sequence[str] = ()) -> None:
    """Raises ValueError for what a model of transformers may be asked and GPST cannot do."""
    for name, value in options.items():
        if value is None or value is False or name in _WITHOUT_EFFECT or name in known:
            continue
        # Tokenizers that know no better say that every token is of the first segment.
        if name == "token_type_ids" and not bool(value.any()):
            continue
        why = f": {_WHY[name]}" if name in _WHY else ""
        raise ValueError(f"{name} is not supported by GPST{why}")
