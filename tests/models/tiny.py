"""Small models and batches for the tests in this folder; sizes that nothing else divides."""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations
from tests.families import fields_of, has_field, model_classes, own_sizes


CONFIGURATIONS = configurations()
BASE_MODELS = model_classes("AutoModel")
# Of families with a table of positions, and with a choice of them.
WITH_POSITIONS = tuple(one for one in BASE_MODELS if one.config_class().has_position_table)
WITH_RELATIVE = tuple(one for one in BASE_MODELS if has_field(one.config_class, "position_embedding_type"))
MASKED_LM = model_classes("AutoModelForMaskedLM")
RELATIVE_MASKED_LM = tuple(one for one in MASKED_LM if has_field(one.config_class, "position_embedding_type"))
PRETRAINING = tuple(one for one in model_classes("AutoModelForPreTraining") if "pair" in one.loss_terms)
DISCRIMINATORS = tuple(one for one in model_classes("AutoModelForPreTraining") if "rtd" in one.loss_terms)
# Predict tokens, not masked ones (XLNet).
LM_HEADS = tuple(one for one in model_classes("AutoModelForPreTraining") if "plm" in one.loss_terms)
CLASSIFIERS = model_classes("AutoModelForSequenceClassification")
TOKEN_CLASSIFIERS = model_classes("AutoModelForTokenClassification")
QUESTION_ANSWERING = model_classes("AutoModelForQuestionAnswering")
MULTIPLE_CHOICE = model_classes("AutoModelForMultipleChoice")
NEXT_SENTENCE = model_classes("AutoModelForNextSentencePrediction")
EVERY_HEAD = (
    *BASE_MODELS,
    *MASKED_LM,
    *PRETRAINING,
    *LM_HEADS,
    *DISCRIMINATORS,
    *CLASSIFIERS,
    *TOKEN_CLASSIFIERS,
    *QUESTION_ANSWERING,
    *MULTIPLE_CHOICE,
    *NEXT_SENTENCE,
)
# The base model of each family, and each head in one of them: heads are one class for all.
ALL_MODELS = (
    *BASE_MODELS,
    *(MASKED_LM[0], *PRETRAINING, LM_HEADS[0], DISCRIMINATORS[0], CLASSIFIERS[2], TOKEN_CLASSIFIERS[4]),
    *(QUESTION_ANSWERING[-1], MULTIPLE_CHOICE[1], NEXT_SENTENCE[0]),
)
# Of a model with language embeddings (XLM).
LANGUAGES = {"n_langs": 3, "lang2id": {"de": 2, "en": 0, "zh": 1}, "default_lang": "zh"}
HEAD_DROPOUTS = (
    *("classifier_dropout", "classifier_dropout_prob", "summary_first_dropout", "summary_last_dropout"),
    "seq_classif_dropout",
)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tiny_config(config_class: type[EncoderConfig], **fields: Any) -> EncoderConfig:
    """3 layers, 3 heads of width 6, 41 ids, 13 positions, padding id 1."""
    sizes = {
        "vocab_size": 41,
        "hidden_size": 18,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "intermediate_size": 23,
        "max_position_embeddings": 13,
        "type_vocab_size": 2,
        "pad_token_id": 1,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.1,
    }
    return config_class(**fields_of(config_class, {**sizes, **own_sizes(config_class), **fields}))


def tiny_model(model_class: type[PreTrainedModel], **fields: Any) -> PreTrainedModel:
    """A model in `eval()` with random parameters everywhere, biases and LayerNorms included."""
    torch.default_generator.manual_seed(5)  # as `torch.manual_seed` on the CPU, in microseconds
    model = model_class(tiny_config(model_class.config_class, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def token_ids(config: PreTrainedConfig, *shape: int, seed: int = 3) -> torch.Tensor:
    """Random ids that are no padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.pad_token_id + 1, config.vocab_size, shape, generator=generator)


def right_padded(config: PreTrainedConfig, lengths: tuple[int, ...] = (7, 4, 2)) -> dict[str, torch.Tensor]:
    """Rows of those lengths, padded to the longest."""
    ids = token_ids(config, len(lengths), max(lengths))
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids.masked_fill(mask == 0, config.pad_token_id), "attention_mask": mask}


def packed(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The real tokens of a batch in one row, with the boundaries of its sequences."""
    is_real = batch["attention_mask"] == 1
    bounds = torch.nn.functional.pad(is_real.sum(dim=1).cumsum(0), (1, 0)).to(torch.int32)
    rows = {name: value[is_real][None] for name, value in batch.items() if name != "attention_mask"}
    return {**rows, "cu_seq_lens_q": bounds}
