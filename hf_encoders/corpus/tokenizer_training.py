"""Train the kind of tokenizer that a family has (WordPiece, BPE, Unigram), or make it from a SentencePiece file.

The trainers are those of the `tokenizers` library. The same words and settings give the same vocabulary in every
process, which the library alone does not guarantee: it keeps words in hash maps with a random seed per process, and

- WordPiece numbers the pieces `##x` of one character in map order, and merges pairs of equal counts in the order of
  these numbers: here the pieces are numbered beforehand, by code point;
- BPE with a suffix does the same with the pieces `x</w>`; byte-level BPE has none, and its order is fixed;
- Unigram adds up expected counts as floating-point numbers in map order, so that scores differ in their last digits,
  and gives the characters that it restores after pruning rising scores in the order of another map: here these
  characters share one score, scores are rounded and pieces sorted. Two pieces whose losses are equal up to rounding,
  right where the vocabulary is cut, could still change places.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AddedToken, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges

from hf_encoders.corpus.special_tokens import check_tokenizer
from hf_encoders.corpus.text_files import Sampling
from hf_encoders.corpus.word_counts import SelectedText, count_texts, covered_words, repeated
from hf_encoders.models.encoder_configuration import EncoderConfig


# Tensor cores are fastest with dimensions that are multiples of 8 to 64 (NVIDIA's guide to matrix multiplication,
# "Requirements to use Tensor Cores": 128 bytes on an A100, 64 values of 16 bits).
MULTIPLE = 64
CONTINUATION = "##"  # BERT's vocab.txt
# Decimals of a log-probability. Runs differ by at most 1e-12; a ten-thousandth matters only between two equally good
# segmentations of a word.
SCORE_DECIMALS = 4
RESTORED_STEP = 0.0001  # between the scores of restored characters in `finalize` of the library's Unigram trainer
# XLM's special tokens, of `xlm/data/dictionary.py`; its mask is `<special1>`.
SUFFIX = "</w>"
FIRST, END, PADDING, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
SPARE = [f"<special{number}>" for number in range(10)]
MASK = SPARE[1]
# SentencePiece's word mark (U+2581), `TrainerSpec.ModelType` and `SentencePiece.Type` of sentencepiece_model.proto.
SPACE = "▁"
UNIGRAM, BPE = 1, 2
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def train_tokenizer(
    sentences: Iterable[str] | Mapping[str, Iterable[str]],
    config_class: type[EncoderConfig],
    vocab_size: int,
    max_length: int = 512,
    lowercase: bool = True,
    strip_accents: bool = False,
    character_coverage: float = 1.0,
    sampling_alpha: float = 1.0,
) -> PreTrainedTokenizerBase:
    """Train the kind of tokenizer that a family's published models have.

    Args:
        sentences (`Iterable[str]` or `Mapping[str, Iterable[str]]`): The text, or that of several sources by name.
        config_class (`type[EncoderConfig]`): The family's configuration class, which names its tokenizer class.
        vocab_size (`int`): Largest number of entries, special tokens included; a small corpus may give fewer.
        max_length (`int`, *optional*, defaults to 512): Longest sequence in tokens, saved as `model_max_length`.
        lowercase (`bool`, *optional*, defaults to `True`): Whether to lower-case the text; byte-level BPE never does.
        strip_accents (`bool`, *optional*, defaults to `False`): Whether to remove combining marks, as the published
            uncased models do. They carry meaning in most languages, and vowels in some (Hindi, Thai).
        character_coverage (`float`, *optional*, defaults to 1.0): Share of the characters in the vocabulary, in
            (0, 1]; words with rarer ones are left out. No effect on byte-level BPE.
        sampling_alpha (`float`, *optional*, defaults to 1.0): Of several sources: each counts as much as its share of
            the text (in bytes of UTF-8) to this power, in (0, 1]; lower values give small sources more entries.
            XLM: 0.5.

    Raises:
        ValueError: If the text, or that of a source, is empty, or the vocabulary too small for its characters.
    """
    if sampling_alpha != 1 and not isinstance(sentences, Mapping):
        raise ValueError(f"sampling_alpha={sampling_alpha} is for several sources: give sentences of each by name.")
    sampling = Sampling(sampling_alpha)
    sources = sentences if isinstance(sentences, Mapping) else {"": sentences}
    texts = {name: SelectedText(([line] for line in lines), held_out_share=0) for name, lines in sources.items()}
    options = pipeline_options(config_class, lowercase, strip_accents)
    words = count_texts(texts, untrained_tokenizer(config_class, options), sampling).words
    return tokenizer_of_words(words, config_class, vocab_size, max_length, options, character_coverage)


def pipeline_options(config_class: type[EncoderConfig], lowercase: bool, strip_accents: bool) -> dict[str, bool]:
    """Return the arguments of a family's tokenizer class for these; only those that it has."""
    understood = inspect.signature(_maker(config_class)).parameters
    wanted = {"do_lower_case": lowercase, "strip_accents": strip_accents, "keep_accents": not strip_accents}
    return {name: value for name, value in wanted.items() if name in understood}


