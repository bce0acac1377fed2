"""Runs of six steps in three phases, masked in each way that needs data of the text or changes by phase."""

from pathlib import Path

import datasets
import torch

from hf_encoders.runs.recipe import recipe_of
from hf_encoders.runs.run import Run, divide
from tests import processes
from tests.runs.test_recipes import MINIMAL
from tests.training.tiny import NO_DROPOUT, make_tokenizer


PHASES = [{"steps": 2, "length": length, "examples": 6} for length in (16, 24, 24)]
MASKED = {
    "macbert": {"masking": {"preset": "MACBERT_MASKING"}, "mask_rate": [0.4, 0.3], "objective": "sop"},
    "xlm": {"masking": {"preset": "XLM_MASKING"}, "objective": "mlm"},
    "ernie": {
        "masking": {"preset": "ERNIE_MASKING", "mask_probability": 0.3},
        "phases": [{**PHASES[i], "masking": {"unit": unit}} for i, unit in enumerate(("token", "phrase", "entity"))],
    },
    "electra": {
        "family": "electra",
        "objective": "rtd",
        "masking": {"preset": "ELECTRA_MASKING"},
        "mask_rate": [0.4, 0.3],
    },
    "deberta": {
        "family": "deberta-v2",
        "objective": "rtd",
        "model": {
            "hidden_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "intermediate_size": 16,
            "position_buckets": 8,
            **NO_DROPOUT,
        },
        "options": {"embedding_sharing": "gdes", "detection_weight": 10},
        "masking": {"preset": "DEBERTA_MASKING"},
    },
    "modernbert": {
        "family": "modernbert",
        "objective": "mlm",
        "model": {
            "hidden_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "intermediate_size": 16,
            "local_attention": 4,
        },
        "phases": [
            {**PHASES[0], "model": {"rope_parameters": {"full_attention": {"rope_theta": 100}}}},
            {**PHASES[1], "learning_rate": 0.04, "rising_from": 4},
            {**PHASES[2], "learning_rate": [0.02, 0.01], "weight_decay": 0.5, "model": {"local_attention": 8}},
        ],
    },
    "muon": {  # a rate at which the bfloat16 of its products is no difference
        "family": "modernbert",
        "objective": "mlm",
        "model": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16},
        "optimizer": "muon",
        "training": {"learning_rate": 1e-4, "weight_decay": 0.01},
    },
    "retromae": {"objective": "retromae", "masking": {"unit": "token"}, "options": {"decoder_mask_probability": 0.6}},
    "detour": {
        "family": "modernbert",
        "objective": "mlm",
        "model": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16},
        "phases": [{**PHASES[i], **({"masking": {"next_token": True}} if i < 2 else {})} for i in range(3)],
    },
    "mixed": {
        "masking": {"mask_probability": 0.3},
        "phases": [PHASES[0], {**PHASES[1], "masking": {"units": {"token": 0.5, "entity": 0.5}}}, PHASES[2]],
    },
}


def make_recipe(name, **changed):
    fields = {**MINIMAL, "model": {**MINIMAL["model"], **NO_DROPOUT}, "phases": PHASES}
    fields |= {"optimizer": "sgd", "training": {"learning_rate": 0.1, "weight_decay": 0.01}}
    return recipe_of(name, {**fields, **MASKED[name], **changed})


def train(recipe, corpus, folder, accumulation=1, processes=1, resume=None, **options):
    settings = {"eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, **options}
    run = Run(recipe, folder, settings, divide(recipe, processes, accumulation=accumulation))
    torch.manual_seed(0)
    trainer = run.trainer(corpus, corpus, make_tokenizer())
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses_of(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def train_each_in_processes(folder: Path, corpus: str) -> None:
    """Train on each, and write losses and parameters."""
    torch.set_num_threads(1)
    documents, trained = datasets.load_from_disk(corpus), {}
    for name in MASKED:
        trainer = train(make_recipe(name), documents, folder / name, processes=2)
        model = trainer.accelerator.unwrap_model(trainer.model)
        trained[name] = {"losses": losses_of(trainer), "parameters": model.state_dict()}
    if trainer.args.process_index == 0:
        torch.save(trained, folder / "trained.pt")
    processes.end_together()
