"""ELECTRA of this package against transformers' own: outputs, loss and gradients on every real token."""

import pytest
import torch
import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity


class TestElectra(FamilyParity):
    has_blocks = False
    heads = (
        (hf_encoders.HfeElectraModel, transformers.ElectraModel),
        (hf_encoders.HfeElectraForSequenceClassification, transformers.ElectraForSequenceClassification),
        (hf_encoders.HfeElectraForPreTraining, transformers.ElectraForPreTraining),
        (hf_encoders.HfeElectraForMaskedLM, transformers.ElectraForMaskedLM),
        (hf_encoders.HfeElectraForTokenClassification, transformers.ElectraForTokenClassification),
        (hf_encoders.HfeElectraForQuestionAnswering, transformers.ElectraForQuestionAnswering),
        (hf_encoders.HfeElectraForMultipleChoice, transformers.ElectraForMultipleChoice),
    )
    fields = {"embedding_size": 10, "summary_activation": "tanh"}

    def test_float64_is_equal_for_a_random_configuration(self, head: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
        """With transformers' loss of detection, which is float32 whatever the model's dtype, in float64 too."""
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        super().test_float64_is_equal_for_a_random_configuration(head)


class TestElectraWithWideEmbeddings(TestElectra):
    """As in base and large: no projection from the embeddings."""

    heads = TestElectra.heads[:3]
    fields = {"hidden_size": 12, "num_attention_heads": 3, "embedding_size": 12}