def untrained_tokenizer(config_class: type[EncoderConfig], options: dict[str, Any]) -> PreTrainedTokenizerBase:
    """Make a family's tokenizer with an empty vocabulary, to pre-tokenize text."""
    return _maker(config_class)(**options)


def tokenizer_of_words(
    words: dict[str, int],
    config_class: type[EncoderConfig],
    vocab_size: int,
    max_length: int,
    options: dict[str, Any],
    character_coverage: float = 1.0,
) -> PreTrainedTokenizerBase:
    """Train from the words that `count_words` finds with the untrained tokenizer of these options."""
    untrained = untrained_tokenizer(config_class, options)
    if len(untrained.backend_tokenizer.pre_tokenizer.pre_tokenize_str("é")[0][0]) == 1:  # not byte-level
        words = covered_words(words, character_coverage)
    ends = _special_tokens(config_class, untrained)
    learn = _unigram if isinstance(untrained.backend_tokenizer.model, models.Unigram) else _merged
    return _maker(config_class)(**options, **learn(words, untrained, vocab_size, *ends), model_max_length=max_length)


def _maker(config_class: type[EncoderConfig]) -> Callable[..., PreTrainedTokenizerBase]:
    """Return the family's tokenizer class, or a function, where transformers has a class for any tokenizer only."""
    if config_class.TOKENIZER_CLASS == "PreTrainedTokenizerFast":
        return {"suffix-bpe": suffix_bpe_tokenizer, "bpe": byte_bpe_tokenizer}[config_class.VOCABULARY_KIND]
    return getattr(transformers, config_class.TOKENIZER_CLASS)


def _special_tokens(config_class: type[EncoderConfig], tokenizer: PreTrainedTokenizerBase) -> Iterator[list[str]]:
    """Yield the tokens before the pieces and those after them; the class names roles, such as `mask`, or tokens."""
    for roles in (config_class.FIRST_SPECIAL_TOKENS, config_class.LAST_SPECIAL_TOKENS):
        yield [role if role.startswith("<") else tokenizer.special_tokens_map[f"{role}_token"] for role in roles]


def _merged(
    words: dict[str, int], tokenizer: PreTrainedTokenizerBase, vocab_size: int, first: list[str], last: list[str]
) -> dict[str, Any]:
    """Learn WordPiece or BPE, arguments of the tokenizer's class: pieces that are merged from characters or bytes.

    Ids: `first`, the alphabet, characters with a mark (`##` inside of words, `</w>` at their ends), longer pieces in
    the order of the merges, `last`. Marked characters are given to the trainer as special tokens, so that it numbers
    them in this order.
    """
    model, alphabet = tokenizer.backend_tokenizer.model, sorted(set().union(*words))
    learned: dict[str, Any] = {}
    if isinstance(model, models.WordPiece):
        marked = [CONTINUATION + character for character in sorted(set().union(*(word[1:] for word in words)))]
        untrained, trainer_class = models.WordPiece({}, unk_token=tokenizer.unk_token), trainers.WordPieceTrainer
        options = {"continuing_subword_prefix": CONTINUATION}
    elif suffix := model.end_of_word_suffix:
        marked = [character + suffix for character in sorted({word[-1] for word in words})]
        untrained, trainer_class = models.BPE(end_of_word_suffix=suffix), trainers.BpeTrainer
        options = {"end_of_word_suffix": suffix}
    else:
        alphabet, marked = sorted(pre_tokenizers.ByteLevel.alphabet()), []
        untrained, trainer_class, options = models.BPE(), trainers.BpeTrainer, {"initial_alphabet": alphabet}
        learned["mask_token"] = mask_with_its_space(tokenizer.mask_token)
    needed = f"{len(alphabet):,} characters" + (f", {len(marked):,} with {CONTINUATION} or {SUFFIX}" if marked else "")
    _check_size(vocab_size, len(first) + len(alphabet) + len(marked) + len(last), needed)
    trainer = trainer_class(
        vocab_size=vocab_size - len(last),
        special_tokens=first + marked,
        show_progress=sys.stderr.isatty(),  # takes minutes for large text; in a log, bars would be thousands of lines
        **options,
    )
    trained = _trained(words, untrained, trainer)
    by_id = sorted(trained["vocab"], key=trained["vocab"].get)
    pieces = [*dict.fromkeys([*first, *alphabet, *marked, *by_id]), *last]
    learned["vocab"] = {piece: number for number, piece in enumerate(pieces)}
    if "merges" in trained:
        learned["merges"] = [tuple(merge) for merge in trained["merges"]]
    return learned


