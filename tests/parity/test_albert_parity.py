"""Albert of this package against transformers' own: outputs, loss and gradients on every real token."""

import transformers

import hf_encoders
from tests.parity.family_parity import FamilyParity


class TestAlbert(FamilyParity):
    heads = (
        (hf_encoders.HfeAlbertModel, transformers.AlbertModel),
        (hf_encoders.HfeAlbertForSequenceClassification, transformers.AlbertForSequenceClassification),
        (hf_encoders.HfeAlbertForPreTraining, transformers.AlbertForPreTraining),
        (hf_encoders.HfeAlbertForMaskedLM, transformers.AlbertForMaskedLM),
        (hf_encoders.HfeAlbertForTokenClassification, transformers.AlbertForTokenClassification),
        (hf_encoders.HfeAlbertForQuestionAnswering, transformers.AlbertForQuestionAnswering),
        (hf_encoders.HfeAlbertForMultipleChoice, transformers.AlbertForMultipleChoice),
    )
    # Two groups of two layers, and embeddings of another width.
    fields = {"embedding_size": 10, "num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 3}
