"""GPST as a transformers model for text with trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from transformers import GenerationMixin
from transformers.utils import ModelOutput

from gpst.integrations.transformers.adapters import warn_of_idle_adapters
from gpst.integrations.transformers.configuration import GPSTConfig
from gpst.integrations.transformers.features import features_after_tokens
from gpst.integrations.transformers.left_to_right import LeftToRight, seeded
from gpst.integrations.transformers.pretrained import GPSTPreTrainedModel, not_compiled
from gpst.integrations.transformers.rows import check_prompt, refuse, rows_of
from gpst.model.losses import total_loss
from gpst.search.sampling import FREEZING
from gpst.tree import Tree

_OF_GENERATE = (
    "next_sequence_length", "is_first_iteration", "logits_to_keep", "tokenizer", "labels",
)  # fmt: skip
"""What `generate` hands to every step; its criteria for `stop_strings` use the tokenizer, and
Seq2SeqTrainer leaves the labels of a batch."""


@dataclass
class GPSTOutput(ModelOutput):
    """Output of GPSTForCausalLM."""

    loss: Tensor | None = None
    """The training loss (all five terms) of the tokens with labels, when labels were given."""
    logits: Tensor | None = None
    """(B, T, V): at t, of token t + 1, given the tokens and the trees' nodes up to token t."""
    trees: list[list[Tree]] | None = None
    """The induced trees of each row's sentences."""
    search: LeftToRight | None = None
    """What `generate` goes on from; the logits are then those of the next token alone."""


class GPSTForCausalLM(GPSTPreTrainedModel, GenerationMixin):
    """GPST for text with trees.

    `generate` is transformers' own, with all its options. Its next tokens have the probabilities
    p(token | tokens so far) of gpst/search/words.py; `beam` (20) is the number of hypotheses of the
    trees of a text, `num_beams` that of texts, as for any model. The logits of `forward` are those
    of training: given the trees that the composition model induces on whole sentences. They are no
    left-to-right probabilities, because those trees have seen what follows.
    """

    _is_stateful = True  # no assisted generation: a search does not go back

    def __init__(self, config: GPSTConfig):
        super().__init__(config)
        self.post_init()

    @not_compiled
    def forward(
        self,
        input_ids: Int64[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        sentence_ends: Bool[Tensor, "B T"] | None = None,
        labels: Tensor | None = None,
        search: LeftToRight | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> GPSTOutput | tuple[Any, ...]:
        """
        Args:
            input_ids: tokens without <bos>, which the model puts before them itself.
            attention_mask, sentence_ends: see `rows_of`.
            labels: the input ids, with -100 for tokens that have no loss. Trees have losses in the
                sentences of the others.
            search: `generate`'s.
        Raises:
            ValueError: what cannot be used, or is not supported.
        """
        refuse(self._asked(options))
        input_ids = self._usable(input_ids)
        rows = rows_of(self.config, input_ids, attention_mask, sentence_ends, labels)
        if search is not None:
            texts = [[token for sentence in row for token in sentence] for row in rows.sentences]
            log_p = search.next_log_p([text[self._starts(text) :] for text in texts])
            return GPSTOutput(logits=log_p.unsqueeze(1).to(torch.float32), search=search)  # type: ignore[arg-type]
        if labels is None:
            loss, trees = None, None
            features, trees = features_after_tokens(self.gpst, rows, input_ids.device)
        else:
            warn_of_idle_adapters(self.gpst)
            batch = rows.batch(self.config.bos_token_id or 0, labels).to(input_ids.device)
            output = self.gpst.losses_of(batch)
            loss = total_loss(output.losses, batch.counts)
            after = torch.from_numpy(rows.after_tokens(batch)).to(input_ids.device)
            features, trees = output.features.index_select(0, after), None
        logits = features.new_zeros(*input_ids.shape, self.config.vocab_size)
        logits[rows.inside] = features @ self.gpst.embedding.weight.T
        return self._output(GPSTOutput(loss=loss, logits=logits, trees=trees), return_dict)  # type: ignore[arg-type]

    def _starts(self, text: Sequence[int]) -> int:
        """Where a text to be continued starts: after a <bos>, which the model reads itself."""
        return int(text[0] == self.config.bos_token_id)

    def generate(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        """transformers' `generate`.

        Args:
            seed: draw as after torch.manual_seed(seed), without a trace; None: go on drawing.
        Raises:
            ValueError: an empty text, or what cannot be done.
        """
        prompt = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        check_prompt(prompt, kwargs.get("attention_mask"))
        refuse({name: kwargs.get(name) for name in ("past_key_values", "inputs_embeds")})
        with seeded(seed, self.device):
            return super().generate(*args, **kwargs)  # type: ignore[misc]

    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_generation_config(*args, **kwargs)  # type: ignore[misc]
        if (prepared[0].guidance_scale or 1) != 1:
            refuse({"guidance_scale": prepared[0].guidance_scale})
        refuse({"cache_implementation": prepared[0].cache_implementation})
        temperature = prepared[0].temperature or 1.0
        if prepared[0].do_sample and temperature < FREEZING:
            raise ValueError(
                f"temperature: {temperature} is too small to divide by; do_sample=False takes the "
                "most probable tokens"
            )
        return prepared

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Int64[Tensor, "B T"],
        attention_mask: Tensor | None = None,
        beam: int = 20,
        search: LeftToRight | None = None,
        use_cache: bool | None = True,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,  # by this name `generate` finds the options of `forward`
    ) -> dict[str, Any]:
        refuse(kwargs | {"token_type_ids": token_type_ids}, known=_OF_GENERATE)
        if search is None or not use_cache:
            search = LeftToRight(self.gpst, beam, self.config.sentence_final_token_ids or [])
        return {"input_ids": input_ids, "attention_mask": attention_mask, "search": search}

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        model_kwargs["search"] = outputs.search
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: `search` is what is kept."""
        return False

    def _validate_generated_length(  # type: ignore[override]
        self, generation_config: Any, input_ids_length: int, *args: Any
    ) -> None:
        super()._validate_generated_length(generation_config, input_ids_length, *args)  # type: ignore[misc]
        limit = self.config.max_context_tokens
        if generation_config.max_length > limit:
            raise ValueError(
                f"{input_ids_length} tokens and {generation_config.max_length - input_ids_length} "
                f"new ones are more than the model takes ({limit}, max_context_tokens)"
            )
