"""Embeddings of texts of any length, in the given order: nothing is sorted, and nothing is padded.

Stock code pads every text of a batch to the longest one, and therefore sorts all texts by length before it cuts them
into batches. Models of this package read several texts in one row (`cu_seq_lens_q`), so that a batch is as many texts
as a budget of tokens holds.
"""

import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import check_tokenizer
from hf_encoders.evaluation.masked_lm import evaluating
from hf_encoders.inputs import replace_lone_surrogates
from hf_encoders.objectives.batch import to_device


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


POOLINGS = ("mean", "cls", "tokens")
# Tokens in a batch. On a CPU, what a layer writes should stay in the caches; an accelerator wants many at once.
MAX_TOKENS_ON_CPU, MAX_TOKENS_ELSEWHERE = 2048, 16384
TEXTS_AT_ONCE = 1024  # that the tokenizer gets: lists of Python integers exist for these only
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
    in; its modes are restored. Weights may be in 16 or 8 bits and on any device; pooling is in float32.

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
    packed = tokenized_for(encoder, tokenizer, texts, max_length, max_tokens)
    language_ids = _language_ids(encoder, languages, len(packed.lengths))
    if language_ids is not None:
        packed.inputs["langs"] = np.repeat(language_ids, packed.lengths)
    position = _classification_position(tokenizer) if pooling == "cls" else None
    pool = (lambda states, bounds: states) if pooling == "tokens" else partial(pooled, position=position)
    embeddings = run_packed(model, encoder, packed, pool, max_tokens, progress)
    return list(embeddings.split(packed.lengths.tolist())) if pooling == "tokens" else embeddings


