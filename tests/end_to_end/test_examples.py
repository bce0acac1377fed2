"""Every example runs as its first lines say, for two steps."""

import contextlib
import io
import itertools
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import transformers
import yaml

from hf_encoders import (
    HfeDebertaV2Config,
    HfeDebertaV2ForMaskedLM,
    HfeDebertaV2ForPreTraining,
    HfeModernBertConfig,
    HfeModernBertForMaskedLM,
    ReplacedTokenDetectionModel,
)
from hf_encoders.cli import main
from hf_encoders.corpus.tokenizer_training import byte_bpe_tokenizer, train_tokenizer


EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: str) -> str:
    """What an example writes, run in this process as a script is."""
    output = io.StringIO()
    with mock.patch.object(sys, "argv", [str(EXAMPLES / name), *arguments]), contextlib.redirect_stdout(output):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return output.getvalue()


TINY = ("--vocab_size", "500", "--hidden_size", "64", "--max_length", "24", "--use_cpu", "True")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    assert "eval_loss" in run_example("pretrain_bert.py", "--output_dir", str(folder), "--max_steps", "2", *TINY)
    return folder


@pytest.mark.processes
def test_an_example_is_a_script(tmp_path):
    """Started as its first lines say; the others run in this process."""
    command = [sys.executable, str(EXAMPLES / "pretrain_bert.py"), "--output_dir", str(tmp_path), "--max_steps", "1"]
    done = subprocess.run([*command, *TINY], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert "eval_loss" in done.stdout


@pytest.mark.parametrize("name", ["pretrain_roberta.py", "pretrain_albert.py"])
def test_pretraining_from_files(name, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"This is document {i}. It has two sentences.\nAnd one more line." for i in range(60)))
    output = run_example(
        name, "--text_files", str(text), "--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--vocab_size",
        "300", "--hidden_size", "64", "--max_length", "64", "--use_cpu", "True",
    )  # fmt: skip
    assert "eval_loss" in output
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }


@pytest.mark.slow
def test_a_generator_and_a_discriminator(tmp_path):
    output = run_example("pretrain_electra.py", "--output_dir", str(tmp_path / "out"), "--max_steps", "2", *TINY)
    assert "eval_mlm_loss" in output and "eval_rtd_accuracy" in output and "eval_rtd_label_1_share" in output
    for folder in (tmp_path / "out", tmp_path / "out" / "generator"):
        assert {"model.safetensors", "config.json", "modeling_electra.py"} <= {path.name for path in folder.iterdir()}
    assert "ElectraForPreTraining" in (tmp_path / "out" / "config.json").read_text()


@pytest.mark.slow
def test_tokens_in_a_random_order(tmp_path):
    output = run_example("pretrain_xlnet.py", "--output_dir", str(tmp_path / "out"), "--max_steps", "2", *TINY)
    assert "predicted tokens" in output
    assert "XLNetLMHeadModel" in (tmp_path / "out" / "config.json").read_text()


@pytest.mark.slow
def test_a_student_of_a_teacher_made_here(tmp_path):
    output = run_example(
        "distil_bert.py", "--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--hidden_size", "64",
        "--vocab_size", "500", "--max_length", "24", "--use_cpu", "True",
    )  # fmt: skip
    assert "eval_ce_loss" in output and "eval_cos_loss" in output
    assert "DistilBertForMaskedLM" in (tmp_path / "out" / "config.json").read_text()


def test_macbert_on_text_that_it_makes_up(tmp_path):
    output = run_example(
        "pretrain_macbert.py", "--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--hidden_size", "64",
        "--max_length", "64", "--use_cpu", "True",
    )  # fmt: skip
    assert "SimilarWords(28 words, 22 with similar ones" in output and "eval_loss" in output
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_pretraining_on_two_languages(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"line {i} is here\tZeile {i} ist da\n" for i in range(60)), encoding="utf-8")
    output = run_example(
        "pretrain_multilingual.py", "--pairs_file", str(pairs), "--languages", "en", "de", "--output_dir",
        str(tmp_path / "out"), "--max_steps", "2", "--use_cpu", "True",
    )  # fmt: skip
    assert "eval_alone_loss" in output and "eval_translated_loss" in output
    assert json.loads((tmp_path / "out" / "config.json").read_text())["lang2id"] == {"en": 0, "de": 1}