def _unigram(
    words: dict[str, int], tokenizer: PreTrainedTokenizerBase, vocab_size: int, first: list[str], last: list[str]
) -> dict[str, Any]:
    """Learn Unigram, arguments of the tokenizer's class: `first`, pieces by score, the most probable first, `last`."""
    special = first + last
    alphabet = set().union(*words)
    _check_size(vocab_size, len(special) + len(alphabet), f"{len(alphabet):,} characters")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        unk_token=tokenizer.unk_token,
        show_progress=sys.stderr.isatty(),
    )
    trained = _trained(words, models.Unigram(), trainer)
    scores = {piece: score for piece, score in trained["vocab"] if piece not in special}
    scored = [(piece, round(score, SCORE_DECIMALS)) for piece, score in _with_equal_restored(scores).items()]
    scored.sort(key=lambda entry: (-entry[1], entry[0]))
    return {
        "vocab": [(token, 0.0) for token in first] + scored + [(token, 0.0) for token in last],
        "mask_token": mask_with_its_space(tokenizer.mask_token),
    }


def _with_equal_restored(scores: dict[str, float]) -> dict[str, float]:
    """Give the lowest score to every character that the trainer restored.

    The trainer gives them the lowest score plus 0, 1, 2, ... steps, by which they are recognized.
    """
    lowest = min(scores.values())
    steps = {piece: (score - lowest) / RESTORED_STEP for piece, score in scores.items() if len(piece) == 1}
    restored = {piece for piece, step in steps.items() if step < len(steps) and abs(step - round(step)) < 1e-6}
    return {piece: lowest if piece in restored else score for piece, score in scores.items()}


def _trained(words: dict[str, int], model: models.Model, trainer: trainers.Trainer) -> dict[str, Any]:
    """Return the model that a trainer learns from words, as the library writes it to JSON."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")  # words have no space inside
    tokenizer.train_from_iterator(repeated(words), trainer=trainer, length=len(words))
    return json.loads(tokenizer.to_str())["model"]


def mask_with_its_space(mask: str) -> AddedToken:
    """Return a mask token that includes the space before it, as in roberta-base and albert-base-v2.

    Otherwise `is <mask>.` has a space token before the mask, which no pre-training example has.
    """
    return AddedToken(mask, lstrip=True, normalized=False, special=True)


def _check_size(vocab_size: int, least: int, needed: str) -> None:
    if vocab_size < least:
        raise ValueError(
            f"vocab_size={vocab_size} is too small for the text, which takes {least:,} entries without any longer "
            f"piece ({needed}, and the special tokens): raise it, or leave out rare characters with "
            "character_coverage=0.9995 (--character-coverage 0.9995)."
        )


def suffix_bpe_tokenizer(
    vocab: dict[str, int] | None = None,
    merges: list[tuple[str, str]] | None = None,
    do_lower_case: bool = True,
    strip_accents: bool = False,
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Make XLM's tokenizer, byte pair encoding of words whose last piece ends in `</w>`, without Python code.

    Plain transformers loads it as `PreTrainedTokenizerFast`. Ids and special tokens are those of the original, with
    `</s>` on both ends of a sentence (`batch_sentences` in `xlm/data/dataset.py`). Differs from it in: words are
    divided at spaces and punctuation, instead of by a tool for each language. Arguments are as those of transformers'
    tokenizer classes.

    >>> tokenizer = suffix_bpe_tokenizer()
    >>> tokenizer.convert_tokens_to_ids(["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>", "<special9>"])
    [0, 1, 2, 3, 4, 5, 13]
    >>> tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a cat.")
    [('a', (0, 1)), ('cat', (2, 5)), ('.', (5, 6))]
    """
    if vocab is None:
        vocab = {token: number for number, token in enumerate([FIRST, END, PADDING, UNKNOWN, *SPARE])}
    tokenizer = Tokenizer(models.BPE(vocab, merges or [], end_of_word_suffix=SUFFIX, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=do_lower_case
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=SUFFIX)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A {END}", pair=f"{END} $A {END} {END} $B {END}", special_tokens=[(END, vocab[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=FIRST,
        eos_token=END,
        cls_token=END,
        sep_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        mask_token=MASK,
        additional_special_tokens=[token for token in SPARE if token != MASK],
        **options,
    )


