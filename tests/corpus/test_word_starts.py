import pickle
import re

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AlbertTokenizer,
    BertTokenizer,
    ByT5Tokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_encoders import HfeAlbertConfig, HfeBertConfig, HfeRobertaConfig
from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.corpus.word_starts import ContinuationStarts, SentencePieceStarts, SpaceMarkedStarts, WordStarts


ENGLISH = [
    "The dog's owner didn't know that they're late, but I'll go on!",
    "We've seen it: I'm the 10th, and she'd ordered 1,234.5 items (or more).",
    "He said 'sun' and \"moon\" -- really? Don't ask...",
    "An e-mail to room4b costs $3.50; x2y3 is 99% done.",
    "Nobody'd believe what the other owners' dogs'll do.",
    "!'s and 'sunny days.",
]
GERMAN = [
    "Über die Brücke läuft ein größerer Hund, nicht wahr?",
    "Die Straße ist 12km lang.",
    "Schöne Grüße aus Köln!",
]
EMOJI = ["A good 😀 day!😀 Yes 👍🏽.", "🎉🎉 party at 10"]
CHINESE = ["我们在学习机器学习。你好！", "他有3本书，很好。"]
JAPANESE = ["日本語の文章です。", "カタカナも、ひらがなも。"]
THAI = ["ภาษาไทยมีสระ", "ฉันรักภาษาไทย"]
HINDI = ["हिन्दी में लिखा है", "यह एक किताब है"]
SPACED = ENGLISH + GERMAN + EMOJI
SENTENCES = (SPACED + CHINESE + JAPANESE + THAI + HINDI) * 5
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wrapped(model, trainer_class, pre_tokenizer, decoder, vocab_size: int = 330, **options) -> PreTrainedTokenizerFast:
    """A tokenizer of the tokenizers library, trained on the sentences; so few pieces that words have several."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    trainer = trainer_class(vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False, **options)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return with_special_tokens(tokenizer)


def with_special_tokens(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, SPECIAL, strict=True)))


def byte_level(pre_tokenizer) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    decoder = decoders.ByteLevel()
    return wrapped(models.BPE(), trainers.BpeTrainer, pre_tokenizer, decoder, 420, initial_alphabet=alphabet)


def split_then_bytes() -> PreTrainedTokenizerFast:
    """As newer models have it: another regular expression in a sequence, then bytes."""
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level(pre_tokenizers.Sequence([split, to_bytes]))


WORDPIECE = {
    "bert": lambda: train_tokenizer(SENTENCES, HfeBertConfig, 330, 64),
    "another_prefix": lambda: wrapped(
        models.WordPiece(unk_token="[UNK]", continuing_subword_prefix="@@"),
        trainers.WordPieceTrainer,
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece("@@"),
        continuing_subword_prefix="@@",
    ),
}
BYTE_LEVEL = {
    "roberta": lambda: train_tokenizer(SENTENCES, HfeRobertaConfig, 420, 64),
    "prefix_space": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "split_then_bytes": split_then_bytes,
}
METASPACE = {
    "albert": lambda: train_tokenizer(SENTENCES, HfeAlbertConfig, 330, 64),
    "bpe": lambda: wrapped(
        models.BPE(unk_token="[UNK]"), trainers.BpeTrainer, pre_tokenizers.Metaspace(), decoders.Metaspace()
    ),
}
SUFFIX = {
    "bpe_suffix": lambda: wrapped(
        models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"),
        trainers.BpeTrainer,
        pre_tokenizers.BertPreTokenizer(),
        decoders.BPEDecoder("</w>"),
        end_of_word_suffix="</w>",
    )
}


@pytest.fixture(scope="module")
def trained():
    """Trains each tokenizer once."""
    makers, made = {**WORDPIECE, **BYTE_LEVEL, **METASPACE, **SUFFIX}, {}

    def get(name: str) -> PreTrainedTokenizerBase:
        if name not in made:
            made[name] = makers[name]()
        return made[name]

    return get


def flat(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the texts with special tokens, one after the other, and where the texts begin."""
    rows = tokenizer(texts)["input_ids"]
    begins_text = np.concatenate([np.arange(len(row)) == 0 for row in rows])
    return np.concatenate(rows), begins_text