def encode_sentences(
    model: "SentenceTransformer", texts: Sequence[str], max_tokens: int | None = None, progress: bool = True
) -> torch.Tensor:
    """Compute `model.encode(texts)` in batches by tokens: its pooling and the modules after it, texts in their order.

    Its own `encode` sorts texts by their number of characters and cuts the order into batches of so many texts. A
    model of this package computes no padding there either; what remains are padded tensors and small batches.

    Args:
        model (`SentenceTransformer`): Of sentence-transformers 6 or later, with a transformer of this package, loaded
            with `trust_remote_code=True`. Texts are truncated to its `max_seq_length` and embeddings to its
            `truncate_dim`, as there.
        texts, max_tokens, progress: As in `encode`. Put a prompt before the texts yourself.

    Returns:
        `torch.FloatTensor` of shape `(texts, width)` on the CPU.

    Raises:
        ValueError: As `encode`; and for a model with a default prompt, or without a pooling after the transformer.
    """
    if not hasattr(model, "max_seq_length") or not hasattr(model, "default_prompt_name"):
        raise ValueError(f"model is a {type(model).__name__}: give a SentenceTransformer, or call hf_encoders.encode.")
    if model.default_prompt_name is not None:
        raise ValueError(
            f"default_prompt_name={model.default_prompt_name!r}: put the prompt before each text, and set "
            "model.default_prompt_name = None."
        )
    transformer, *modules = model
    encoder = encoder_of(transformer.auto_model)
    if options := getattr(transformer, "processing_kwargs", None):
        raise ValueError(f"model has processing_kwargs={options!r}: call model.encode, or load it without them.")
    if not modules or type(modules[0]).__name__ != "Pooling":
        name = type(modules[0]).__name__ if modules else "no module"
        raise ValueError(f"model has {name} after its transformer, where a Pooling is needed: call model.encode.")
    longest = min(model.max_seq_length or encoder.longest_row(), encoder.longest_row())
    packed = tokenized_for(encoder, transformer.tokenizer, texts, longest, max_tokens)

    def pool(states: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        features = {"token_embeddings": states[None], "cu_seq_lens_q": bounds}
        for module in modules:
            features = module(features)
        return features["sentence_embedding"]

    return run_packed(model, encoder, packed, pool, max_tokens, progress)[:, : model.truncate_dim]


@dataclass
class PackedTexts:
    """Tokenized texts one after the other, special tokens included.

    Args:
        inputs (`dict`): `input_ids`, and other arguments of `forward` with one id per token; each `np.ndarray` of
            `int32` and shape `(N,)`.
        lengths (`np.ndarray` of `int64` and shape `(S,)`): Tokens of each text.
    """

    inputs: dict[str, np.ndarray]
    lengths: np.ndarray

    def batches(self, max_tokens: int, device: torch.device | str = "cpu") -> Iterator[dict[str, torch.Tensor]]:
        """Yield the arguments of `forward` for consecutive texts of at most `max_tokens` tokens, or for a longer one.

        A batch has a row `(1, n)` of each input, and `cu_seq_lens_q` of `(texts + 1,)`, all `int64`.

        >>> texts = PackedTexts({"input_ids": np.array([1, 7, 2, 1, 8, 9, 2, 1, 6, 2])}, np.array([3, 4, 3]))
        >>> for batch in texts.batches(max_tokens=7):
        ...     print({name: tensor.tolist() for name, tensor in batch.items()})
        {'input_ids': [[1, 7, 2, 1, 8, 9, 2]], 'cu_seq_lens_q': [0, 3, 7]}
        {'input_ids': [[1, 6, 2]], 'cu_seq_lens_q': [0, 3]}
        """
        start, bounds = 0, [0]
        for length in self.lengths.tolist():
            if len(bounds) > 1 and bounds[-1] + length > max_tokens:
                yield self._batch(start, bounds, device)
                start, bounds = start + bounds[-1], [0]
            bounds.append(bounds[-1] + length)
        yield self._batch(start, bounds, device)

    def _batch(self, start: int, bounds: list[int], device: torch.device | str) -> dict[str, torch.Tensor]:
        tokens = slice(start, start + bounds[-1])
        batch = {name: torch.from_numpy(ids[None, tokens].astype(np.int64)) for name, ids in self.inputs.items()}
        batch["cu_seq_lens_q"] = torch.tensor(bounds)
        device = torch.device(device)
        if device.type == "cuda":  # from pinned memory no copy waits for what is queued
            batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
        return to_device(batch, device)


def tokenized_for(
    encoder: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Any,
    max_length: int | None = None,
    max_tokens: int | None = None,
) -> PackedTexts:
    """Tokenize texts with special tokens, truncated to `max_length` tokens if given, and check them and the options.

    Token types are left out where none is above 0, as everywhere here: XLM embeds a token type of 0.
    """
    check_tokenizer(tokenizer)
    longest, least = encoder.longest_row(), tokenizer.num_special_tokens_to_add() + 1
    if max_tokens is not None and not (isinstance(max_tokens, int) and max_tokens >= 1):
        raise ValueError(f"max_tokens={max_tokens}: must be a whole number of at least 1.")
    if max_length is not None and not least <= max_length <= longest:
        raise ValueError(f"max_length={max_length}: must be from {least} to {longest}.")
    texts = [replace_lone_surrogates(text) for text in list_of_strings("texts", texts)]  # as in a corpus
    options = {"truncation": max_length is not None, "max_length": max_length, "return_attention_mask": False}
    parts, lengths = [], []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        rows = tokenizer(texts[start : start + TEXTS_AT_ONCE], verbose=False, **options)
        lengths.extend(map(len, rows["input_ids"]))
        parts.append({name: np.fromiter(itertools.chain(*values), np.int32) for name, values in rows.items()})
    inputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if "token_type_ids" in inputs and not inputs["token_type_ids"].any():
        del inputs["token_type_ids"]
    for number, length in enumerate(lengths):
        if length < least:
            raise ValueError(f"texts[{number}]={reprlib.repr(texts[number])} has no tokens: leave it out.")
        if length > longest:
            raise ValueError(
                f"texts[{number}] has {length} tokens, the model takes {longest}: pass max_length={longest} to "
                "truncate, or split it."
            )
    highest, num_rows = inputs["input_ids"].max(), encoder.get_input_embeddings().num_embeddings
    if highest >= num_rows:
        raise ValueError(
            f"tokenizer gives the id {highest}, and the model has vocab_size={num_rows}: pass its own tokenizer."
        )
    return PackedTexts(inputs, np.array(lengths))


def run_packed(
    model: nn.Module, encoder: nn.Module, packed: PackedTexts, pool: Pool, max_tokens: int | None, progress: bool
) -> torch.Tensor:
    """Apply `pool` to the encoder's states of each batch; concatenate the results, in float32 on the CPU.

    `model` is what is put into `eval()`; its encoder is one of its modules, or itself. Other arguments as in `encode`.
    """
    # Offloaded weights are on the device `meta` between calls; accelerate moves inputs to where they are used.
    device = torch.device("cpu") if encoder.device.type == "meta" else encoder.device
    if max_tokens is None:
        max_tokens = MAX_TOKENS_ON_CPU if device.type == "cpu" else MAX_TOKENS_ELSEWHERE
    options = {"unit": "token", "unit_scale": True, "delay": SECONDS_WITHOUT_BAR}
    bar = tqdm(total=int(packed.lengths.sum()), disable=None if progress else True, **options)
    # A graph of a checkpoint's own code, which is compiled whole, would have the lengths of the texts as constants.
    compiles_layers = hasattr(type(getattr(encoder, "_orig_mod", encoder)).forward, "around_layers")
    stance = "default" if compiles_layers else "force_eager"

    def results() -> Iterator[torch.Tensor]:
        for batch in packed.batches(max_tokens, device):
            states = encoder(**batch, flat_output=True, return_dict=True).last_hidden_state
            yield pool(states, batch["cu_seq_lens_q"].to(states.device)).float()
            bar.update(batch["input_ids"].numel())

    with evaluating(model, stance=stance), bar:
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
    """Return the copy, after the event; then not in pinned memory, of which there is little."""
    if event is None:
        return copy
    event.synchronize()
    return copy.clone()


def pooled(states: torch.Tensor, bounds: torch.Tensor, position: int | None = None) -> torch.Tensor:
    """Reduce the states of a batch to a row for each text: `(N, D)` and `bounds`, `(S + 1,)` -> `(S, D)`.

    That is the mean of its tokens, or its token at `position`, 0 for the first or -1 for the last.

    >>> states, bounds = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 2, 3])
    >>> [pooled(states, bounds, position).flatten().tolist() for position in (None, 0, -1)]
    [[2.0, 5.0], [1.0, 5.0], [3.0, 5.0]]
    """
    if position is None:
        if states.device.type == "mps":  # has no kernel (github.com/pytorch/pytorch/issues/197880)
            states, bounds = states.cpu(), bounds.cpu()
        # Without its check of the lengths, which waits for the device.
        return torch.segment_reduce(states.float(), "mean", lengths=bounds.diff(), unsafe=True)
    return states.index_select(0, bounds[:-1] if position == 0 else bounds[1:] - 1)


def encoder_of(model: Any) -> nn.Module:
    """Return the model without its head."""
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


def _language_ids(encoder: nn.Module, languages: str | Sequence[str] | None, num_texts: int) -> np.ndarray | None:
    """Return the id of each text's language, `(S,)`; None for the model's default or a model without languages."""
    config = encoder.config
    if languages is None and not config.required_ids:
        return None
    if config.languages is None:
        raise ValueError(f"languages={languages!r}: a {type(encoder).__name__} has no languages, leave it out.")
    names = [languages] * num_texts if isinstance(languages, str) else list_of_strings("languages", languages)
    if len(names) != num_texts:
        raise ValueError(f"languages has {len(names)} names for {num_texts} texts: pass one for all, or one each.")
    for name in names:
        if name not in config.languages:
            raise ValueError(f"languages: {name!r} is not one of the model's, {', '.join(config.languages)}.")
    return np.array([config.languages[name] for name in names])


def _classification_position(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return 0 if a text begins with the classification token, -1 if it ends with it (XLNet)."""
    special = tokenizer("")["input_ids"]
    for position in (0, -1):
        if special and special[position] == tokenizer.cls_token_id:
            # `<s> text </s>` of XLM's own tokenizer, with `</s>` for both: heads read the first token.
            return 0 if len(special) > 1 and tokenizer.cls_token_id == tokenizer.sep_token_id else position
    raise ValueError(
        f"pooling='cls': {type(tokenizer).__name__} puts no cls_token at either end of a text: use pooling='mean'."
    )


def list_of_strings(name: str, values: Any) -> list[str]:
    """Return the values of the argument `name` as a list; ValueError for all but strings, one or more."""
    if isinstance(values, str | Set | Mapping) or not isinstance(values, Iterable) or hasattr(values, "columns"):
        raise ValueError(f"{name} is a {type(values).__name__}: pass a list of strings.")
    values = list(values)
    if not values:
        raise ValueError(f"{name} is empty: pass at least one.")
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(f"{name}[{number}] is a {type(value).__name__}: pass strings.")
    return values
