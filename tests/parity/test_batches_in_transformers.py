"""Batches of the collators in transformers' own classes: the same loss where docs/data.md says so."""

import pytest
import torch
import transformers

import hf_encoders
from hf_encoders import (
    DataCollatorForDialogueLM,
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    Dialogues,
    DocumentChunks,
    ParallelPairs,
    SentenceBlocks,
)
from tests.corpus.corpora import make_dataset, random_documents
from tests.parity import test_families
from tests.parity.family_parity import NO_DROPOUT
from tests.parity.parity_with_transformers import make_config, make_pair


LANGUAGES = {"en": 0, "de": 1}


def examples_of(objective: str) -> list:
    documents = make_dataset(random_documents(30, 0, (2, 3) if objective == "tlm" else (6, 7)))
    datasets = {
        "mlm": lambda: SentenceBlocks(documents, 20, redraw=False),
        "pairs": lambda: DocumentChunks(documents, 24, redraw=False),
        "dialogue": lambda: Dialogues(documents, 24, redraw=False),
        "tlm": lambda: ParallelPairs(documents, 24, tuple(LANGUAGES), redraw=False),
    }
    return datasets[objective]()[:8]


@pytest.mark.parametrize(
    ("name", "collator_class", "objective", "options", "fields"),
    [
        ("BertForPreTraining", DataCollatorForNextSentencePrediction, "pairs", {}, {}),
        ("BertForPreTraining", DataCollatorForDialogueLM, "dialogue", {}, {}),
        ("AlbertForPreTraining", DataCollatorForSentenceOrderPrediction, "pairs", {}, {}),
        ("RobertaForMaskedLM", DataCollatorForMaskedLM, "mlm", {}, {}),
        ("ElectraForMaskedLM", DataCollatorForMaskedLM, "mlm", {}, {}),
        ("DistilBertForMaskedLM", DataCollatorForMaskedLM, "mlm", {}, test_families.TestDistilBert.fields),
        (
            "XLMWithLMHeadModel",
            DataCollatorForMaskedLM,
            "tlm",
            {"first_position": 0, "lang2id": LANGUAGES},
            {"n_langs": 2},
        ),
    ],
)
def test_padded_batches_have_the_same_loss(tokenizer, name, collator_class, objective, options, fields):
    batch = collator_class(tokenizer, **options)(examples_of(objective))
    ours_class = getattr(hf_encoders, f"Hfe{name}")
    sizes = {"vocab_size": 60, "max_position_embeddings": 64, "pad_token_id": tokenizer.pad_token_id}
    config = make_config(ours_class, 3, {**NO_DROPOUT, **sizes, **fields})
    ours, stock = make_pair(ours_class, getattr(transformers, name), config)
    assert (batch["attention_mask"] == 0).any()
    torch.testing.assert_close(ours(**batch).loss, stock(**batch).loss, atol=1e-5, rtol=1e-5)
