"""GPST as transformers models: for text with trees, and for classifying texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import ModelOutput

from gpst.export.remote import AUTO_MAP, REMOTE, REMOTE_CODE
from gpst.integrations.transformers.adapters import refuse_adapted, warn_of_idle_adapters
from gpst.integrations.transformers.configuration import GPSTConfig
from gpst.integrations.transformers.features import features_after_tokens
from gpst.integrations.transformers.left_to_right import LeftToRight, seeded
from gpst.integrations.transformers.rows import (
    Rows,
    check_ids,
    check_prompt,
    refuse,
    refuse_rows,
    rows_of,
)
from gpst.layers.transformer import init_std
from gpst.model.gpst import GPSTModel
from gpst.model.losses import total_loss
from gpst.tree import Tree

_OF_GENERATE = (
    "next_sequence_length", "is_first_iteration", "logits_to_keep", "tokenizer", "labels",
)  # fmt: skip
"""What `generate` hands to every step; its criteria for `stop_strings` use the tokenizer, and
Seq2SeqTrainer leaves the labels of a batch."""
not_compiled = torch.compiler.disable(
    reason="the trees, and so the operations, are others in every batch; GPST brings its kernels"
)


def _has_values(parameter: nn.Parameter) -> bool:
    """Read from a checkpoint, or initialised: transformers' own mark."""
    return getattr(parameter, "_is_hf_initialized", False)


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


class GPSTPreTrainedModel(PreTrainedModel):
    """What both models share: the core model, whose parameters are named `gpst.*`."""

    config_class = GPSTConfig
    config: GPSTConfig
    base_model_prefix = "gpst"
    supports_gradient_checkpointing = True
    _no_split_modules = ["GPSTModel"]  # noqa: RUF012
    accepts_loss_kwargs = False
    """The Trainer divides the losses of accumulated steps itself."""

    def __init__(self, config: GPSTConfig):
        super().__init__(config)
        self.gpst = GPSTModel(config.core())
        self.gpst.register_forward_pre_hook(refuse_rows, with_kwargs=True)
        self._without_storage = self.gpst.embedding.weight.is_meta
        """Built to be loaded: the core model could not initialise itself."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """For what a checkpoint lacks, or has in another shape."""
        if module is getattr(self, "classifier", None):
            nn.init.normal_(module.weight, std=init_std(self.config.hidden_dim))  # type: ignore[arg-type]
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        elif self._without_storage and not all(map(_has_values, module.parameters())):
            # How a layer is initialised is known to the model that it is a layer of.
            initialised = GPSTModel(self.config.core())
            for own, initial in zip(self.gpst.parameters(), initialised.parameters(), strict=True):
                if not _has_values(own):
                    own.copy_(initial)
                    own._is_hf_initialized = True  # type: ignore[attr-defined]

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing: a saved folder names the package's classes, it holds no copy of them."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As transformers'; always under the names of now, whichever it was loaded from."""
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **{**kwargs, "save_original_format": False})
        if Path(save_directory).is_dir():
            (Path(save_directory) / REMOTE).write_text(REMOTE_CODE, encoding="utf-8")

    def get_input_embeddings(self) -> nn.Module:
        return self.gpst.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.gpst.embedding = value

    def get_output_embeddings(self) -> None:
        """None: the head is the input embedding itself."""

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """As transformers'; the parser has an embedding of its own, which goes along."""
        resized = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        size = resized.num_embeddings
        parser = self.gpst.parser
        trained = parser.embedding.weight.requires_grad
        parser.embedding = self._get_resized_embeddings(
            parser.embedding, size, mean_resizing=mean_resizing
        )
        parser.embedding.requires_grad_(trained)
        self.gpst.config = dataclasses.replace(self.gpst.config, vocab_size=size)
        return resized

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        """Activations of the composition model and the blocks are computed again."""
        self.gradient_checkpointing = True
        self.gpst.activation_checkpointing = {"composition", "generator"}

    def gradient_checkpointing_disable(self) -> None:
        self.gradient_checkpointing = False
        self.gpst.activation_checkpointing = set()

    def _asked(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of a call; outputs that it does not mention are as the configuration says."""
        names = ("output_hidden_states", "output_attentions")
        asked = {name: getattr(self.config, name, None) for name in names}
        return asked | {name: value for name, value in options.items() if value is not None}

    def _usable(self, input_ids: Tensor | None) -> Tensor:
        """The input ids on the model's device."""
        if input_ids is None:
            raise ValueError("input_ids are missing")
        check_ids(input_ids)
        embedding = self.gpst.embedding
        if self.training and hasattr(embedding, "neftune_noise_alpha"):
            refuse({"neftune_noise_alpha": True})
        refuse_adapted(embedding)
        if embedding.weight.is_meta:
            raise ValueError(
                "the weights are offloaded to the disk or the CPU, and GPST is loaded whole: leave"
                " out device_map, or name one device"
            )
        return input_ids.to(self.device)

    def _output(self, output: Any, return_dict: bool | None) -> Any:
        wanted = self.config.return_dict if return_dict is None else return_dict
        return output if wanted else output.to_tuple()


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
        refuse({"past_key_values": kwargs.get("past_key_values")})
        with seeded(seed, self.device):
            return super().generate(*args, **kwargs)  # type: ignore[misc]

    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_generation_config(*args, **kwargs)  # type: ignore[misc]
        if (prepared[0].guidance_scale or 1) != 1:
            refuse({"guidance_scale": prepared[0].guidance_scale})
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


class GPSTForSequenceClassification(GPSTPreTrainedModel):
    """The state after the whole text and CLS -> classes (paper 4.1; gpst/model/classifier.py)."""

    def __init__(self, config: GPSTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels or 2
        self.classifier = nn.Linear(config.hidden_dim, self.num_labels)
        self.post_init()

    @not_compiled
    def forward(
        self,
        input_ids: Int64[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        sentence_ends: Bool[Tensor, "B T"] | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> SequenceClassifierOutput | tuple[Any, ...]:
        """
        Args:
            input_ids: tokens without <bos> and CLS, which the model adds itself.
            attention_mask, sentence_ends: see `rows_of`.
            labels: as transformers has them: (B,) class numbers, values, or (B, classes).
        Raises:
            ValueError: what cannot be used, or is not supported.
        """
        refuse(self._asked(options))
        input_ids = self._usable(input_ids)
        cls = self.config.bos_token_id
        assert cls is not None
        rows = rows_of(self.config, input_ids, attention_mask, sentence_ends, reserved=1)
        rows = Rows([[*row, [cls]] for row in rows.sentences], rows.inside)
        features, _trees = features_after_tokens(self.gpst, rows, self.device)
        lengths = [sum(map(len, row)) for row in rows.sentences]
        last = torch.tensor(lengths, device=self.device).cumsum(0) - 1
        logits = self.classifier(features[last])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                labels=labels.to(self.device), pooled_logits=logits, config=self.config
            )
        return self._output(SequenceClassifierOutput(loss=loss, logits=logits), return_dict)  # type: ignore[arg-type]
