# /// script
# dependencies = ["hf_encoders"]
# ///
"""Fine-tune an encoder to classify pairs of texts, with the stock Trainer.

    python examples/finetune_pairs.py --model runs/quickstart/model --output_dir runs/pairs
    python examples/finetune_pairs.py --model NAME --train_file a.csv --test_file b.csv --output_dir out

Files are CSV, TSV or JSON lines with the columns `text`, `text_pair` and `label`. Without files, the task is to decide
whether a description belongs to a function of the standard library or to another function of its module. The first
command takes 20 seconds on one CPU core and ends with an accuracy of about 0.62 (most frequent label: 0.51).
"""

import ast
import random
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.finetuning import sequence_classification
from hf_encoders.tokenizer_loading import load_tokenizer

from datasets import Dataset, DatasetDict
from transformers import (
    AutoModelForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    model: str = field(metadata={"help": "path or Hub name of an encoder"})
    train_file: str | None = field(default=None, metadata={"help": "columns text, text_pair and label"})
    test_file: str | None = field(default=None, metadata={"help": "same format, for evaluation"})
    max_length: int = field(default=64, metadata={"help": "maximum length of a pair in tokens"})


def documented_functions() -> list[list[tuple[str, str]]]:
    """For each module of the standard library: its functions, as signature in words and description."""
    modules = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*.py")):
        found = {}
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                words = " ".join([node.name, "of", *(argument.arg for argument in node.args.args)])
                found[" ".join(ast.get_docstring(node).split("\n\n")[0].split())] = words.replace("_", " ")
        modules.append([(words, sentence) for sentence, words in found.items() if len(sentence.split()) > 3])
    return modules


def functions_and_descriptions() -> DatasetDict:
    """Every function with its own description or another one of its module; no module is in both splits."""
    generator, rows = random.Random(0), {"train": [], "test": []}
    for number, functions in enumerate(documented_functions()):
        for function, sentence in functions if len(functions) > 1 else ():
            label = generator.choice(["its own", "another's"])
            candidates = [other for _, other in functions if (other == sentence) == (label == "its own")]
            row = {"text": function, "text_pair": generator.choice(candidates), "label": label}
            rows["test" if number % 4 == 0 else "train"].append(row)
    return DatasetDict({part: Dataset.from_list(examples) for part, examples in rows.items()})


def main() -> None:
    """Train and evaluate."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(
        learning_rate=3e-4,
        warmup_steps=20,
        num_train_epochs=4,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        optim="adamw_torch_fused",
    )
    arguments, training = parser.parse_args_into_dataclasses()
    if (arguments.train_file is None) != (arguments.test_file is None):
        raise ValueError("--train_file and --test_file go together: give both, or neither.")
    set_seed(training.seed)
    # 1. Data.
    if arguments.train_file:
        data = DatasetDict({"train": read_file(arguments.train_file), "test": read_file(arguments.test_file)})
    else:
        data = functions_and_descriptions()

    # 2. Token ids, truncated to the model's maximum length, and class ids.
    tokenizer = load_tokenizer(arguments.model)
    max_length = min(arguments.max_length, tokenizer.model_max_length)
    task = sequence_classification.prepare(data, tokenizer, max_length=max_length, text_pair_column="text_pair")
    print(*task.plan, sep="\n")

    # 3. Model; trust_remote_code runs the code saved beside the weights.
    model = AutoModelForSequenceClassification.from_pretrained(
        arguments.model, trust_remote_code=True, **task.config_fields
    )

    # 4. Train and evaluate.
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=task.train_set,
        eval_dataset=task.eval_sets["test"],
        data_collator=task.data_collator,
        processing_class=tokenizer,
        compute_metrics=task.compute_metrics("test"),
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
