"""Pseudo-likelihood of sentences under a masked language model (Salazar et al. 2020, https://arxiv.org/abs/1910.14659).

Every token is predicted from all others, in a masked copy of the sentence per token; the logarithms are summed. It
ranks sentences. It is not a probability of the sentence (the factors are not a chain of conditionals), and it compares
only models that share a tokenizer.
"""

import math
import reprlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import mask_and_padding
from hf_encoders.inputs import replace_lone_surrogates
from hf_encoders.models.encoder_heads import EncoderForMaskedLM
from hf_encoders.models.encoder_tokens import on_host, places_of
from hf_encoders.objectives.batch import to_device
from hf_encoders.tokenizer_loading import longest_input


# Per batch. Smaller ones suit a CPU's caches (2048 took a tenth less time than 8192 there), larger ones a GPU.
MAX_TOKENS = 4096
_LOCK = threading.RLock()


class ScoredText(NamedTuple):
    """A tokenized text with the tokens to score."""

    ids: tuple[int, ...]  # with special tokens
    positions: tuple[int, ...]  # positions of the tokens to score: all but the special tokens around the text
    ends: tuple[int, ...]  # for each of them, the end of the run of masks that begins with it


class MaskedCopy(NamedTuple):
    """A text in which one token is predicted."""

    text: ScoredText
    number: int  # of the token, in `text.positions`


def token_log_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    mask_rest_of_word: bool = False,
    max_tokens: int = MAX_TOKENS,
    progress: bool = False,
) -> list[np.ndarray]:
    """Compute the log-probability of each token of each text, given all other tokens of that text.

    Costs one forward pass per token. Only the masked token of each copy is projected to the vocabulary. Texts with the
    same tokens are computed once, so that their scores are identical.

    Args:
        model (`PreTrainedModel`): With an MLM head; evaluated without dropout, and left as it is.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        texts (`Sequence` of `str`): Sentences.
        mask_rest_of_word (`bool`, *optional*, defaults to `False`): Also mask the later tokens of the predicted
            token's word, so that the end of a rare word does not reveal it ("PLL-word-l2r" of Kauf and Ivanova 2023,
            https://arxiv.org/abs/2305.10588). Words are the tokenizer's `word_ids`.
        max_tokens (`int`, *optional*, defaults to 4096): Most tokens in a batch of masked copies; at least one copy.
        progress (`bool`, *optional*, defaults to `False`): Whether to show a progress bar, in masked copies.

    Returns:
        For each text `np.ndarray` of `float64` and shape `(tokens,)`, in nats, without special tokens.

    Raises:
        ValueError: For a text without tokens, with a mask, or longer than the model takes, before any compute.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens}: must be at least 1.")
    mask_id, pad_id = mask_and_padding(tokenizer)
    rows = _scored_texts(model, tokenizer, texts, mask_id, mask_rest_of_word)
    scores_of = {text: np.empty(len(text.positions)) for text in rows}
    num_copies = sum(map(len, scores_of.values()))
    with evaluating(model), tqdm(total=num_copies, disable=not progress, unit="copy", leave=False) as bar:
        for copies in batches_of_copies(scores_of, max_tokens):
            batch = to_device(make_batch(copies, mask_id, pad_id), model.device)
            targets = batch.pop("targets")
            scores = masked_token_scores(model, **batch)
            losses = nn.functional.cross_entropy(scores, targets.to(scores.device), reduction="none")
            for copy, loss in zip(copies, losses.cpu().tolist(), strict=True):
                scores_of[copy.text][copy.number] = -loss
            bar.update(len(copies))
    return [scores_of[text] for text in rows]


def pseudo_log_likelihoods(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *arguments: Any, **options: Any
) -> np.ndarray:
    """Sum the `token_log_probabilities` of each text, with the same arguments: `float64` of shape `(texts,)`."""
    scores = token_log_probabilities(model, tokenizer, texts, *arguments, **options)
    return np.array([text.sum() for text in scores])


def pseudo_perplexity(log_probabilities: Sequence[np.ndarray]) -> float:
    """Compute exp of the mean negative log-probability per token over all texts; at least 1.

    >>> pseudo_perplexity([np.log([0.5, 0.125]), np.log([0.25])])
    4.0
    """
    total, count = sum(text.sum() for text in log_probabilities), sum(map(len, log_probabilities))
    return math.exp(-total / count)


def batches_of_copies(texts: Sequence[ScoredText], max_tokens: int) -> Iterator[list[MaskedCopy]]:
    """Yield a copy for each scored token, of the longest texts first; a batch has at most `max_tokens` with padding.

    >>> texts = [ScoredText((1, 9, 2), (1,), (2,)), ScoredText((1, 7, 8, 2), (1, 2), (2, 3))]
    >>> [[(copy.text.ids, copy.number) for copy in copies] for copies in batches_of_copies(texts, max_tokens=9)]
    [[((1, 7, 8, 2), 0), ((1, 7, 8, 2), 1)], [((1, 9, 2), 0)]]
    """
    batch: list[MaskedCopy] = []
    for text in sorted(texts, key=lambda text: -len(text.ids)):
        for number in range(len(text.positions)):
            if batch and (len(batch) + 1) * len(batch[0].text.ids) > max_tokens:
                yield batch
                batch = []
            batch.append(MaskedCopy(text, number))
    yield batch


def make_batch(copies: list[MaskedCopy], mask_id: int, pad_id: int) -> dict[str, torch.Tensor]:
    """Return `input_ids`, `attention_mask` and `is_wanted`, `(copies, longest)`, and `targets`, `(copies,)`.

    >>> text = ScoredText((1, 7, 8, 2), (1, 2), (2, 3))
    >>> batch = make_batch([MaskedCopy(text, 1), MaskedCopy(ScoredText((1, 9, 2), (1,), (2,)), 0)], 4, 0)
    >>> batch["input_ids"].tolist(), batch["targets"].tolist()
    ([[1, 7, 4, 2], [1, 4, 2, 0]], [8, 9])
    """
    shape = len(copies), max(len(copy.text.ids) for copy in copies)
    ids, attention_mask = np.full(shape, pad_id), np.zeros(shape, dtype=np.int64)
    is_wanted, targets = np.zeros(shape, dtype=bool), np.empty(len(copies), dtype=np.int64)
    for row, (text, number) in enumerate(copies):
        position, end, length = text.positions[number], text.ends[number], len(text.ids)
        ids[row, :length] = text.ids
        ids[row, position:end] = mask_id
        attention_mask[row, :length] = 1
        is_wanted[row, position] = True
        targets[row] = text.ids[position]
    arrays = {"input_ids": ids, "attention_mask": attention_mask, "is_wanted": is_wanted, "targets": targets}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def masked_token_scores(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor, is_wanted: torch.Tensor
) -> torch.Tensor:
    """Run an MLM model, of this package or of transformers, and project the wanted tokens to the vocabulary.

    The V scores per token are most of the work: transformers' own models are reduced before their last projection.

    Args:
        input_ids, attention_mask (`torch.LongTensor` of shape `(B, T)`): As for the model.
        is_wanted (`torch.BoolTensor` of shape `(B, T)`): True at P tokens, none of them padding.

    Returns:
        `torch.FloatTensor` of shape `(P, V)`, float32, in the order of the rows.
    """
    if isinstance(model, EncoderForMaskedLM):
        outputs = model.encode(input_ids, attention_mask)
        wanted = places_of(outputs.tokens.flatten(is_wanted), on_host(is_wanted))
        return model.mlm_head(outputs.last_hidden_state.index_select(0, wanted)).float()
    if model.get_output_embeddings() is None:
        raise ValueError(f"a {type(model).__name__} has no MLM head: load it with AutoModelForMaskedLM.")

    def reduce(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Reduce the decoder's input from `(B, T, D)` to `(P, D)`."""
        hidden_states, *rest = inputs
        if hidden_states.dim() == 3:
            hidden_states = hidden_states[is_wanted.to(hidden_states.device)]
        return (hidden_states, *rest)

    with _LOCK, model.get_output_embeddings().register_forward_pre_hook(reduce):
        outputs = model(input_ids=input_ids, attention_mask=attention_mask)
    scores = outputs.logits if "logits" in outputs else outputs.prediction_logits
    # A model may call its decoder in a way the hook does not see.
    return (scores if scores.dim() == 2 else scores[is_wanted.to(scores.device)]).float()


