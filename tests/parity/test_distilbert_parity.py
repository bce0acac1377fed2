"""DistilBERT of this package against transformers' own: outputs, loss and gradients on every real token."""

from typing import Any

import torch
import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity


class DistilBertForMultipleChoice(transformers.DistilBertForMultipleChoice):
    """With positions of choices, which transformers' own head does not bring into rows."""

    def forward(self, *args: Any, position_ids: torch.Tensor | None = None, **kwargs: Any) -> Any:
        position_ids = None if position_ids is None else position_ids.flatten(0, 1)
        return super().forward(*args, position_ids=position_ids, **kwargs)


class DistilBertParity(FamilyParity):
    heads = (
        (hf_encoders.HfeDistilBertModel, transformers.DistilBertModel),
        (hf_encoders.HfeDistilBertForSequenceClassification, transformers.DistilBertForSequenceClassification),
        (hf_encoders.HfeDistilBertForMaskedLM, transformers.DistilBertForMaskedLM),
        (hf_encoders.HfeDistilBertForTokenClassification, transformers.DistilBertForTokenClassification),
        (hf_encoders.HfeDistilBertForQuestionAnswering, transformers.DistilBertForQuestionAnswering),
        (hf_encoders.HfeDistilBertForMultipleChoice, DistilBertForMultipleChoice),
    )
    fields = {"layer_norm_eps": 1e-12}  # a constant there


class TestDistilBert(DistilBertParity):
    pass


class TestDistilBertWithOtherDropouts(DistilBertParity):
    """Sine positions, and dropouts of the heads that are not the layers'."""

    heads = (*DistilBertParity.heads[:2], *DistilBertParity.heads[4:])
    has_blocks = False
    fields = {**DistilBertParity.fields, "sinusoidal_pos_embds": True, "seq_classif_dropout": 0.4, "qa_dropout": 0.5}