def byte_bpe_tokenizer(
    vocab: dict[str, int] | None = None,
    merges: list[tuple[str, str]] | None = None,
    mask_token: str | AddedToken = "[MASK]",
    **options: Any,
) -> PreTrainedTokenizerFast:
    """Make ModernBERT's tokenizer: byte-level BPE with BERT's special tokens, and no token types.

    Plain transformers loads it as `PreTrainedTokenizerFast`. Text is normalised (NFC) and cut into words as by OLMo's
    tokenizer, from which ModernBERT's was made. Arguments are as those of transformers' tokenizer classes.

    >>> tokenizer = byte_bpe_tokenizer()
    >>> tokenizer.convert_tokens_to_ids(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    [0, 1, 2, 3, 4]
    >>> tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a cat.")
    [('a', (0, 1)), ('Ġcat', (1, 5)), ('.', (5, 6))]
    """
    roles = ("unk", "cls", "sep", "pad", "mask")
    tokens = {f"{role}_token": f"[{role.upper()}]" for role in roles} | {"mask_token": mask_token}
    if vocab is None:
        vocab = {str(token): number for number, token in enumerate(tokens.values())}
    tokenizer = Tokenizer(models.BPE(vocab, merges or []))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ends = [(token, vocab[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **tokens, **options
    )


def tokenizer_of_sentencepiece(
    file: str | Path,
    config_class: type[EncoderConfig],
    max_length: int = 512,
    lowercase: bool = False,
    strip_accents: bool = False,
) -> PreTrainedTokenizerFast:
    """Make a tokenizer that cuts text as a SentencePiece file does, with the special tokens of a family.

    Ids are those of the family's published tokenizers: special tokens, then the pieces in the order of the file. Its
    own unknown, first, last and padding tokens are left out where the family has others; other control pieces stay.
    `lowercase` and `strip_accents` change the text before the steps in the file, as the code of the published ALBERT
    (both) and XLNet (accents) does.

    Raises:
        ValueError: If the packages that read the file are missing, if it is no such file, or one that the library
            tokenizers cannot follow; or for a family without a Unigram vocabulary.
    """
    if config_class.VOCABULARY_KIND != "unigram":
        raise ValueError(
            f"family {config_class.model_type!r} has no SentencePiece vocabulary: choose albert, xlm-roberta or xlnet."
        )
    proto, family_class = read_model(file), _maker(config_class)
    first, last = _special_tokens(config_class, family_class())
    trainer = proto.trainer_spec
    numbers = (trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id)
    left_out = {*first, *last, *(proto.pieces[number].piece for number in numbers if number >= 0)}
    pieces = [piece for piece in proto.pieces if piece.piece not in left_out]
    best = max((piece.score for piece in pieces if piece.type == NORMAL), default=0.0)
    scores = dict.fromkeys(first, 0.0)
    for piece in pieces:
        # A symbol of the user is so good that no other pieces are chosen instead, as in `unigram_model.cc`.
        of_user = len(piece.piece.encode()) * best - 0.1
        scores[piece.piece] = of_user if piece.type == USER_DEFINED else piece.score
    scores |= dict.fromkeys(last, 0.0)
    unknown, mask = family_class().unk_token, mask_with_its_space(family_class().mask_token)
    tokenizer = family_class(vocab=list(scores.items()), unk_id=list(scores).index(unknown), mask_token=mask)
    backend = tokenizer.backend_tokenizer
    if trainer.model_type == BPE:
        numbered = {piece: number for number, piece in enumerate(scores)}
        merges = generate_merges(numbered, {piece.piece: piece.score for piece in pieces if piece.type == NORMAL})
        options = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": trainer.byte_fallback}
        backend.model = models.BPE(numbered, merges, **options)
    elif trainer.byte_fallback:
        backend.model = models.Unigram(list(scores.items()), list(scores).index(unknown), byte_fallback=True)
    _set_steps(backend, proto, lowercase, strip_accents)
    controls = [piece.piece for piece in pieces if piece.type == CONTROL]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        padding_side=tokenizer.padding_side,
        **({"extra_special_tokens": controls} if controls else {}),  # transformers 4 reads no list, not even []
        **tokenizer.special_tokens_map,
    )


def _set_steps(backend: Tokenizer, proto: Any, lowercase: bool, strip_accents: bool) -> None:
    """Prepare text as the file says: characters are replaced, spaces removed, and words marked."""
    spec, trainer = proto.normalizer_spec, proto.trainer_spec
    steps: list[normalizers.Normalizer] = [normalizers.NFKD(), normalizers.StripAccents()] if strip_accents else []
    steps += [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    metaspace = {"replacement": SPACE, "prepend_scheme": "always" if spec.add_dummy_prefix else "never"}
    if spec.remove_extra_whitespaces:
        ends = r" +\z" if spec.add_dummy_prefix else r"\A +| +\z"  # Metaspace takes a first space for the mark
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(ends), "")]
    elif spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
        metaspace["prepend_scheme"] = "never"
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(**metaspace, split=trainer.split_by_whitespace)
    decoder = decoders.Metaspace(**metaspace)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoder]) if trainer.byte_fallback else decoder


