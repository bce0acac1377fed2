"""Saved directories of every head and family, tiny, with tokenizer and record: what publishing starts from."""

from pathlib import Path

from hf_encoders.publishing.record import TrainingRecord
from tests.hub.tiny_checkpoints import FAMILIES, Family, make_model, save_checkpoint, saved_heads


RECORD = TrainingRecord(
    objectives={"masked language modelling": "15 % of the tokens"},
    corpus={"name": "a corpus", "documents": 12, "tokens": 345, "licence": "CC0"},
    schedule={"optimizer steps": 7},
    losses={"masked tokens, held-out": 2.5},
    hardware="CPU",
    software={"torch": "2.13.0"},
    seconds=60.0,
    tokens_per_second=5.0,
    evaluation=[{"task": "fill-mask", "dataset": "Held-out text", "metric": "perplexity", "value": 12.2}],
    command="a command",
    language=["en"],
    license="mit",
)
ALL_HEADS = [(family, head) for family in FAMILIES for head in saved_heads(family)]


def save(family: Family, head: str, folder: Path, seed: int = 0, **fields: object) -> Path:
    """A directory as a user has it after training."""
    save_checkpoint(make_model(family, head, seed, **fields), family, folder)
    RECORD.save(folder)
    return folder


def name_of(case: tuple[Family, str]) -> str:
    """`bert-MaskedLM`."""
    return f"{case[0].name}-{case[1].removeprefix('AutoModelFor').removeprefix('AutoModel') or 'base'}"
