"""A saved directory carries its code: every Auto class loads our class from it where this package is not installed.

And it is a plain checkpoint: transformers' own classes read it with no flag. There rows are compared where there are
tokens: transformers computes padding too. The loading, training and saving happens in the fixture `all_saved`, in two
processes; one file has all tests of it, so that it is built once.
"""

import ast
import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import hf_encoders
from hf_encoders.models.configuration_albert import LAYER_PARTS
from tests.hub.auto_class_loads import Answers, SavedFamily
from tests.hub.remote_process import run_with_package, run_without_package
from tests.hub.tiny_checkpoints import (
    ALBERT,
    FAMILIES,
    RELATIVE,
    TEXTS,
    Family,
    built_in,
    has_built_in_class,
    head_of,
    make_batch,
    make_config,
    make_model,
    make_tokenizer,
    save_checkpoint,
    trusted_auto_classes,
)


SOURCE = Path(hf_encoders.__file__).parent / "models"
# fp32 sums in another order, through two layers; outputs are of order 1.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
REPORTS = ("missing", "unexpected", "mismatched")


def files_needed_by(module: str) -> set[str]:
    """Names of the files a module of `models/` is made of, from its `from .name import x` lines."""
    names, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if f"{name}.py" not in names:
            names.add(f"{name}.py")
            tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
            imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
            waiting += [node.module for node in imports if node.level == 1]
    return names


def assert_loaded(saved: SavedFamily, answers: Answers, through: Callable[[Family, str], list[str]]) -> None:
    """Every Auto class is ours; transformers' own, on the same directory, reports the same parameters."""
    family = saved.family
    for key in saved.folders:
        reference = "AutoModelForMaskedLM" if key in RELATIVE else key
        for auto_class in through(family, key):
            ours = answers.seen[f"trusted/{key}/{auto_class}"]
            module, name = family.config_class.AUTO_MAP[auto_class].split(".")
            assert ours["class"] == name and ours["config"][0] == family.config_class.__name__ and ours["eval"]
            assert ours["module"].startswith("transformers_modules.") and ours["module"].endswith(f".{module}")
            assert ours["config"][1].startswith("transformers_modules.")
            if not has_built_in_class(family, auto_class):
                continue
            theirs = saved.first.seen[f"plain/{reference}/{auto_class}"]
            # The relative tables lie inside the layers, which every class has.
            assert [ours[name] for name in REPORTS] == [theirs[name] for name in REPORTS], (key, auto_class)
        assert not any(answers.seen[f"trusted/{key}/{head_of(key)}"][name] for name in REPORTS)


