"""What GPST's transformers models share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gpst.export.remote import AUTO_MAP, REMOTE, REMOTE_CODE
from gpst.integrations.transformers.adapters import refuse_adapted
from gpst.integrations.transformers.configuration import GPSTConfig
from gpst.integrations.transformers.rows import check_ids, refuse, refuse_rows
from gpst.layers.transformer import init_std
from gpst.model.gpst import GPSTModel

not_compiled = torch.compiler.disable(
    reason="the trees, and so the operations, are others in every batch; GPST brings its kernels"
)


def _has_values(parameter: nn.Parameter) -> bool:
    """Read from a checkpoint, or initialised: transformers' own mark."""
    return getattr(parameter, "_is_hf_initialized", False)


class GPSTPreTrainedModel(PreTrainedModel):
    """Has the core model, whose parameters are named `gpst.*`."""

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
