"""RoBERTa's input: runs of whole sentences up to the longest length, from one document or across documents.

Source: FULL-SENTENCES and DOC-SENTENCES of the RoBERTa paper, section 4.2 (https://arxiv.org/abs/1907.11692). Differs
    from
fairseq's `complete` and `complete_doc` in: a sentence longer than a block is cut instead of making the block longer.
"""

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.data.examples import EpochDataset, Example
from hf_encoders.data.randomness import example_keys
from hf_encoders.data.sentence_store import SentenceStore
from hf_encoders.data.special_tokens import sequence_ends


SPECIAL_TOKENS_OF_A_BLOCK = 2  # <s> ... </s>


class SentenceBlocks(EpochDataset):
    """Blocks of consecutive sentences, as many as fit; the same blocks every epoch, masked anew by the collator.

    Args:
        documents (`datasets.Dataset`): tokenised documents, column `input_ids` of lists of sentences of ids.
        tokenizer: gives the separator that stands between documents.
        max_length (`int`): longest block in tokens, special tokens included.
        cross_documents (`bool`): True fills blocks across document ends, with a separator in between (FULL-SENTENCES);
            False ends a block with its document (DOC-SENTENCES).
        seed (`int`): seed of all draws.
        redraw (`bool`): False gives every epoch the draws of epoch 0; for evaluation.

    Raises:
        ValueError: if there is no sentence, or `max_length` leaves no room for a token.
    """

    def __init__(
        self,
        documents: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        cross_documents: bool = True,
        seed: int = 0,
        redraw: bool = True,
    ):
        super().__init__(seed, redraw)
        if max_length <= SPECIAL_TOKENS_OF_A_BLOCK:
            raise ValueError(f"max_length={max_length} leaves no room for a token: use at least 3.")
        self.store = SentenceStore.from_dataset(documents)
        if self.store.num_sentences == 0:
            raise ValueError("documents holds no sentence: check the corpus files and the tokenizer.")
        self.separator = sequence_ends(tokenizer)[1]
        self.target_tokens = max_length - SPECIAL_TOKENS_OF_A_BLOCK
        self.cross_documents = cross_documents
        self.blocks = cut_blocks(
            self.store.sentence_offsets, self.store.document_offsets, self.target_tokens, cross_documents
        )

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Example:
        first, end = self.blocks[index].tolist()  # token positions
        offsets = self.store.sentence_offsets
        documents = self.store.document_offsets
        # Sentence boundaries inside the block, and of those the ones where a document begins.
        inner = offsets[np.searchsorted(offsets, first, "right") : np.searchsorted(offsets, end, "left")]
        inner = np.unique(inner)  # sentences without tokens begin where others do
        begins_document = np.isin(inner, offsets[documents])
        pieces = []
        for start, stop, begins in zip(
            [first, *inner.tolist()], [*inner.tolist(), end], [False, *begins_document.tolist()], strict=True
        ):
            if begins:
                pieces.append(np.array([self.separator], dtype=np.int32))
            pieces.append(self.store.tokens[start:stop])
        return Example(pieces, int(example_keys(self.seed, self.epoch, index)), -1, self.target_tokens)


def cut_blocks(
    sentence_offsets: np.ndarray, document_offsets: np.ndarray, target_tokens: int, cross_documents: bool
) -> np.ndarray:
    """Where blocks begin and end among the tokens: `(blocks, 2)`.

    Args:
        sentence_offsets (`np.ndarray` of shape `(S + 1,)`): first token of each sentence.
        document_offsets (`np.ndarray` of shape `(D + 1,)`): first sentence of each document.
        target_tokens (`int`): most tokens in a block; a separator between documents counts as one.
        cross_documents (`bool`): whether a block may go on into the next document.

    Documents of sentences of 3 and 2, and of 2 tokens; blocks of 6 hold both documents less the separator's place:

    >>> cut_blocks(np.array([0, 3, 5, 7]), np.array([0, 2, 3]), 6, cross_documents=True).tolist()
    [[0, 5], [5, 7]]
    >>> cut_blocks(np.array([0, 3, 5, 7]), np.array([0, 2, 3]), 8, cross_documents=True).tolist()
    [[0, 7]]
    >>> cut_blocks(np.array([0, 3, 5, 7]), np.array([0, 2, 3]), 8, cross_documents=False).tolist()
    [[0, 5], [5, 7]]
    """
    begins_document = np.zeros(len(sentence_offsets), dtype=bool)
    begins_document[document_offsets] = True
    lengths = np.diff(sentence_offsets).tolist()
    blocks, block_start, used, position = [], 0, 0, 0
    for sentence, length in enumerate(lengths):
        separator = int(used > 0 and bool(begins_document[sentence]))
        if used and ((separator and not cross_documents) or used + separator + length > target_tokens):
            blocks.append((block_start, position))
            block_start, used, separator = position, 0, 0
        used += separator + length
        position += length
        while used > target_tokens:  # only a sentence longer than a block: it starts one
            blocks.append((block_start, block_start + target_tokens))
            block_start, used = block_start + target_tokens, used - target_tokens
    if used:
        blocks.append((block_start, position))
    return np.array(blocks, dtype=np.int64).reshape(-1, 2)
