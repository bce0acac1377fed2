"""Bert of this package against transformers' own: outputs, loss and gradients on every real token."""

import transformers
from family_parity import FamilyParity

import hf_encoders


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
