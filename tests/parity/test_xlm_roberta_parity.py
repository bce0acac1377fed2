"""XLM-R of this package against transformers' own: outputs, loss and gradients on every real token."""

import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity


class TestXLMRoberta(FamilyParity):
    has_blocks = False
    heads = (
        (hf_encoders.HfeXLMRobertaModel, transformers.XLMRobertaModel),
        (hf_encoders.HfeXLMRobertaForSequenceClassification, transformers.XLMRobertaForSequenceClassification),
        (hf_encoders.HfeXLMRobertaForMaskedLM, transformers.XLMRobertaForMaskedLM),
        (hf_encoders.HfeXLMRobertaForTokenClassification, transformers.XLMRobertaForTokenClassification),
        (hf_encoders.HfeXLMRobertaForQuestionAnswering, transformers.XLMRobertaForQuestionAnswering),
        (hf_encoders.HfeXLMRobertaForMultipleChoice, transformers.XLMRobertaForMultipleChoice),
    )
