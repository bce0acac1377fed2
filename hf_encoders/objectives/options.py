"""Options of datasets and collators: shown in their signatures; names of other libraries are answered with ours."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


# What transformers, other libraries and the papers' code call it -> what to write here.
NAMES_ELSEWHERE = {
    **dict.fromkeys(
        ("mlm_probability", "mask_prob", "mlm_ratio", "mlm_prob", "masked_lm_prob"), "it is mask_probability here"
    ),
    **dict.fromkeys(("whole_word_mask", "do_whole_word_mask"), "write unit='word'"),
    "mask_replace_prob": "it is mask_replace_probability here",
    "random_replace_prob": "it is random_replace_probability here",
    "max_predictions_per_seq": "it is max_predictions here",
    "mlm": "leave it out, tokens are always masked",
    "return_tensors": "leave it out, batches are torch tensors",
    "padding": "leave it out, rows are padded to the longest of the batch, or packed with packed=True",
    "max_length": "leave it out, the dataset has it",
    "max_seq_length": "it is max_length, of the dataset and of the collators of sentence pairs",
    "short_seq_prob": "it is short_sequence_probability, of DocumentChunks",
    "block_size": "it is max_length of the dataset",
    "seed": "leave it out, the dataset has it (rows of a plain one follow torch.manual_seed)",
    "processing_class": "it is tokenizer here",
    "quota": "it is num_masked here",
    "quota_in_units": "it is share_of_words here",
}


def with_options_of(source: Callable) -> Callable[[Callable], Callable]:
    """Show the options of `source` in the signature of a function that passes `**options` on to it."""

    def decorate(function: Callable) -> Callable:
        own = inspect.signature(function).parameters
        named = [one for one in own.values() if one.kind is not one.VAR_KEYWORD]
        more = [one for one in inspect.signature(source).parameters.values() if one.name not in own]
        more = [one.replace(kind=one.KEYWORD_ONLY) for one in more]
        function.__signature__ = inspect.Signature([*named, *more])
        return function

    return decorate


def refuse_unknown_options(owner: object, options: dict[str, Any], known: Iterable[str]) -> None:
    """Raise ValueError for an option that is not among `known`, with its name here."""
    own = list(inspect.signature(type(owner)).parameters)
    for name in sorted(options.keys() - set(known)):
        start = f"{type(owner).__name__} takes no {name!r}: "
        if name in NAMES_ELSEWHERE:
            raise ValueError(f"{start}{NAMES_ELSEWHERE[name]}.")
        if alike := difflib.get_close_matches(name, own, n=1, cutoff=0.75):
            raise ValueError(f"{start}did you mean {alike[0]!r}?")
        raise ValueError(f"{start}its options are {', '.join(own)}.")
