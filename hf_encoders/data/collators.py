"""The data collators of the three objectives, for the stock `Trainer` in its default settings.

They take `Example`s, from the data sets of this package, whose every draw is a function of (seed, epoch, example id);
or rows of any data set with a column `input_ids`, whose draws come from torch's generator, as in transformers'
collators.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.examples import Example
from hf_encoders.data.masking import IGNORED, MaskingRule, mask_tokens
from hf_encoders.data.sentence_pairs import (
    SPECIAL_TOKENS_OF_A_PAIR,
    Pair,
    next_sentence_pair,
    random_window,
    sentence_order_pair,
    truncate_pair,
)
from hf_encoders.data.special_tokens import mask_and_padding, never_masked, sequence_ends


class DataCollatorForMaskedLM:
    """Masks tokens anew every time an example is drawn, and pads the batch to its longest row.

    Args:
        tokenizer: gives the special tokens and the vocabulary.
        mask_probability (`float`): share of the tokens that is predicted, in (0, 1]; 0.15 in the papers.
        mask_replace_probability, random_replace_probability (`float`): what becomes of a predicted token: the mask
            token (0.8), a random one (0.1), or itself (the rest).
        pad_to_multiple_of (`int`, *optional*): pad rows to a multiple of that many tokens.

    Input: `Example`s, which get `[CLS]` and `[SEP]` around their sentences; or rows whose `input_ids` hold them
    already (and perhaps `token_type_ids`), as a tokenizer returns them.

    Output: `input_ids`, `attention_mask` and `labels`, each `(B, T)` `int64`; `token_type_ids` where rows have them.

    Raises:
        ValueError: for a tokenizer without the tokens needed, and for probabilities out of range.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK] and half of the tokens predicted:

    >>> from hf_encoders.data.examples import Example
    >>> collator = DataCollatorForMaskedLM(doctest_tokenizer(), mask_probability=0.5)
    >>> batch = collator([Example([np.array([10, 11]), np.array([12, 13])], key=3, document=0, target_tokens=6)])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 10, 4, 4, 13, 2]], [[-100, -100, 11, 12, -100, -100]])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask_probability: float = 0.15,
        mask_replace_probability: float = 0.8,
        random_replace_probability: float = 0.1,
        pad_to_multiple_of: int | None = None,
    ):
        if not 0 < mask_probability <= 1:
            raise ValueError(f"mask_probability={mask_probability} must be in (0, 1]; the papers use 0.15.")
        if min(mask_replace_probability, random_replace_probability) < 0 or (
            mask_replace_probability + random_replace_probability > 1
        ):
            raise ValueError(
                f"mask_replace_probability={mask_replace_probability} and random_replace_probability="
                f"{random_replace_probability} must be probabilities with a sum of at most 1; the papers use 0.8 and "
                "0.1."
            )
        self.first_id, self.last_id = sequence_ends(tokenizer)
        mask_id, self.padding_id = mask_and_padding(tokenizer)
        special_ids = np.array(never_masked(tokenizer))
        self.rule = MaskingRule(
            mask_probability,
            mask_replace_probability,
            random_replace_probability,
            mask_id,
            replacement_ids=np.setdiff1d(np.arange(len(tokenizer)), special_ids),
            special_ids=special_ids,
        )
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, features: Sequence[Example | Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch of B examples."""
        rows = [self.build_row(feature) for feature in features]
        return self.mask_and_pad(rows, feature_keys(features))

    def build_row(self, feature: Example | Mapping[str, Any]) -> dict[str, np.ndarray]:
        """One example with its special tokens."""
        if isinstance(feature, Example):
            return {"input_ids": np.concatenate([[self.first_id], *feature.sentences, [self.last_id]])}
        if len(feature["input_ids"]) == 0 or np.ndim(feature["input_ids"][0]) != 0:
            raise ValueError(
                "input_ids must be a non-empty list of token ids for this collator; for lists of sentences wrap the "
                "data set in SentenceBlocks (MLM) or use a pair collator."
            )
        # Padding that a tokenizer has added already is taken off: the batch is padded anew.
        is_real = np.asarray(feature.get("attention_mask", np.ones(len(feature["input_ids"]))), dtype=bool)
        return {
            name: np.asarray(feature[name])[is_real] for name in ("input_ids", "token_type_ids") if name in feature
        }

    def mask_and_pad(self, rows: list[dict[str, np.ndarray]], keys: np.ndarray) -> dict[str, torch.Tensor]:
        """Rows of `(T_i,)` arrays -> a batch of `(B, T)` tensors."""
        lengths = np.array([len(row["input_ids"]) for row in rows])
        flat = {name: np.concatenate([row[name] for row in rows]).astype(np.int64) for name in rows[0]}
        flat["input_ids"], flat["labels"] = mask_tokens(flat["input_ids"], lengths, keys, self.rule)

        width = int(lengths.max())
        if self.pad_to_multiple_of:
            width += -width % self.pad_to_multiple_of
        is_real = np.arange(width) < lengths[:, None]
        padding = {"input_ids": self.padding_id, "labels": IGNORED, "token_type_ids": 0}
        batch = {"attention_mask": torch.from_numpy(is_real.astype(np.int64))}
        for name, values in flat.items():
            grid = np.full(is_real.shape, padding[name], dtype=np.int64)
            grid[is_real] = values
            batch[name] = torch.from_numpy(grid)
        return batch


class SentencePairCollator(DataCollatorForMaskedLM):
    """What the two pair collators share: `[CLS] A [SEP] B [SEP]`, segments, masking, one label a pair.

    Args:
        tokenizer, mask_probability, mask_replace_probability, random_replace_probability, pad_to_multiple_of: as in
            `DataCollatorForMaskedLM`.
        max_length (`int`): longest example in tokens, special tokens included; longer pairs are truncated.
        label_name (`str`): name of the pair label in the batch, as the model's `forward` calls it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, label_name: str, **masking: Any):
        super().__init__(tokenizer, **masking)
        if max_length < SPECIAL_TOKENS_OF_A_PAIR + 2:
            raise ValueError(f"max_length={max_length} leaves no room for a pair of sentences: use at least 5.")
        self.max_length = max_length
        self.label_name = label_name

    def draw_pair(self, example: Example) -> Pair:
        """The objective."""
        raise NotImplementedError

    def __call__(self, features: Sequence[Example | Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Make a batch of B pairs."""
        keys = feature_keys(features)
        rows, labels = [], []
        for feature, key in zip(features, keys, strict=True):
            example = feature if isinstance(feature, Example) else self.as_example(feature, int(key))
            pair = truncate_pair(self.draw_pair(example), self.max_length - SPECIAL_TOKENS_OF_A_PAIR, example.key)
            rows.append(self.build_pair(pair))
            labels.append(pair.label)
        return {**self.mask_and_pad(rows, keys), self.label_name: torch.tensor(labels)}

    def build_pair(self, pair: Pair) -> dict[str, np.ndarray]:
        """`[CLS] A [SEP] B [SEP]` with segment 0 up to the first `[SEP]`; `[CLS] A [SEP]` without B."""
        ids = [[self.first_id], pair.first, [self.last_id]]
        if len(pair.second):
            ids += [pair.second, [self.last_id]]
        input_ids = np.concatenate(ids)
        token_type_ids = np.zeros_like(input_ids)
        token_type_ids[len(pair.first) + 2 :] = 1
        return {"input_ids": input_ids, "token_type_ids": token_type_ids}

    def as_example(self, feature: Mapping[str, Any], key: int) -> Example:
        """A row of a plain data set: `input_ids` is a list of sentences without special tokens."""
        sentences = [np.asarray(sentence, dtype=np.int64) for sentence in feature["input_ids"] if np.size(sentence)]
        if not sentences or sentences[0].ndim != 1:
            raise ValueError(
                "input_ids must be a list of sentences, each a list of token ids without special tokens, for a pair "
                "objective: see hf_encoders.data.tokenize_documents."
            )
        return random_window(sentences, key, self.max_length - SPECIAL_TOKENS_OF_A_PAIR)


class DataCollatorForNextSentencePrediction(SentencePairCollator):
    """MLM and next-sentence prediction (BERT): half of the pairs follow each other, half are random.

    `next_sentence_label` is 0 where B follows A and 1 where B comes from another document; -100 for a chunk of a
    single sentence, of which no pair can be made.

    Args:
        tokenizer: gives the special tokens and the vocabulary.
        max_length (`int`): longest example in tokens, special tokens included.
        label_name (`str`): name of the label in the batch.
        masking: `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.

    Input: `Example`s from `DocumentChunks`, which bring along the corpus that random segments come from. A row of a
    plain data set does not say which document of which corpus it is, so it is refused.

    Output: `input_ids`, `token_type_ids`, `attention_mask`, `labels`, each `(B, T)`, and `next_sentence_label` `(B,)`.

    Raises:
        ValueError: as in `DataCollatorForMaskedLM`, for plain rows, and if there are no two documents to draw from.

    Example, with ids 1 = [CLS], 2 = [SEP]; document 0 is the chunk's own, document 1 is [[20, 21]]:

    >>> from datasets import Dataset
    >>> from hf_encoders.data.sentence_pairs import DocumentChunks
    >>> documents = Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21]]]})
    >>> chunks = DocumentChunks(documents, max_length=16, redraw=False)
    >>> collator = DataCollatorForNextSentencePrediction(doctest_tokenizer(), max_length=16)
    >>> pairs = [collator.draw_pair(chunks[0]._replace(key=key)) for key in (1, 4)]
    >>> [(pair.first.tolist(), pair.second.tolist(), pair.label) for pair in pairs]
    [([10, 11], [12], 0), ([10, 11], [20, 21], 1)]
    >>> {name: values.tolist() for name, values in collator.build_pair(pairs[1]).items()}
    {'input_ids': [1, 10, 11, 2, 20, 21, 2], 'token_type_ids': [0, 0, 0, 0, 1, 1, 1]}
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int = 128,
        label_name: str = "next_sentence_label",
        **masking: Any,
    ):
        super().__init__(tokenizer, max_length, label_name, **masking)

    def draw_pair(self, example: Example) -> Pair:
        """A segment with what follows it or with a random segment."""
        return next_sentence_pair(example)


class DataCollatorForSentenceOrderPrediction(SentencePairCollator):
    """MLM and sentence-order prediction (ALBERT): half of the pairs stand in order, half are swapped.

    `sentence_order_label` is 0 for pairs in order and 1 for swapped ones; -100 for a chunk of a single sentence.

    Args:
        tokenizer: gives the special tokens and the vocabulary.
        max_length (`int`): longest example in tokens, special tokens included.
        label_name (`str`): name of the label in the batch.
        masking: `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.

    Input: `Example`s from `DocumentChunks`; or rows whose `input_ids` are the sentences of a document, of which a run
    about as long as an example is taken, from a random place.

    Output: `input_ids`, `token_type_ids`, `attention_mask`, `labels`, each `(B, T)`, and `sentence_order_label`
        `(B,)`.

    Example: "I love you." (10, 11) and "Because you are wonderful." (12), in order and swapped:

    >>> collator = DataCollatorForSentenceOrderPrediction(doctest_tokenizer(), max_length=16)
    >>> chunk = [np.array([10, 11]), np.array([12])]
    >>> pairs = [collator.draw_pair(Example(chunk, key, document=0, target_tokens=13)) for key in (3, 1)]
    >>> [(pair.first.tolist(), pair.second.tolist(), pair.label) for pair in pairs]
    [([10, 11], [12], 0), ([12], [10, 11], 1)]
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int = 128,
        label_name: str = "sentence_order_label",
        **masking: Any,
    ):
        super().__init__(tokenizer, max_length, label_name, **masking)

    def draw_pair(self, example: Example) -> Pair:
        """Two consecutive segments in either order."""
        return sentence_order_pair(example)


def feature_keys(features: Sequence[Example | Mapping[str, Any]]) -> np.ndarray:
    """Keys of the examples of a batch: their own, or drawn from torch's generator for rows that have none."""
    drawn = iter(torch.randint(2**62, (len(features),)).tolist() if not isinstance(features[0], Example) else ())
    return np.array(
        [feature.key if isinstance(feature, Example) else next(drawn) for feature in features], dtype=np.uint64
    )
