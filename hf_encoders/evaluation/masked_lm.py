"""Score texts with a masked language model (log-probabilities of their tokens), and predict masked tokens.

The pseudo-likelihood of a sentence (Salazar et al. 2020, https://arxiv.org/abs/1910.14659) sums the log-probabilities
of its tokens, each given all others, in a masked copy of the sentence per token. It ranks sentences. It is not a
probability of the sentence (the factors are not a chain of conditionals), and it compares only models that share a
tokenizer.

Filling masks is not text generation: the result depends on the order of the masks, and the product is a probability
under that order only. It suits gaps of one to a few tokens; longer ones become repetitive (see Wang and Cho 2019,
https://arxiv.org/abs/1902.04094).
"""

import math
import reprlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import mask_and_padding
from hf_encoders.inputs import replace_lone_surrogates
from hf_encoders.models.encoder_heads import EncoderForMaskedLM
from hf_encoders.models.encoder_tokens import on_host, places_of
from hf_encoders.objectives.batch import to_device
from hf_encoders.tokenizer_loading import longest_input


# Per batch. Smaller ones suit a CPU's caches (2048 took a tenth less time than 8192 there), larger ones a GPU.
MAX_TOKENS = 4096
ORDERS = ("left_to_right", "confidence", "at_once")
# Ids at the masks, the mask's own if not filled yet -> sum of their log-probabilities; the most probable first.
Beams = dict[tuple[int, ...], float]
_LOCK = threading.RLock()


class MaskedCopy(NamedTuple):
    """A text in which one token is predicted."""

    ids: tuple[int, ...]  # of the text, with special tokens
    position: int  # of the predicted token
    end: int  # of the run of masks that begins with it


class FilledText(NamedTuple):
    """A text without masks."""

    text: str  # as decoded by the tokenizer, so that the spelling may change; without the special tokens that it adds
    tokens: list[str]  # the tokens at the masks, in the order of the text
    log_probability: float  # sum over the masks, in nats, each given the text when it was filled


class HiddenWord(NamedTuple):
    """A sentence in which a word was hidden, and what a model guesses for it."""

    text: str  # with the mask token
    word: str  # the one that was hidden
    guesses: list[tuple[str, float]]  # words with their probabilities, the most probable first

    @property
    def is_right(self) -> bool:
        """Return whether the first guess is the word, capitals aside."""
        return self.guesses[0][0].lower() == self.word.lower()


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
    copies_of_texts = _masked_copies(model, tokenizer, texts, mask_id, mask_rest_of_word)
    scores = dict.fromkeys(chain(*copies_of_texts), 0.0)
    with evaluating(model), tqdm(total=len(scores), disable=not progress, unit="copy", leave=False) as bar:
        for copies in batches_of_copies(scores, max_tokens):
            batch = to_device(make_batch(copies, mask_id, pad_id), model.device)
            targets = batch.pop("targets")
            logits = masked_token_scores(model, **batch)
            losses = nn.functional.cross_entropy(logits, targets.to(logits.device), reduction="none")
            scores.update(zip(copies, (-losses).cpu().tolist(), strict=True))
            bar.update(len(copies))
    return [np.array([scores[copy] for copy in copies]) for copies in copies_of_texts]


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
    return math.exp(-np.concatenate(log_probabilities).mean())


