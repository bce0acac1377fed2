"""Rows of a plain dataset: what is no row of tokens is refused, by column and row."""

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

from hf_encoders import DataCollatorForMaskedLM


GOOD = {"input_ids": [1, 5, 2], "token_type_ids": [0, 0, 1], "attention_mask": [1, 1, 1]}


@pytest.fixture
def collator(tokenizer):
    return DataCollatorForMaskedLM(tokenizer, packed=True, mask_probability=1e-9, at_least_one=False)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda row: np.array(row, dtype=np.uint16)])
def test_rows_of_any_kind(collator, kind):
    given = [
        {name: kind(values) for name, values in row.items()}
        for row in (GOOD, {"input_ids": [0, 1, 6], "token_type_ids": [0, 0, 1], "attention_mask": [0, 1, 1]})
    ]
    for features in (
        given,
        [BatchEncoding(row) for row in given],
        [GOOD, given[1]],
        [given[0] | {"label": 1}, given[1]],
    ):
        batch = collator(features)
        assert batch["input_ids"].tolist() == [[1, 5, 2, 1, 6]]
        assert batch["token_type_ids"].tolist() == [[0, 0, 1, 0, 1]]
        assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, GOOD | {"attention_mask": [0, 0, 0]}], "attention_mask of row 1 .* all zero"),
        ([GOOD, GOOD | {"token_type_ids": np.zeros(2, int)}], "token_type_ids of row 1 .* 2 values, input_ids 3"),
        ([GOOD, GOOD | {"token_type_ids": [0.0, 0.5, 1.0]}], "token_type_ids must be .* integers.*row 1 "),
        ([GOOD, GOOD | {"input_ids": ["a", "b", "c"]}], "input_ids must be .* integers.*row 1 "),
        ([GOOD, GOOD | {"input_ids": np.array([[1], [2]])}], "input_ids must be .*row 1 .*SentenceBlocks"),
        ([GOOD, GOOD | {"input_ids": []}], r"input_ids must be a non-empty .*row 1 "),
        ([GOOD, {"input_ids": [1, 2]}], "attention_mask, token_type_ids is in some rows"),
        ([GOOD, GOOD, {"token_type_ids": [0], "attention_mask": [1]}], "input_ids is missing, row 2"),
        ([{"text": "One."}], r"input_ids is missing.*\['text'\].*tokenize"),
        ([GOOD, GOOD | {"token_type_ids": None}], "token_type_ids must be .*row 1 .*None"),
        ([GOOD, GOOD | {"input_ids": [1, 2**64, 2]}], "input_ids must be .*row 1 "),
        ([GOOD, GOOD | {"input_ids": [[1], [2, 3], [4]]}], "input_ids must be .*row 1 .*SentenceBlocks"),
        ([GOOD, GOOD | {"input_ids": [1, -5, 2]}], "ids from -5"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(collator, rows, message):
    with pytest.raises(ValueError, match=message):
        collator(rows)
