"""What becomes of the tokens that are predicted: the mask token, a similar word, a random token, or nothing."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import ranges
from hf_encoders.corpus.randomness import RandomStream, as_uniforms, random_bits_of_rows
from hf_encoders.corpus.similar_words import SimilarWords
from hf_encoders.corpus.special_tokens import mask_and_padding
from hf_encoders.objectives.masking import Masking


class TokenReplacement:
    """Replaces predicted tokens.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the vocabulary of random tokens.
        masking (`Masking`): Shares of each kind, and for what one is decided.
        similar_words (`SimilarWords`, *optional*): Needed for `similar_replace_probability`.

    Raises:
        ValueError: if similar words are missing, or of another tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, masking: Masking, similar_words: SimilarWords | None):
        self.masking, self.similar_words = masking, None
        self.mask_id, _ = mask_and_padding(tokenizer)
        ids, special = np.array(sorted(tokenizer.get_vocab().values())), tokenizer.all_special_ids
        self.random_ids = {
            "ordinary": np.setdiff1d(ids, special),
            "ordinary_and_mask": np.setdiff1d(ids, [i for i in special if i != self.mask_id]),
            "any": ids,
        }[masking.random_tokens]
        if masking.similar_replace_probability:
            if not isinstance(similar_words, SimilarWords) or not similar_words.counts.any():
                what = "missing" if similar_words is None else repr(similar_words)
                raise ValueError(
                    f"similar_words is {what}: similar_replace_probability={masking.similar_replace_probability} "
                    "needs the table of the corpus, SimilarWords.load(folder); `hf-encoders corpus --similar-words "
                    "build` makes it."
                )
            similar_words.check_tokenizer(tokenizer)
            self.similar_words = similar_words

    def __call__(
        self, originals: np.ndarray, rows: np.ndarray, places: np.ndarray, decided_at: np.ndarray, keys: np.ndarray
    ) -> np.ndarray:
        """New ids of the predicted tokens, of shape `(P,)`.

        Args:
            originals (`np.ndarray` of integers, shape `(P,)`): Their ids; tokens of a unit are consecutive.
            rows, places, decided_at (`np.ndarray` of `int64`, shape `(P,)`): Their example, their place in it, and the
                place of the first token of their word or unit.
            keys (`np.ndarray` of `uint64`, shape `(B,)`): Key of each example.
        """
        # The upper 32 bits decide what becomes of a token, the lower ones sample a random token.
        bits = random_bits_of_rows(keys, RandomStream.REPLACEMENT, rows, places)
        random_ids = self.random_ids[(_lower(bits) * len(self.random_ids)).astype(np.int64)]
        if self.masking.replacement_per == "word":
            return self._by_words(originals, random_ids, rows, decided_at, keys)
        decided_by = bits
        if self.masking.replacement_per == "unit":
            decided_by = random_bits_of_rows(keys, RandomStream.UNIT_REPLACEMENT, rows, decided_at)
        becomes_mask, becomes_random, _ = self._kinds(_upper(decided_by))
        return np.where(becomes_mask, self.mask_id, np.where(becomes_random, random_ids, originals))

    def _kinds(self, decisions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which become the mask token, random, and similar."""
        masking = self.masking
        bounds = np.cumsum(
            [
                masking.mask_replace_probability,
                masking.random_replace_probability,
                masking.similar_replace_probability,
            ]
        )
        kinds = np.searchsorted(bounds, decisions, "right")
        return kinds == 0, kinds == 1, kinds == 2

    def _by_words(
        self,
        originals: np.ndarray,
        random_ids: np.ndarray,
        rows: np.ndarray,
        decided_at: np.ndarray,
        keys: np.ndarray,
    ) -> np.ndarray:
        """Each word on its own: masked, kept, or replaced by a word of as many tokens."""
        is_first = np.ones(len(rows), dtype=bool)
        is_first[1:] = (np.diff(decided_at) != 0) | (np.diff(rows) != 0)
        begin = np.flatnonzero(is_first)
        end = np.append(begin, len(rows))[1:]
        # The upper 32 bits decide what becomes of a word, the lower ones sample a random word.
        bits = random_bits_of_rows(keys, RandomStream.WORD_REPLACEMENT, rows[begin], decided_at[begin])
        becomes_mask, becomes_random, becomes_similar = self._kinds(_upper(bits))
        replaced = originals.copy()
        replaced[ranges(begin[becomes_mask], end[becomes_mask])] = self.mask_id
        if self.similar_words is None:
            tokens = ranges(begin[becomes_random], end[becomes_random])
            replaced[tokens] = random_ids[tokens]
            return replaced

        table, others = self.similar_words, np.full(len(begin), -1, dtype=np.int64)
        similar = np.flatnonzero(becomes_similar)
        words = table.find(originals, begin[similar], end[similar])
        has_similar = table.has_similar(words)
        similar, words = similar[has_similar], words[has_similar]
        at = decided_at[begin[similar]]
        draws = random_bits_of_rows(keys, RandomStream.SIMILAR_WORD, rows[begin[similar]], at)
        others[similar] = table.choose_similar(words, as_uniforms(draws))
        random = np.flatnonzero((becomes_random | becomes_similar) & (others < 0))
        others[random] = table.choose_of_length(end[random] - begin[random], _lower(bits[random]))
        has_other = others >= 0
        replaced[ranges(begin[has_other], end[has_other])] = table.tokens_of(others[has_other])
        left = random[others[random] < 0]  # no word of the table has as many tokens
        tokens = ranges(begin[left], end[left])
        replaced[tokens] = random_ids[tokens]
        return replaced


def _upper(bits: np.ndarray) -> np.ndarray:
    """Uniform in [0, 1), from the upper 32 of 64 random bits."""
    return as_uniforms((bits >> np.uint64(32)).astype(np.uint32))


def _lower(bits: np.ndarray) -> np.ndarray:
    """Uniform in [0, 1), from the lower 32 of 64 random bits."""
    return as_uniforms(bits.astype(np.uint32))