def fill_masks(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    order: str = "left_to_right",
    num_beams: int = 1,
) -> list[FilledText]:
    """Replace every mask token of a text by a token.

    Args:
        model (`PreTrainedModel`): With an MLM head; evaluated without dropout, and left as it is.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        text (`str`): With `tokenizer.mask_token` at one or more positions.
        order (`str`, *optional*, defaults to `"left_to_right"`): Or `confidence`: the mask whose best token is most
            probable first, computed again after each; or `at_once`: all in one pass from the text with all masks, so
            that neighbours may not agree.
        num_beams (`int`, *optional*, defaults to 1): Partly filled texts to keep; 1 is greedy. Each continues with its
            own best masks and tokens; with as many beams as tokens, the search over two masks is exhaustive.

    Returns:
        `num_beams` texts, or all that exist, the most probable first; never with special tokens at the masks.

    Raises:
        ValueError: For a text without a mask or longer than the model takes, another `order`, `num_beams` below 1.
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r}: must be one of {', '.join(ORDERS)}.")
    if num_beams < 1:
        raise ValueError(f"num_beams={num_beams}: must be at least 1.")
    mask_id, _ = mask_and_padding(tokenizer)
    encoded = tokenizer(
        replace_lone_surrogates(text), return_special_tokens_mask=True, return_tensors="pt", verbose=False
    )
    ids = encoded["input_ids"][0]
    masks = (ids == mask_id).nonzero().squeeze(1)
    check_length("text", len(ids), model, tokenizer)
    if len(masks) == 0:
        raise ValueError(f"text has no {tokenizer.mask_token}: put one where a token is to be filled in.")
    beams: Beams = {(mask_id,) * len(masks): 0.0}
    is_word = torch.zeros(model.config.vocab_size, dtype=torch.bool)  # without padding of the vocabulary, and gaps
    words = torch.tensor(list(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)))
    is_word[words[words < len(is_word)]] = True
    with evaluating(model):
        for step in range(len(masks)):
            if step == 0 or order != "at_once":
                tables = _log_probabilities(model, ids, masks, beams).masked_fill(~is_word, -torch.inf)
            longer: Beams = {}
            for (filled, log_probability), table in zip(beams.items(), tables.expand(len(beams), -1, -1), strict=True):
                for tokens, added in _continuations(filled, table, mask_id, order, num_beams):
                    # Two orders may give the same text; the more probable one counts.
                    longer[tokens] = max(longer.get(tokens, -torch.inf), log_probability + added)
            beams = dict(sorted(longer.items(), key=lambda beam: -beam[1])[:num_beams])
    is_text = (encoded["special_tokens_mask"][0] == 0) | (ids == mask_id)
    texts = []
    for filled, log_probability in beams.items():
        ids[masks] = torch.tensor(filled)
        tokens = tokenizer.convert_ids_to_tokens(list(filled))
        texts.append(FilledText(tokenizer.decode(ids[is_text]), tokens, log_probability))
    return texts


def hide_words(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    number: int,
    seed: int,
    progress: bool = False,
) -> list[HiddenWord]:
    """Hide one word in each of at most `number` random sentences of 8 to 24 tokens, and let the model guess it.

    Words of letters and one token are hidden; a sentence without one is passed over, as are scripts without spaces,
    and sentences longer than the model takes. With `progress` a bar is shown.
    """
    random, hidden = np.random.default_rng(seed), []
    bar = tqdm(total=number, desc="Hiding words", unit="word", disable=not progress, leave=False)
    most = min(24, longest_input(model.config, tokenizer) - tokenizer.num_special_tokens_to_add())

    def num_tokens(text: str) -> int:
        # Not by `tokenize`, which warns of texts longer than the model takes.
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    for sentence in random.permutation([sentence for sentence in sentences if 8 <= num_tokens(sentence) <= most]):
        words = str(sentence).split()
        known = [i for i, word in enumerate(words) if word.isalpha() and num_tokens(f"a {word}") == 2]
        if len(hidden) == number:
            break
        if not known:
            continue
        position = int(random.choice(known))
        word, words[position] = words[position], tokenizer.mask_token
        text = " ".join(words)
        if num_tokens(text) > most:  # SentencePiece may add a space beside the mask
            continue
        guesses = [
            (tokenizer.convert_tokens_to_string(guess.tokens).strip(), math.exp(guess.log_probability))
            for guess in fill_masks(model, tokenizer, text, num_beams=3)
        ]
        hidden.append(HiddenWord(text, word, guesses))
        bar.update()
    bar.close()
    return hidden


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
        return model.mlm_head(model.states_at(outputs.last_hidden_state, outputs.tokens, wanted)).float()
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


def batches_of_copies(copies: Iterable[MaskedCopy], max_tokens: int) -> Iterator[list[MaskedCopy]]:
    """Yield the copies, those of the longest texts first; a batch has at most `max_tokens` with padding.

    >>> copies = [MaskedCopy((1, 9, 2), 1, 2), MaskedCopy((1, 7, 8, 2), 1, 2), MaskedCopy((1, 7, 8, 2), 2, 3)]
    >>> [[(copy.ids, copy.position) for copy in batch] for batch in batches_of_copies(copies, max_tokens=9)]
    [[((1, 7, 8, 2), 1), ((1, 7, 8, 2), 2)], [((1, 9, 2), 1)]]
    """
    batch: list[MaskedCopy] = []
    for copy in sorted(copies, key=lambda copy: -len(copy.ids)):
        if batch and (len(batch) + 1) * len(batch[0].ids) > max_tokens:
            yield batch
            batch = []
        batch.append(copy)
    yield batch


def make_batch(copies: list[MaskedCopy], mask_id: int, pad_id: int) -> dict[str, torch.Tensor]:
    """Return `input_ids`, `attention_mask` and `is_wanted`, `(copies, longest)`, and `targets`, `(copies,)`.

    >>> batch = make_batch([MaskedCopy((1, 7, 8, 2), 2, 3), MaskedCopy((1, 9, 2), 1, 2)], mask_id=4, pad_id=0)
    >>> batch["input_ids"].tolist(), batch["targets"].tolist()
    ([[1, 7, 4, 2], [1, 4, 2, 0]], [8, 9])
    """
    shape = len(copies), max(len(copy.ids) for copy in copies)
    ids, attention_mask = np.full(shape, pad_id), np.zeros(shape, dtype=np.int64)
    is_wanted = np.zeros(shape, dtype=bool)
    for row, copy in enumerate(copies):
        ids[row, : len(copy.ids)] = copy.ids
        ids[row, copy.position : copy.end] = mask_id
        attention_mask[row, : len(copy.ids)] = 1
        is_wanted[row, copy.position] = True
    targets = np.array([copy.ids[copy.position] for copy in copies])
    arrays = {"input_ids": ids, "attention_mask": attention_mask, "is_wanted": is_wanted, "targets": targets}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _masked_copies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    mask_id: int,
    mask_rest_of_word: bool,
) -> list[list[MaskedCopy]]:
    """Return the copies of each text, one for each token but the special ones around the text."""
    if mask_rest_of_word and not tokenizer.is_fast:
        raise ValueError(f"mask_rest_of_word: {type(tokenizer).__name__} has no word_ids: use a fast tokenizer.")
    if len(texts) == 0:
        raise ValueError("texts is empty: pass at least one.")
    encoded = tokenizer(list(map(replace_lone_surrogates, texts)), return_special_tokens_mask=True, verbose=False)
    copies_of_texts = []
    for number, ids in enumerate(encoded["input_ids"]):
        check_length(f"texts[{number}]", len(ids), model, tokenizer)
        is_special = encoded["special_tokens_mask"][number]
        if all(is_special) or mask_id in ids:
            fault = "has no tokens" if all(is_special) else f"contains the token {tokenizer.mask_token}"
            raise ValueError(f"texts[{number}]={reprlib.repr(texts[number])} {fault}: leave it out.")
        words = encoded.word_ids(number) if mask_rest_of_word else [None] * len(ids)
        ids = tuple(ids)  # the same for all copies
        copies, end = [], len(ids)
        for position in reversed(range(len(ids))):
            if position + 1 == len(ids) or words[position] is None or words[position] != words[position + 1]:
                end = position + 1
            if not is_special[position]:
                copies.append(MaskedCopy(ids, position, end))
        copies_of_texts.append(copies[::-1])
    return copies_of_texts


def _log_probabilities(model: PreTrainedModel, ids: torch.Tensor, masks: torch.Tensor, beams: Beams) -> torch.Tensor:
    """Compute those at all M masks of the given text, `(beams, M, V)`."""
    rows = ids.repeat(len(beams), 1)
    rows[:, masks] = torch.tensor(list(beams))
    is_wanted = torch.zeros_like(rows, dtype=torch.bool)
    is_wanted[:, masks] = True
    batch = (rows, torch.ones_like(rows), is_wanted)
    scores = masked_token_scores(model, *(tensor.to(model.device) for tensor in batch)).cpu().log_softmax(dim=-1)
    return scores.view(len(beams), len(masks), -1)


def _continuations(
    filled: tuple[int, ...], table: torch.Tensor, mask_id: int, order: str, num_beams: int
) -> list[tuple[tuple[int, ...], float]]:
    """Fill the next mask with its best tokens; `table` is `(M, V)`. Returns ids and the token's log-probability."""
    open_masks = [mask for mask, token in enumerate(filled) if token == mask_id]
    mask = open_masks[0]
    if order == "confidence":
        mask = open_masks[int(table[open_masks].amax(dim=-1).argmax())]
    best = table[mask].topk(min(num_beams, int(table[mask].isfinite().sum())))
    return [
        ((*filled[:mask], token, *filled[mask + 1 :]), value)
        for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
