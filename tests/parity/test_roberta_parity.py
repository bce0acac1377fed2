"""Roberta of this package against transformers' own: outputs, loss and gradients on every real token."""

import transformers
from family_parity import FamilyParity

import hf_encoders


class TestRoberta(FamilyParity):
    heads = (
        (hf_encoders.HfeRobertaModel, transformers.RobertaModel),
        (hf_encoders.HfeRobertaForSequenceClassification, transformers.RobertaForSequenceClassification),
        (hf_encoders.HfeRobertaForMaskedLM, transformers.RobertaForMaskedLM),
        (hf_encoders.HfeRobertaForTokenClassification, transformers.RobertaForTokenClassification),
        (hf_encoders.HfeRobertaForQuestionAnswering, transformers.RobertaForQuestionAnswering),
        (hf_encoders.HfeRobertaForMultipleChoice, transformers.RobertaForMultipleChoice),
    )
