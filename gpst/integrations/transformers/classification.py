"""GPST as a transformers model that classifies texts."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from gpst.integrations.transformers.configuration import GPSTConfig
from gpst.integrations.transformers.features import features_after_tokens
from gpst.integrations.transformers.pretrained import GPSTPreTrainedModel, not_compiled
from gpst.integrations.transformers.rows import Rows, refuse, rows_of


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
