"""Loading tokenizers from a folder or the Hub, and whether they fit a model. Errors are as in `loading.py`."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from hf_encoders.inputs import first_line
from hf_encoders.loading import is_local, name_for_errors, optional_file
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations


logger = logging.get_logger(__name__)

MANY_CAPITALS = 0.05  # of a vocabulary; cased ones have a third, and uncased ones hardly any
# From this length on there is no limit, and texts are cut to the other one (that of pre-training of XLNet).
UNLIMITED, DEFAULT_LENGTH = 2**20, 512


def load_tokenizer(
    source: str | Path, option: str | None = None, config: PreTrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder, of the `tokenizer.json` in one, or of a repository; code in it is not run.

    Where there is a `tokenizer.json`, the ids are those that `tokenizers.Tokenizer.from_file` gives. If the class in
    `tokenizer_config.json` or `config.json` gives others, the file is read as `PreTrainedTokenizerFast`, with the
    special tokens and the length in `tokenizer_config.json`. Only a class in Python is kept, with a warning. Errors
    name the option that named the source. With a `config` transformers does not look for one.

    Raises:
        ValueError: If none can be loaded, or if it has special tokens only.
    """
    if Path(source).is_file():
        source = _folder_of(Path(source), option)
    what, local = name_for_errors(source, option), is_local(source, option)
    remedy = f"save it there with tokenizer.save_pretrained({str(source)!r}), or give another folder or name."
    try:
        tokenizer = _read_tokenizer(str(source), config, local)
    except Exception as error:  # those of the tokenizers library have no class of their own
        raise ValueError(f"{what} has no tokenizer that can be loaded ({first_line(error)}): {remedy}") from error
    if not tokenizer.is_fast and optional_file(source, "tokenizer.json"):
        kind = type(tokenizer).__name__
        logger.warning_once(f"{what}: the ids are those of {kind}, written in Python: tokenizer.json is not read.")
    tokenizer.init_kwargs.pop("auto_map", None)  # code that was not run, and would be named where it is saved
    # Without files transformers 5 returns a tokenizer with special tokens only.
    if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):  # by token: it may have one twice
        raise ValueError(f"{what} has no tokenizer, or one with special tokens only: {remedy}")
    if warning := lost_capitals(tokenizer):
        logger.warning_once(f"{what}: {warning}")
    return tokenizer


