"""Next-sentence prediction (BERT) and sentence-order prediction (ALBERT): pairs of segments, collators, objectives.

`chunks.py` cuts documents into chunks of two segments. Here a pair is made of each chunk, with another second segment
or swapped, and data collators mask its tokens and make batches.

Sources: section 3.1 of BERT (https://arxiv.org/abs/1810.04805) and of ALBERT (https://arxiv.org/abs/1909.11942), and
`create_pretraining_data.py` of google-research/bert and google-research/albert.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.objectives.batch import IGNORED, Row
from hf_encoders.objectives.chunks import (
    SPECIAL_TOKENS,
    ChunkExample,
    ChunkRule,
    DocumentChunks,
    Text,
    check_pair_length,
)
from hf_encoders.objectives.dataset import Example, with_options_of
from hf_encoders.objectives.mlm import MASKED_TOKENS, DataCollatorForMaskedLM, MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.randomness import Key, RandomStream, generator


def next_sentence_pair(chunk: ChunkExample) -> Example:
    """Make a pair of next-sentence prediction: 0 with the segment that follows, 1 with one from elsewhere.

    A chunk without a label keeps what follows.
    """
    if chunk.num_documents == 0:
        raise ValueError(
            "next-sentence prediction takes random segments from the corpus, which rows of a plain dataset do not "
            "have: train on DocumentChunks(documents, max_length)."
        )
    if chunk.num_documents == 1 and not chunk.rule.original_code:
        raise ValueError(
            "documents holds one document, and next-sentence prediction takes random segments from others: separate "
            "documents by blank lines, or use sop or mlm."
        )
    if not chunk.has_next:
        return make_pair(chunk, chunk.texts, IGNORED)
    if chunk.replacement is None:
        return make_pair(chunk, chunk.texts, 0)
    return make_pair(chunk, [chunk.texts[0], chunk.replacement], 1)


def sentence_order_pair(chunk: ChunkExample) -> Example:
    """Make a pair of sentence-order prediction: 0 in order, 1 swapped, with probability 1/2 each.

    A chunk without a label stays in order. In the original code a single sentence gets a random second segment and
    label 1.
    """
    if chunk.rule.put_back:
        raise ValueError(
            "put_back=True cuts chunks for next-sentence prediction, and parts of them would be seen twice: leave it "
            "out of DocumentChunks for sentence-order prediction."
        )
    if chunk.rule.original_code and len(chunk.segments) == 1:
        return make_pair(chunk, [*chunk.texts, chunk.replacement], 1)
    if not chunk.has_order:
        return make_pair(chunk, chunk.texts, IGNORED)
    if generator(chunk.key, RandomStream.SEGMENT_SWAP).random() < 0.5:
        return make_pair(chunk, chunk.texts[::-1], 1)
    return make_pair(chunk, chunk.texts, 0)


def make_pair(chunk: ChunkExample, texts: list[Text], label: int) -> Example:
    """Make an example of one or two segments that fits, as `truncate_seq_pair` does.

    Tokens are removed until it fits, one at a time, from the longer segment (the second of two equally long ones),
    from its front or back with probability 1/2 each.
    """
    begin, end = [0] * len(texts), [len(ids) for ids, _ in texts]
    excess = sum(end) - (chunk.max_length - SPECIAL_TOKENS)
    if excess > 0:
        for from_front in generator(chunk.key, RandomStream.TRUNCATION).random(excess) < 0.5:
            longer = 0 if len(texts) == 1 or end[0] - begin[0] > end[1] - begin[1] else 1
            if from_front:
                begin[longer] += 1
            else:
                end[longer] -= 1
        for i, (ids, starts) in enumerate(texts):
            kept = slice(begin[i], end[i])
            texts[i] = ids[kept], None if starts is None else starts[kept]
    return chunk.with_texts(texts, token_types=[0, 1][: len(texts)], labels={"pair": label})


def chunk_of_sentences(sentences: list[np.ndarray], key: Key, max_length: int) -> ChunkExample:
    """Make a chunk of the sentences of a plain row: as many as fit, from a random one on, or up to it."""
    random = generator(key, RandomStream.CHUNKS)
    # Up to a sentence as often as from one on, so that the longer segment is as often the first as the second.
    backwards = random.random() < 0.5
    taken = sentences[::-1] if backwards else sentences
    taken = taken[random.integers(max(len(taken) - 1, 1)) :]
    count, size = 1, len(taken[0])
    while count < len(taken) and size + len(taken[count]) <= max_length - SPECIAL_TOKENS:
        size += len(taken[count])
        count += 1
    taken = taken[:count][::-1] if backwards else taken[:count]
    split = random.integers(1, max(count, 2))
    segments = [np.concatenate(part) for part in (taken[:split], taken[split:]) if part]
    has_order = count > 1 and not np.array_equal(*segments)  # two equal segments have no order
    return ChunkExample(segments, key, has_next=False, has_order=has_order, max_length=max_length, rule=ChunkRule())


class SentencePairCollator(DataCollatorForMaskedLM):
    """Base of the pair collators: `[CLS] A [SEP] B [SEP]`, token types, masking, one label per pair.

    Token types are 0 up to the first `[SEP]`, then 1. A subclass sets `pair_of` and `LABEL_NAME`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        max_length (`int`, *optional*): Longest example in tokens, special tokens included; longer pairs are truncated.
            `None` takes that of the dataset; rows of a plain dataset need it.
        label_name (`str`, *optional*, defaults to `LABEL_NAME`): Name of the pair label in the batch, an argument of
            the model's `forward`.
        options: `packed`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`.
    """

    LABEL_NAME: ClassVar[str]
    pair_of: ClassVar[Callable[[ChunkExample], Example]]

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        label_name: str | None = None,
        **options: Any,
    ):
        super().__init__(tokenizer, **options)
        if max_length is not None:
            check_pair_length(max_length)
        self.max_length, self.label_name = max_length, label_name or self.LABEL_NAME
        self.label_arguments = {"pair": self.label_name}

    def prepare(self, example: Example) -> Example:
        """Return the pair of a chunk."""
        if not isinstance(example, ChunkExample):
            raise ValueError(
                f"features hold a {type(example).__name__}, and sentence pairs are made of examples of DocumentChunks "
                "or of rows of sentences: SentenceBlocks is for DataCollatorForMaskedLM."
            )
        if self.max_length not in (None, example.max_length):
            raise ValueError(
                f"max_length={self.max_length} of the data collator is not the dataset's, {example.max_length}: leave "
                "it out of the collator."
            )
        return self.pair_of(example)

    def plain(self, features: Sequence[Mapping[str, Any]]) -> tuple[list[Example], list[Row]]:
        """Return the pairs of rows of sentences, with keys from torch's generator, and their tokens."""
        if self.max_length is None:
            raise ValueError("max_length is needed for rows of a plain dataset: give it to the data collator.")
        examples = []
        for number, feature in zip(torch.randint(2**56, (len(features),)).tolist(), features, strict=True):
            if "input_ids" not in feature:
                raise ValueError(
                    f"input_ids is missing, a row of the batch has {list(feature)}: make a corpus of text with "
                    "prepare_corpus or tokenize_documents, and DocumentChunks of it."
                )
            sentences = [np.asarray(ids, dtype=np.int64) for ids in feature["input_ids"] if np.size(ids)]
            if not sentences or sentences[0].ndim != 1:
                raise ValueError(
                    "input_ids must be a list of sentences, each a list of token ids without special tokens, for a "
                    "pair objective: see hf_encoders.tokenize_documents."
                )
            examples.append(self.prepare(chunk_of_sentences(sentences, Key(0, 0, number), self.max_length)))
        return examples, [self.tokens(example) for example in examples]


class DataCollatorForNextSentencePrediction(SentencePairCollator):
    """MLM and next-sentence prediction (BERT): half of the pairs follow each other, half are random.

    `next_sentence_label` is 0 where B follows A and 1 where B comes from another document; -100 for a chunk of a
    single sentence, which makes no pair. Negatives exchange their second segments, so every token of the text is in
    exactly one example of an epoch (`whole_sentence_chunks`).

    Args:
        tokenizer, max_length, label_name, options: As in `SentencePairCollator`.

    Input: examples of `DocumentChunks`; rows of a plain dataset have no other documents, and are refused.

    Output: as `DataCollatorForMaskedLM`, with `token_type_ids` and `next_sentence_label` `(B,)`.

    Example, with ids 1 = [CLS], 2 = [SEP], and nothing masked; document 0 is [[10, 11], [12]]:

    >>> from datasets import Dataset
    >>> documents = Dataset.from_dict({"input_ids": [[[10, 11], [12]], [[20, 21], [22, 23, 24]]]})
    >>> chunks = DocumentChunks(documents, max_length=16, seed=1)
    >>> collator = DataCollatorForNextSentencePrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> for epoch in (0, 2):
    ...     chunks.set_epoch(epoch)
    ...     batch = collator([chunks[0]])
    ...     print(batch["input_ids"].tolist(), batch["token_type_ids"].tolist(), batch["next_sentence_label"].tolist())
    [[1, 10, 11, 2, 22, 23, 24, 2]] [[0, 0, 0, 0, 1, 1, 1, 1]] [1]
    [[1, 10, 11, 2, 12, 2]] [[0, 0, 0, 0, 1, 1]] [0]
    """

    LABEL_NAME = "next_sentence_label"
    pair_of = staticmethod(next_sentence_pair)


class DataCollatorForSentenceOrderPrediction(SentencePairCollator):
    """MLM and sentence-order prediction (ALBERT): half of the pairs are in order, half are swapped.

    `sentence_order_label` is 0 for pairs in order and 1 for swapped ones; -100 for a chunk of a single sentence or
    with a part of one, and where the lengths of the segments would predict the label (`whole_sentence_chunks`).

    Args:
        tokenizer, max_length, label_name, options: As in `SentencePairCollator`.

    Input: examples of `DocumentChunks`; or rows whose `input_ids` are the sentences of a document, of which as many as
        fit are taken from a random one on.

    Output: as `DataCollatorForMaskedLM`, with `token_type_ids` and `sentence_order_label` `(B,)`.

    Example: "I love you." (10, 11) and "Because you are wonderful." (12), in order and swapped, and nothing masked:

    >>> collator = DataCollatorForSentenceOrderPrediction(
    ...     doctest_tokenizer(), max_length=16, mask_replace_probability=0.0, random_replace_probability=0.0
    ... )
    >>> _ = torch.manual_seed(2)
    >>> batch = collator([{"input_ids": [[10, 11], [12]]}] * 2)
    >>> batch["input_ids"].tolist(), batch["sentence_order_label"].tolist()
    ([[1, 10, 11, 2, 12, 2], [1, 12, 2, 10, 11, 2]], [0, 1])
    """

    LABEL_NAME = "sentence_order_label"
    pair_of = staticmethod(sentence_order_pair)


SENTENCE_PAIRS = LossTerm(
    "pair", "sentence pairs", task="text-classification", is_per_example=True, baseline="chance 0.5"
)
SAME_HALF = 0.02  # difference from one half that is rounding, and sampling of few examples


class SentencePairObjective(MaskedLanguageModelling):
    """Masked tokens and one binary label per sentence pair.

    Attributes:
        title (`str`): The pair task, for the card.
        label_1 (`str`): Which pairs have label 1, for the card, after the share that has it.
        single_label_1 (`str`): Added if chunks of one sentence get a random second segment and label 1.
        collator_class (`type`): Makes the pairs.
    """

    title: ClassVar[str]
    label_1: ClassVar[str]
    single_label_1: ClassVar[str]
    terms = (MASKED_TOKENS, SENTENCE_PAIRS)
    auto_class = "AutoModelForPreTraining"
    dataset_class = DocumentChunks
    parallel_class = None
    example_options = ChunkRule
    collator_class: ClassVar[type[DataCollatorForMaskedLM]]

    def make_collator(
        self, tokenizer: PreTrainedTokenizerBase, model_class: type[PreTrainedModel], **options: Any
    ) -> DataCollatorForMaskedLM:
        """Return the data collator, with the model's name for the pair label."""
        label_name = model_class.loss_terms[SENTENCE_PAIRS.name]
        return self.collator_class(tokenizer, label_name=label_name, **options)

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Say how tokens were masked, and which pairs had label 1, or that there were none."""
        share = logged.get("pair_label_1_share", 0.5)
        words = "half" if abs(share - 0.5) <= SAME_HALF else f"{100 * share:.0f} %"
        pairs = f"{words} {self.label_1}{self.single_label_1 if examples.get('original_code') else ''} (label 1)"
        if logged.get("pair_share") == 0:
            pairs = "not trained, because no example had two segments"
        return {**super().describe(collator, mask_rates, examples, logged), self.title: pairs}

    def loss_baselines(self, unigram_cross_entropy: float) -> dict[str, tuple[str, float]]:
        """Return the unigram cross-entropy, and that of a coin toss for pairs."""
        return {**super().loss_baselines(unigram_cross_entropy), "pair_loss": ("chance", math.log(2))}


class NextSentencePrediction(SentencePairObjective):
    """Classify whether segment B follows segment A (label 0) or is from another document (label 1)."""

    name = "nsp"
    title = "next-sentence prediction"
    label_1 = "of the second segments from another document"
    single_label_1 = ", including all after a chunk of one sentence"
    collator_class = DataCollatorForNextSentencePrediction
    least_documents = 2  # random second segments are from another document of the same part


class SentenceOrderPrediction(SentencePairObjective):
    """Classify whether two consecutive segments are in order (label 0) or swapped (label 1)."""

    name = "sop"
    title = "sentence-order prediction"
    label_1 = "of the pairs swapped"
    single_label_1 = ", or a single sentence with one from elsewhere"
    collator_class = DataCollatorForSentenceOrderPrediction
