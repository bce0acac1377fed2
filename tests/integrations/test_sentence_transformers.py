"""sentence-transformers reads, trains and saves our checkpoints: as transformers' own model, and with our code.

Everything happens in a process that cannot import this package, as on the machine of somebody who was sent a folder.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.hub.remote_process import run_without_package
from tests.hub.tiny_checkpoints import ALBERT, BERT, FAMILIES, TEXTS, Family, make_model, save_checkpoint


# Of each kind of encoder one: with and without shared layers, with and without pooler, padded on either side.
CHOSEN = (BERT, ALBERT, *(family for family in FAMILIES if family.name in ("xlm", "xlnet")))


SNIPPET = """
import torch
import transformers
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
)
from sentence_transformers.losses import CosineSimilarityLoss
from sentence_transformers.models import Pooling, Transformer

transformers.logging.set_verbosity_error()
texts, width = argument["texts"], argument["width"]


def mean_of(encoder, tokenizer):
    # By hand: the mean of the last hidden states of the tokens that are no padding.
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1)


def encode(model):
    return model.encode(texts, convert_to_tensor=True, show_progress_bar=False)


def train(model, target):
    rows = {"a": texts * 4, "b": texts[::-1] * 4, "score": [-0.5] * 8}
    loss = CosineSimilarityLoss(model)

    def loss_now():
        model.eval()
        with torch.no_grad():
            return loss([model.tokenize(rows["a"]), model.tokenize(rows["b"])], torch.tensor(rows["score"])).item()

    arguments = SentenceTransformerTrainingArguments(
        target + "-runs", max_steps=3, per_device_train_batch_size=8, learning_rate=5e-3, warmup_steps=0,
        lr_scheduler_type="constant", report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
    )
    losses = [loss_now()]
    SentenceTransformerTrainer(model, arguments, Dataset.from_dict(rows), loss=loss).train()
    return [*losses, loss_now()]


def check(folder, trust, target):
    trust = {"trust_remote_code": True} if trust else {}
    settings = {name: dict(trust) for name in ("model_kwargs", "config_kwargs", "processor_kwargs")}
    transformer = Transformer(folder, **settings)
    model = SentenceTransformer(modules=[transformer, Pooling(width)], device="cpu")
    encoder = transformers.AutoModel.from_pretrained(folder, **trust)
    expected = mean_of(encoder, transformers.AutoTokenizer.from_pretrained(folder))
    # The short name for the same: mean pooling is what it adds to a folder without pooling of its own.
    short = SentenceTransformer(folder, device="cpu", **trust)
    found = {"class": type(transformer.auto_model).__name__, "scale": expected.abs().max().item()}
    found["error"] = (encode(model) - expected).abs().max().item()
    found["error, short"] = (encode(short) - expected).abs().max().item()

    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    found["losses"] = train(model, target)
    trained = transformer.auto_model.state_dict()
    found["unchanged"] = [name for name, value in before.items() if torch.equal(value, trained[name])]
    found["parameters"] = len(before)
    model.save_pretrained(target)
    again = SentenceTransformer(target, device="cpu", **trust)
    found["class, saved"] = type(again[0].auto_model).__name__
    found["error, saved"] = (encode(again) - encode(model)).abs().max().item()
    return found


result = {key: check(*what) for key, what in argument["folders"].items()}
"""


def as_native(folder: Path, target: Path) -> Path:
    """The folder without our code: nothing but what transformers' own classes read."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.py"))
    config = json.loads((target / "config.json").read_text())
    del config["auto_map"]
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Path]]:
    """What the process found, and the folder it saved to, for each family and way."""
    folders = {}
    for family in CHOSEN:
        place = tmp_path_factory.mktemp(family.name)
        ours = save_checkpoint(make_model(family, "AutoModel"), family, place / "ours")
        native = as_native(ours, place / "native")
        folders[f"{family.name} False"] = (str(native), False, str(place / "native, trained"))
        folders[f"{family.name} True"] = (str(ours), True, str(place / "ours, trained"))
    argument = {"folders": folders, "texts": list(TEXTS), "width": 36}
    found = run_without_package(SNIPPET, tmp_path_factory.mktemp("home"), argument)
    return {key: (found[key], Path(folders[key][2])) for key in folders}


@pytest.mark.processes
@pytest.mark.parametrize("trust", [False, True], ids=["native", "our code"])
@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.name)
def test_encodes_trains_and_is_saved(
    family: Family, trust: bool, answers: dict[str, tuple[dict[str, Any], Path]]
) -> None:
    found, target = answers[f"{family.name} {trust}"]
    name = family.config_class.AUTO_MAP["AutoModel"].split(".")[1]
    assert found["class"] == found["class, saved"] == (name if trust else name.removeprefix("Hfe"))
    assert found["scale"] > 0.1
    assert found["error"] < 1e-5 and found["error, short"] < 1e-5 and found["error, saved"] < 1e-5
    assert found["losses"][1] < 0.9 * found["losses"][0]
    # What a mean of hidden states does not read, such as a pooler, stays; it is what stays in transformers' own model.
    assert found["unchanged"] == answers[f"{family.name} False"][0]["unchanged"]
    assert len(found["unchanged"]) < found["parameters"] / 3
    assert (target / "modules.json").is_file()
    assert any(target.rglob("modeling_*.py")) == trust
