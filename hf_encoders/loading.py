"""Loading configurations, tokenizers and weights from a folder or the Hub, for the command line.

Anything missing, damaged or of another kind is a `ValueError` that names the option, its value and the remedy.
"""

import functools
import hashlib
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    StrictDataclassError,
)
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    cached_file,
    find_adapter_config_file,
    logging,
)

from hf_encoders.errors import first_line
from hf_encoders.inputs import REMEDY, check_checkpoint, check_model
from hf_encoders.models.encoder_checkpoints import refuse_shards_elsewhere
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.registration import configurations, family_classes


logger = logging.get_logger(__name__)

CLASSES = ("hf_encoders", "transformers")
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model")  # one is downloaded
_MANY_CAPITALS = 0.05  # of a vocabulary; cased ones have a third, and uncased ones hardly any
NOT_HERE = "is not a folder here, has not been downloaded, and the Hub cannot be reached"
SECONDS_TO_ANSWER = 10  # timeout for the Hub
# From this length on there is no limit, and texts are cut to the other one (that of pre-training of XLNet).
UNLIMITED, DEFAULT_LENGTH = 2**20, 512


def load_config(name: str, classes: str = "hf_encoders") -> PreTrainedConfig:
    """The configuration of the checkpoint `--model`, of one of `CLASSES`; code in the checkpoint is not run.

    Raises:
        ValueError: if there is no configuration, it is of another kind of model, or of one that cannot do without
            inputs that no command has, such as languages.
    """
    if classes not in CLASSES:
        raise ValueError(f"--classes {classes!r} must be one of {', '.join(CLASSES)}.")
    if classes == "hf_encoders":
        config = read_config(name, "--model", other_family="use --classes transformers")
        for inputs, field in config.required_ids.items():
            raise ValueError(
                f"--model {name!r} needs {inputs} for every token, which the data of this command does not have: in a "
                f"copy of the model, set {field} in config.json to one of {', '.join(config.languages or ())}."
            )
        return config
    _config_fields(name, "--model")
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=is_local(name, "--model"))
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ValueError(f"--model {name!r} cannot be loaded ({first_line(error)}): {REMEDY}") from error


def read_config(
    source: str | Path, option: str | None = None, other_family: str = "choose a model of one of these"
) -> EncoderConfig:
    """The configuration in a directory, or of a repository on the Hub, as this package's own.

    Errors name the option that named it, and `other_family` is their remedy for a model of another family.

    Raises:
        ValueError: if there is none, or it is of another kind of model or of an adapter.
    """
    what, fields = _named(source, option), _config_fields(source, option)
    for name in ("auto_map", "custom_pipelines"):
        if not isinstance(fields.get(name) or {}, dict):
            raise ValueError(f"{what}: config.json has {name}={fields[name]!r}, which is not an object: {REMEDY}")
    model_type = fields.get("model_type") or _unwritten_model_type(source, fields)
    known = ", ".join(config_class.model_type for config_class in configurations())
    if model_type is None:
        raise ValueError(
            f'{what}: config.json has no model_type: add the line "model_type": "bert", or what it is of {known}, to '
            "the file (in a copy, for a model on the Hub)."
        )
    for config_class in configurations():
        if model_type in config_class.model_types():
            try:
                return config_class.from_pretrained(str(source), local_files_only=is_local(source, option))
            except StrictDataclassError as error:
                said = " ".join(str(error).split())
                raise ValueError(f"{what}: config.json is not of this kind of model ({said}): {REMEDY}") from error
    raise ValueError(f"{what}: config.json has model_type={model_type!r}; this package has {known}: {other_family}.")


def _unwritten_model_type(source: str | Path, fields: dict[str, Any]) -> str | None:
    """Return the `model_type` of a config.json of before 2020, which has none; None if that is ambiguous.

    It is that of the class in `architectures`, or of the only family whose parameters have names like those in the
    safetensors file.
    """
    for config_class in configurations():
        prefix = config_class.__name__.removeprefix("Hfe").removesuffix("Config")
        named = re.compile(rf"{prefix}(Model|For[A-Z]\w+|(With)?LMHeadModel)")
        if any(named.fullmatch(str(name)) for name in fields.get("architectures") or ()):
            return config_class.model_type
    names = _weight_names(source)
    found = [
        config_class.model_type
        for config_class in configurations()
        if any(name.startswith(f"{_base_model(config_class).base_model_prefix}.") for name in names)
    ]
    return found[0] if len(found) == 1 else None


def _base_model(config_class: type[EncoderConfig]) -> type[PreTrainedModel]:
    return family_classes()[config_class.AUTO_MAP["AutoModel"].rpartition(".")[2]]


