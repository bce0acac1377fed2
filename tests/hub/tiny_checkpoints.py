"""Checkpoints small enough to save and load by the hundred: uneven sizes, dropout on, a tokenizer trained on nothing.

What all hub tests share: one configuration, one tokenizer and one batch of unequal lengths a family.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_encoders.corpus.tokenizer_training import byte_bpe_tokenizer, suffix_bpe_tokenizer, untrained_tokenizer
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations
from tests.families import HEADS_OF_OURS_ALONE, fields_of, has_field, model_class, own_sizes


WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "and", "slept", "all", "day", "long", ".", ",")
TEXTS = ("The cat sat on a mat.", "A dog, and the cat, slept all day long on the mat.")
SIZES = {
    "hidden_size": 36,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 43,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "initializer_range": 0.2,  # wide, so that outputs of two different models differ in the first digits
}
RELATIVE = ("relative_key", "relative_key_query")


class Family(NamedTuple):
    """What the tests need to know of a family."""

    name: str
    config_class: type[EncoderConfig]
    modeling: Any
    own_sizes: dict[str, Any]
    tokenizer_class: type[PreTrainedTokenizerBase]

    @property
    def file(self) -> str:
        """What the names of its files end in: `xlm_roberta`."""
        return self.name.replace("-", "_")

    @property
    def token_head(self) -> str:
        """The Auto class whose head predicts tokens: of masked ones, unless it has no such (XLNet)."""
        auto_map = self.config_class.AUTO_MAP
        return "AutoModelForMaskedLM" if "AutoModelForMaskedLM" in auto_map else "AutoModelForPreTraining"

    @property
    def relative(self) -> tuple[str, ...]:
        """The types of relative positions that it has beside its own."""
        return RELATIVE if has_field(self.config_class, "position_embedding_type") else ()


# Changes to `SIZES` by family, beside the sizes that only it has.
CHANGED_SIZES = {
    "bert": {"type_vocab_size": 3},
    "roberta": {"max_position_embeddings": 53},
    "xlm-roberta": {"max_position_embeddings": 53},
    "albert": {"embedding_size": 11},
    "modernbert": {"max_position_embeddings": 53, "hidden_size": 40},  # halves of a head are rotated
}


def family_of(config_class: type[EncoderConfig]) -> Family:
    """What the tests need to know, from the registration."""
    name = config_class.model_type
    sizes = own_sizes(config_class) | CHANGED_SIZES.get(name, {})
    modeling = importlib.import_module(model_class(config_class, "AutoModel").__module__)
    return Family(name, config_class, modeling, sizes, getattr(transformers, config_class.TOKENIZER_CLASS))


FAMILIES = tuple(family_of(config_class) for config_class in configurations())
FILL_MASKS = tuple(one for one in FAMILIES if one.token_head == "AutoModelForMaskedLM")
BERT, ROBERTA, ALBERT = (next(one for one in FAMILIES if one.name == name) for name in ("bert", "roberta", "albert"))


def auto_classes(family: Family) -> list[str]:
    """Names of all Auto classes a checkpoint of the family serves, `AutoConfig` apart."""
    return [name for name in family.config_class.AUTO_MAP if name != "AutoConfig"]


def saved_heads(family: Family) -> list[str]:
    """The Auto classes whose model classes differ: each stands for one kind of checkpoint."""
    heads = {family.config_class.AUTO_MAP[name]: name for name in auto_classes(family)}
    return list(heads.values())


def trusted_auto_classes(family: Family, key: str) -> list[str]:
    """Auto classes a checkpoint is loaded through: all, from the head that predicts tokens.

    From other heads their own, and from pre-training the head that predicts tokens too: every pair of heads has the
    base model in common.
    """
    if key == family.token_head:
        return auto_classes(family)
    return [head_of(key), *[family.token_head] * (key == "AutoModelForPreTraining")]


def has_built_in_class(family: Family, auto_class: str) -> bool:
    """Whether transformers has a class like ours behind an Auto class: none for pre-training of ModernBERT."""
    theirs = getattr(transformers, auto_class)._model_mapping._model_mapping.get(family.name)
    ours = model_class(family.config_class, auto_class)
    return theirs is not None and ours.__name__ not in HEADS_OF_OURS_ALONE


def make_tokenizer(family: Family) -> PreTrainedTokenizerBase:
    """A tokenizer of the family's own class that knows `WORDS`."""
    kind, untrained = family.config_class.VOCABULARY_KIND, untrained_tokenizer(family.config_class, {})
    first, last = (
        [getattr(untrained, f"{role}_token", role) for role in roles]
        for roles in (family.config_class.FIRST_SPECIAL_TOKENS, family.config_class.LAST_SPECIAL_TOKENS)
    )
    if kind == "bpe":
        letters = sorted({letter for text in (*WORDS, *TEXTS) for letter in text if letter != " "})
        merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
        pieces = [*first, *letters, "Ġ", *("".join(pair) for pair in merges), *last]
        maker = byte_bpe_tokenizer if family.tokenizer_class is PreTrainedTokenizerFast else family.tokenizer_class
        return maker(vocab={piece: row for row, piece in enumerate(pieces)}, merges=merges)
    if kind == "unigram":
        scores = [(f"▁{word}", -2.0) for word in WORDS] + [(".", -2.0), (",", -2.0)]
        before, after = ([(token, 0.0) for token in tokens] for tokens in (first, last))
        return family.tokenizer_class(vocab=[*before, *scores, *after])
    if kind == "suffix-bpe":
        pieces = [*first, *sorted({letter for word in WORDS for letter in word}), "e</w>", "t</w>", "at</w>"]
        return suffix_bpe_tokenizer({piece: row for row, piece in enumerate(pieces)}, [("a", "t</w>")])
    pieces = [*first, *WORDS, *last]
    return family.tokenizer_class(vocab={piece: row for row, piece in enumerate(pieces)})