@pytest.mark.slow
def test_fine_tuning_what_was_pretrained(pretrained, tmp_path):
    rows = [
        ("the cat sat on the mat", "animal"),
        ("a dog barked at night", "animal"),
        ("two plus two is four", "number"),
    ]
    csv = tmp_path / "data.csv"
    csv.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows * 8))
    output = run_example(
        "finetune_classification.py", "--model", str(pretrained), "--train_file", str(csv), "--test_file", str(csv),
        "--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--use_cpu", "True",
    )  # fmt: skip
    assert "eval_accuracy" in output


def test_several_layers_of_what_was_pretrained(pretrained, tmp_path):
    rows = "".join(f'{{"tokens": ["a", "cat", "sat"], "ner_tags": ["O", "B-{tag}", "O"]}}\n' for tag in "XY" * 8)
    (tmp_path / "data.jsonl").write_text(rows)
    output = run_example(
        "combine_layers.py", "--model", str(pretrained), "--train_file", str(tmp_path / "data.jsonl"), "--test_file",
        str(tmp_path / "data.jsonl"), "--weighted", "True", "--output_dir", str(tmp_path / "out"), "--max_steps", "2",
        "--max_length", "20", "--use_cpu", "True",
    )  # fmt: skip
    assert "eval_overall_f1" in output


