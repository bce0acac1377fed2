"""A tokenizer made of a SentencePiece file cuts text into the pieces that sentencepiece itself gives."""

import inspect
import io
import pydoc_data.topics
import unittest.mock

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from hf_encoders.cli import main
from hf_encoders.corpus.tokenizer_training import tokenizer_of_sentencepiece
from hf_encoders.registration import config_class_of
from hf_encoders.tokenizer_loading import load_tokenizer


spm = pytest.importorskip("sentencepiece", reason="pip install 'hf_encoders[sentencepiece]'")

TOPICS = "\n".join(pydoc_data.topics.topics.values()).splitlines()
LINES = [line for line in TOPICS if len(set(line)) > 4][::4]
LINES += [
    "Die Übung läuft, und die Straße ist naß.",
    "弁を点検した。ポンプは停止した。",
    "Насос остановлен: клапан закрыт.",
] * 9
EDGES = [
    "",
    "  two  spaces ",
    "a\ttab\nand a line",
    "ﬁne Ｔｅｓｔ ½ ㎏ Å é",
    "हिन्दी में पाठ",
    "👩‍👩‍👧 \u2028 end\u205f",
    "\ufffd x",
]
CHARACTERS = [
    "".join(f"a{chr(code)}b {chr(code)} " for code in range(start, start + 64)) for start in range(32, 0xD7A0, 64)
]
TEXTS = [*LINES, *EDGES, *CHARACTERS, inspect.getsource(unittest.mock)[:10_000]]
FILES = {
    "plain": {},
    "folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "identity": {"normalization_rule_name": "identity"},
    "bytes": {"byte_fallback": True},
    "no prefix": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False},
    "across spaces": {"split_by_whitespace": False},
    "controls": {"control_symbols": ["[CLS]", "[SEP]", "[MASK]", "<title>"], "pad_id": 3},
    "user": {"user_defined_symbols": ["<url>", "7"]},
}


def trained(folder, kind="unigram", **options):
    written = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=written, vocab_size=800, model_type=kind, minloglevel=2,
        hard_vocab_limit=False, **options,
    )  # fmt: skip
    (folder / "some.model").write_bytes(written.getvalue())
    return folder / "some.model"


def pieces(model, text, unknown):
    return [unknown if model.is_unknown(number) else model.id_to_piece(number) for number in model.encode(text)]


def assert_cuts_as(model, tokenizer, texts=TEXTS):
    """The same pieces; or others of the same score, which sentencepiece adds up in float32 (5|55 and 55|5)."""
    ties = 0
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        made, expected = tokenizer.convert_ids_to_tokens(ids), pieces(model, text, tokenizer.unk_token)
        if made != expected:
            assert "".join(made) == "".join(expected), text[:80]
            scores = [sum(model.get_score(model.piece_to_id(piece)) for piece in cut) for cut in (made, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-6), text[:80]
            ties += 1
    assert ties <= 0.01 * len(texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, "bpe: plain", "bpe: bytes", "bpe: no prefix"])
def test_pieces_are_those_of_sentencepiece(name, tmp_path):
    kind, name = name.split(": ") if ": " in name else ("unigram", name)
    file = trained(tmp_path, kind, **FILES[name])
    model = spm.SentencePieceProcessor(model_file=str(file))
    texts = TEXTS if name == "plain" else [*EDGES, *TEXTS[::4]]
    assert_cuts_as(model, tokenizer_of_sentencepiece(file, config_class_of("albert")), texts)


def convert(file, *words) -> int:
    return main(["tokenizer", "--from-sentencepiece", *map(str, (file, *words))])


@pytest.mark.parametrize("family", ["albert", "xlm-roberta", "xlnet"])
def test_the_command_writes_a_tokenizer_that_everybody_reads(family, tmp_path, capsys):
    file = trained(tmp_path)
    words = [file, "--family", family, "--output", tmp_path / "out"]
    assert convert(*words, "--max-length", 64) == 0
    assert "entries; a model's vocab_size: " in capsys.readouterr().out
    model, config_class = spm.SentencePieceProcessor(model_file=str(file)), config_class_of(family)
    backend = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for tokenizer in (load_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")):
        assert_cuts_as(model, tokenizer, TEXTS[::9])
        assert tokenizer(*TEXTS[:2]).input_ids == backend.encode(*TEXTS[:2]).ids
        assert tokenizer.model_max_length == 64
        for number, role in enumerate(config_class.FIRST_SPECIAL_TOKENS):
            token = role if role.startswith("<") else getattr(tokenizer, f"{role}_token")
            assert tokenizer.convert_tokens_to_ids(token) == number
        if config_class.LAST_SPECIAL_TOKENS:
            assert tokenizer.mask_token_id == len(tokenizer) - 1
        rest = [model.id_to_piece(number) for number in range(3, len(model))]  # 0 to 2: unknown, first, last
        first = len(config_class.FIRST_SPECIAL_TOKENS)
        assert tokenizer.convert_ids_to_tokens(list(range(first, first + len(rest)))) == rest
    assert convert(*words) == 2
    assert "holds a tokenizer" in capsys.readouterr().err


def test_control_pieces_and_special_tokens_of_the_file_stay_where_they_are(tmp_path):
    file = trained(
        tmp_path, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]", "<title>"]
    )
    model = spm.SentencePieceProcessor(model_file=str(file))
    tokenizer = tokenizer_of_sentencepiece(file, config_class_of("albert"))
    assert tokenizer.convert_ids_to_tokens(list(range(len(model)))) == [
        model.id_to_piece(n) for n in range(len(model))
    ]
    assert "<title>" in tokenizer.all_special_tokens


def test_case_and_accents(tmp_path):
    file = trained(tmp_path)
    tokenizer = tokenizer_of_sentencepiece(file, config_class_of("albert"), lowercase=True, strip_accents=True)
    assert tokenizer("Die ÜBUNG").input_ids == tokenizer("die ubung").input_ids


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("char", {}, "some.model cuts text into characters or words"),
        ("bpe", FILES["user"], "BPE model with user-defined symbols"),
    ],
)
def test_models_of_other_kinds_are_refused(kind, options, message, tmp_path, capsys):
    assert convert(trained(tmp_path, kind, **options), "--kind", "unigram", "--output", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("tokenizer*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--family", "bert"], "family 'bert' has no SentencePiece vocabulary"),
        (["--family", "albert", "--vocab-size", "9"], "--vocab-size has no effect with --from-sentencepiece"),
        (["--family", "albert", "--limit", "1"], "--limit has no effect with --from-sentencepiece"),
        (["--family", "albert"], "a.model is not a SentencePiece model"),
        (["--extend", "nowhere"], "--from-sentencepiece reads none"),
    ],
)
def test_wrong_input(words, message, tmp_path, capsys):
    (tmp_path / "a.model").write_bytes(b"nothing")
    assert convert(tmp_path / "a.model", *words, "--output", tmp_path / "o") == 2
    assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="a.model' is a bare SentencePiece model: .*--from-sentencepiece"):
        load_tokenizer(tmp_path / "a.model", "--tokenizer")