@contextmanager
def evaluating(model: PreTrainedModel, stance: str = "force_eager") -> Iterator[None]:
    """Put a model into `eval()` without gradients, and restore its modes afterwards.

    Threads that share a model take turns. Compiled graphs run with `stance="default"` only: one compiled with the hook
    of `masked_token_scores` would keep it.

    Raises:
        ValueError: For a model with PEFT's prompts: what is read from its states would be of other tokens.
    """
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        raise ValueError(
            f"model has prompts ({type(adapter).__name__}), whose virtual tokens are not the text's: disable the "
            "adapter, or use one of the layers, such as LoRA."
        )
    with _LOCK, torch.no_grad(), torch.compiler.set_stance(stance):
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def check_length(name: str, num_tokens: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a text is longer than model and tokenizer take."""
    longest = longest_input(model.config, tokenizer)
    if num_tokens > longest:
        raise ValueError(f"{name} has {num_tokens} tokens, the model takes {longest}: split it into sentences.")


def _scored_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    mask_id: int,
    mask_rest_of_word: bool,
) -> list[ScoredText]:
    if mask_rest_of_word and not tokenizer.is_fast:
        raise ValueError(f"mask_rest_of_word: {type(tokenizer).__name__} has no word_ids: use a fast tokenizer.")
    if len(texts) == 0:
        raise ValueError("texts is empty: pass at least one.")
    encoded = tokenizer(list(map(replace_lone_surrogates, texts)), return_special_tokens_mask=True, verbose=False)
    rows = []
    for number, ids in enumerate(encoded["input_ids"]):
        check_length(f"texts[{number}]", len(ids), model, tokenizer)
        positions = [
            position for position, is_special in enumerate(encoded["special_tokens_mask"][number]) if not is_special
        ]
        if not positions or mask_id in ids:
            fault = f"contains the token {tokenizer.mask_token}" if positions else "has no tokens"
            raise ValueError(f"texts[{number}]={reprlib.repr(texts[number])} {fault}: leave it out.")
        ends = (
            _ends_of_words(encoded, number, positions)
            if mask_rest_of_word
            else [position + 1 for position in positions]
        )
        rows.append(ScoredText(tuple(ids), tuple(positions), tuple(ends)))
    return rows


def _ends_of_words(encoded: BatchEncoding, number: int, positions: list[int]) -> list[int]:
    words = encoded.word_ids(number)
    ends = {}
    for position in reversed(positions):
        continues = words[position] is not None and position + 1 in ends and words[position] == words[position + 1]
        ends[position] = ends[position + 1] if continues else position + 1
    return [ends[position] for position in positions]