def _read_tokenizer(source: str, config: PreTrainedConfig | None, local: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the class that transformers chooses, or of tokenizer.json alone where the two differ."""
    options, file = {"local_files_only": local}, optional_file(source, "tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, config=config, trust_remote_code=False, **options)
    except Exception as error:
        if file is None or isinstance(error, ImportError):  # a class in Python needs a package, and not the file
            raise
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source, **options)
    if file is None or not tokenizer.is_fast:
        return tokenizer
    in_file = Tokenizer.from_file(str(file))  # transformers 5 reads its vocabulary, and rebuilds the rest
    if type(tokenizer) is not PreTrainedTokenizerFast and not _gives_same_ids(tokenizer, in_file):
        logger.warning_once(
            f"{source}: {type(tokenizer).__name__} does not give the ids of tokenizer.json, which is read without it."
        )
        # Defaults of the class, as the special tokens may be.
        options |= {name: getattr(tokenizer, name) for name in ("model_input_names", "padding_side")}
        tokens = tokenizer.special_tokens_map.items()
        options |= {role: token for role, token in tokens if in_file.token_to_id(token) is not None}
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source, **options)
    tokenizer.add_tokens(list(in_file.get_added_tokens_decoder().values()))  # whatever tokenizer_config.json says
    return tokenizer


def _gives_same_ids(tokenizer: PreTrainedTokenizerFast, in_file: Tokenizer) -> bool:
    """Return whether a tokenizer gives the ids and token types of its file; steps described otherwise are tried."""
    backend, added = tokenizer.backend_tokenizer, in_file.get_added_tokens_decoder().items()
    if any(backend.token_to_id(token.content) != token_id for token_id, token in added):
        return False
    if any(in_file.token_to_id(token) is None for token in tokenizer.all_special_tokens):  # that the class has added
        return False
    steps = ("model", "pre_tokenizer", "normalizer", "post_processor")
    same = {name: _described(getattr(backend, name)) == _described(getattr(in_file, name)) for name in steps}
    if not (same["model"] and same["pre_tokenizer"]):
        return False
    if not same["post_processor"]:
        in_file.no_truncation()
        in_file.no_padding()
        for texts in (["a"], ["a", "a"]):
            encoded, expected = tokenizer(*texts, return_token_type_ids=True), in_file.encode(*texts)
            if (encoded["input_ids"], encoded["token_type_ids"]) != (expected.ids, expected.type_ids):
                return False
    starts = (start for start in range(0, 0x10000, 256) if not 0xD800 <= start < 0xE000)  # surrogates are no text
    lines = ("".join(f"  a{chr(code)}b {chr(code)} ``A''" for code in range(start, start + 256)) for start in starts)
    return same["normalizer"] or all(_words(backend, line) == _words(in_file, line) for line in lines)


def _described(step: Any) -> bytes:
    """Return a step of text to ids as JSON; no prefix or suffix may be null or an empty string."""
    return step.__getstate__().replace(b":null", b':""') if step else b""


def _words(backend: Tokenizer, text: str) -> list[str]:
    """Return the words that the model of a tokenizer cuts into tokens."""
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]


def lost_capitals(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return a warning if a vocabulary has many entries with capitals, and its tokenizer lower-cases the text.

    >>> from transformers import BertTokenizer
    >>> vocab = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "pump"])}
    >>> lost_capitals(BertTokenizer(vocab=vocab, do_lower_case=True))[:63]
    '50% of the entries have capitals, and the tokenizer lower-cases'
    >>> lost_capitals(BertTokenizer(vocab=vocab, do_lower_case=False))
    """
    normalizer = tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None
    if normalizer is None or "A" in normalizer.normalize_str("A"):
        return None
    entries = tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys()
    share = sum(piece != piece.lower() for piece in entries) / max(len(entries), 1)
    if share < MANY_CAPITALS:
        return None
    return (
        f"{share:.0%} of the entries have capitals, and the tokenizer lower-cases the text, so that it never gives "
        'them. If the model was trained on cased text, set "lowercase" to false in tokenizer.json, or "do_lower_case" '
        "in tokenizer_config.json where there is no tokenizer.json."
    )


def set_inputs(tokenizer: PreTrainedTokenizerBase, config: EncoderConfig) -> None:
    """Make the tokenizer return token types, also once it is saved, if and only if the model has more than one.

    Pipelines pass what a tokenizer returns: without them the parts of a pair, and XLNet's `<cls>`, would have other
    types there than in training. transformers' tokenizers of ALBERT and XLNet return none by default, and a teacher's
    may return some that its student has no embedding for.
    """
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    if config.extra_ids.get("token_type_ids", 0) > 1:
        names.insert(1, "token_type_ids")
    if names != tokenizer.model_input_names:
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names  # the latter is saved


def set_length(tokenizer: PreTrainedTokenizerBase, longest: int) -> None:
    """Raise the tokenizer's limit, also the saved one, to a run's longest examples: of new positions, for one."""
    if tokenizer.model_max_length < longest:
        tokenizer.model_max_length = tokenizer.init_kwargs["model_max_length"] = longest


def _folder_of(file: Path, option: str | None) -> Path:
    if file.name in ("tokenizer.json", "tokenizer_config.json"):
        return file.parent
    what = name_for_errors(file, option)
    if file.suffix in (".model", ".spm", ".spiece"):
        raise ValueError(
            f"{what} is a bare SentencePiece model: make a tokenizer of it with hf-encoders tokenizer "
            f"--from-sentencepiece {str(file)!r} --family xlm-roberta --output FOLDER (or albert, or xlnet), and give "
            "the folder."
        )
    raise ValueError(f"{what} is a file: give the folder of a tokenizer, as tokenizer.save_pretrained wrote it.")


def longest_input(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the tokens of the longest sequence that model and tokenizer accept, special tokens included.

    `DEFAULT_LENGTH` where neither has a limit: models with distances instead of positions (XLNet) read any length.
    """
    positions = config.max_position_embeddings - _first_position(config, config.pad_token_id)
    has_table = 0 < positions < UNLIMITED  # transformers' own XLNet says -1
    longest = min(positions, tokenizer.model_max_length) if has_table else tokenizer.model_max_length
    return longest if longest < UNLIMITED else DEFAULT_LENGTH


def check_rows(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, what: str) -> None:
    """Raise ValueError if the tokenizer of the checkpoint `what` has tokens for which its model has no rows."""
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.vocab_size:
        raise ValueError(
            f"{what}: the tokenizer has ids up to {largest}, and the model rows for {config.vocab_size}: the other "
            "tokens were never trained, so take the tokenizer without them."
        )


def check_first_position(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, what: str) -> None:
    """Refuse a tokenizer whose padding id would move the positions of the trained model `what`.

    RoBERTa's positions begin at `pad_token_id + 1`, and `Trainer` writes the tokenizer's id into the configuration.
    """
    expected, padding = config.pad_token_id, tokenizer.pad_token_id
    if _first_position(config, expected) != _first_position(config, padding):
        raise ValueError(
            f"{what}: config.json has pad_token_id={expected}, which its positions count from, and the tokenizer "
            f"{padding}: in a copy, make the token of id {expected} its pad_token, or correct config.json if that is "
            "wrong."
        )


def _first_position(config: PreTrainedConfig, pad_token_id: int | None) -> int:
    """Return the number of positions before the first that a token has; 0 in families that are not known."""
    families = (family for family in configurations() if family.model_type == config.model_type)
    return next((family.position_rows(0, pad_token_id or 0) for family in families), 0)
