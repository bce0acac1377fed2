"""`hf-encoders distil`: a teacher and text in, a student that loads anywhere out; the same when resumed."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file

from hf_encoders import (
    HfeBertForMaskedLM,
    HfeBertModel,
    HfeDistilBertForMaskedLM,
    HfeElectraConfig,
    HfeElectraModel,
    HfeXLNetConfig,
    fingerprint,
    prepare_corpus,
)
from hf_encoders.cli import main
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs.recipe import load_recipe
from hf_encoders.tokenizer_loading import load_tokenizer
from tests.commands.pretrain_runs import same_weights, stopped_after
from tests.corpus.corpora import write_corpus


TEACHER = {
    "family": "bert",
    "objective": "mlm",
    "model": {"num_hidden_layers": 4, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20},
    "tokenizer": {"vocab_size": 150},
    "phases": [{"steps": 2, "length": 24, "examples": 6}],
    "training": {"learning_rate": 0.01},
}
STUDENT = {
    "family": "distilbert",
    "objective": "distillation",
    "model": {},
    "tokenizer": {"vocab_size": 150},
    "masking": {"preset": "DISTILBERT_MASKING"},
    "phases": [{"steps": 3, "length": 20, "examples": 6}, {"steps": 1, "length": 24, "examples": 3}],
    "training": {"learning_rate": 0.01},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher, and a finished student with all its checkpoints."""
    folder = tmp_path_factory.mktemp("distil")
    for name, recipe in (("teacher", TEACHER), ("student", STUDENT)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    write_corpus(folder / "text.txt", 60, "alpha")
    words = [str(folder / "teacher.yaml"), "--corpus", str(folder / "text.txt"), "--output", str(folder / "run")]
    assert main(["pretrain", *words, "--disable_tqdm", "True"]) == 0
    assert distil(folder, "whole") == 0
    return folder


def distil(folder: Path, output: str, *words: str, teacher: str = "run/model", recipe: str = "student.yaml") -> int:
    given = ["--recipe", str(folder / recipe), "--corpus", str(folder / "text.txt"), "--output", str(folder / output)]
    options = ["--validation-share", "0.2", "--save_steps", "2", "--disable_tqdm", "True"]
    return main(["distil", str(folder / teacher), *given, *options, *words])


@pytest.mark.slow
def test_a_teacher_goes_in_and_a_recorded_student_comes_out(folder: Path) -> None:
    model = folder / "whole" / "model"
    stock = transformers.AutoModelForMaskedLM.from_pretrained(model, trust_remote_code=False)
    assert type(stock) is transformers.DistilBertForMaskedLM and stock.config.n_layers == 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    assert set(tokenizer("alpha", "saw")) == {"input_ids", "attention_mask"}  # a BERT's, without token types
    teacher = HfeBertForMaskedLM.from_pretrained(folder / "run" / "model")
    recorded = TrainingRecord.load(model).objectives["distillation"]
    assert f"from run (a local folder) (weights {fingerprint(teacher)}), initialised from its layers 0 3" in recorded
    assert "5 x soft targets of predicted tokens at temperature 2" in recorded
    card = (model / "README.md").read_text()
    assert fingerprint(teacher) in card and str(folder) not in card
    assert not list(model.glob("modeling_bert.py"))
    checkpoint = load_file(folder / "whole" / "checkpoint-2" / "model.safetensors")
    assert all(name.startswith(("distilbert.", "vocab_")) for name in checkpoint)
    log = json.loads((folder / "whole" / "trainer_state.json").read_text())["log_history"]
    assert {"ce_loss", "mlm_loss", "cos_loss", "mlm_accuracy"} <= log[0].keys()
    entry = next(entry for entry in log if "eval_loss" in entry)
    total = 5 * entry["eval_ce_loss"] + 2 * entry["eval_mlm_loss"] + entry["eval_cos_loss"]
    assert entry["eval_loss"] == pytest.approx(total) and entry["eval_perplexity"] == pytest.approx(
        torch.tensor(entry["eval_mlm_loss"]).exp().item(), rel=1e-4
    )


def test_an_interrupted_run_ends_with_the_same_weights(folder: Path, capsys: pytest.CaptureFixture) -> None:
    """With a teacher of the same weights in another place."""
    shutil.copytree(folder / "run" / "model", folder / "moved")
    stopped_after(folder, "whole", "again", 2)
    assert distil(folder, "again", teacher="moved") == 0
    assert re.search(r"Resuming from .*again/checkpoint-2", capsys.readouterr().out)
    assert same_weights(folder, "whole", "again")


def test_a_resumed_run_keeps_teacher_layers_and_losses(folder: Path, capsys: pytest.CaptureFixture) -> None:
    teacher = HfeBertForMaskedLM.from_pretrained(folder / "run" / "model")
    torch.nn.init.normal_(teacher.bert.embeddings.LayerNorm.bias)
    teacher.save_pretrained(folder / "changed")
    load_tokenizer(folder / "run" / "model").save_pretrained(folder / "changed")
    for name, words in (
        ("changed", ()),
        ("run/model", ("--layers", "0", "2")),
        ("run/model", ("--loss-weights", "1", "1", "1")),
    ):
        assert distil(folder, "whole", *words, teacher=name) == 2
        assert re.search("holds a run with another (distillation|recipe)", capsys.readouterr().err)


def test_layers_and_losses_of_the_command_line(folder: Path) -> None:
    words = ["--layers", "3", "1", "0", "--soft-targets", "all", "--loss-weights", "1", "2", "0", "--family", "bert"]
    assert distil(folder, "chosen", *words) == 0
    student = HfeBertForMaskedLM.from_pretrained(folder / "chosen" / "model")
    assert student.config.num_hidden_layers == 3
    recorded = TrainingRecord.load(folder / "chosen" / "model").objectives["distillation"]
    assert "layers 3 1 0; loss: 2 x masked tokens, 1 x soft targets of all tokens" in recorded
    assert "cosine" not in recorded
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "chosen" / "model")
    assert "token_type_ids" in tokenizer("alpha")