@pytest.mark.parametrize("given", ["--train_file", "--test_file"])
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("finetune_*.py")), ids=lambda path: path.name)
def test_one_file_without_the_other_is_refused(path, given, tmp_path, monkeypatch):
    arguments = ["--model", "gone", given, "gone.csv", "--output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [path.name, *arguments])
    with pytest.raises(ValueError, match="--train_file and --test_file go together: give both, or neither"):
        runpy.run_path(str(path))["main"]()


@pytest.mark.slow
def test_what_sentence_pairs_teach(tmp_path):
    text = tmp_path / "text.txt"
    # The longer sentence first and second: otherwise the lengths would tell the order, and no pair had a label.
    kinds = ("This is line {} of {}. It has two.", "It has two. This is line {} of {}.")
    text.write_text("\n\n".join("\n".join(kinds[i % 2].format(j, i) for j in (1, 2)) for i in range(60)))
    output = run_example(
        "sentence_pair_objectives.py", "--text_files", str(text), "--output_dir", str(tmp_path / "out"),
        "--max_steps", "2", "--vocab_size", "90", "--max_length", "64", "--use_cpu", "True",
    )  # fmt: skip
    assert "sop_probe" in output
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert set(figures) == {"untrained", "mlm", "nsp", "sop"}
    assert {"table.md", "curves.png"} <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.slow
def test_a_retriever_is_made_and_evaluated(pretrained, tmp_path):
    pytest.importorskip("sentence_transformers")
    parts = {}
    for part, number in (("train", 24), ("test", 8)):
        parts[part] = tmp_path / f"{part}.csv"
        rows = [f"what is number {i},the text of number {i} is here" for i in range(number)]
        parts[part].write_text("\n".join(["query,document", *rows]))
    output = run_example(
        "retriever.py", "--model", str(pretrained), "--train_file", str(parts["train"]), "--test_file",
        str(parts["test"]), "--output_dir", str(tmp_path / "out"), "--max_steps", "2", "--use_cpu", "True",
    )  # fmt: skip
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert figures["pairs"] == [24, 8] and all(0 <= figures[f"nDCG@10 {when}"] <= 1 for when in ("before", "after"))
    assert "nDCG@10 after" in output and (tmp_path / "out" / "modules.json").exists()


COMPARISONS = {
    "input_formats.py": ("--max_steps", "2", "--vocab_size", "90", "--tokens_per_step", "128"),
    "static_and_dynamic_masking.py": ("--max_steps", "2", "--vocab_size", "90", "--seeds", "2"),
    "batch_size_at_equal_tokens.py": (
        "--examples", "8", "--batch_sizes", "2", "4", "--learning_rates", "1e-3", "2e-3", "--vocab_size", "90",
    ),
    "vocabulary_size.py": ("--max_steps", "2", "--vocab_sizes", "270", "280", "--eval_sentences", "3"),
    "albert_parameters.py": ("--max_steps", "2", "--vocab_size", "60", "--embedding_sizes", "8", "16"),
}  # fmt: skip
VARIANTS = {
    "input_formats.py": ["SEGMENT-PAIR, NSP", "SENTENCE-PAIR, NSP", "FULL-SENTENCES", "DOC-SENTENCES"],
    "static_and_dynamic_masking.py": ["static, one draw", "static, 10 draws", "dynamic"],
    "batch_size_at_equal_tokens.py": [f"{size} examples, {rate}" for size in (2, 4) for rate in (0.001, 0.002)],
    "vocabulary_size.py": ["270 entries", "280 entries"],
    "albert_parameters.py": [
        "E = 8, shared: all",
        "E = 8, shared: nothing",
        *(f"E = 16, shared: {part}" for part in ("all", "attention", "feed-forward", "nothing")),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_write_a_table_and_a_picture(name, tmp_path):
    text = tmp_path / "text.txt"
    line = "This is line {} of {}. It has two sentences."
    text.write_text("\n\n".join(f"{line.format(1, i)}\n{line.format(2, i)}" for i in range(40)))
    output = run_example(
        name, *COMPARISONS[name], "--text_files", str(text), "--output_dir", str(tmp_path / "out"), "--max_length",
        "64", "--use_cpu", "True", "--logging_steps", "1",
    )  # fmt: skip
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert list(figures) == VARIANTS[name]
    assert {len(repetitions) for repetitions in figures.values()} == {2 if "--seeds" in COMPARISONS[name] else 1}
    table = (tmp_path / "out" / "table.md").read_text()
    assert len(table.splitlines()) == 2 + len(figures) and table.strip() in output
    assert (tmp_path / "out" / "curves.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_import_this_package_before_torch_which_reads_how_threads_wait(path):
    packages = re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    assert not {"torch", "transformers"} & {*packages[: packages.index("hf_encoders")]}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short_and_say_how_to_run_them(path):
    text = path.read_text()
    assert 60 <= len(text.splitlines()) <= 140
    assert f"python examples/{path.name}" in text


def test_a_published_pair_of_deberta_becomes_a_folder_that_trains_on(tmp_path):
    """Files of weights as on the Hub: both heads in the discriminator's, positions for its generator in both."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 4}
    config = HfeDebertaV2Config(**sizes, num_attention_heads=2, initializer_range=0.3)
    discriminator = HfeDebertaV2ForPreTraining(config).eval()
    generator = HfeDebertaV2ForMaskedLM(config.generator_config()).eval()
    both = {name: value for name, value in generator.state_dict().items() if "lm_head" in name or "position" in name}
    torch.save({**both, **discriminator.state_dict()}, tmp_path / "pytorch_model.bin")
    torch.save(generator.state_dict(), tmp_path / "pytorch_model.generator.bin")
    published = {name: value for name, value in config.to_dict().items() if name not in ("legacy", "auto_map")}
    (tmp_path / "config.json").write_text(json.dumps(published))
    tokenizer = train_tokenizer(["some words", "of a text"] * 9, HfeDebertaV2Config, 40)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments = ["--discriminator", "pytorch_model.bin", "--generator", "pytorch_model.generator.bin"]
    arguments += ["--config", "config.json", "--tokenizer", "tokenizer"]
    arguments = [value if value.startswith("--") else str(tmp_path / value) for value in arguments]
    output = run_example("convert_deberta.py", *arguments, "--output_dir", str(tmp_path / "out"))
    assert "4 layers, and 2 of the generator" in output
    pair = ReplacedTokenDetectionModel.from_pretrained(tmp_path / "out")
    ids = torch.arange(5, 25)[None]
    assert torch.equal(pair.generator(ids).logits, generator(ids).logits)
    torch.testing.assert_close(pair.discriminator(ids).logits, discriminator(ids).logits)
    stock = transformers.DebertaV2Model.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(stock(ids).last_hidden_state, discriminator.deberta(ids).last_hidden_state)

    (tmp_path / "text").mkdir()
    documents = [" ".join(words) + "." for words in itertools.permutations(["some", "words", "of", "a", "text"])]
    (tmp_path / "text" / "text.txt").write_text("\n\n".join(documents))
    options = ["--objective", "rtd", "--max-steps", "2", "--use-cpu", "True", "--output", str(tmp_path / "adapted")]
    options += ["--max-length", "520"]  # of which the generator's table has 512
    assert main(["adapt", str(tmp_path / "out"), "--corpus", str(tmp_path / "text"), *options]) == 0
    adapted = ReplacedTokenDetectionModel.from_pretrained(tmp_path / "adapted" / "model")
    assert adapted.generator.config.num_hidden_layers == 2
    assert adapted.generator.deberta.embeddings.position_embeddings.num_embeddings == 520
    words, before = (each.generator.get_input_embeddings().weight for each in (adapted, pair))
    assert not torch.equal(words, before) and torch.allclose(words, before, atol=0.01)

    torch.save({"deberta": SimpleNamespace()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds more than tensors"):
        run_example("convert_deberta.py", *arguments, "--output_dir", str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("composer", [True, False])
@pytest.mark.parametrize("local_theta", [-1, 10000.0])
def test_a_checkpoint_of_flexbert_becomes_a_folder_with_the_same_outputs(composer, local_theta, tmp_path):
    """From FlexBERT's names; a file with pickled objects is refused without running them."""
    tokenizer = byte_bpe_tokenizer()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 12,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
    }
    theta = 160000.0 if local_theta == -1 else local_theta
    model = HfeModernBertForMaskedLM(HfeModernBertConfig(**sizes, local_attention=4, local_rope_theta=theta)).eval()
    names = {name: re.sub("^model[.]layers[.]", "bert.encoder.layers.", name) for name in model.state_dict()}
    names = {name: re.sub("^model[.]", "bert.", other) for name, other in names.items()}
    state = {f"model.{names[name]}" if composer else names[name]: value for name, value in model.state_dict().items()}
    file, yaml_file = tmp_path / "weights.pt", tmp_path / "run.yaml"
    torch.save({"state": {"model": state}} if composer else state, file)
    fields = {**sizes, "sliding_window": 4, "rotary_emb_base": 160000.0, "local_attn_rotary_emb_base": local_theta}
    fields |= {"attn_out_dropout_prob": 0.1, "bert_layer": "prenorm", "norm_kwargs": {"eps": 1e-5, "bias": False}}
    yaml_file.write_text(yaml.safe_dump({"model": {"model_config": fields}, "max_seq_len": 32}))
    arguments = ["--checkpoint", str(file), "--yaml", str(yaml_file), "--tokenizer", str(tmp_path / "tokenizer")]
    run_example("convert_flexbert.py", *arguments, "--output_dir", str(tmp_path / "out"))
    loaded = HfeModernBertForMaskedLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(5, 25)[None]
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.config.attention_output_dropout == 0.1 and loaded.config.max_position_embeddings == 32
    torch.save({"state": {"model": state, "rng": SimpleNamespace()}}, file)
    with pytest.raises(ValueError, match="holds more than tensors"):
        run_example("convert_flexbert.py", *arguments, "--output_dir", str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()
