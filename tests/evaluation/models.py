"""Tiny MLM models and their stock twins, and sentences of unequal length for the tests in this folder."""

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tests.hub.tiny_checkpoints import Family, built_in, make_model, make_tokenizer


# The last two are the same to the tokenizers; sentences share words, so that batches mix texts.
SENTENCES = (
    "The cat sat on a mat.",
    "A dog, and the cat, slept all day long on the mat.",
    "The dog slept.",
    "mat",
    "The dog sat on a mat.",
    "The dog  slept.",
)


def make_pair(family: Family, is_stock: bool) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An MLM model with random weights, of this package or the same one of transformers, and its tokenizer."""
    model = make_model(family, "AutoModelForMaskedLM")
    if is_stock:
        stock_class = getattr(transformers, built_in(family, "AutoModelForMaskedLM"))
        fields = {name: value for name, value in model.config.to_dict().items() if name != "auto_map"}
        stock = stock_class(stock_class.config_class(**fields)).eval()
        stock.load_state_dict(model.state_dict())
        model = stock
    return model, make_tokenizer(family)


def naive_log_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    mask_rest_of_word: bool = False,
) -> list[float]:
    """One unpadded forward pass with all logits a token: what the fast way must equal."""
    encoded = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    ids, words, found = encoded["input_ids"][0], encoded.word_ids(0), []
    for place in range(1, len(ids) - 1):
        masked = ids.clone()
        masked[place] = tokenizer.mask_token_id
        if mask_rest_of_word:
            for later in range(place + 1, len(ids) - 1):
                if words[later] == words[place]:
                    masked[later] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=masked[None]).logits
        found.append(logits[0, place].log_softmax(dim=-1)[ids[place]].item())
    return found