def _weight_names(source: str | Path) -> list[str]:
    """Names of the weights in a checkpoint's safetensors file, or in its index of shards; none if it has neither."""
    try:
        if file := optional_file(source, SAFE_WEIGHTS_NAME):
            with safe_open(file, framework="pt") as weights:
                return list(weights.keys())
        if index := optional_file(source, SAFE_WEIGHTS_INDEX_NAME):
            return list(json.loads(index.read_bytes())["weight_map"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        pass  # loading says what is wrong with the file
    return []


def _config_fields(source: str | Path, option: str | None) -> dict:
    """The content of config.json."""
    what, local = _named(source, option), is_local(source, option)
    check_model(source, what)
    try:
        # Loaders look for an adapter before the model's own weights.
        adapter = find_adapter_config_file(str(source), local_files_only=local)
        fields = {} if adapter else PreTrainedConfig.get_config_dict(str(source), local_files_only=local)[0]
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} has no readable config.json ({first_line(error)}): {REMEDY}") from error
    if adapter:
        raise ValueError(
            f"{what} holds a PEFT adapter ({Path(adapter).name}): merge the adapter first "
            "(model.merge_and_unload()), and save the result, with the tokenizer, to another folder."
        )
    if not isinstance(fields, dict):
        raise ValueError(f"{what}: config.json holds a {type(fields).__name__}, not an object: {REMEDY}")
    return fields


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
        source = _folder_of_tokenizer(Path(source), option)
    what, local = _named(source, option), is_local(source, option)
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
    if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
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
    """Whether a tokenizer gives the ids and token types of its file; steps described otherwise are tried."""
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
    if share < _MANY_CAPITALS:
        return None
    return (
        f"{share:.0%} of the entries have capitals, and the tokenizer lower-cases the text, so that it never gives "
        'them. If the model was trained on cased text, set "lowercase" to false in tokenizer.json, or "do_lower_case" '
        "in tokenizer_config.json where there is no tokenizer.json."
    )


def optional_file(source: str | Path, name: str) -> Path | None:
    """A file that a checkpoint need not have, in its folder or downloaded from its repository; None if it has none."""
    if Path(source).is_dir():
        found = Path(source, name)
        return found if found.is_file() else None
    missing = ("missing_entries", "connection_errors")
    quiet = {f"_raise_exceptions_for_{what}": False for what in missing}
    found = cached_file(str(source), name, local_files_only=is_local(source), **quiet)
    return None if found is None else Path(found)


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


def is_local(source: str | Path, option: str | None = None) -> bool:
    """Whether to look on this machine only: for a folder, or for a name while the Hub cannot be reached.

    Without a network transformers would retry for a minute.

    Raises:
        ValueError: for a file, a path that does not exist, a name that the Hub does not have, and one that has not
            been downloaded while the Hub cannot be reached.
    """
    what, name = _named(source, option), str(source)
    if Path(name).is_dir():
        return True
    check_checkpoint(source, what)
    reason = why_unreachable(name, what)
    if reason and not any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES):
        raise ValueError(f"{what} {NOT_HERE} ({reason}): check the spelling and the connection.")
    return reason is not None


def why_unreachable(name: str, what: str, repo_type: str | None = None) -> str | None:
    """Why the Hub cannot be asked for a repository, found with one request a minute; None if it answers.

    Raises:
        ValueError: if the name is invalid, or the Hub does not have it.
    """
    try:
        return _failed_request(name, repo_type, minute=int(time.monotonic() / 60))
    except HFValidationError as error:
        raise ValueError(f"{what} is neither a folder nor a valid Hub name ({first_line(error)}): {REMEDY}") from error
    except GatedRepoError:
        return None
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"{what} is not a folder here, and the Hub has no such repository that you can read: check the spelling; "
            "for a private one, log in (hf auth login)."
        ) from error


@functools.lru_cache
def _failed_request(name: str, repo_type: str | None, minute: int) -> str | None:
    """Why the Hub does not answer; many files are asked for at once, and a network comes back within minutes."""
    try:
        get_hf_file_metadata(hf_hub_url(name, "README.md", repo_type=repo_type), timeout=SECONDS_TO_ANSWER)
    except (HFValidationError, RepositoryNotFoundError):
        raise
    except HfHubHTTPError:
        return None  # it answers: no such file, or an error that transformers retries
    except Exception as error:  # offline mode, and whatever the HTTP library in use calls a failed connection
        return first_line(error)
    return None


def _folder_of_tokenizer(file: Path, option: str | None) -> Path:
    """The folder of a tokenizer's file."""
    if file.name in ("tokenizer.json", "tokenizer_config.json"):
        return file.parent
    what = _named(file, option)
    if file.suffix in (".model", ".spm", ".spiece"):
        raise ValueError(
            f"{what} is a bare SentencePiece model: make a tokenizer of it with hf-encoders tokenizer "
            f"--from-sentencepiece {str(file)!r} --family xlm-roberta --output FOLDER (or albert, or xlnet), and give "
            "the folder."
        )
    raise ValueError(f"{what} is a file: give the folder of a tokenizer, as tokenizer.save_pretrained wrote it.")