def read_model(file: str | Path) -> Any:
    """Return the content of a SentencePiece file, a `ModelProto`; raises as `tokenizer_of_sentencepiece`."""
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ValueError(
            f"{file}: to read a SentencePiece file, pip install 'hf_encoders[sentencepiece]' ({error})."
        ) from error
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(Path(file).read_bytes())
    except DecodeError:
        proto.Clear()
    if not proto.pieces:
        raise ValueError(f"{file} is not a SentencePiece model: give the .model file that sentencepiece wrote.")
    trainer = proto.trainer_spec
    user_defined = any(piece.type == USER_DEFINED for piece in proto.pieces)
    for cannot, what in (
        (trainer.model_type not in (UNIGRAM, BPE), "cuts text into characters or words"),
        (trainer.model_type == BPE and user_defined, "is a BPE model with user-defined symbols"),
        (trainer.treat_whitespace_as_suffix, "marks the ends of words (treat_whitespace_as_suffix)"),
    ):
        if cannot:
            raise ValueError(
                f"{file} {what}, which the library tokenizers cannot do in the same way: train a "
                "new one (hf-encoders tokenizer --input)."
            )
    return proto


def padded_vocab_size(tokenizer: PreTrainedTokenizerBase, multiple_of: int = MULTIPLE) -> int:
    """Return `vocab_size` of a configuration: the tokenizer's ids rounded up, for fast products with the vocabulary.

    The model is padded, not the tokenizer: no text gives the extra ids, and collators never sample them. They stay in
    the softmax, as in transformers' models: at first with their share of the probability, 0.0002 for 30,522 in 30,528,
    which vanishes in training, as they are never correct.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Its largest id counts, so that gaps between ids are allowed.
        multiple_of (`int`, *optional*, defaults to 64): At least 1, which pads nothing.

    >>> len(doctest_tokenizer()), padded_vocab_size(doctest_tokenizer())
    (60, 64)
    """
    check_tokenizer(tokenizer)
    if multiple_of < 1:
        raise ValueError(f"multiple_of={multiple_of}: must be at least 1, which pads nothing.")
    least = max(tokenizer.get_vocab().values()) + 1
    return -(-least // multiple_of) * multiple_of
