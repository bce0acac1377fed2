"""The command `hf-encoders adapt` on checkpoints and texts of seconds."""

from pathlib import Path

import torch
import transformers
import yaml

from hf_encoders.cli import main
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.registration import config_class_of
from tests.corpus.corpora import write_corpus
from tests.corpus.trained import train
from tests.families import model_class
from tests.models.tiny import NO_DROPOUT, tiny_config


RECIPE = {
    "family": "bert",
    "objective": "mlm",
    "model": {},
    "tokenizer": {"vocab_size": 100},
    "phases": [{"steps": 4, "length": 64, "examples": 4}],
    "training": {"learning_rate": 0.01, "warmup_steps": 0},
}


def write_texts(folder: Path) -> Path:
    """A recipe, and text of a domain and of another."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    write_corpus(folder / "domain.txt", 40, "alpha")
    write_corpus(folder / "general.txt", 40, "beta")
    return folder


def checkpoint(folder, family, auto_class=None, name="start", **fields) -> str:
    """As transformers' own class writes it."""
    config_class = config_class_of(family)
    auto_class = auto_class or head_of(config_class)
    tokenizer = train(config_class)
    sizes = {"vocab_size": padded_vocab_size(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    sizes |= {"max_position_embeddings": 66, **NO_DROPOUT, **fields}
    torch.manual_seed(0)
    ours = model_class(config_class, auto_class)(tiny_config(config_class, **sizes))
    ours.save_pretrained(folder / "ours")
    tokenizer.save_pretrained(folder / "ours")
    plain = getattr(transformers, auto_class).from_pretrained(folder / "ours")
    plain.save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    return str(folder / name)


def head_of(config_class) -> str:
    heads = ("AutoModelForMaskedLM", "AutoModelForPreTraining")
    return next(auto_class for auto_class in heads if auto_class in config_class.AUTO_MAP)


def adapt(folder, source, output, *words, corpus="domain.txt") -> int:
    options = ["--recipe", folder / "tiny.yaml", "--validation-share", "0.2", "--save_steps", "2", *words]
    options += ["--disable_tqdm", "True", "--output", folder / output]
    text = [] if "--corpus" in words else ["--corpus", str(folder / corpus)]
    return main(["adapt", str(source), *text, *map(str, options)])
