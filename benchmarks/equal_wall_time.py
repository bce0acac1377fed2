"""A recipe's run beside transformers' own classes and collator, trained for as long on the same text.

    OMP_NUM_THREADS=1 python -m benchmarks.equal_wall_time bert-minutes --corpus docs.txt --output runs/beside

All get the same documents, tokenizer, model size, optimizer, learning rate, schedule, mask rates, batch sizes and
lengths, phase by phase. The others than the recipe's run use `DataCollatorForLanguageModeling` and `Trainer`, and
differ in two ways, so that the table says where a difference comes from:

- classes: the family's `...ForMaskedLM` of transformers, or of this package;
- rows: `cut`, text cut into rows of one length as `run_mlm.py` does; or `sentences`, those of `SentenceBlocks`: as
  many whole sentences as fit, across documents (FULL-SENTENCES).

They are spared the pair objective, for which transformers has no data. Their number of steps is what each does in the
time of the recipe's run, from 100 steps measured beforehand. Loading and evaluation are not counted. The time is that
of the process's work on the CPU, so that what else the machine does has no part in it: with one thread, that is the
wall time of a machine with nothing else to do.

All are evaluated alike: masked tokens of the same texts of documents kept apart, with the same masks. For a run with
pairs those texts are not its own form of input. `--seed` is that of the weights and of the order of rows.
"""

import argparse
import json
import math
import time
from itertools import chain
from pathlib import Path

