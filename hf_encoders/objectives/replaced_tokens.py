"""The data collator of replaced token detection: masked tokens, and the random numbers that sample tokens for them."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.randomness import RandomStream, random_uint32_in_runs
from hf_encoders.objectives.batches import PackedLayout, PaddedLayout, TokenRows
from hf_encoders.objectives.collator_options import with_options_of
from hf_encoders.objectives.collators import DataCollatorForMaskedLM


# `mask` in `pretrain/pretrain_helpers.py` of google-research/electra; no token becomes a random one.
REPLACEMENT = {"mask_replace_probability": 0.85, "random_replace_probability": 0.0}


class DataCollatorForReplacedTokenDetection(DataCollatorForMaskedLM):
    """Masks tokens for a generator, and draws the random numbers that sample its tokens (ELECTRA).

    Of the predicted tokens 85 % become the mask token and the others stay; the generator predicts all of them, and its
    samples take their places. The numbers are functions of (seed, epoch, example id, place), so that what is sampled
    does not depend on batch, process or restart.

    For `ReplacedTokenDetectionModel`. transformers' `ElectraForPreTraining` takes these labels for classes of tokens,
    without an error.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        options: `packed`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`;
            `mask_replace_probability` and `random_replace_probability` are 0.85 and 0.

    Output: as that of `DataCollatorForMaskedLM`, and `random_bits`, `int64` of the shape of `input_ids`, uniform in
        [0, 2^32), 0 at padding.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK] and half of the tokens predicted, one of them
    kept:

    >>> import numpy as np
    >>> from hf_encoders.objectives.batches import Segments
    >>> from hf_encoders.objectives.examples import TextExamples
    >>> from hf_encoders.corpus.randomness import example_keys
    >>> collator = DataCollatorForReplacedTokenDetection(doctest_tokenizer(), mask_probability=0.5)
    >>> keys = example_keys(seed=0, epoch=0, examples=[5])
    >>> ends = {"begin": np.array([0]), "end": np.array([4]), "counts": np.array([1])}
    >>> batch = collator([TextExamples(Segments(np.array([10, 11, 12, 13]), None, **ends), keys)])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 4, 11, 12, 13, 2]], [[-100, 10, 11, -100, -100, -100]])
    >>> batch["random_bits"].tolist()
    [[1402159404, 822401084, 1503593491, 1687921207, 4274381657, 4250376702]]
    """

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(self, tokenizer: PreTrainedTokenizerBase, **options: Any):
        super().__init__(tokenizer, **{**REPLACEMENT, **options})

    def more_arguments(self, rows: TokenRows, layout: PaddedLayout | PackedLayout) -> dict[str, torch.Tensor]:
        """The random numbers: number j of an example is for its token j."""
        bits = random_uint32_in_runs(rows.keys, RandomStream.GENERATOR_SAMPLE, rows.lengths)
        return {"random_bits": layout.fill(bits, 0)}
