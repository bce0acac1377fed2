"""The tokenizer of XLM: byte pair encoding of words, whose last piece ends in `</w>`.

transformers has a slow one only, without character offsets. This one is of the `tokenizers` library, and loaded by
plain transformers as `PreTrainedTokenizerFast`. Ids and special tokens are those of the original
(`xlm/data/dictionary.py`), with `</s>` on both ends of a sentence (`batch_sentences` in `xlm/data/dataset.py`).
Differs from it in: words are divided at spaces and punctuation, instead of by a tool for each language.
"""

from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


SUFFIX = "</w>"
FIRST, END, PADDING, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
SPARE = [f"<special{number}>" for number in range(10)]
MASK = SPARE[1]


def suffix_bpe_tokenizer(
    vocab: dict[str, int] | None = None,
    merges: list[tuple[str, str]] | None = None,
    do_lower_case: bool = True,
    strip_accents: bool = False,
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a vocabulary; without one it has special tokens only, to pre-tokenize text.

    Args:
        vocab (`dict[str, int]`, *optional*): Pieces and their ids.
        merges (`list[tuple[str, str]]`, *optional*): Pairs of pieces, the first to merge first.
        do_lower_case, strip_accents (`bool`, *optional*): Whether to change the text so.
        options: Further arguments of the class, such as `model_max_length`.

    >>> tokenizer = suffix_bpe_tokenizer()
    >>> tokenizer.convert_tokens_to_ids(["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>", "<special9>"])
    [0, 1, 2, 3, 4, 5, 13]
    >>> tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a cat.")
    [('a', (0, 1)), ('cat', (2, 5)), ('.', (5, 6))]
    """
    special = [FIRST, END, PADDING, UNKNOWN, *SPARE]
    vocab = {token: number for number, token in enumerate(special)} if vocab is None else vocab
    model = models.BPE(vocab, merges or [], end_of_word_suffix=SUFFIX, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=do_lower_case
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=SUFFIX)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A {END}", pair=f"{END} $A {END} {END} $B {END}", special_tokens=[(END, vocab[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=FIRST,
        eos_token=END,
        cls_token=END,
        sep_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        mask_token=MASK,
        additional_special_tokens=[token for token in SPARE if token != MASK],
        **options,
    )