def test_a_student_of_another_width_is_fresh(folder: Path, capsys: pytest.CaptureFixture) -> None:
    sizes = {"dim": 8, "n_heads": 2, "hidden_dim": 16, "n_layers": 1}
    (folder / "narrow.yaml").write_text(yaml.safe_dump({**STUDENT, "model": sizes}), encoding="utf-8")
    assert distil(folder, "narrow", recipe="narrow.yaml") == 2
    assert re.search(r"word_embeddings.weight is \(192, 8\) in the student", capsys.readouterr().err)
    assert distil(folder, "narrow", "--fresh", recipe="narrow.yaml") == 2
    assert "cannot be compared: set loss_weights" in capsys.readouterr().err
    assert not (folder / "narrow").exists()
    assert distil(folder, "narrow", "--fresh", "--loss-weights", "5", "2", "0", recipe="narrow.yaml") == 0
    assert HfeDistilBertForMaskedLM.from_pretrained(folder / "narrow" / "model").config.dim == 8


def test_the_plan_counts_the_teacher(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert distil(folder, "planned", "--plan") == 0
    parameters = HfeBertForMaskedLM.from_pretrained(folder / "run" / "model").num_parameters()
    assert f"(teacher {parameters:,})" in capsys.readouterr().out


@pytest.mark.slow
def test_a_prepared_corpus_is_of_the_teachers_tokenizer(folder: Path, capsys: pytest.CaptureFixture) -> None:
    tokenizer = load_tokenizer(folder / "run" / "model")
    prepare_corpus([folder / "text.txt"], folder / "corpus", tokenizer)
    tokenizer.add_tokens(["omega"])
    prepare_corpus([folder / "text.txt"], folder / "foreign", tokenizer)
    words = [str(folder / "run" / "model"), "--recipe", str(folder / "student.yaml"), "--disable_tqdm", "True"]
    words += ["--validation-share", "0.2", "--output", str(folder / "prepared"), "--corpus"]
    assert main(["distil", *words, str(folder / "foreign")]) == 2
    assert re.search("corpus .*foreign was made with another tokenizer than", capsys.readouterr().err)
    assert main(["distil", *words, str(folder / "corpus")]) == 0


@pytest.fixture(scope="module")
def wrong(folder: Path) -> Path:
    """Teachers and recipes that are refused."""
    teacher = HfeBertForMaskedLM.from_pretrained(folder / "run" / "model")
    teacher.save_pretrained(folder / "without_tokenizer")
    HfeBertModel.from_pretrained(folder / "run" / "model").save_pretrained(folder / "headless")
    fields = {name: getattr(teacher.config, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    electra = HfeElectraModel(HfeElectraConfig(**fields, intermediate_size=20, num_hidden_layers=4, embedding_size=12))
    for directory in (folder / "beside", folder / "beside" / "generator"):
        electra.save_pretrained(directory)
    HfeXLNetConfig(d_model=12, n_layer=1, n_head=2, d_inner=8).save_pretrained(folder / "xlnet")
    shutil.copytree(folder / "run" / "model", folder / "incomplete")
    weights = load_file(folder / "incomplete" / "model.safetensors")
    del weights["bert.encoder.layer.3.output.dense.weight"]
    save_file(weights, folder / "incomplete" / "model.safetensors")
    vocabulary = load_tokenizer(folder / "run" / "model").get_vocab()
    turned = {token: len(vocabulary) - 1 - number for token, number in vocabulary.items()}
    transformers.BertTokenizer(vocab=turned).save_pretrained(folder / "turned")
    for name, changed in {
        "long": {"phases": [{"steps": 1, "length": 25, "examples": 6}]},
        "named": {"options": {"tempature": 2}},
        "deep": {"model": {"n_layers": 5}},
        "heads": {"model": {"n_heads": 2}},
    }.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**STUDENT, **changed}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["--layers", "0", "4"], {}, "layers: 4 is not a layer of the teacher, which has 0 to 3"),
        (["--temperature", "0"], {}, "options: temperature=0.0 must be a number above 0"),
        (["--family", "roberta"], {}, "family 'roberta': a bert teacher has students of the family distilbert"),
        ([], {"recipe": "long.yaml"}, "phases: examples of 25 tokens, and TEACHER .* takes 24: choose a recipe"),
        ([], {"recipe": "named.yaml"}, "options: distillation has no option 'tempature': did you mean"),
        ([], {"recipe": "deep.yaml"}, "model: 5 layers, and the teacher has 4: give fewer, or --fresh"),
        (["--layers", "0"], {"recipe": "deep.yaml"}, "--layers: 1 layers, and model: n_layers=5"),
        ([], {"teacher": "headless"}, "TEACHER .*headless' has no masked-LM head"),
        ([], {"teacher": "beside"}, "no masked-LM head .*: give the generator, .*beside/generator, and --tokenizer"),
        ([], {"teacher": "xlnet"}, "TEACHER .*xlnet' is of xlnet, which has no head for masked tokens"),
        ([], {"teacher": "without_tokenizer"}, "without_tokenizer' has no tokenizer"),
        ([], {"teacher": "incomplete"}, "TEACHER .*incomplete' has no bert.encoder.layer.3.output.dense.weight"),
        ([], {"recipe": "heads.yaml"}, "n_heads=2: the teacher's weights need 3"),
        (["--tokenizer", "FOLDER/turned"], {}, "--tokenizer .*turned' has other ids than the tokenizer of TEACHER"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(
    wrong: Path, words: list, options: dict, message: str, capsys: pytest.CaptureFixture
) -> None:
    assert distil(wrong, "wrong", *(word.replace("FOLDER", str(wrong)) for word in words), **options) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list((wrong / "wrong").glob("*"))


def test_pretrain_refuses_an_objective_that_needs_a_teacher(folder: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--corpus", str(folder / "text.txt"), "--output", str(folder / "never")]
    assert main(["pretrain", str(folder / "student.yaml"), *words]) == 2
    assert "objective distillation needs a teacher: use `hf-encoders distil TEACHER" in capsys.readouterr().err


def test_the_shipped_recipes_are_the_papers_and_small() -> None:
    base = load_recipe("distilbert-base")
    assert base.own_objective.options.weights == {"mlm": 2.0, "ce": 5.0, "cos": 1.0}
    assert base.own_objective.options.soft_targets == "all" and base.own_objective.options.temperature == 2
    assert base.masking["frequency_power"] == 0.7 and base.training["max_grad_norm"] == 5.0
    assert load_recipe("distilbert-minutes").longest == 64


def test_without_a_recipe_it_is_the_papers(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["distil", "--help"])
    assert "(default: distilbert-base)" in " ".join(capsys.readouterr().out.split())