def assert_equal_bitwise(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


def test_every_auto_class_gives_our_class_with_the_parameters_of_transformers(saved: SavedFamily) -> None:
    assert_loaded(saved, saved.first, trusted_auto_classes)


def test_what_is_missing_is_the_new_head_and_no_more(saved: SavedFamily) -> None:
    """Written out for the way everyone goes: pre-trained or MLM checkpoint to classifier."""
    found = saved.first.seen[f"trusted/{saved.family.token_head}/AutoModelForTokenClassification"]
    assert found["missing"] == ["classifier.bias", "classifier.weight"]
    assert found["mismatched"] == []
    own = {
        "bert": "cls.predictions.",
        "albert": "predictions.",
        "xlm": "pred_layer.",
        "distilbert": "vocab_",
        "electra": "generator_",
        "xlnet": "lm_loss.",
        "modernbert": "decoder.",
        "deberta-v2": "lm_predictions.",
    }
    left_over = own.get(saved.family.name, "lm_head.")
    assert found["unexpected"]
    assert all(name.startswith(left_over) for name in found["unexpected"])


def test_mlm_head_needs_nothing_from_a_pre_trained_checkpoint(saved: SavedFamily) -> None:
    expected = {
        "bert": ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
        + ["cls.seq_relationship.bias", "cls.seq_relationship.weight"],
        "albert": ["albert.pooler.bias", "albert.pooler.weight"]
        + ["sop_classifier.classifier.bias", "sop_classifier.classifier.weight"],
    }.get(saved.family.name, [])
    # The pre-training head of the others is their MLM head.
    pre_trained = "AutoModelForPreTraining" if expected else saved.family.token_head
    found = saved.first.seen[f"trusted/{pre_trained}/{saved.family.token_head}"]
    assert [found[name] for name in REPORTS] == [[], expected, []]


def test_saved_head_computes_the_same_bits(saved: SavedFamily) -> None:
    for key, expected in saved.outputs.items():
        assert_equal_bitwise(saved.first.outputs_of(f"trusted/{key}", head_of(key)), expected)


def test_directory_holds_the_code_it_needs_and_nothing_else(saved: SavedFamily) -> None:
    """Nothing else: no pickle (.bin, .pt), no file that only training needs."""
    code = files_needed_by(f"configuration_{saved.family.file}") | files_needed_by(f"modeling_{saved.family.file}")
    assert {f"configuration_{saved.family.file}.py", f"modeling_{saved.family.file}.py"} < code
    data = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    pipeline = files_needed_by("question_answering_pipeline")
    for key, folder in [*saved.folders.items(), *saved.tuned_folders.items()]:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        assert found == code | data | (pipeline if key == "AutoModelForQuestionAnswering" else set()), folder
        # `Trainer` does not push files whose names begin with an underscore.
        assert not any(name.startswith("_") for name in found)
        for name in found - data:
            assert (folder / name).read_bytes() == (SOURCE / name).read_bytes(), name


def test_tokenizer_comes_with_the_model(saved: SavedFamily) -> None:
    tokenizer = make_tokenizer(saved.family)
    expected = {
        "class": saved.family.tokenizer_class.__name__,
        "ids": tokenizer(list(TEXTS))["input_ids"],
        "mask_token": tokenizer.mask_token,
    }
    for answers in (saved.first, saved.second):
        for key in saved.folders:
            found = answers.seen[f"trusted/{key}/tokenizer"]
            assert {name: found[name] for name in expected} == expected
            assert found["config"][0] == saved.family.config_class.__name__


def test_fine_tuning_without_the_package_trains_every_parameter(saved: SavedFamily) -> None:
    for key, folder in saved.tuned_folders.items():
        found = saved.first.seen[f"tuned/{folder}/{head_of(key)}"]
        assert found["module"].startswith("transformers_modules.")
        # What is added to all scores of a softmax alike has no gradient: to those of a query, or of all choices.
        without_gradient = ("key.bias", "classifier.bias" if key == "AutoModelForMultipleChoice" else "key.bias")
        if saved.family.name == "xlnet":  # texts of one segment, without query rows
            without_gradient += ("mask_emb", "seg_embed", "r_s_bias", "logits_proj.bias")
        assert [name for name in found["unmoved"] if not name.endswith(without_gradient)] == [], key
        tuned = saved.first.outputs_of(f"tuned/{folder}", head_of(key))
        assert all(not torch.equal(tuned[name], saved.outputs[key][name]) for name in tuned), key


def test_checkpoint_saved_without_the_package_is_as_complete(saved: SavedFamily) -> None:
    """Code files and auto_map survive fine-tuning on a machine that has never had the package."""
    assert_loaded(saved, saved.second, lambda family, key: [head_of(key)])
    for key, folder in saved.tuned_folders.items():
        expected = saved.first.outputs_of(f"tuned/{folder}", head_of(key))
        assert_equal_bitwise(saved.second.outputs_of(f"trusted/{key}", head_of(key)), expected)


def test_config_names_all_classes_after_every_save(saved: SavedFamily) -> None:
    for folders in (saved.folders, saved.tuned_folders):
        for key, folder in folders.items():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            assert config["auto_map"] == saved.family.config_class.AUTO_MAP
            name = saved.family.config_class.AUTO_MAP[head_of(key)].split(".")[1]
            if key in RELATIVE:
                assert config["model_type"] == f"hfe_{saved.family.name}"
                assert config["architectures"] == [name]
            else:
                assert config["model_type"] == saved.family.name
                assert config["architectures"] == [name.removeprefix("Hfe")]
            assert config["tokenizer_class"] == saved.family.config_class.TOKENIZER_CLASS


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("kind", ["absolute", *RELATIVE])
def test_model_type_on_disk_survives_every_way_to_copy_a_configuration(
    family: Family, kind: str, tmp_path: Path
) -> None:
    """Trainers and exporters copy configurations as dictionaries, where the name is that of the file."""
    if kind not in ("absolute", *family.relative):
        return
    config = make_config(family, position_embedding_type=kind)
    on_disk = family.name if kind == "absolute" else f"hfe_{family.name}"
    config.save_pretrained(tmp_path)
    copies = [
        family.config_class.from_dict(config.to_dict()),
        family.config_class(**config.to_dict()),
        family.config_class.from_json_file(tmp_path / "config.json"),
        family.config_class.from_pretrained(tmp_path),
        copy.deepcopy(config),
    ]
    for one in [config, *copies]:
        assert one.model_type == family.name
        assert one.to_dict()["model_type"] == on_disk
        assert json.loads(one.to_json_string())["model_type"] == on_disk
        assert one.to_dict() == config.to_dict()


REFUSAL = """
import transformers

result = {}
for folder in argument["folders"]:
    for auto_class in ("AutoConfig", "AutoModel", "AutoModelForMaskedLM"):
        for flag in ({}, {"trust_remote_code": False}):
            try:
                loaded = getattr(transformers, auto_class).from_pretrained(folder, **flag)
                result[f"{folder} {auto_class} {flag}"] = f"loaded {type(loaded).__name__}"
            except ValueError as error:
                result[f"{folder} {auto_class} {flag}"] = str(error)
"""


@pytest.mark.processes
@pytest.mark.parametrize("run", [run_without_package, run_with_package], ids=["without", "with"])
def test_relative_positions_are_refused_where_our_code_is_not_trusted(
    all_saved: dict[str, SavedFamily], tmp_path: Path, run: Callable[..., dict[str, str]]
) -> None:
    """transformers 5 has no relative positions: it must not load the checkpoint as if it had absolute ones."""
    saves = [(saved.folders[kind], saved.tuned_folders[kind])
             for saved in all_saved.values() for kind in RELATIVE if kind in saved.folders]  # fmt: skip
    folders = [str(folder) for pair in saves for folder in pair]
    errors = run(REFUSAL, tmp_path / "home", {"folders": folders})
    assert len(errors) == len(folders) * 6 and len(folders) > len(FAMILIES)
    for error in errors.values():
        assert "contains custom code which must be executed" in error
        assert "trust_remote_code=True" in error


LOAD_AND_RUN = """
import torch
from transformers import AutoModelForMaskedLM

result = []
for folder in argument["folders"]:
    model, info = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    with torch.no_grad():
        logits = model(torch.tensor(argument["ids"])).logits
    result.append([type(model).__module__.split(".")[0], sum(map(len, info.values())), logits.tolist()])
"""


@pytest.mark.processes
def test_shared_parts_load_where_the_package_is_not(tmp_path: Path) -> None:
    """transformers' ALBERT cannot share a part of a layer; the code beside the weights can."""
    ids, folders, expected = make_batch(ALBERT)["input_ids"], [], []
    for part in LAYER_PARTS:
        model = make_model(ALBERT, "AutoModelForMaskedLM", shared_between_groups=part)
        folders.append(str(save_checkpoint(model, ALBERT, tmp_path / part)))
        with torch.no_grad():
            expected.append(["transformers_modules", 0, model(ids).logits.tolist()])
    found = run_without_package(LOAD_AND_RUN, tmp_path / "home", {"folders": folders, "ids": ids.tolist()})
    assert found == expected


# --- plain transformers ---


def native_heads(saved: SavedFamily) -> list[str]:
    return [key for key in saved.folders if key not in RELATIVE and has_built_in_class(saved.family, head_of(key))]


def test_every_head_loads_as_the_built_in_class_and_computes_the_same(saved: SavedFamily) -> None:
    """Also what was fine-tuned and saved elsewhere; and no Auto class runs our code unasked."""
    module = f"transformers.models.{saved.family.file}.modeling_{saved.family.file}"
    ways = [way for way in saved.first.seen if way.startswith("plain/") and not way.endswith("/tokenizer")]
    assert len(ways) > len(native_heads(saved)) and {saved.first.seen[way]["module"] for way in ways} == {module}
    mask = make_batch(saved.family)["attention_mask"].bool()
    for key in native_heads(saved):
        tuned = saved.first.outputs_of(f"tuned/{saved.tuned_folders[key]}", key)
        for answers, outputs in ((saved.first, saved.outputs[key]), (saved.second, tuned)):
            seen = answers.seen[f"plain/{key}/{key}"]
            assert seen["class"] == built_in(saved.family, key) and seen["module"] == module
            assert seen["config"][1].startswith("transformers.models.")
            assert [seen[name] for name in REPORTS] == [[], [], []]
            computed = answers.outputs_of(f"plain/{key}", key)
            assert computed.keys() == outputs.keys()
            for name, value in outputs.items():  # `(B, T, ...)` at real tokens
                real = mask if value.shape[:2] == mask.shape else ...
                torch.testing.assert_close(computed[name][real], value[real], **TOLERANCE)


def test_tokenizer_and_configuration_are_the_built_in_ones(saved: SavedFamily) -> None:
    for key in native_heads(saved):
        found = saved.first.seen[f"plain/{key}/tokenizer"]
        assert found["class"] == saved.family.tokenizer_class.__name__
        assert found["ids"] == make_tokenizer(saved.family)(list(TEXTS))["input_ids"]
        assert found["model_type"] == saved.family.name
        assert found["architectures"] == [built_in(saved.family, key)]
        assert hasattr(transformers, found["architectures"][0])
