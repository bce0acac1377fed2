"""Which special tokens stand for words, and which are structure."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CanineTokenizer, PreTrainedTokenizerFast

from hf_encoders.corpus.special_tokens import never_masked, unknown_ids, unknown_words_refused
from hf_encoders.corpus.word_starts import WordStarts
from hf_encoders.objectives.mlm import DataCollatorForMaskedLM


def byte_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Ids 0 to 2 are `<end>`, `<pad>`, `<mask>`; then `Ġa`, `b`, c5, c6, ... to 19."""
    entries = ["<end>", "<pad>", "<mask>", "Ġa", "b", *(f"c{i}" for i in range(5, 20))]
    tokenizer = Tokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="<mask>", **special)


# GPT-2 and GPT-NeoX have one token for all roles; others pad with the unknown token.
SHARED = [
    {"bos_token": "<end>", "eos_token": "<end>", "unk_token": "<end>", "pad_token": "<pad>"},
    {"cls_token": "<pad>", "sep_token": "<end>", "unk_token": "<end>", "pad_token": "<pad>"},
    {"bos_token": "<end>", "eos_token": "<end>", "unk_token": "<pad>", "pad_token": "<pad>"},
]


@pytest.mark.parametrize("special", SHARED)
def test_an_unknown_token_that_is_a_separator_too_is_a_separator(special):
    tokenizer = byte_tokenizer(**special)
    assert unknown_ids(tokenizer) == set()
    assert never_masked(tokenizer) == [0, 1, 2]
    begins_text = np.array([True, False, False, False, False])
    assert WordStarts(tokenizer)(np.array([3, 4, 0, 4, 4]), begins_text).tolist() == [True, False, True, True, False]


def test_a_separator_that_is_called_unknown_is_neither_masked_nor_drawn():
    collator = DataCollatorForMaskedLM(
        byte_tokenizer(**SHARED[0]), mask_probability=1.0, mask_replace_probability=0.0, random_replace_probability=1.0
    )
    batch = collator([{"input_ids": [0, *range(3, 20), 0]}] * 50)
    assert (batch["labels"][:, [0, -1]] == -100).all() and (batch["labels"][:, 1:-1] != -100).all()
    assert (batch["input_ids"][:, [0, -1]] == 0).all() and set(batch["input_ids"][:, 1:-1].unique().tolist()) == set(
        range(3, 20)
    )


def test_an_unknown_token_of_its_own_stands_for_a_word(tokenizer):
    assert unknown_ids(tokenizer, 3, 7, None, tokenizer.sep_token_id) == {3, 7}
    without = CanineTokenizer()
    assert unknown_ids(without) == set() and never_masked(without) == sorted(without.all_special_ids)


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"a": 0}, unk_token="[UNK]"),
        models.WordLevel({"a": 0}, unk_token="[UNK]"),
        models.Unigram([("a", 0.0)]),
        models.BPE({"a": 0}, [], unk_token="<unk>"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_vocabulary_without_its_unknown_token_is_named(model):
    tokenizer = Tokenizer(model)
    with pytest.raises(ValueError, match="the tokenizer has no token for unknown words"), unknown_words_refused():
        tokenizer.encode("b")


@pytest.mark.parametrize("error", [ValueError("the label FUNK is new"), KeyError("CHUNK"), Exception("no memory")])
def test_other_errors_are_not_taken_for_an_unknown_word(error):
    with pytest.raises(type(error)) as raised, unknown_words_refused():
        raise error
    assert raised.value is error
