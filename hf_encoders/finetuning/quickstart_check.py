"""What the quickstart does with the trained model: fill masks, fine-tune it."""

import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import numpy as np
import torch
import transformers
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.recipes.quickstart_text import LabelledDocument
from hf_encoders.training import CompactProgressCallback


# Chosen so that fine-tuning twice takes less than a minute on a CPU core, and both models learn.
EPOCHS = 5
BATCH_SIZE = 32
LEARNING_RATE = 1e-3
MOST_LABELS = 8
PASSAGES_A_LABEL = 250  # of the training part


def show_filled_masks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, held_out: list[LabelledDocument], seed: int
) -> None:
    """Mask one word in a few sentences and print the model's best guesses."""
    random = np.random.default_rng(seed)
    sentences = [s for document in held_out[:500] for s in document.sentences[:50]]
    candidates = [s for s in sentences if 8 <= len(tokenizer.tokenize(s)) <= 24]
    if not candidates:
        print("  skipped: no held-out sentence of 8 to 24 tokens.")
        return
    for sentence in random.choice(candidates, size=min(5, len(candidates)), replace=False):
        encoded = tokenizer(str(sentence), return_tensors="pt", truncation=True)
        ids = encoded["input_ids"][0]
        inner = [i for i in range(1, len(ids) - 1) if tokenizer.decode(ids[i]).strip().isalpha()]
        if not inner:
            continue
        place = int(random.choice(inner))
        truth = tokenizer.decode(ids[place]).strip()
        ids[place] = tokenizer.mask_token_id
        with torch.no_grad():
            outputs = model(**encoded.to(model.device))
        logits = outputs.logits if "logits" in outputs else outputs.prediction_logits
        best = logits[0, place].softmax(-1).topk(3)
        guesses = ", ".join(
            f"{tokenizer.decode(i).strip()} {p:.0%}"
            for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
        print(f"  {tokenizer.decode(ids, skip_special_tokens=False)}\n    {guesses}   (was: {truth})")


def finetune(
    directory: Path,
    config: EncoderConfig,
    tokenizer: PreTrainedTokenizerBase,
    held_out: list[LabelledDocument],
    max_length: int,
    seed: int,
) -> dict[str, float] | None:
    """Tell where a passage is from, with and without pre-training; documents of training and test do not overlap.

    Returns:
        Accuracies in [0, 1], or None where there are no two labels to tell apart.
    """
    parts = split_by_label(held_out, seed)
    counts = [Counter(document.label for document in part for _ in document.passages) for part in parts]
    enough = [label for label, _ in (counts[0] + counts[1]).most_common() if min(c[label] for c in counts) >= 10]
    labels = sorted(enough[:MOST_LABELS])
    if len(labels) < 2:
        print("  skipped: too little held-out text from two different sources (files). Give --input more files.")
        return None
    train_set, test_set = passage_sets(parts, labels, tokenizer, max_length)
    majority = max(Counter(test_set["labels"]).values()) / len(test_set)
    print(f"  {len(train_set):,} passages to train on, {len(test_set):,} to test on: {', '.join(labels)}")

    auto = transformers.AutoModelForSequenceClassification
    names = {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {x: i for i, x in enumerate(labels)},
    }
    model_class = auto._model_mapping[type(config)]
    set_seed(seed)  # the same heads whether this process has trained the encoder or found it finished
    pretrained = model_class.from_pretrained(directory, **names)
    untrained = model_class(type(config)(**{**config.to_dict(), **names}))
    accuracies = {"majority": majority}
    for name, model in (("without", untrained), ("pretrained", pretrained)):
        with TemporaryDirectory() as nothing_is_kept:
            accuracies[name] = finetuned_accuracy(model, tokenizer, train_set, test_set, nothing_is_kept, seed)
    return accuracies


def split_by_label(
    documents: list[LabelledDocument], seed: int
) -> tuple[list[LabelledDocument], list[LabelledDocument]]:
    """Two thirds of the documents of each label, and the others."""
    random = np.random.default_rng(seed)
    parts: tuple[list[LabelledDocument], list[LabelledDocument]] = ([], [])
    for label in sorted({document.label for document in documents}):
        mine = [document for document in documents if document.label == label]
        for rank, i in enumerate(random.permutation(len(mine))):
            parts[rank * 3 >= len(mine) * 2].append(mine[i])
    return parts


def passage_sets(
    parts: tuple[list[LabelledDocument], list[LabelledDocument]],
    labels: list[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Tokenised passages with labels; of the training part at most `PASSAGES_A_LABEL` a label."""
    sets = []
    for documents, most in zip(parts, (PASSAGES_A_LABEL, math.inf), strict=True):
        taken: Counter = Counter()
        texts, targets = [], []
        for document in documents:
            for passage in document.passages if document.label in labels else ():
                if taken[document.label] < most:
                    taken[document.label] += 1
                    texts.append(" ".join(passage))
                    targets.append(labels.index(document.label))
        encoded = tokenizer(texts, truncation=True, max_length=max_length)
        sets.append(datasets.Dataset.from_dict({**encoded, "labels": targets}))
    return sets[0], sets[1]


def finetuned_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train_set: datasets.Dataset,
    test_set: datasets.Dataset,
    output: str,
    seed: int,
) -> float:
    """Train a classifier with the stock `Trainer` and return its accuracy on the test set."""
    arguments = TrainingArguments(
        output_dir=output,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=2 * BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        warmup_steps=20,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        seed=seed,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=False,
    )
    set_seed(seed)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train_set,
        eval_dataset=test_set,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=_accuracy,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(CompactProgressCallback)
    trainer.train()
    return trainer.evaluate()["eval_accuracy"]


def _accuracy(prediction: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}
