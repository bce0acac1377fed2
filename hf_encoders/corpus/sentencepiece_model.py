"""Make the tokenizer of a family from the pieces of a SentencePiece file, such as `spiece.model`."""

from pathlib import Path
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges

from hf_encoders.corpus.tokenizer_training import mask_with_its_space, special_token
from hf_encoders.models.encoder_configuration import EncoderConfig


SPACE = "▁"  # U+2581
UNIGRAM, BPE = 1, 2  # `TrainerSpec.ModelType` of sentencepiece_model.proto
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # `SentencePiece.Type`


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

    Args:
        file (`str` or `Path`): A Unigram or BPE model that the package sentencepiece has trained.
        config_class (`type[EncoderConfig]`): Configuration class of a family with a Unigram vocabulary.
        max_length (`int`, *optional*, defaults to 512): Longest sequence in tokens, saved as `model_max_length`.
        lowercase, strip_accents (`bool`, *optional*): Whether to change the text so before the steps in the file, as
            the code of the published ALBERT (both) and XLNet (accents) does; sentencepiece alone does neither.

    Raises:
        ValueError: If the packages that read the file are missing, if it is no such file, or one that the library
            tokenizers cannot follow.
    """
    if config_class.VOCABULARY_KIND != "unigram":
        raise ValueError(
            f"family {config_class.model_type!r} has no SentencePiece vocabulary: choose albert, xlm-roberta or xlnet."
        )
    proto = read_model(file)
    family_class = getattr(transformers, config_class.TOKENIZER_CLASS)
    ends = config_class.FIRST_SPECIAL_TOKENS, config_class.LAST_SPECIAL_TOKENS
    first, last = ([special_token(family_class(), role) for role in roles] for roles in ends)
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
    """Return the content of a SentencePiece file, a `ModelProto`.

    Raises:
        ValueError: As `tokenizer_of_sentencepiece`.
    """
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
