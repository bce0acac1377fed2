"""ELECTRA of this package against transformers' own: outputs, loss and gradients on every real token."""

import pytest
import torch
import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity


class TestElectra(FamilyParity):
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

    @pytest.mark.parametrize("seed", range(20, 24))
    def test_float64_is_equal_for_random_configurations(
        self, head: tuple, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With transformers' loss of detection, which is float32 whatever the model's dtype, in float64 too."""
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        super().test_float64_is_equal_for_random_configurations(head, seed)


class TestElectraWithWideEmbeddings(TestElectra):
    """As in base and large: no projection from the embeddings."""

    heads = TestElectra.heads[:4]
    fields = {"hidden_size": 12, "num_attention_heads": 3, "embedding_size": 12}