def word_ids_starts(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> np.ndarray:
    """Where the tokenizer says that words begin; special tokens, which have no word, are words."""
    starts = []
    for text in texts:
        words = tokenizer(text).word_ids()
        starts += [word is None or word != before for before, word in zip([None, *words], words, strict=False)]
    return np.array(starts)


def pieces_by_word(starts, tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The words, as the pieces that they consist of."""
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"])
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    words = []
    for piece, begins in zip(pieces, starts(ids, np.arange(len(ids)) == 0), strict=True):
        words = [*words, piece] if begins else [*words[:-1], words[-1] + piece]
    return words


def texts_of_words(starts, tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"])
    begins = starts(ids, np.arange(len(ids)) == 0)
    return [tokenizer.decode(word).strip() for word in np.split(ids, np.flatnonzero(begins)[1:])]


def assert_has_words_of_several_pieces(starts: np.ndarray) -> None:
    assert 0.05 < np.mean(~starts) < 0.95, "the tokenizer has too few or too many pieces a word to show anything"


@pytest.mark.parametrize("name", WORDPIECE | SUFFIX | BYTE_LEVEL)
def test_words_are_those_of_the_pre_tokenizer(trained, name):
    tokenizer = trained(name)
    # Another Chinese character may continue a word where no normalizer puts spaces around them.
    texts = SPACED + HINDI + (CHINESE if name == "bert" else [])
    if name in BYTE_LEVEL:  # but contractions that are spelled in several tokens
        texts = [text.replace("'", " ") for text in ENGLISH + GERMAN]
    expected = word_ids_starts(tokenizer, texts)
    assert_has_words_of_several_pieces(expected)
    np.testing.assert_array_equal(WordStarts(tokenizer)(*flat(tokenizer, texts)), expected)


@pytest.mark.parametrize("name", METASPACE)
def test_words_between_spaces_and_punctuation(trained, name):
    """`word_ids()` has words between spaces only; ours are parted from punctuation too, so they are a refinement."""
    tokenizer = trained(name)
    starts = WordStarts(tokenizer)
    fine, coarse = starts(*flat(tokenizer, SPACED)), word_ids_starts(tokenizer, SPACED)
    assert fine[coarse].all() and fine.sum() > coarse.sum()
    assert_has_words_of_several_pieces(fine)
    unmarked = [re.sub(r"[^\w\s]", "", text) for text in ENGLISH + GERMAN] + HINDI
    np.testing.assert_array_equal(starts(*flat(tokenizer, unmarked)), word_ids_starts(tokenizer, unmarked))
    for text in SPACED:
        encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        ids = np.array(encoded["input_ids"])
        word_begins = {word.start() for word in re.finditer(r"\w+|[^\w\s]+", text)}
        pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
        expected = [
            piece[0] == "▁" or (start in word_begins and before != "▁")
            for before, piece, (start, _) in zip([None, *pieces], pieces, encoded["offset_mapping"], strict=False)
        ]
        assert starts(ids, np.arange(len(ids)) == 0).tolist() == expected


@pytest.mark.parametrize("name", WORDPIECE | BYTE_LEVEL | METASPACE | SUFFIX)
def test_scripts_without_spaces_have_a_word_for_each_piece(trained, name):
    """Unlike `word_ids()`, which has one word for most of the text."""
    tokenizer = trained(name)
    for text in ("ภาษาไทยมีสระ", "ひらがなも", "日本語の文章"):
        words, pieces = pieces_by_word(WordStarts(tokenizer), tokenizer, text), tokenizer.tokenize(text)
        if name not in BYTE_LEVEL:  # there pieces may be parts of characters
            # A lone marker belongs to the piece after it, a vowel sign to the consonant before it.
            assert len(words) == sum(piece.lstrip("#@▁")[:1] not in ("", "ี") for piece in pieces)
        assert len(words) > 1 and "".join(words) == "".join(pieces)


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_combining_marks_stay_with_their_letters(trained, name):
    """Unlike in `word_ids()`: the GPT-2 pattern parts words at vowel signs."""
    tokenizer = trained(name)
    for text in HINDI + ["nai\u0308ve cafe\u0301s, no", "x❤\ufe0fy"]:
        expected = re.findall(r"[❤\ufe0f]+|,|[^\s,❤\ufe0f]+", text)
        assert texts_of_words(WordStarts(tokenizer), tokenizer, text) == expected
    assert word_ids_starts(tokenizer, HINDI[:1]).sum() > 6


def byte_pieces(pieces: list[str]) -> RobertaTokenizer:
    """A tokenizer with these pieces after five special tokens: piece i has id 5 + i."""
    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    return RobertaTokenizer(vocab={piece: i for i, piece in enumerate(special + pieces)}, merges=[])


def begins(starts, ids: list[int], begins_text: tuple[int, ...] = (0,)) -> list[int]:
    return starts(np.array(ids), np.isin(np.arange(len(ids)), begins_text)).astype(int).tolist()


def of_bytes(data: bytes) -> str:
    """How a byte-level tokenizer writes them."""
    alphabet = bytes_to_unicode()
    return "".join(alphabet[byte] for byte in data)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["dog", "gy", "."], [1, 0, 1]),
        ([".", "dog"], [1, 1]),
        (["Ġdog", "ĠĠ", "Ġ", "gy"], [1, 1, 1, 0]),
        (["Ġ", "(", "dog", ")", ")"], [1, 0, 1, 1, 0]),
        (["10", "th", "2"], [1, 1, 1]),
        (["dog", "'s", "Ġ'", "s"], [1, 1, 1, 1]),
        (["it", "'", ".", "'"], [1, 1, 0, 0]),
        (["dog", "Ċ", "Ċ", "dog"], [1, 1, 0, 1]),
        ([part.encode() for part in ("می", "\u200c", "خواهم", "\u0301", "a")], [1, 0, 0, 0, 0]),
        (["dog", "日".encode(), "本".encode(), "dog", "."], [1, 1, 1, 1, 1]),
        (["Ġ", "日".encode()], [1, 0]),
        # Characters in several pieces.
        (["gr", "ü".encode()[:1], "ü".encode()[1:], "n", "."], [1, 0, 0, 0, 1]),
        (["ok", "😀".encode()[:1], "😀".encode()[1:3], "😀".encode()[3:], "!", "ok"], [1, 1, 0, 0, 0, 1]),
        (["ok", "日".encode()[:2], "日".encode()[2:] + "本".encode()[:1], "本".encode()[1:], "ok"], [1, 1, 0, 0, 1]),
        (["ok", "，".encode()[:1], "，".encode()[1:], "ok"], [1, 1, 0, 1]),
        (["क".encode(), "ि".encode()[:2], "ि".encode()[2:], "क".encode()], [1, 0, 0, 0]),
    ],
)
def test_byte_level_pieces(pieces, expected):
    pieces = [piece if isinstance(piece, str) else of_bytes(piece) for piece in pieces]
    vocabulary = sorted(set(pieces))
    ids, starts = [5 + vocabulary.index(piece) for piece in pieces], WordStarts(byte_pieces(vocabulary))
    assert begins(starts, ids) == expected
    # Neither another text nor a special token before it changes anything.
    assert begins(starts, [*ids, *ids], (0, len(ids))) == expected * 2
    assert begins(starts, [2, *ids, 3, *ids]) == [1, *expected, 1, *expected]


def bert_pieces(*pieces: str) -> BertTokenizer:
    return BertTokenizer(vocab={piece: i for i, piece in enumerate([*SPECIAL, *pieces])})


def test_several_texts_and_special_tokens():
    starts = WordStarts(bert_pieces("play", "##ing"))
    pad, unknown, cls, sep, mask, play, ing = range(7)
    assert begins(starts, [cls, play, ing, ing, sep, play, ing, sep]) == [1, 1, 0, 0, 1, 1, 0, 1]
    # Texts that were cut at the front.
    assert begins(starts, [cls, ing, ing, sep, ing, ing, sep]) == [1, 1, 0, 1, 1, 0, 1]
    assert begins(starts, [play, ing, ing, play, ing], (0, 2)) == [1, 0, 1, 1, 0]
    assert begins(starts, [play, mask, ing, pad, pad, ing]) == [1, 1, 1, 1, 1, 1]
    assert begins(starts, [play, unknown, unknown, ing, play]) == [1, 1, 1, 0, 1]
    assert begins(starts, [ing, ing], ()) == [1, 0]
    assert starts(np.array([], dtype=np.int64), np.array([], dtype=bool)).shape == (0,)
    begins_text = np.array([True, False])
    assert starts(np.array([play, play], dtype=np.int32), begins_text).tolist() == [True, True]
    assert begins_text.tolist() == [True, False]


def test_prefixed_pieces_of_scripts_without_spaces():
    starts = WordStarts(bert_pieces("の", "##も", "##dog", "##ี", "##gy"))
    assert begins(starts, [5, 6, 7, 9]) == [1, 1, 1, 0]
    assert begins(starts, [5, 8, 8, 6]) == [1, 0, 0, 1]


def test_pieces_with_a_space_marker():
    pieces = ["▁dog", "gy", ".", "'t", "▁", "10", "<0xF0>", "<0x9F>", "日", "é"]
    dog, gy, stop, contraction, marker, ten, _, _, sun, accent = range(5, 15)
    special = ["[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    starts = WordStarts(AlbertTokenizer(vocab=[(piece, 0.0) for piece in special + pieces], pad_token="[PAD]"))
    assert begins(starts, [dog, gy, stop, stop, gy]) == [1, 0, 1, 0, 1]
    assert begins(starts, [dog, contraction, gy, accent]) == [1, 1, 0, 0]
    assert begins(starts, [dog, marker, gy, marker, stop, gy, ten]) == [1, 1, 0, 1, 0, 1, 0]
    assert begins(starts, [marker, sun, sun, gy]) == [1, 0, 1, 1]
    assert begins(starts, [2, dog, gy, 3, gy, dog, 1, gy]) == [1, 1, 0, 1, 1, 1, 1, 0]


def test_added_tokens_are_words():
    for tokenizer in (byte_pieces(["dog"]), bert_pieces("dog", "##gy")):
        last = len(tokenizer)
        tokenizer.add_tokens([AddedToken("newword"), AddedToken("<tag>", special=True)])
        assert begins(WordStarts(tokenizer), [5, last, 5, last + 1, 5, last, last]) == [1] * 7


@pytest.fixture
def tokenizer():
    model = models.WordLevel({token: i for i, token in enumerate([*SPECIAL, "a", "b"])}, unk_token="[UNK]")
    return with_special_tokens(Tokenizer(model))


@pytest.mark.parametrize("starts_class", [ContinuationStarts, SentencePieceStarts, SpaceMarkedStarts, WordStarts])
def test_unknown_kinds_are_refused(tokenizer, starts_class):
    with pytest.raises(ValueError, match="ByT5Tokenizer is written in Python.*mask tokens"):
        starts_class(ByT5Tokenizer())
    if starts_class is WordStarts:
        tokenizer = with_special_tokens(Tokenizer(models.Unigram([("[UNK]", 0.0), ("a", -1.0)], unk_id=0)))
    with pytest.raises(ValueError, match="finds no words for a .* model .*mask tokens"):
        starts_class(tokenizer)
    if starts_class is ContinuationStarts:  # trained ByteLevel BPE has an empty prefix
        byte_level = Tokenizer(models.BPE({"[UNK]": 0, "a": 1}, [], unk_token="[UNK]", continuing_subword_prefix=""))
        with pytest.raises(ValueError, match="finds no words for a BPE model"):
            starts_class(with_special_tokens(byte_level))


def test_words_of_the_original_albert_code():
    pieces = ["▁dog", "gy", ".", "y,", "é", "2", "'s", "<a", "日本", "GY"]
    special = ["[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    starts = SentencePieceStarts(
        AlbertTokenizer(vocab=[(piece, 0.0) for piece in special + pieces], pad_token="[PAD]")
    )
    assert begins(starts, [5, *range(6, 15)]) == [1, 0, 1, 0, 1, 1, 1, 1, 1, 0]
    assert begins(starts, [2, 6, 6, 3, 6, 6]) == [1, 1, 0, 1, 1, 0]


def test_words_of_the_original_bert_code():
    """Each piece with the prefix joins the one before, in every script; only the first of a text cannot."""
    starts = ContinuationStarts(bert_pieces("の", "##も", "##ไ", "dog", "##gy", "日"))
    pad, unknown, cls, sep, mask, no, mo, thai, dog, gy, sun = range(11)
    assert begins(starts, [no, mo, thai, mo, dog, gy, mo, sun, mo]) == [1, 0, 0, 0, 1, 0, 0, 1, 0]
    assert begins(starts, [mo, gy, dog, mo, gy], (0, 3)) == [1, 0, 1, 1, 0]
    assert begins(starts, [dog, unknown, gy, sep, gy, mask, cls]) == [1, 1, 0, 1, 0, 1, 1]


def test_words_between_space_markers():
    starts = SpaceMarkedStarts(byte_pieces(["Ġdog", "gy", ".", "Ġ", of_bytes("日".encode())]))
    # As in the original code, a piece without a space before it joins `<s>` and `</s>`.
    assert begins(starts, [2, 6, 5, 6, 7, 8, 9, 9, 3, 6, 6]) == [1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0]
    assert begins(starts, [2, 5, 3, 3, 6, 2, 6, 3], (0, 5)) == [1, 1, 1, 1, 0, 1, 0, 1]
    special = ["[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    albert = AlbertTokenizer(vocab=[(piece, 0.0) for piece in [*special, "▁dog", "."]], pad_token="[PAD]")
    assert begins(SpaceMarkedStarts(albert), [2, 5, 6, 5, 3]) == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("name", METASPACE)
def test_words_between_spaces_are_those_of_word_ids(trained, name):
    tokenizer = trained(name)
    texts = SPACED + CHINESE + THAI + HINDI
    np.testing.assert_array_equal(
        SpaceMarkedStarts(tokenizer)(*flat(tokenizer, texts)), word_ids_starts(tokenizer, texts)
    )


def test_pickles_and_is_independent_of_its_tokenizer(trained):
    starts = WordStarts(trained("albert"))
    ids, begins_text = flat(trained("albert"), SENTENCES)
    again = pickle.loads(pickle.dumps(starts))
    np.testing.assert_array_equal(again(ids, begins_text), starts(ids, begins_text))
    assert len(pickle.dumps(starts)) < 2 * len(trained("albert")) + 1000


@pytest.mark.parametrize("name", WORDPIECE | BYTE_LEVEL | METASPACE | SUFFIX)
def test_texts_do_not_depend_on_their_neighbours(trained, name):
    tokenizer = trained(name)
    starts = WordStarts(tokenizer)
    rows = [row[1:-1] if len(row) > 3 else row for row in tokenizer(SENTENCES[:16])["input_ids"]]
    begins_text = np.concatenate([np.arange(len(row)) == 0 for row in rows])
    apart = np.concatenate([starts(np.array(row), np.arange(len(row)) == 0) for row in rows])
    np.testing.assert_array_equal(starts(np.concatenate(rows), begins_text), apart)
