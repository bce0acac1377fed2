"""`encode_sentences` gives what `SentenceTransformer.encode` gives; and its own packing for flash attention works."""

from pathlib import Path

import pytest
import torch

from hf_encoders import encode, encode_sentences
from tests.evaluation.models import SENTENCES
from tests.hub.tiny_checkpoints import BERT, ROBERTA, Family, make_model, make_tokenizer, save_checkpoint


sentence_transformers = pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer  # noqa: E402


TEXTS = [*SENTENCES, "cat and " * 30]  # the last one is truncated
each_family = pytest.mark.parametrize("family", [BERT, ROBERTA], ids=lambda family: family.name)


def make_sentence_transformer(
    family: Family, folder: Path, *modules: torch.nn.Module
) -> "sentence_transformers.SentenceTransformer":
    """As loaded with `trust_remote_code=True`, but with the class of this process."""
    model = make_model(family, "AutoModel")
    save_checkpoint(model, family, folder)
    transformer = Transformer(str(folder))
    transformer.model = model
    transformer.max_seq_length = 20
    return sentence_transformers.SentenceTransformer(modules=[transformer, *modules], device="cpu")


def assert_equal(model: "sentence_transformers.SentenceTransformer") -> torch.Tensor:
    expected = model.encode(TEXTS, batch_size=3, convert_to_tensor=True, show_progress_bar=False)
    found = encode_sentences(model, TEXTS, max_tokens=30)
    assert len(torch.unique(expected, dim=0)) >= len(TEXTS) - 1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    return found


@each_family
def test_the_same_embeddings(family: Family, tmp_path: Path) -> None:
    torch.manual_seed(1)
    pooling = Pooling(36, pooling_mode=("cls", "mean"))
    found = assert_equal(make_sentence_transformer(family, tmp_path, pooling, Dense(72, 5), Normalize()))
    assert found.shape == (len(TEXTS), 5) and found.dtype == torch.float32
    model = make_sentence_transformer(family, tmp_path, Pooling(36, pooling_mode="mean"))
    own = encode(model[0].auto_model, make_tokenizer(family), TEXTS, max_length=20)
    torch.testing.assert_close(assert_equal(model), own, atol=1e-6, rtol=1e-6)


@each_family
def test_their_packed_rows_for_flash_attention(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sentence-transformers packs by itself where flash attention is; here it only believes that it is."""
    model = make_sentence_transformer(family, tmp_path, Pooling(36, pooling_mode="mean"))
    expected = model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    monkeypatch.setattr(Transformer, "_is_flash_attention_requested", lambda self: True)
    function = "transformers.modeling_flash_attention_utils.lazy_import_flash_attention"
    monkeypatch.setattr(function, lambda name: ((None, print), None))
    model[0].unpad_inputs = True
    rows = []
    model[0].register_forward_pre_hook(lambda module, args: rows.append(dict(args[0])))
    found = model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    assert rows[0].keys() >= {"cu_seq_lens_q", "position_ids", "seq_idx"} and rows[0]["input_ids"].shape[0] == 1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_embeddings_are_truncated_as_the_model_says(tmp_path: Path) -> None:
    model = make_sentence_transformer(BERT, tmp_path, Pooling(36))
    model.truncate_dim = 7
    assert assert_equal(model).shape == (len(TEXTS), 7)


def test_wrong_input_is_a_value_error(tmp_path: Path) -> None:
    def refused(message: str, model: object, texts: list[str] = TEXTS, **options: int) -> None:
        with pytest.raises(ValueError, match=message):
            encode_sentences(model, texts, **options)

    refused("no module after", make_sentence_transformer(BERT, tmp_path))
    refused("Normalize after.*Pooling", make_sentence_transformer(BERT, tmp_path, Normalize(), Pooling(36)))
    model = make_sentence_transformer(BERT, tmp_path, Pooling(36))
    model.max_seq_length = 2
    refused("max_length=2: must be from 3", model)
    model.max_seq_length = None
    refused("HfeBertModel: give a SentenceTransformer", model[0].auto_model)
    refused("texts is empty", model, [])
    refused("max_tokens=0", model, max_tokens=0)
    model.prompts, model.default_prompt_name = {"query": "the"}, "query"
    refused("default_prompt_name='query'", model)
    stock = sentence_transformers.SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(36)], device="cpu")
    refused("BertModel: give a model of this package", stock)
