"""The special tokens that examples are built with, whatever the tokenizer calls them."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedTokenizerBase


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError for what is not a tokenizer, such as the name of one."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        is_name = isinstance(tokenizer, (str, os.PathLike))
        name = repr(str(tokenizer)) if is_name else "..."
        what = name if is_name else f"a {type(tokenizer).__name__}"
        raise ValueError(f"tokenizer is {what}: give the object, transformers.AutoTokenizer.from_pretrained({name}).")


def sequence_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the ids of the token before a sequence and the one after a segment, such as `[CLS]` and `[SEP]`."""
    check_tokenizer(tokenizer)
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if first is None or last is None:
        raise ValueError(
            "tokenizer has no cls_token or no sep_token, which begin and end every sequence: set them, for example "
            "tokenizer.add_special_tokens({'cls_token': '[CLS]', 'sep_token': '[SEP]'})."
        )
    return first, last


def mask_and_padding(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the ids of the mask token and the padding token."""
    check_tokenizer(tokenizer)
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "tokenizer has no mask_token, which masked language modelling needs: use the tokenizer of an encoder, or "
            "tokenizer.add_special_tokens({'mask_token': '[MASK]'}) and resize the model's embeddings."
        )
    if tokenizer.pad_token_id is None:
        raise ValueError("tokenizer has no pad_token: set it, for example tokenizer.pad_token = '[PAD]'.")
    return tokenizer.mask_token_id, tokenizer.pad_token_id


def unknown_ids(tokenizer: PreTrainedTokenizerBase, *candidates: int | None) -> set[int]:
    """Return the ids that stand for words outside the vocabulary, and for nothing else.

    Byte-level vocabularies cover every word. Their tokenizers (GPT-2, GPT-NeoX) have a separator as unknown token,
    which is not an unknown word. `candidates` are further ones, from the tokenizer's model.

    >>> unknown_ids(doctest_tokenizer())
    {3}
    """
    names = ("bos", "eos", "cls", "sep", "pad", "mask")
    special = {getattr(tokenizer, f"{name}_token_id") for name in names}
    return {tokenizer.unk_token_id, *candidates} - special - {None}


def never_masked(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids, sorted, that are neither masked nor random tokens: special ones but the unknown token.

    An unknown token stands for a word, so it is predicted like one (as in the original code).

    >>> never_masked(doctest_tokenizer())
    [0, 1, 2, 4]
    """
    return sorted(set(tokenizer.all_special_ids) - unknown_ids(tokenizer))


def check_offsets(tokenizer: PreTrainedTokenizerBase, what: str, remedy: str) -> None:
    """Raise ValueError for a tokenizer written in Python, which does not say where its tokens are in the text.

    `what` needs these places, and `remedy` is what is possible instead.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} is written in Python and does not say where its tokens are in the text, "
            f"which {what} needs: {remedy}, or take a model whose tokenizer has a tokenizer.json."
        )


@contextmanager
def unknown_words_refused() -> Iterator[None]:
    """Turn the bare exception of a tokenizer's model without an unknown token into a ValueError.

    Byte-level vocabularies need none. Others do as soon as the text has a word outside of the vocabulary.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception or "unk" not in str(error).lower():  # tokenizers has no class for it
            raise
        raise ValueError(
            f"the tokenizer has no token for unknown words ({error}), and the text has words outside of its "
            "vocabulary: give a tokenizer with one, such as [UNK], or text that its vocabulary covers."
        ) from error


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of everything that decides which ids a tokenizer gives, 32 hexadecimal digits."""
    digest = hashlib.blake2b(type(tokenizer).__name__.encode() if not tokenizer.is_fast else b"", digest_size=16)
    if tokenizer.is_fast:
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        del description["truncation"], description["padding"]  # state of the last call
        digest.update(json.dumps(description, sort_keys=True).encode())
    else:
        with tempfile.TemporaryDirectory() as directory:
            tokenizer.save_pretrained(directory)
            for file in sorted(Path(directory).rglob("*")):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