import datasets
import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader, Subset
from transformers import (
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from hf_encoders import DataCollatorForMaskedLM, SentenceBlocks, split_train_validation
from hf_encoders.corpus.report import cross_entropy, token_counts
from hf_encoders.corpus.text_files import UNNAMED
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.runs.recipe import Recipe, load_recipe
from hf_encoders.runs.run import Run
from hf_encoders.runs.sources import Sources


EVAL_BLOCKS = 1000
CALIBRATION_STEPS, WARM_UP_STEPS = 120, 20  # measured are those behind the first ones
POINTS = 20  # of a curve
MASK_RATE = 0.15  # of recipes without one
RECIPE_RUN = "hf_encoders, recipe"
BESIDE = (("transformers", "cut"), ("transformers", "sentences"), ("hf_encoders", "cut"))  # classes, rows


class Curve(TrainerCallback):
    """Evaluates at even distances; tells the seconds of training alone, without those of the first `skipped` steps."""

    def __init__(self, batches: list[dict[str, torch.Tensor]], points: int = POINTS, skipped: int = 0):
        self.batches, self.points, self.skipped = batches, points, skipped
        self.seconds: float = 0.0
        self.points: list[dict[str, float]] = []

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.began = time.process_time()

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        self.seconds += time.process_time() - self.began
        if state.global_step == self.skipped:
            self.seconds = 0.0
        step, last = state.global_step, state.max_steps
        if self.points and (step % max(1, last // self.points) == 0 or step == last):
            loss, accuracy = masked_figures(model, self.batches)
            self.points.append({"step": step, "seconds": self.seconds, "loss": loss, "accuracy": accuracy})
            print(f"  step {step}, {self.seconds:.0f} s: loss {loss:.3f}", flush=True)
        self.began = time.process_time()


@torch.no_grad()
def masked_figures(model: PreTrainedModel, batches: list[dict[str, torch.Tensor]]) -> tuple[float, float]:
    """Nats a masked token and share of them guessed, over all batches."""
    model.eval()
    nll = correct = count = 0.0
    for batch in batches:
        outputs = model(**{name: value for name, value in batch.items() if name != "labels"})
        logits = outputs.logits if "logits" in outputs else outputs.prediction_logits
        is_masked = batch["labels"] != -100
        scores, labels = logits[is_masked].float(), batch["labels"][is_masked]
        nll += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").item()
        correct += (scores.argmax(-1) == labels).sum().item()
        count += len(labels)
    model.train()
    return nll / count, correct / count


def evaluation_batches(held_out: datasets.Dataset, tokenizer, length: int) -> list[dict[str, torch.Tensor]]:
    """Padded batches with fixed masks, 15 %."""
    blocks = SentenceBlocks(held_out, length, cross_documents=False, redraw=False)
    blocks = Subset(blocks, range(0, len(blocks), max(1, len(blocks) // EVAL_BLOCKS)))
    return list(DataLoader(blocks, batch_size=50, collate_fn=DataCollatorForMaskedLM(tokenizer)))


class StepRows(torch.utils.data.Dataset):
    """What each step of a run beside the recipe's is given: its mask rate, and rows of special tokens and text.

    The order of rows is random, and another one in every epoch.
    """

    def __init__(self, kind: str, recipe: Recipe, documents: datasets.Dataset, tokenizer, seed: int):
        self.seed, random = seed, np.random.default_rng(seed)
        self.steps: list[tuple[float, list[dict[str, list[int]]]]] = []
        for phase in recipe.phases:
            rows = ROWS[kind](documents, tokenizer, phase.length)
            epochs = math.ceil(phase.steps * phase.examples / len(rows))
            order = iter(np.concatenate([random.permutation(len(rows)) for _ in range(epochs)]).tolist())
            for _ in range(phase.steps):
                taken = [{"input_ids": rows[next(order)].tolist()} for _ in range(phase.examples)]
                rate = recipe.mask_rate(len(self.steps) / recipe.steps) if recipe.mask_rate else MASK_RATE
                self.steps.append((rate, taken))

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> tuple[float, list[dict[str, list[int]]]]:
        return self.steps[step]


def cut_rows(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, length: int) -> np.ndarray:
    """All text in rows of one length; what is left over at its end is dropped, as in `run_mlm.py`."""
    tokens = np.fromiter(chain.from_iterable(chain.from_iterable(documents["input_ids"])), dtype=np.int32)
    inner = tokens[: len(tokens) // (length - 2) * (length - 2)].reshape(-1, length - 2)
    return np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (tokenizer.cls_token_id, tokenizer.sep_token_id)))


def sentence_rows(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, length: int) -> list[np.ndarray]:
    """The rows of `SentenceBlocks`, as long as their sentences."""
    blocks = SentenceBlocks(documents, length, redraw=False)
    collator = DataCollatorForMaskedLM(tokenizer)
    return [collator.tokens(example)["input_ids"] for example in blocks[:]]


ROWS = {"cut": cut_rows, "sentences": sentence_rows}


def trainer_beside(
    classes: str, rows: StepRows, recipe: Recipe, config: EncoderConfig, tokenizer, output: Path, curve: Curve
) -> Trainer:
    """The stock `Trainer` and collator with the recipe's settings, its phases included, for one of `CLASSES`."""
    fields = {name: value for name, value in recipe.training.items() if name != "warmup_steps"}
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=recipe.steps,
        per_device_train_batch_size=1,  # an item is all the rows of a step, whose number changes with the phase
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        warmup_steps=recipe.warmup_steps,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        optim="adamw_torch_fused",
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
        **fields,
    )
    set_seed(rows.seed)
    if classes == "transformers":
        config = transformers.AutoConfig.for_model(config.model_type, **_plain(config))
    model = transformers.AutoModelForMaskedLM.from_config(config)
    assert type(model).__module__.startswith(f"{classes}.models.")
    collator = DataCollatorForLanguageModeling(tokenizer)

    def collate(steps: list[tuple[float, list[dict[str, list[int]]]]]) -> dict[str, torch.Tensor]:
        collator.mlm_probability, taken = steps[0]
        return collator(taken)

    return Trainer(model, arguments, collate, rows, processing_class=tokenizer, callbacks=[curve])


def _plain(config: EncoderConfig) -> dict:
    left_out = ("auto_map", "model_type", "architectures", "transformers_version", "custom_pipelines")
    return {name: value for name, value in config.to_diff_dict().items() if name not in left_out}


def main() -> None:
    """Train both and write table, figures and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="its name, or a file")
    parser.add_argument("--corpus", nargs="+", required=True, help="text files")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--steps", type=int, help="of the recipe's run (default: its own)")
    parser.add_argument("--seed", type=int, default=42, help="default: 42")
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe)
    recipe = recipe.of_steps(arguments.steps) if arguments.steps else recipe
    tokenizer, sources = Sources.from_words(arguments.corpus, ["en"]).open(recipe, None, arguments.output)
    documents = sources[UNNAMED].documents
    training, held_out = split_train_validation(documents, validation_share=0.05, seed=0)
    batches = evaluation_batches(held_out, tokenizer, recipe.longest)

    print(f"{recipe.name}, {recipe.steps} steps")
    options = {"eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True, "seed": arguments.seed}
    run = Run(recipe, arguments.output, options)
    set_seed(run.arguments.seed)
    trainer = run.trainer(training, held_out, tokenizer)
    recipe_curve = Curve(batches)
    trainer.add_callback(recipe_curve)
    trainer.train()
    trainer.save_state()  # for `hf-encoders plot`
    trained = {RECIPE_RUN: recipe_curve}

    config = recipe.model_config(tokenizer)
    for classes, kind in BESIDE:
        name = f"{classes}, {kind}"
        print(name)

        def train(recipe: Recipe, curve: Curve, classes: str = classes, kind: str = kind) -> Curve:
            rows = StepRows(kind, recipe, training, tokenizer, arguments.seed)
            trainer_beside(classes, rows, recipe, config, tokenizer, arguments.output, curve).train()
            return curve

        probe = train(recipe.of_steps(CALIBRATION_STEPS), Curve(batches, points=0, skipped=WARM_UP_STEPS))
        steps = round((CALIBRATION_STEPS - WARM_UP_STEPS) * recipe_curve.seconds / probe.seconds)
        trained[name] = train(recipe.of_steps(steps), Curve(batches))

    unigram = cross_entropy(token_counts(training, len(tokenizer)), held_out)
    curves = {name: curve.points for name, curve in trained.items()}
    figures = {"recipe": recipe.name, "seed": arguments.seed, "unigram": unigram, "curves": curves}
    (arguments.output / "equal_wall_time.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, curve in trained.items():
        last = curve.points[-1]
        print(f"{name:24} {last['step']:6} steps {last['seconds']:6.0f} s  loss {last['loss']:.3f}", end="  ")
        print(f"perplexity {math.exp(last['loss']):.1f}  accuracy {last['accuracy']:.1%}")


if __name__ == "__main__":
    main()
