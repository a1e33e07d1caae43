"""Writes summaries: GPST by word-level search, GPT-2 by sampling or beam search."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GPT2LMHeadModel

from gpst.model.gpst import GPSTModel
from gpst.model.gpt2 import GPT2Baseline
from gpst.search.generate import generate
from gpst.search.sample_words import sample_words
from gpst.search.sampling import Sampling, drawn_from
from pipeline.finetune.summarization.config import SummarizationConfig
from pipeline.finetune.text import Sentences

# Transformers renamed this argument, and swallows names that it does not know.
_FORWARD = signature(GPT2LMHeadModel.forward).parameters
_CACHE = "cache" if "cache" in _FORWARD else "past_key_values"


def write_summaries(
    model: nn.Module,
    prompts: Sequence[Sentences],
    seeds: Sequence[int],
    config: SummarizationConfig,
    final_tokens: Sequence[int],
    end_token: int,
) -> list[list[int]]:
    """What the model writes after each prompt: token ids without the end token.

    Args:
        prompts: documents as sentences, with the beginning of the summary's first sentence.
        seeds: one a prompt.
        final_tokens: tokens that may end a sentence.
    """
    if isinstance(model, GPT2Baseline):
        summaries = _gpt2(model, prompts, seeds, config, end_token)
    else:
        assert isinstance(model, GPSTModel)
        summaries = _gpst(model, prompts, seeds, config, final_tokens, end_token)
    return [words[:-1] if words[-1:] == [end_token] else words for words in summaries]


def _gpst(
    model: GPSTModel,
    prompts: Sequence[Sentences],
    seeds: Sequence[int],
    config: SummarizationConfig,
    final_tokens: Sequence[int],
    end_token: int,
) -> list[list[int]]:
    sampling = Sampling(top_k=config.top_k) if config.decoding == "sample" else None
    if sampling is not None and config.sync:
        samples = sample_words(
            model,
            prompts,
            max_new_tokens=config.summary_tokens,
            sampling=sampling,
            seeds=seeds,
            final_tokens=final_tokens,
            end_token=end_token,
            beam=config.beam,
        )
        return [one.tokens for one in samples]
    # The ablation draws or compares actions; prompts are read one by one.
    return [
        generate(
            model,
            prompt,
            max_new_tokens=config.summary_tokens,
            final_tokens=final_tokens,
            end_token=end_token,
            sampling=None if sampling is None else Sampling(top_k=config.top_k, seed=seed),
            beam=config.beam,
            sync=config.sync,
        )[0].tokens
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]


@torch.no_grad()
def _gpt2(
    model: GPT2Baseline,
    prompts: Sequence[Sentences],
    seeds: Sequence[int],
    config: SummarizationConfig,
    end_token: int,
) -> list[list[int]]:
    rows = [[token for sentence in prompt for token in sentence] for prompt in prompts]
    longest = max(map(len, rows)) + 1
    bos = model.config.bos_token_id
    # Padded on the left, so that all rows go on at the same place; <bos> comes first.
    pads = [longest - len(row) - 1 for row in rows]
    device = model.gpt2.lm_head.weight.device
    ids = torch.tensor(
        [[bos] * (pad + 1) + row for pad, row in zip(pads, rows, strict=True)], device=device
    )
    mask = torch.arange(longest, device=device) >= torch.tensor(pads, device=device)[:, None]
    if config.decoding == "beam":
        out = model.gpt2.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=mask.long(),
            num_beams=config.beam,
            do_sample=False,
            max_new_tokens=config.summary_tokens,
            eos_token_id=end_token,
            pad_token_id=end_token,
            use_cache=True,
        )
        return [_ended(row, end_token) for row in out[:, longest:].tolist()]
    return _sampled(model, ids, mask, seeds, config, end_token)


def _sampled(
    model: GPT2Baseline,
    ids: Tensor,
    mask: Tensor,
    seeds: Sequence[int],
    config: SummarizationConfig,
    end_token: int,
) -> list[list[int]]:
    """Each row has its random generator, so that it does not depend on its batch."""
    random = [torch.Generator().manual_seed(seed) for seed in seeds]
    sampling = Sampling(top_k=config.top_k)
    rows: list[list[int]] = [[] for _ in seeds]
    position, cache = (mask.long().cumsum(1) - 1).clamp_min(0), DynamicCache()
    for _ in range(config.summary_tokens):
        out = model.gpt2(
            input_ids=ids,
            attention_mask=mask.long(),
            position_ids=position,
            use_cache=True,
            **{_CACHE: cache},
        )
        logits = out.logits[:, -1].double().cpu()
        words = [
            int(drawn_from(logits[k : k + 1], sampling, random[k])[0]) for k in range(len(ids))
        ]
        for row, word in zip(rows, words, strict=True):
            if row[-1:] != [end_token]:
                row.append(word)
        if all(row[-1] == end_token for row in rows):
            break
        ids = torch.tensor(words, device=ids.device)[:, None]
        mask = torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
        position = position[:, -1:] + 1
    return rows


def _ended(row: list[int], end_token: int) -> list[int]:
    """Without the padding behind the end."""
    return row[: row.index(end_token) + 1] if end_token in row else row