def longest_input(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens of the longest sequence that model and tokenizer accept, special tokens included.

    `DEFAULT_LENGTH` where neither has a limit: models with distances instead of positions (XLNet) read any length.
    """
    rows_before_first = {c.model_type: c.position_rows(0, config.pad_token_id or 0) for c in configurations()}
    positions = config.max_position_embeddings - rows_before_first.get(config.model_type, 0)
    has_table = 0 < positions < UNLIMITED  # transformers' own XLNet says -1
    longest = min(positions, tokenizer.model_max_length) if has_table else tokenizer.model_max_length
    return longest if longest < UNLIMITED else DEFAULT_LENGTH


def load_weights(
    name: str, auto_class: type, config: PreTrainedConfig, option: str = "--model", new_head: bool | None = None
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """The checkpoint `option` in float32, the names of weights that it lacks, and of those that only it has.

    Those that it lacks are initialised randomly, and with `new_head` those of a head of another size. If it is False,
    the error names the option `--new-head`; None is for commands that do not have it.

    Raises:
        ValueError: for missing or damaged files, weights of other shapes or of fewer layers, and as `check_loaded`.
    """
    cannot = f"{option} {name!r} cannot be loaded as {auto_class.__name__}"
    _check_layers(name, config, option)
    try:
        refuse_shards_elsewhere(name)
        model, found = auto_class.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
            trust_remote_code=False,
            local_files_only=is_local(name, option),
        )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ValueError(f"{cannot} ({first_line(error)}): give a complete checkpoint.") from error
    for key, saved, expected in sorted(found["mismatched_keys"]):
        is_of_head = not key.startswith(f"{model.base_model_prefix}.")
        if not (new_head and is_of_head):
            remedy = "give one whose weights fit its config.json"
            if is_of_head:
                remedy = "give the encoder that it was fine-tuned from" + ", or use --new-head" * (new_head is False)
            raise ValueError(f"{cannot} ({key} has the shape {tuple(saved)}, not {tuple(expected)}): {remedy}.")
    check_loaded(model, found["unexpected_keys"], f"{option} {name!r}")
    return model, sorted(found["missing_keys"]), sorted(found["unexpected_keys"])


def _check_layers(name: str, config: PreTrainedConfig, option: str) -> None:
    """Refuse a number of layers that the weights do not have, before any is built."""
    # ALBERT's groups of layers, whose weights all its layers share.
    num_layers = getattr(config, "num_hidden_groups", config.num_hidden_layers)
    numbers = [int(number) for key in _weight_names(name) for number in re.findall(r"\.(\d+)\.", key)]
    if numbers and num_layers > max(numbers) + 1:
        raise ValueError(
            f"{option} {name!r}: config.json asks for {num_layers} layers, and the weights are of {max(numbers) + 1}: "
            "correct the number there."
        )


def check_loaded(model: PreTrainedModel, unexpected: Iterable[str], what: str) -> None:
    """Refuse a loaded checkpoint that no model should begin as, however well it loads.

    Args:
        model (`PreTrainedModel`): The model.
        unexpected (`Iterable[str]`): Names of weights that only the checkpoint has.
        what (`str`): Its name, for messages.

    Raises:
        ValueError: if a weight is not finite, or the checkpoint has layers beyond those of its configuration.
    """
    weights, prefix = model.state_dict(), f"{model.base_model_prefix}."
    for name, value in weights.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{what}: weight {name} is not finite: give a checkpoint from before it was damaged.")
    for name in sorted(unexpected):
        first = re.sub(r"(?<=\.)\d+(?=\.)", "0", name)  # of the first layer
        if first != name and {first, prefix + first, first.removeprefix(prefix)} & weights.keys():
            raise ValueError(
                f"{what} has {name}, of a layer that its config.json does not have: correct the number there."
            )


def fingerprint(model: PreTrainedModel) -> str:
    """16 hexadecimal digits that differ where a weight does; the same for every file format and device."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]


def check_rows(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, what: str) -> None:
    """Raise ValueError if the tokenizer of the checkpoint `what` has tokens for which its model has no rows."""
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.vocab_size:
        raise ValueError(
            f"{what}: the tokenizer has ids up to {largest}, and the model rows for {config.vocab_size}: the other "
            "tokens were never trained, so take the tokenizer without them."
        )


def check_first_position(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, what: str) -> None:
    """Refuse a tokenizer whose padding id would move the positions of a trained model.

    RoBERTa's positions begin at `pad_token_id + 1`, and `Trainer` writes the tokenizer's id into the configuration.

    Args:
        config (`PreTrainedConfig`): Of the trained model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        what (`str`): The checkpoint's name, for messages.

    Raises:
        ValueError: if they disagree about the first position.
    """
    rows = next((c.position_rows for c in configurations() if c.model_type == config.model_type), None)
    own, given = config.pad_token_id, tokenizer.pad_token_id
    if rows is not None and rows(0, own or 0) != rows(0, given or 0):
        raise ValueError(
            f"{what}: config.json has pad_token_id={own}, which its positions count from, and the tokenizer {given}: "
            f"in a copy, make the token of id {own} its pad_token, or correct config.json if that is wrong."
        )


def _named(source: str | Path, option: str | None) -> str:
    return f"{option} {str(source)!r}" if option else str(source)
