"""Embeddings of texts of any length, in the given order: nothing is sorted, and nothing is padded.

Stock code pads every text of a batch to the longest one, and therefore sorts all texts by length before it cuts them
into batches. Models of this package read several texts in one row (`cu_seq_lens_q`), so that a batch is as many texts
as a budget of tokens holds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import check_tokenizer
from hf_encoders.evaluation.masked_scores import evaluating
from hf_encoders.evaluation.packed_texts import PackedTexts, list_of_strings, tokenized
from hf_encoders.evaluation.packed_weights import packed_weights


POOLINGS = ("mean", "cls", "tokens")
# Tokens in a batch. On a CPU, what a layer writes should stay in the caches; an accelerator wants many at once.
MAX_TOKENS_ON_CPU, MAX_TOKENS_ELSEWHERE = 2048, 16384
SECONDS_WITHOUT_BAR = 5
# The states of a batch, `(N, D)`, and the bounds of its texts, `(S + 1,)` -> rows.
Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def encode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    pooling: str = "mean",
    max_length: int | None = None,
    max_tokens: int | None = None,
    languages: str | Sequence[str] | None = None,
    progress: bool = True,
) -> torch.Tensor | list[torch.Tensor]:
    """Embed texts: the last hidden states of a model of this package, pooled per text.

    All texts are tokenized and checked first. Dropout is off and no gradients are computed, whatever mode the model is
    in; its modes are restored. Weights may be in 16 or 8 bits and on any device; pooling is in float32. On a CPU,
    weights of linear layers are copied in another layout while it runs, for 1,024 tokens or more.

    Args:
        model (`PreTrainedModel`): Of any family here, with or without a head, which is not computed. Compile
            `model.base_model`, not a model with a head; a checkpoint's own code runs eagerly here.
        tokenizer (`PreTrainedTokenizerBase`): The model's. Its special tokens are added.
        texts (`Sequence` of `str`): At least one; each has at least one token of its own.
        pooling (`str`, *optional*, defaults to `"mean"`): `mean` over all tokens of a text, special tokens included,
            as in sentence-transformers; `cls`, the state of the classification token, which is the first token, or the
            last (XLNet); `tokens`, all states, special tokens included.
        max_length (`int`, *optional*): Truncate texts to this many tokens, special tokens included. None means that a
            text longer than the model takes is an error.
        max_tokens (`int`, *optional*): Most tokens in a batch; a longer text is a batch of its own. None means 2,048
            on a CPU and 16,384 elsewhere. It does not change the embeddings.
        languages (`str` or `Sequence` of `str`, *optional*): For a model with language embeddings (XLM): the language
            of all texts, or of each, as named in `config.lang2id`. None means the model's default.
        progress (`bool`, *optional*, defaults to `True`): Whether to show a progress bar, in tokens, where it takes
            more than five seconds in a terminal.

    Returns:
        `torch.FloatTensor` of shape `(texts, D)` on the CPU, a row for each text in the given order; for
        `pooling="tokens"` a list of them, of shape `(tokens of the text, D)`.

    Raises:
        ValueError: For a wrong argument, an empty list, a text that is no string, has no tokens or is too long, and a
            model or tokenizer of another kind, before anything is computed.
    """
    encoder = encoder_of(model)
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r}: must be one of {', '.join(POOLINGS)}.")
    check_whole_number("max_tokens", max_tokens, 1)
    packed = tokenized_for(encoder, tokenizer, texts, max_length)
    ids = _language_ids(encoder, languages, len(packed.lengths))
    if ids is not None:
        packed.inputs["langs"] = np.repeat(ids, packed.lengths)
    place = _place_of_classification(tokenizer) if pooling == "cls" else None
    pool = keep_all if pooling == "tokens" else partial(pooled, place=place)
    embeddings = run_packed(model, encoder, packed, pool, max_tokens, progress)
    return list(embeddings.split(packed.lengths.tolist())) if pooling == "tokens" else embeddings


def run_packed(
    model: nn.Module, encoder: nn.Module, packed: PackedTexts, pool: Pool, max_tokens: int | None, progress: bool
) -> torch.Tensor:
    """What `pool` makes of the encoder's states of each batch, concatenated, in float32 on the CPU.

    `model` is what is put into `eval()`; its encoder is one of its modules, or itself. Other arguments as in `encode`.
    """
    # Offloaded weights are on the device `meta` between calls; accelerate moves inputs to where they are used.
    device = torch.device("cpu") if encoder.device.type == "meta" else encoder.device
    num_tokens = int(packed.offsets[-1])
    if max_tokens is None:
        max_tokens = MAX_TOKENS_ON_CPU if device.type == "cpu" else MAX_TOKENS_ELSEWHERE
    bar = tqdm(
        total=num_tokens,
        unit="token",
        unit_scale=True,
        delay=SECONDS_WITHOUT_BAR,
        disable=None if progress else True,
    )
    # A graph of a checkpoint's own code, which is compiled whole, would have the lengths of the texts as constants.
    compiles_layers = hasattr(type(getattr(encoder, "_orig_mod", encoder)).forward, "around_layers")
    stance = "default" if compiles_layers else "force_eager"

    def results() -> Iterator[torch.Tensor]:
        for chosen in packed.batches(max_tokens):
            batch = packed.make_batch(chosen, device)
            states = encoder(**batch, flat_output=True, return_dict=True).last_hidden_state
            yield pool(states, batch["cu_seq_lens_q"].to(states.device)).float()
            bar.update(batch["input_ids"].numel())

    with evaluating(model, stance=stance), packed_weights(encoder, num_tokens), bar:
        return torch.cat(list(on_cpu(results())))


def on_cpu(results: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Copy results to the CPU; those on CUDA one later, so that it has the next one to compute during the wait."""
    waiting = None
    for result in results:
        copy, arrived = result.to("cpu", non_blocking=result.is_cuda), None
        if result.is_cuda:
            arrived = torch.cuda.current_stream(result.device).record_event()
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = copy, arrived
    yield _arrived(*waiting)


