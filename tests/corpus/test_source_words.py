"""Vocabularies of several sources: each counts as much as its size to a power."""

import pytest

from hf_encoders import HfeBertConfig, HfeRobertaConfig, train_tokenizer
from hf_encoders.corpus.sampling import Sampling
from hf_encoders.corpus.word_counts import weighted_words


ENGLISH = [f"the {word} house is {word}" for word in ("red", "old", "small", "wide", "dark", "green")] * 50
SWISS = [f"s {word} huus isch {word}" for word in ("root", "alt", "chlii", "breit", "dunkel", "grüen")]
TEXTS = {"en": ENGLISH, "gsw": SWISS}


def entries(alpha, size=60, sources=TEXTS):
    return set(train_tokenizer(sources, HfeBertConfig, size, sampling_alpha=alpha).get_vocab())


def test_alpha_1_is_the_text_as_it_is():
    assert entries(1.0) == entries(1.0, sources=[*ENGLISH, *SWISS])


def test_a_lower_alpha_gives_the_small_source_more_entries():
    words = {word for line in SWISS for word in line.split()}
    assert len(words & entries(0.1)) > len(words & entries(1.0))


@pytest.mark.parametrize("kind", [HfeBertConfig, HfeRobertaConfig])
def test_the_order_of_sources_does_not_matter(kind):
    tokenizers = [
        train_tokenizer(dict(items), kind, 300, sampling_alpha=0.5).backend_tokenizer.to_str()
        for items in (TEXTS.items(), reversed(TEXTS.items()))
    ]
    assert tokenizers[0] == tokenizers[1]


def test_words_count_as_in_a_text_of_these_shares():
    """10,000 bytes and 400, to the power 0.5: five to one instead of 25 to one, so the small one counts five times."""
    words = {"en": {"a": 70, "b": 30}, "gsw": {"b": 3, "c": 1}}
    shares = Sampling(0.5).shares({"en": 10_000, "gsw": 400})
    assert shares == {"en": pytest.approx(5 / 6), "gsw": pytest.approx(1 / 6)}
    assert weighted_words(words, {"en": 10_000, "gsw": 400}, shares) == {"a": 70, "b": 30 + 15, "c": 5}


def test_wrong_sources():
    with pytest.raises(ValueError, match="source 'gsw' has no text: check its files, or leave it out"):
        train_tokenizer({"en": ENGLISH, "gsw": []}, HfeBertConfig, 100)
    with pytest.raises(ValueError, match="sampling_alpha=0.5 is for several sources"):
        train_tokenizer(ENGLISH, HfeBertConfig, 100, sampling_alpha=0.5)
    with pytest.raises(ValueError, match=r"alpha=2 must be in \(0, 1\]"):
        train_tokenizer(TEXTS, HfeBertConfig, 100, sampling_alpha=2)
