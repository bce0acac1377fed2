"""Six steps that save after each; in step 3 the batch of process 1 has a loss that is not finite."""

from pathlib import Path

import torch

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM, NonFiniteLossError, PreTrainingTrainer
from tests import processes
from tests.training.launched_steps import on_gloo_as_on_accelerators
from tests.training.three_steps import SIZES, collate
from tests.training.tiny import training_arguments


POISON = 60


def train_with_ddp_and_fsdp(folder: Path) -> None:
    """Train until it is stopped, with DDP and then with FSDP2."""
    torch.set_num_threads(1)
    for mode in ("ddp", "fsdp"):
        torch.manual_seed(0)
        model = HfeBertForMaskedLM(HfeBertConfig(**SIZES))
        with torch.no_grad():
            model.get_output_embeddings().bias[POISON] = -3e38  # the losses of two such tokens overflow
        ids = torch.randint(5, POISON, (48, 6), generator=torch.Generator().manual_seed(0))
        ids[2 * 8 + 4 + 2, :2] = POISON  # of the third step's 2 x 4 examples, one of process 1
        examples = [{"input_ids": row, "labels": torch.where(torch.arange(6) < 2, row, -100)} for row in ids]
        arguments = training_arguments(
            folder / mode, fsdp=mode == "fsdp", max_steps=6, per_device_train_batch_size=4, save_steps=1,
            logging_steps=2, train_sampling_strategy="sequential", learning_rate=0.01,
        )  # fmt: skip
        if mode == "fsdp":
            on_gloo_as_on_accelerators()
        try:
            PreTrainingTrainer(model=model, args=arguments, train_dataset=examples, data_collator=collate).train()
        except NonFiniteLossError as error:
            print(error)
    processes.end_together()
