"""A model, rows and a setting that are measured in milliseconds."""

import datasets

from hf_encoders.benchmark.settings import Setting
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import config_class_of
from tests.corpus.corpora import make_dataset, random_documents
from tests.families import fields_of, own_sizes


VOCABULARY = 60


def tiny_config(family: str, dropout: float = 0.0) -> EncoderConfig:
    config_class = config_class_of(family)
    own = own_sizes(config_class)
    fields = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 2 * own.get("num_hidden_groups", 1),
        "num_attention_heads": 3,
        "intermediate_size": 37,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        config_class.HEAD_DROPOUT_FIELD: dropout,
        **own,
    }
    return config_class(**fields_of(config_class, fields))


def tiny_setting(family: str = "bert", **changes) -> Setting:
    fields = {
        "size": "tiny",
        "examples": "sentences",
        "length": 13,
        "batch_size": 5,
        "task": "pretraining",
        "dtype": "float32",
        "objective": "mlm",
        "dropout": 0.0,
        "rounds": 2,
        "steps": 2,
        "device": "cpu",
        "seed": 0,
    }
    return Setting(family=family, **{**fields, **changes})


def tiny_corpus(num_documents: int = 30) -> datasets.Dataset:
    """Documents of 2 to 5 sentences of 3 to 14 tokens, all above the special ids."""
    return make_dataset(random_documents(num_documents, 0, (2, 6), (3, 15)))


def tiny_text() -> str:
    """The same as text for the tokenizer of words."""
    return "\n\n".join(
        "\n".join(" ".join(f"w{token}" for token in sentence) for sentence in document)
        for document in tiny_corpus()["input_ids"]
    )
