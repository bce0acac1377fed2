"""Each family of this package against transformers' own: outputs, loss and gradients on every real token."""

from typing import Any

import pytest
import torch
import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity, heads_of


class TestBert(FamilyParity):
    heads = heads_of(hf_encoders.HfeBertConfig)


class TestRoberta(FamilyParity):
    heads = heads_of(hf_encoders.HfeRobertaConfig)
    has_blocks = False


class TestXLMRoberta(FamilyParity):
    heads = heads_of(hf_encoders.HfeXLMRobertaConfig)
    has_blocks = False


class TestAlbert(FamilyParity):
    heads = heads_of(hf_encoders.HfeAlbertConfig)
    # Two groups of two layers, and embeddings of another width.
    fields = {"embedding_size": 10, "num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 3}


class DistilBertForMultipleChoice(transformers.DistilBertForMultipleChoice):
    """With positions of choices, which transformers' own head does not bring into rows."""

    def forward(self, *args: Any, position_ids: torch.Tensor | None = None, **kwargs: Any) -> Any:
        position_ids = None if position_ids is None else position_ids.flatten(0, 1)
        return super().forward(*args, position_ids=position_ids, **kwargs)


class TestDistilBert(FamilyParity):
    heads = (
        *(head for head in heads_of(hf_encoders.HfeDistilBertConfig) if "MultipleChoice" not in head[0].__name__),
        (hf_encoders.HfeDistilBertForMultipleChoice, DistilBertForMultipleChoice),
    )
    fields = {"layer_norm_eps": 1e-12}  # a constant there


class TestDistilBertWithOtherDropouts(TestDistilBert):
    """Sine positions, and dropouts of the heads that are not the layers'."""

    has_blocks = False
    fields = {**TestDistilBert.fields, "sinusoidal_pos_embds": True, "seq_classif_dropout": 0.4, "qa_dropout": 0.5}


class TestElectra(FamilyParity):
    heads = heads_of(hf_encoders.HfeElectraConfig)
    has_blocks = False
    fields = {"embedding_size": 10, "summary_activation": "tanh"}

    def test_float64_is_equal_for_a_random_configuration(self, head: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
        """With transformers' loss of detection, which is float32 whatever the model's dtype, in float64 too."""
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        super().test_float64_is_equal_for_a_random_configuration(head)


class TestElectraWithWideEmbeddings(TestElectra):
    """As in base and large: no projection from the embeddings."""

    heads = TestElectra.heads[:3]
    fields = {"hidden_size": 12, "num_attention_heads": 3, "embedding_size": 12}