def make_config(family: Family, **fields: Any) -> EncoderConfig:
    """A tiny configuration for `make_tokenizer`'s vocabulary."""
    tokenizer = make_tokenizer(family)
    # ModernBERT's special tokens are at the end of a vocabulary.
    fields = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        **SIZES,
        **family.own_sizes,
        **fields,
    }
    return family.config_class(**fields_of(family.config_class, fields))


def make_model(family: Family, auto_class: str, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """A model of ours, in eval mode, whose every parameter is random (biases and LayerNorms too)."""
    if auto_class in ("AutoModelForSequenceClassification", "AutoModelForTokenClassification"):
        fields = {"num_labels": 3, **fields}
    torch.manual_seed(seed)
    model = model_class(family.config_class, auto_class)(make_config(family, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def save_checkpoint(model: PreTrainedModel, family: Family, folder: Path) -> Path:
    """Save a model and its tokenizer as a user would; returns `folder`."""
    model.save_pretrained(folder)
    make_tokenizer(family).save_pretrained(folder)
    return folder


def make_batch(family: Family) -> dict[str, torch.Tensor]:
    """`TEXTS` as a padded batch: input_ids, attention_mask and, where the family reads them, token_type_ids, langs."""
    batch = dict(make_tokenizer(family)(list(TEXTS), padding=True, return_tensors="pt"))
    if "langs" in make_config(family).extra_ids:
        batch["langs"] = torch.arange(len(TEXTS))[:, None].expand_as(batch["input_ids"]).clone()
    return batch


def batch_for(auto_class: str, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch as the head reads it: multiple choice takes both texts as choices of one example."""
    if auto_class == "AutoModelForMultipleChoice":
        return {name: value.unsqueeze(0) for name, value in batch.items()}
    return batch


def outputs_of(model: PreTrainedModel, auto_class: str, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All tensors a model returns for the batch, by field."""
    with torch.no_grad():
        outputs = model(**batch_for(auto_class, batch))
    return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def head_of(key: str) -> str:
    """The Auto class of a saved checkpoint; relative positions are saved with an MLM head."""
    return "AutoModelForMaskedLM" if key in RELATIVE else key


def labels_for(family: Family, head: str, batch: dict[str, torch.Tensor]) -> dict[str, list]:
    """Labels for the two texts, by argument name; none for the model without a head."""
    tokens = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    terms = model_class(family.config_class, "AutoModelForPreTraining").loss_terms
    if "rtd" in terms and head == "AutoModelForPreTraining":
        return {"labels": tokens.where(tokens < 0, tokens % 2).tolist()}
    pair_label = terms.get("pair")
    return {
        "AutoModel": {},
        "AutoModelForPreTraining": {"labels": tokens.tolist()} | ({pair_label: [0, 1]} if pair_label else {}),
        "AutoModelForMaskedLM": {"labels": tokens.tolist()},
        "AutoModelForNextSentencePrediction": {"labels": [0, 1]},
        "AutoModelForSequenceClassification": {"labels": [2, 0]},
        "AutoModelForTokenClassification": {"labels": tokens.where(tokens < 0, tokens % 3).tolist()},
        "AutoModelForQuestionAnswering": {"start_positions": [1, 3], "end_positions": [2, 5]},
        "AutoModelForMultipleChoice": {"labels": [1]},
    }[head]


def assert_same_answers(answers: Any, expected: Any) -> None:
    """Answers of pipelines: equal in structure, words and places; scores and features up to 1e-5."""
    assert type(answers) is type(expected)
    if isinstance(expected, dict):
        assert answers.keys() == expected.keys()
        for name in expected:
            assert_same_answers(answers[name], expected[name])
    elif isinstance(expected, list):
        assert len(answers) == len(expected)
        for answer, other in zip(answers, expected, strict=True):
            assert_same_answers(answer, other)
    elif isinstance(expected, float):
        assert answers == pytest.approx(expected, rel=0, abs=1e-5)  # fp32 sums over rows of another length
    else:
        assert answers == expected


def built_in(family: Family, auto_class: str) -> str:
    """Name of transformers' own class behind an Auto class, for this family's `model_type`."""
    mapping = getattr(transformers, auto_class)._model_mapping
    return mapping._model_mapping[family.config_class.model_type]
