"""Bert of this package against transformers' own: outputs, loss and gradients on every real token."""

import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity


class TestBert(FamilyParity):
    heads = (
        (hf_encoders.HfeBertModel, transformers.BertModel),
        (hf_encoders.HfeBertForSequenceClassification, transformers.BertForSequenceClassification),
        (hf_encoders.HfeBertForPreTraining, transformers.BertForPreTraining),
        (hf_encoders.HfeBertForNextSentencePrediction, transformers.BertForNextSentencePrediction),
        (hf_encoders.HfeBertForMaskedLM, transformers.BertForMaskedLM),
        (hf_encoders.HfeBertForTokenClassification, transformers.BertForTokenClassification),
        (hf_encoders.HfeBertForQuestionAnswering, transformers.BertForQuestionAnswering),
        (hf_encoders.HfeBertForMultipleChoice, transformers.BertForMultipleChoice),
    )
