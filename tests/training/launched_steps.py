"""Four optimizer steps of each kind of data and objective, in one or two processes; run by `test_launched.py`.

python launched_steps.py FOLDER MODE [CASE ...]

MODE is how the processes share the model: alone, ddp, fsdp, "ddp+fsdp" for one after the other, or "launched" for what
accelerate launch was told.
"""

import os
import sys
from pathlib import Path

import datasets
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from transformers import set_seed

from hf_encoders import (
    DataCollatorForDialogueLM,
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    Dialogues,
    DocumentChunks,
    HfeAlbertConfig,
    HfeAlbertForPreTraining,
    HfeBertConfig,
    HfeBertForPreTraining,
    HfeRobertaConfig,
    HfeRobertaForMaskedLM,
    PreTrainingTrainer,
    SentenceBlocks,
)
from tests.corpus.corpora import TINY_MODEL, random_documents
from tests.training.tiny import NO_DROPOUT, make_tokenizer, training_arguments


LENGTH = 24
STEPS = 4
STEP_EXAMPLES = 8  # of an optimizer step, over all processes
SIZES = {
    **TINY_MODEL,
    "hidden_size": 24,  # heads of 8, which flash attention takes
    **NO_DROPOUT,  # its masks are drawn by process
    "initializer_range": 0.2,
}
RECOMPUTED = {"activation_checkpointing": True}
# name -> objective, packed, micro-batches of a process in a step, further arguments
CASES = {
    "nsp": ("nsp", False, 1, {}),
    "sop packed accumulated": ("sop", True, 2, {}),
    "sop recomputed": ("sop", False, 1, RECOMPUTED),
    "dialogue packed accumulated": ("dialogue", True, 2, {}),
    "mlm packed": ("mlm", True, 1, {}),
    "mlm bf16": ("mlm", False, 1, {"bf16": True}),
}


def on_gloo_as_on_accelerators() -> None:
    """Let accelerate shard on a CPU what it would shard on accelerators.

    accelerate 1.15 turns FSDP2 into DDP where the devices are CPUs. This makes it take the processes for those of
    accelerators; device and communication stay the CPU's and gloo's. After that all runs as there.
    """
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def make_documents() -> list[list[list[int]]]:
    """40 documents of 3 to 5 sentences of 2 to 9 tokens."""
    return random_documents(40, 0, (3, 6), (2, 10))


def make_model(objective: str) -> torch.nn.Module:
    set_seed(0)
    if objective in ("nsp", "dialogue"):
        return HfeBertForPreTraining(HfeBertConfig(**SIZES))
    if objective == "mlm":
        positions = "relative_key_query"
        return HfeRobertaForMaskedLM(HfeRobertaConfig(pad_token_id=0, position_embedding_type=positions, **SIZES))
    return HfeAlbertForPreTraining(HfeAlbertConfig(embedding_size=8, classifier_dropout_prob=0.0, **SIZES))


def make_collator(objective: str, packed: bool):
    if objective == "mlm":
        return DataCollatorForMaskedLM(make_tokenizer(), packed=packed)
    if objective == "dialogue":
        return DataCollatorForDialogueLM(make_tokenizer(), packed=packed)
    pairs = {"nsp": DataCollatorForNextSentencePrediction, "sop": DataCollatorForSentenceOrderPrediction}
    return pairs[objective](make_tokenizer(), LENGTH, packed=packed)


def make_data_set(objective: str, **options):
    corpus = datasets.Dataset.from_dict({"input_ids": make_documents()})
    made = {"mlm": SentenceBlocks, "dialogue": Dialogues}.get(objective, DocumentChunks)
    return made(corpus, LENGTH, **options)


def make_trainer(case: str, mode: str, folder: Path, **arguments) -> PreTrainingTrainer:
    """A trainer whose steps are on the same examples whatever the number of processes."""
    objective, packed, accumulated, more = CASES[case]
    if mode != "alone":
        processes = int(os.environ.get("WORLD_SIZE", 2))
        arguments["per_device_train_batch_size"] = STEP_EXAMPLES // processes // accumulated
    settings = {
        "max_steps": STEPS, "per_device_train_batch_size": STEP_EXAMPLES // accumulated, "learning_rate": 0.2,
        "gradient_accumulation_steps": accumulated, "lr_scheduler_type": "constant", "optim": "sgd",
        "per_device_eval_batch_size": 5, "logging_steps": 1, "save_strategy": "no", **more, **arguments,
    }  # fmt: skip
    made = training_arguments(folder, fsdp=mode in ("fsdp", "fsdp on CPUs"), **settings)
    if mode in ("fsdp", "launched") and made.use_cpu:
        on_gloo_as_on_accelerators()
    return PreTrainingTrainer(
        model=make_model(objective),
        args=made,
        train_dataset=make_data_set(objective),
        eval_dataset=make_data_set(objective, redraw=False),
        data_collator=make_collator(objective, packed),
    )


def whole_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters in full, whatever part of them this process has."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu().clone()
        for name, value in model.named_parameters()
    }


def run(case: str, mode: str, folder: Path) -> dict:
    """Train, evaluate and save."""
    trainer = make_trainer(case, mode, folder / case)
    trainer.train()
    evaluation = trainer.evaluate()
    trainer.save_model(str(folder / case / "saved"))
    return {
        "logs": [log for log in trainer.state.log_history if "loss" in log],
        "evaluation": evaluation,
        "parameters": whole_parameters(trainer.model),
        "are_sharded": all(isinstance(value, DTensor) for value in trainer.model.parameters()),
        "processes": trainer.args.world_size,
    }


def run_and_resume(mode: str, folder: Path) -> list[dict[str, torch.Tensor]]:
    """The parameters after a run with AdamW, and after one that goes on from its second step."""
    settings = {"optim": "adamw_torch", "adam_epsilon": 1e-4, "save_strategy": "steps", "save_steps": 2}
    parameters = []
    for checkpoint in (None, str(folder / "checkpoint-2")):
        trainer = make_trainer("nsp", mode, folder, learning_rate=0.01, **settings)
        trainer.train(resume_from_checkpoint=checkpoint)
        parameters.append(whole_parameters(trainer.model))
    return parameters


def refusal(folder: Path) -> str:
    """What is said where accelerate turns FSDP into DDP."""
    try:
        make_trainer("nsp", "fsdp on CPUs", folder)
    except ValueError as error:
        return str(error)
    finally:
        os.environ.pop("ACCELERATE_USE_FSDP", None)  # set by accelerate, for all that comes
    return ""


def main() -> None:
    """Run the cases and write what was found."""
    folder, modes, cases = Path(sys.argv[1]), sys.argv[2].split("+"), sys.argv[3:] or CASES
    torch.set_num_threads(1)
    for mode in modes:
        found = {case: run(case, mode, folder / mode) for case in cases}
        if mode == "ddp" and PartialState().device.type == "cpu":
            found["refusal"] = refusal(folder)
        if mode == "fsdp":
            found["resumed"] = run_and_resume(mode, folder / mode / "resumed")
        if PartialState().is_main_process:
            torch.save(found, folder / f"{mode}.pt")


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        # All is written. gloo's threads abort a process that ends, now and then even after `destroy_process_group`:
        # this one ends without waiting for them.
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