def _arrived(copy: torch.Tensor, event: Any) -> torch.Tensor:
    """The copy, after the event; then not in pinned memory, of which there is little."""
    if event is None:
        return copy
    event.synchronize()
    return copy.clone()


def keep_all(states: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """The states themselves, `(N, D)`."""
    return states


def pooled(states: torch.Tensor, bounds: torch.Tensor, place: int | None = None) -> torch.Tensor:
    """One row for each text of a batch: `(N, D)` and `bounds`, `(S + 1,)` -> `(S, D)`.

    That is the mean of its tokens, or its token at `place`, 0 for the first or -1 for the last.

    >>> states, bounds = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 2, 3])
    >>> [pooled(states, bounds, place).flatten().tolist() for place in (None, 0, -1)]
    [[2.0, 5.0], [1.0, 5.0], [3.0, 5.0]]
    """
    if place is None:
        if states.device.type == "mps":  # has no kernel (github.com/pytorch/pytorch/issues/197880)
            states, bounds = states.cpu(), bounds.cpu()
        # Without its check of the lengths, which waits for the device.
        return torch.segment_reduce(states.float(), "mean", lengths=bounds.diff(), unsafe=True)
    return states.index_select(0, bounds[:-1] if place == 0 else bounds[1:] - 1)


def encoder_of(model: Any) -> nn.Module:
    """The model without its head."""
    # A model wrapped by `torch.compile` has the attributes of the model inside. PEFT's base model of a model with a
    # head is a wrapper that puts adapters into it.
    base_model = getattr(model, "base_model", None)
    for candidate in (model, base_model, getattr(base_model, "base_model", None)):
        if isinstance(candidate, nn.Module) and hasattr(candidate, "longest_row"):
            return candidate
    raise ValueError(
        f"model is a {type(model).__name__}: give a model of this package, such as hf_encoders.HfeBertModel, or load "
        "the checkpoint with trust_remote_code=True."
    )


def tokenized_for(
    encoder: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int | None
) -> PackedTexts:
    """The texts' ids, checked against what the model takes."""
    longest = encoder.longest_row()
    check_tokenizer(tokenizer)
    check_whole_number("max_length", max_length, tokenizer.num_special_tokens_to_add() + 1, longest)
    packed = tokenized(tokenizer, texts, max_length)
    lengths = packed.lengths
    if lengths.max() > longest:
        number = int((lengths > longest).argmax())
        raise ValueError(
            f"texts[{number}] has {lengths[number]} tokens, the model takes {longest}: pass max_length={longest} to "
            "truncate, or split it."
        )
    highest, num_rows = packed.inputs["input_ids"].max(), encoder.get_input_embeddings().num_embeddings
    if highest >= num_rows:
        raise ValueError(
            f"tokenizer gives the id {highest}, and the model has vocab_size={num_rows}: pass its own tokenizer."
        )
    return packed


def _language_ids(encoder: nn.Module, languages: str | Sequence[str] | None, num_texts: int) -> np.ndarray | None:
    """The id of each text's language, `(S,)`; None for the model's default or a model without languages."""
    config = encoder.config
    if languages is None and not config.required_ids:
        return None
    if "langs" not in config.extra_ids:
        raise ValueError(f"languages={languages!r}: a {type(encoder).__name__} has no languages, leave it out.")
    if isinstance(languages, str):
        names = [languages] * num_texts
    else:
        names = [] if languages is None else list_of_strings("languages", languages)
    if len(names) != num_texts:
        raise ValueError(f"languages has {len(names)} names for {num_texts} texts: pass one for all, or one each.")
    unknown = set(names) - set(config.lang2id or {})
    if unknown:
        known = ", ".join(config.lang2id or {}) or "nothing"
        raise ValueError(f"languages: {sorted(unknown)[0]!r} is not in the model's lang2id, which has {known}.")
    return np.array([config.lang2id[name] for name in names])


def _place_of_classification(tokenizer: PreTrainedTokenizerBase) -> int:
    """0 if a text begins with the classification token, -1 if it ends with it (XLNet)."""
    around = tokenizer("")["input_ids"]
    for place in (0, -1):
        if around and around[place] == tokenizer.cls_token_id:
            # `<s> text </s>` of XLM's own tokenizer, with `</s>` for both: heads read the first token.
            return 0 if len(around) > 1 and tokenizer.cls_token_id == tokenizer.sep_token_id else place
    raise ValueError(
        f"pooling='cls': {type(tokenizer).__name__} puts no cls_token at either end of a text: use pooling='mean'."
    )


def check_whole_number(name: str, value: int | None, least: int, most: int | None = None) -> None:
    """Raise ValueError for an option that is neither None nor an integer in the range."""
    if value is None:
        return
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={value!r}: must be a whole number {limit}.")
