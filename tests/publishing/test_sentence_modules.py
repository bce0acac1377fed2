"""What sentence-transformers keeps beside an encoder goes with it: pooling, normalisation, lengths, prompts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_encoders.cli import main
from hf_encoders.publishing.export import export_checkpoint
from hf_encoders.publishing.files import published_files
from hf_encoders.publishing.publish import check_files
from tests.commands.adapt_runs import adapt, checkpoint, write_texts
from tests.corpus.test_extension import domain_lines
from tests.publishing.findings import errors


sentence_transformers = pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer  # noqa: E402


TEXTS = ["the first text, of several words and more than five tokens", "another"]
BF16_ROUNDING = 2.0**-8  # half of the last of 8 significant bits
MODULES = {"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json",
           "2_Dense/config.json", "2_Dense/model.safetensors"}  # fmt: skip


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of sentences as people publish them: no head, first token, projection, length 1, 5 tokens."""
    folder = tmp_path_factory.mktemp("embedder")
    transformer = Transformer(checkpoint(folder, "bert"), max_seq_length=5)
    width = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(width, pooling_mode="cls"), Dense(width, 3), Normalize()]
    model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", prompts={"query": "query: "})
    model.save_pretrained(str(folder / "published"))
    return folder / "published"


def check_is_whole(folder: Path, embedder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The embeddings of a folder and of what it was made from, after a check of all but the encoder's weights."""
    load = sentence_transformers.SentenceTransformer
    found, expected = (load(str(path), device="cpu") for path in (folder, embedder))
    assert [type(module) for module in found] == [Transformer, Pooling, Dense, Normalize]
    assert found.max_seq_length == 5 and found[1].pooling_mode == "cls" and found.prompts["query"] == "query: "
    torch.testing.assert_close(found[2].linear.weight.float(), expected[2].linear.weight, rtol=BF16_ROUNDING, atol=0)
    embeddings = found.encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=BF16_ROUNDING)
    assert published_files(folder) >= MODULES
    return embeddings, expected.encode(TEXTS)


@pytest.mark.parametrize(("form", "tolerance"), [("native", 1e-6), ("safetensors-bf16", 0.05)])
def test_an_export_embeds_as_before(embedder, tmp_path, form, tolerance):
    folder, _ = export_checkpoint(embedder, form, tmp_path / "exported")
    found, expected = check_is_whole(folder, embedder)
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_an_adapted_encoder_embeds_in_the_same_way(embedder, tmp_path):
    assert adapt(write_texts(tmp_path), embedder, "run") == 0
    found, expected = check_is_whole(tmp_path / "run" / "model", embedder)
    assert not np.allclose(found, expected, atol=1e-3)  # it has learned


def test_an_extended_encoder_embeds_as_before(embedder, tmp_path):
    (tmp_path / "domain.txt").write_text("\n\n".join(domain_lines()), encoding="utf-8")
    words = ["tokenizer", "--extend", str(embedder), "--input", str(tmp_path / "domain.txt"), "--add", "3"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    assert main([*words, "--output", str(tmp_path / "out"), "--overwrite"]) == 0
    found, expected = check_is_whole(tmp_path / "out", embedder)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ({"path": "", "type": "other--custom_st.Transformer"}, "it names other--custom_st.Transformer, which is not"),
        ({"path": "../1_Pooling", "type": "sentence_transformers.models.Pooling"}, "../1_Pooling/config.json is out"),
        ({"type": "sentence_transformers.models.Pooling"}, "'path'"),
        ("x", "string indices"),
    ],
)
def test_modules_of_others_are_neither_published_nor_copied(embedder, tmp_path, capsys, module, words):
    folder, exported = Path(shutil.copytree(embedder, tmp_path / "model")), tmp_path / "exported"
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules, module]))
    assert any(
        f"modules.json of {folder} cannot be used (" in text and words in text
        for text in errors(check_files(folder, folder))
    )
    export_checkpoint(folder, "native", exported)
    assert "Modules of sentence-transformers are left out: modules.json of" in capsys.readouterr().err
    assert not (exported / "modules.json").exists() and not (exported / "1_Pooling").exists()


def test_a_pickle_or_a_link_out_of_the_folder_is_not_copied(embedder, tmp_path, capsys):
    folder, exported = Path(shutil.copytree(embedder, tmp_path / "model")), tmp_path / "exported"
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    assert any("2_Dense/pytorch_model.bin is a pickle" in text for text in errors(check_files(folder, folder)))
    export_checkpoint(folder, "native", exported)
    assert "left out" in capsys.readouterr().err and not (exported / "modules.json").exists()
    (folder / "1_Pooling" / "config.json").unlink()
    (folder / "1_Pooling" / "config.json").symlink_to("/etc/hostname")
    (folder / "2_Dense" / "pytorch_model.bin").rename(folder / "2_Dense" / "model.safetensors")
    with pytest.raises(ValueError, match="1_Pooling/config.json is outside of the folder"):
        published_files(folder)
