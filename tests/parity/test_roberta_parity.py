"""Roberta of this package against transformers' own: outputs, loss and gradients on every real token."""

import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity


class TestRoberta(FamilyParity):
    has_blocks = False
    heads = (
        (hf_encoders.HfeRobertaModel, transformers.RobertaModel),
        (hf_encoders.HfeRobertaForSequenceClassification, transformers.RobertaForSequenceClassification),
        (hf_encoders.HfeRobertaForMaskedLM, transformers.RobertaForMaskedLM),
        (hf_encoders.HfeRobertaForTokenClassification, transformers.RobertaForTokenClassification),
        (hf_encoders.HfeRobertaForQuestionAnswering, transformers.RobertaForQuestionAnswering),
        (hf_encoders.HfeRobertaForMultipleChoice, transformers.RobertaForMultipleChoice),
    )
