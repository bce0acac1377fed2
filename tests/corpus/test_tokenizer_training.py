import unicodedata

import pytest

from hf_encoders import HfeBertConfig
from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.registration import configurations


FAMILIES = configurations()
SENTENCES = ["हिन्दी में लिखा है", "Über den Fluß geht es", "ภาษาไทยมีสระ", "plain English words"] * 30


@pytest.mark.parametrize("config_class", FAMILIES)
def test_marks_of_other_languages_survive(config_class):
    tokenizer = train_tokenizer(SENTENCES, config_class, vocab_size=400, max_length=32, lowercase=False)
    for sentence in SENTENCES[:4]:
        ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        if config_class.model_type == "xlnet":  # transformers' class of it always strips them
            sentence = "".join(
                one for one in unicodedata.normalize("NFKD", sentence) if unicodedata.category(one)[0] != "M"
            )
        assert tokenizer.decode(ids).replace(" ", "") == sentence.replace(" ", "")


@pytest.mark.parametrize("config_class", FAMILIES)
def test_special_tokens_length_and_pairs(config_class):
    tokenizer = train_tokenizer(SENTENCES, config_class, vocab_size=400, max_length=32)
    ids = tokenizer("plain English words")["input_ids"]
    ids = ids[-1:] + ids[:-1] if config_class.model_type == "xlnet" else ids  # its <cls> comes last
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert tokenizer.model_max_length == 32 and len(tokenizer) <= 400
    assert None not in (tokenizer.mask_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)


def test_accents_and_case_go_where_asked(tmp_path):
    tokenizer = train_tokenizer(SENTENCES, HfeBertConfig, 400, 32, lowercase=True, strip_accents=True)
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, type(tokenizer).from_pretrained(tmp_path)):
        assert one.decode(one("Über", add_special_tokens=False)["input_ids"]) == "uber"


def test_no_text_is_refused():
    with pytest.raises(ValueError, match="the text is empty: a tokenizer needs words"):
        train_tokenizer([], HfeBertConfig, 400, 32)


def test_lone_surrogates_are_replaced():
    """JSON escapes may hold half a pair, which UTF-8 cannot encode."""
    vocabularies = [
        train_tokenizer([f"plain {character} words"] * 9, HfeBertConfig, 60, 32).get_vocab()
        for character in ("\ud83d", "\ufffd")
    ]
    assert vocabularies[0] == vocabularies[1]
