"""The texts of a `SentenceTransformer`, packed.

Its own `encode` sorts texts by their number of characters and cuts the order into batches of so many texts. A model of
this package computes no padding there either; what remains are padded tensors at the border, and small batches.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hf_encoders.evaluation.encoding import check_whole_number, encoder_of, run_packed, tokenized_for


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def encode_sentences(
    model: "SentenceTransformer", texts: Sequence[str], max_tokens: int | None = None, progress: bool = True
) -> torch.Tensor:
    """`model.encode(texts)` in batches by tokens: its pooling and the modules after it, texts in their order.

    Args:
        model (`SentenceTransformer`): Of sentence-transformers 6 or later, with a transformer of this package, loaded
            with `trust_remote_code=True`. Texts are truncated to its `max_seq_length` and embeddings to its
            `truncate_dim`, as there.
        texts, max_tokens, progress: As in `encode`. A prompt is to be put before the texts by the caller.

    Returns:
        `torch.FloatTensor` of shape `(texts, width)` on the CPU.

    Raises:
        ValueError: As `encode`; and for a model with a default prompt, with options of tokenization
            (`processing_kwargs`), and for one without a pooling behind the transformer.
    """
    if not hasattr(model, "max_seq_length") or not hasattr(model, "default_prompt_name"):
        raise ValueError(f"model is a {type(model).__name__}: give a SentenceTransformer, or call hf_encoders.encode.")
    if model.default_prompt_name is not None:
        raise ValueError(
            f"default_prompt_name={model.default_prompt_name!r}: put the prompt before each text, and set "
            "model.default_prompt_name = None."
        )
    check_whole_number("max_tokens", max_tokens, 1)
    transformer, *others = model
    encoder = encoder_of(transformer.auto_model)
    if options := getattr(transformer, "processing_kwargs", None):
        raise ValueError(f"model has processing_kwargs={options!r}: call model.encode, or load it without them.")
    if not others or type(others[0]).__name__ != "Pooling":
        found = type(others[0]).__name__ if others else "no module"
        raise ValueError(f"model has {found} behind its transformer, where a Pooling is needed: call model.encode.")
    special = transformer.tokenizer.num_special_tokens_to_add()
    if model.max_seq_length is not None and model.max_seq_length <= special:
        raise ValueError(
            f"model.max_seq_length={model.max_seq_length}, and {special} tokens are special ones: set at least "
            f"{special + 1}."
        )
    longest = min(model.max_seq_length or encoder.longest_row(), encoder.longest_row())
    packed = tokenized_for(encoder, transformer.tokenizer, texts, longest)

    def pool(states: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        features = {"token_embeddings": states[None], "cu_seq_lens_q": bounds}
        for module in others:
            features = module(features)
        return features["sentence_embedding"]

    return run_packed(model, encoder, packed, pool, max_tokens, progress)[:, : model.truncate_dim]
