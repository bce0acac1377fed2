"""`hf-encoders adapt` with a name on the Hub: as from a folder with the same weights, and not from others."""

from pathlib import Path

import pytest
import torch

from tests.commands.adapt_runs import checkpoint, write_texts
from tests.commands.pretrain_runs import weights
from tests.hub.loopback_hub import LoopbackHub
from tests.hub.remote_process import run_with_package


pytestmark = pytest.mark.processes

ADAPT = """
import contextlib, io, shutil
from pathlib import Path
import torch, transformers
from huggingface_hub import HfApi
from hf_encoders.publishing.record import TrainingRecord
from tests.commands.adapt_runs import adapt

torch.set_num_threads(1)
folder, result = Path(argument), []

def run(source, output, *words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = adapt(folder, source, output, *words)
    result.append([status, said.getvalue()])

model = transformers.BertForMaskedLM.from_pretrained(folder / "start")
model.push_to_hub("user/published")
transformers.AutoTokenizer.from_pretrained(folder / "start").push_to_hub("user/published")
run("user/published", "hub")
run(folder / "start", "folder")
shutil.rmtree(folder / "folder" / "checkpoint-4")
shutil.rmtree(folder / "folder" / "model")
run("user/published", "folder")  # the same weights: goes on
torch.nn.init.ones_(model.cls.predictions.bias)
model.push_to_hub("user/published")
shutil.rmtree(folder / "hub" / "checkpoint-4")
run("user/published", "hub")
run("user/unknown", "unknown")
with_pairs = transformers.BertForPreTraining(model.config)
with_pairs.push_to_hub("user/pairs")
transformers.AutoTokenizer.from_pretrained(folder / "start").push_to_hub("user/pairs")
TrainingRecord(objectives={"sentence-order prediction": "half of the pairs swapped"}).save(folder)
HfApi().upload_file(
    path_or_fileobj=folder / "training_record.json", path_in_repo="training_record.json", repo_id="user/pairs"
)
run("user/pairs", "pairs", "--plan")
"""


def test_a_name_on_the_hub_is_a_checkpoint(tmp_path: Path) -> None:
    write_texts(tmp_path)
    checkpoint(tmp_path, "bert")
    with LoopbackHub() as hub:
        environment = hub.environment(tmp_path / "home")
        said = run_with_package(ADAPT, tmp_path / "home", str(tmp_path), environment)
    assert [status for status, _ in said] == [0, 0, 0, 2, 2, 0], said
    assert "checkpoint-2" in said[2][1]
    one, other = (weights(tmp_path / name / "model") for name in ("hub", "folder"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert "base_model: user/published" in (tmp_path / "hub" / "model" / "README.md").read_text()
    assert "another initial checkpoint (weights)" in said[3][1]
    assert "CHECKPOINT 'user/unknown' is not a folder here, and the Hub has no such repository" in said[4][1]
    assert ": bert, sop, " in said[5][1]


EXTEND = """
import contextlib, io
from pathlib import Path
import huggingface_hub
import transformers
from hf_encoders import HfeElectraConfig
from hf_encoders.cli import main
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.objectives.rtd import ReplacedTokenDetectionModel
from tests.corpus.trained import train
from tests.models.tiny import tiny_config

folder, result = Path(argument), []
tokenizer = train(HfeElectraConfig)
fields = {"vocab_size": padded_vocab_size(tokenizer), "pad_token_id": tokenizer.pad_token_id}
model = ReplacedTokenDetectionModel(tiny_config(HfeElectraConfig, **fields))
model.discriminator.push_to_hub("user/alone")
model.save_pretrained(folder / "both")
huggingface_hub.create_repo("user/both")
huggingface_hub.upload_folder(repo_id="user/both", folder_path=folder / "both")
for name in ("user/alone", "user/both"):
    tokenizer.push_to_hub(name)
    said, words = io.StringIO(), ["--add", "3", "--corpus", str(folder / "domain.txt"), "--held-out", "0"]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["tokenizer", "--extend", name, *words, "--output", str(folder / name)])
    result.append([status, said.getvalue()])
"""


def test_a_generator_on_the_hub_is_not_left_out_in_silence(tmp_path: Path) -> None:
    write_texts(tmp_path)
    with LoopbackHub() as hub:
        said = run_with_package(EXTEND, tmp_path / "home", str(tmp_path), hub.environment(tmp_path / "home"))
    assert [status for status, _ in said] == [0, 2], said
    assert "--extend 'user/both': its generator is extended too: `hf download user/both" in said[1][1]
