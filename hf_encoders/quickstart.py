"""`hf-encoders quickstart`: the whole life of an encoder in a few minutes on a laptop, without a download.

Text -> tokenizer -> pre-training -> saved model -> loaded elsewhere -> fine-tuned -> figures. By default the text is
the documentation inside the Python installation; `--input` takes the user's own.
"""

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from torch.utils.data import Subset
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_encoders.data.blocks import SentenceBlocks
from hf_encoders.data.collators import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
)
from hf_encoders.data.corpus import corpus_statistics, read_documents, tokenize_documents, warnings_for
from hf_encoders.data.python_docs import read_python_documents
from hf_encoders.data.segmentation import split_sentences
from hf_encoders.data.sentence_pairs import DocumentChunks
from hf_encoders.data.sentence_store import SentenceStore
from hf_encoders.data.tokenizer_training import train_tokenizer
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.loss_curve import draw_loss_curve
from hf_encoders.publishing.model_card import CURVE_FILE, make_model_card
from hf_encoders.publishing.training_record import TrainingRecord, describe_hardware, describe_software
from hf_encoders.registration import CONFIGURATIONS
from hf_encoders.training import PreTrainingTrainer


@dataclass
class Recipe:
    """The small recipe: every number that shapes the run.

    Sizes and rates were chosen so that the whole quickstart ends within ten minutes on two CPU cores with a model that
    has clearly learned.
    """

    vocab_size: int = 8000
    max_length: int = 128
    hidden_size: int = 192
    num_hidden_layers: int = 3
    num_attention_heads: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_share: float = 0.06
    max_steps: int = 1500
    initializer_range: float = 0.05
    eval_examples: int = 800
    held_out_share: float = 0.15
    characters_a_library: int = 1_200_000
    finetune_epochs: int = 4
    finetune_learning_rate: float = 3e-4
    most_labels: int = 8
    passages_a_label: int = 250


@dataclass
class LabelledDocument:
    """A document, where it is from, and the passages it is made of, each a list of sentences."""

    label: str
    passages: list[list[str]]

    @property
    def sentences(self) -> list[str]:
        """All sentences in order."""
        return [sentence for passage in self.passages for sentence in passage]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    recipe = Recipe()
    parser.add_argument(
        "--input",
        nargs="+",
        metavar="PATH",
        help="text files, .jsonl files or folders of them (blank line between documents); default: the "
        "documentation inside this Python installation",
    )
    parser.add_argument(
        "--objective", choices=["mlm", "nsp", "sop"], help="default: nsp for bert, mlm for roberta, sop for albert"
    )
    parser.add_argument("--family", choices=[config.model_type for config in CONFIGURATIONS], default="bert")
    parser.add_argument(
        "--output", default="runs/quickstart", metavar="DIR", help="folder of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        default=recipe.max_steps,
        metavar="N",
        help="optimizer steps of pre-training (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=recipe.vocab_size,
        metavar="N",
        help="entries in the vocabulary (default: %(default)s)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=recipe.max_length,
        metavar="TOKENS",
        help="longest example in tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--language", default="en", metavar="CODE", help="language of --input, for sentence splitting (default: en)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Do it all; 0 when every step worked."""
    started = time.perf_counter()
    check_arguments(arguments)
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    set_seed(arguments.seed)
    recipe = Recipe(vocab_size=arguments.vocab_size, max_length=arguments.max_length, max_steps=arguments.max_steps)
    config_class = next(config for config in CONFIGURATIONS if config.model_type == arguments.family)
    objective = arguments.objective or default_objective(config_class)
    check_objective(config_class, objective)
    output = Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)

    step(1, "corpus")
    documents = load_documents(arguments, recipe)
    training, held_out = hold_out(documents, recipe.held_out_share, arguments.seed)

    step(2, f"tokenizer ({config_class.TOKENIZER_CLASS}, {recipe.vocab_size:,} entries)")
    sentences = (sentence for document in training for sentence in document.sentences)
    tokenizer = train_tokenizer(sentences, config_class, recipe.vocab_size, recipe.max_length)
    corpus = tokenized(training, tokenizer, recipe.max_length)
    held_out_corpus = tokenized(held_out, tokenizer, recipe.max_length)
    statistics = corpus_statistics(corpus, tokenizer)
    print(
        f"  {statistics.documents:,} documents, {statistics.sentences:,} sentences, {statistics.tokens:,} tokens; "
        f"{len(held_out):,} more documents are kept out"
    )
    for warning in warnings_for(statistics):
        print(f"  warning: {warning}")

    step(3, f"pre-training ({arguments.family}, {objective})")
    config = small_config(config_class, tokenizer, recipe)
    model = pretraining_model(config, objective)
    print(f"  {model.num_parameters():,} parameters, {recipe.max_steps:,} steps of {recipe.batch_size} examples")
    trainer = make_trainer(model, tokenizer, objective, corpus, held_out_corpus, recipe, output, arguments.seed)
    before = trainer.evaluate()
    result = trainer.train()
    after = trainer.evaluate()

    step(4, "saving")
    directory = output / "model"
    trainer.save_model(str(directory))
    tokenizer.save_pretrained(directory)
    unigram = unigram_cross_entropy(corpus, held_out_corpus, len(tokenizer))
    seconds = result.metrics["train_runtime"]
    record = make_record(objective, statistics, recipe, trainer, after, seconds, unigram, arguments)
    record.save(directory)
    draw_loss_curve(trainer.state.log_history, directory / CURVE_FILE, f"{arguments.family} + {objective}, quickstart")
    card = make_model_card(model, record, name=str(directory), has_curve=True, language=arguments.language)
    card.save(directory / "README.md")

    step(5, "loading in fresh processes")
    verify_loading(directory, model, tokenizer)

    step(6, "filling masks in held-out sentences")
    show_filled_masks(model, tokenizer, held_out, arguments.seed)

    step(7, "fine-tuning on held-out documents")
    accuracies = finetune(directory, config, tokenizer, held_out, recipe, output, arguments.seed)

    print_table(before, after, unigram, accuracies)
    print(f"\nmodel, tokenizer, code: {directory}\ncard: {directory / 'README.md'}\ncurve: {directory / CURVE_FILE}")
    print(f"all in {(time.perf_counter() - started) / 60:.1f} minutes")
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse numbers that no run can be made of."""
    for name, least in (("max_steps", 1), ("max_length", 8), ("vocab_size", 50)):
        if getattr(arguments, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least {least}.")


def step(number: int, what: str) -> None:
    """Head a part of the output."""
    print(f"\n[{number}/7] {what}", flush=True)


def has_pair_head(config_class: type[EncoderConfig]) -> bool:
    """Whether the family's pre-training head judges sentence pairs."""
    return config_class.AUTO_MAP["AutoModelForPreTraining"] != config_class.AUTO_MAP["AutoModelForMaskedLM"]


def default_objective(config_class: type[EncoderConfig]) -> str:
    """The objective of the family's paper."""
    if not has_pair_head(config_class):
        return "mlm"
    return "sop" if pretraining_class(config_class).pair_label_name == "sentence_order_label" else "nsp"


def check_objective(config_class: type[EncoderConfig], objective: str) -> None:
    """Refuse a pair objective for a family without a pair head."""
    if objective != "mlm" and not has_pair_head(config_class):
        able = [config.model_type for config in CONFIGURATIONS if has_pair_head(config)]
        raise ValueError(
            f"--objective {objective}: {config_class.model_type} has no head for sentence pairs. Use --objective mlm, "
            f"or --family {' or '.join(able)}."
        )


def pretraining_class(config_class: type[EncoderConfig]) -> type[PreTrainedModel]:
    """The family's class with all pre-training heads."""
    return transformers.AutoModelForPreTraining._model_mapping[config_class]


def pretraining_model(config: EncoderConfig, objective: str) -> PreTrainedModel:
    """A model with fresh weights and the heads that the objective trains."""
    auto = transformers.AutoModelForMaskedLM if objective == "mlm" else transformers.AutoModelForPreTraining
    return auto.from_config(config)


def small_config(
    config_class: type[EncoderConfig], tokenizer: PreTrainedTokenizerBase, recipe: Recipe
) -> EncoderConfig:
    """The recipe's size in the family's form, with the tokenizer's ids."""
    # Families that count positions from the padding id need that many more rows.
    first_position = tokenizer.pad_token_id + 1 if config_class().max_position_embeddings > 512 else 0
    return config_class(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=recipe.num_attention_heads,
        intermediate_size=4 * recipe.hidden_size,
        max_position_embeddings=recipe.max_length + first_position,
        # The papers' 0.02 is for widths of 768 and more; a narrow model starts faster from larger weights.
        initializer_range=recipe.initializer_range,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def load_documents(arguments: argparse.Namespace, recipe: Recipe) -> list[LabelledDocument]:
    """The user's documents, labelled by file; or this Python's documentation, labelled by library."""

    def splitter(text: str) -> list[str]:
        return split_sentences(text, arguments.language)

    if not arguments.input:
        found = read_python_documents(splitter, recipe.characters_a_library)
        return [LabelledDocument(document.library, document.docstrings) for document in found]
    documents = []
    for path in arguments.input:
        for sentences in read_documents([path], sentence_splitter=splitter):
            passages = [sentences[i : i + 4] for i in range(0, len(sentences), 4)]
            documents.append(LabelledDocument(Path(path).name, passages))
    if len(documents) < 10:
        raise ValueError(
            f"--input holds {len(documents)} document(s), too few to keep some out for evaluation: separate documents "
            "by blank lines, or give more files."
        )
    return documents


def hold_out(
    documents: list[LabelledDocument], share: float, seed: int
) -> tuple[list[LabelledDocument], list[LabelledDocument]]:
    """Training documents and the ones kept out, `share` of them."""
    order = np.random.default_rng(seed).permutation(len(documents))
    cut = max(2, round(len(documents) * share))
    return [documents[i] for i in sorted(order[cut:])], [documents[i] for i in sorted(order[:cut])]


def tokenized(
    documents: list[LabelledDocument], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> datasets.Dataset:
    """Documents of sentences of ids; a sentence longer than an example is cut."""
    return tokenize_documents(
        (document.sentences for document in documents), tokenizer, max_sentence_tokens=max_length
    )


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    objective: str,
    corpus: datasets.Dataset,
    held_out: datasets.Dataset,
    recipe: Recipe,
    output: Path,
    seed: int,
) -> PreTrainingTrainer:
    """The pre-training of one objective."""
    length = recipe.max_length
    if objective == "mlm":
        train_set = SentenceBlocks(corpus, tokenizer, length, seed=seed)
        eval_set = SentenceBlocks(held_out, tokenizer, length, seed=seed, redraw=False)
        collator = DataCollatorForMaskedLM(tokenizer)
    else:
        train_set = DocumentChunks(corpus, length, seed=seed)
        eval_set = DocumentChunks(held_out, length, seed=seed, redraw=False)
        names = {"label_name": model.pair_label_name, "max_length": length}
        if objective == "nsp":
            collator = DataCollatorForNextSentencePrediction(tokenizer, **names)
        else:
            collator = DataCollatorForSentenceOrderPrediction(tokenizer, **names)
    arguments = TrainingArguments(
        output_dir=str(output / "checkpoints"),
        max_steps=recipe.max_steps,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        warmup_steps=math.ceil(recipe.warmup_share * recipe.max_steps),
        weight_decay=0.01,
        adam_beta2=0.98,
        optim="adamw_torch_fused",
        logging_steps=max(1, recipe.max_steps // 50),
        eval_strategy="steps",
        eval_steps=max(1, recipe.max_steps // 5),
        save_strategy="no",
        report_to="none",
        seed=seed,
        include_num_input_tokens_seen="non_padding",
    )
    spread = np.linspace(0, len(eval_set) - 1, min(len(eval_set), recipe.eval_examples)).astype(int)
    return PreTrainingTrainer(
        model=model,
        args=arguments,
        train_dataset=train_set,
        eval_dataset=Subset(eval_set, spread.tolist()),
        data_collator=collator,
        processing_class=tokenizer,
    )


def unigram_cross_entropy(corpus: datasets.Dataset, held_out: datasets.Dataset, vocab_size: int) -> float:
    """Nats a held-out token under the training corpus's token frequencies (one added to each).

    What a model reaches that has learned which tokens are frequent and nothing else: the plateau that a healthy run
        leaves.
    """
    counts = np.bincount(SentenceStore.from_dataset(corpus).tokens, minlength=vocab_size) + 1.0
    tokens = SentenceStore.from_dataset(held_out).tokens
    return float(-np.log(counts / counts.sum())[tokens].mean())


def make_record(
    objective: str,
    statistics: Any,
    recipe: Recipe,
    trainer: PreTrainingTrainer,
    after: dict[str, float],
    seconds: float,
    unigram: float,
    arguments: argparse.Namespace,
) -> TrainingRecord:
    """The facts of the run."""
    masking = "15 % of the tokens, of those 80 % [MASK], 10 % random, 10 % kept; drawn anew every epoch"
    objectives = {"masked language modelling": masking}
    if objective == "nsp":
        objectives["next-sentence prediction"] = "half of the second segments from another document"
    if objective == "sop":
        objectives["sentence-order prediction"] = "half of the pairs swapped"
    evaluation = [
        {
            "task": "fill-mask",
            "dataset": "held-out documents of the corpus",
            "metric": "perplexity",
            "value": round(after["eval_perplexity"], 2),
            "baseline": f"unigram {math.exp(unigram):.1f}",
        },
        {
            "task": "fill-mask",
            "dataset": "held-out documents of the corpus",
            "metric": "accuracy",
            "value": round(after["eval_mlm_accuracy"], 4),
        },
    ]
    if "eval_pair_accuracy" in after:
        evaluation.append(
            {
                "task": "sentence-pair-classification",
                "dataset": "held-out documents of the corpus",
                "metric": "accuracy",
                "value": round(after["eval_pair_accuracy"], 4),
                "baseline": "chance 0.5",
            }
        )
    name = "documentation of the Python installation" if not arguments.input else ", ".join(arguments.input)
    return TrainingRecord(
        objectives=objectives,
        corpus={
            "name": name,
            "documents": statistics.documents,
            "sentences": statistics.sentences,
            "tokens": statistics.tokens,
        },
        schedule={
            "optimizer steps": trainer.state.global_step,
            "examples a step": recipe.batch_size,
            "longest example (tokens)": recipe.max_length,
            "epochs": round(trainer.state.epoch, 2),
            "optimizer": "AdamW",
            "peak learning rate": recipe.learning_rate,
            "warm-up steps": trainer.args.warmup_steps,
            "schedule after warm-up": "linear to 0",
            "seed": arguments.seed,
        },
        hardware=describe_hardware(),
        software=describe_software(),
        seconds=seconds,
        tokens_per_second=trainer.state.num_input_tokens_seen / seconds,
        evaluation=evaluation,
        command=shlex.join(["hf-encoders", *sys.argv[1:]]),
    )


LOAD_ELSEWHERE = """
import json, sys
directory, text, how = sys.argv[1:4]
if how == "package":
    import hf_encoders
else:
    sys.modules["hf_encoders"] = None  # any import of the package fails now
import torch, transformers
transformers.logging.set_verbosity_error()
trust = {"trust_remote_code": True} if how != "plain" else {}
tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
model = transformers.AutoModelForMaskedLM.from_pretrained(directory, **trust).eval()
with torch.no_grad():
    logits = model(**tokenizer(text, return_tensors="pt")).logits
print(json.dumps({"class": type(model).__module__ + "." + type(model).__name__, "logits": logits[0, :, :8].tolist()}))
"""


def verify_loading(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Load the directory in other processes and compare what comes out.

    Raises:
        RuntimeError: if a process fails or computes something else.
    """
    text = "The documentation says what the function returns."
    model.eval()
    with torch.no_grad():
        outputs = model(**tokenizer(text, return_tensors="pt").to(model.device))
    ours = (outputs.logits if "logits" in outputs else outputs.prediction_logits)[0, :, :8].cpu()
    for how, words in (
        ("package", "with hf_encoders, trust_remote_code=True"),
        ("remote", "without hf_encoders, trust_remote_code=True"),
        ("plain", "without hf_encoders, plain transformers"),
    ):
        command = [sys.executable, "-c", LOAD_ELSEWHERE, str(directory), text, how]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode != 0:
            raise RuntimeError(f"loading {directory} {words} failed:\n{child.stderr}")
        loaded = json.loads(child.stdout.strip().splitlines()[-1])
        difference = (torch.tensor(loaded["logits"]) - ours).abs().max().item()
        print(f"  {words}: {loaded['class'].rpartition('.')[2]}, largest difference of logits {difference:.1e}")
        if difference > 1e-4:
            raise RuntimeError(f"{directory} gives other logits when loaded {words}: {difference}.")


def show_filled_masks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, held_out: list[LabelledDocument], seed: int
) -> None:
    """Mask one word in a few sentences and print the model's best guesses."""
    random = np.random.default_rng(seed)
    candidates = [s for document in held_out for s in document.sentences if 8 <= len(s.split()) <= 16 and s.isascii()]
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
    recipe: Recipe,
    output: Path,
    seed: int,
) -> dict[str, float] | None:
    """Tell where a passage is from, with and without pre-training; documents of training and test do not overlap.

    Returns:
        Accuracies in [0, 1], or None where there are no two labels to tell apart.
    """
    frequent = Counter(document.label for document in held_out for _ in document.passages).most_common(
        recipe.most_labels
    )
    labels = sorted(label for label, count in frequent if count >= 20)
    if len(labels) < 2:
        print("  skipped: the text has no two sources to tell apart. Give --input several files.")
        return None
    train_set, test_set = passage_sets(held_out, labels, tokenizer, recipe, seed)
    majority = max(Counter(test_set["labels"]).values()) / len(test_set)
    print(f"  {len(train_set):,} passages to train on, {len(test_set):,} to test on: {', '.join(labels)}")

    auto = transformers.AutoModelForSequenceClassification
    names = {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {x: i for i, x in enumerate(labels)},
    }
    model_class = auto._model_mapping[type(config)]
    pretrained = model_class.from_pretrained(directory, **names)
    untrained = model_class(type(config)(**{**config.to_dict(), **names}))
    accuracies = {"majority": majority}
    for name, model in (("without", untrained), ("pretrained", pretrained)):
        accuracies[name] = finetuned_accuracy(
            model, tokenizer, train_set, test_set, recipe, output / "finetuned" / name, seed
        )
    return accuracies


def passage_sets(
    held_out: list[LabelledDocument],
    labels: list[str],
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    seed: int,
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Tokenised passages with labels: two thirds of the documents to train on, the others to test on."""
    order = np.random.default_rng(seed).permutation(len(held_out))
    cut = len(held_out) * 2 // 3
    sets = []
    for chosen, most in ((order[:cut], recipe.passages_a_label), (order[cut:], None)):
        taken: Counter = Counter()
        rows: dict[str, list] = {"text": [], "labels": []}
        for passage, label in _passages(held_out[i] for i in chosen):
            if label in labels and (most is None or taken[label] < most):
                taken[label] += 1
                rows["text"].append(passage)
                rows["labels"].append(labels.index(label))
        encoded = tokenizer(rows["text"], truncation=True, max_length=recipe.max_length)
        sets.append(datasets.Dataset.from_dict({**encoded, "labels": rows["labels"]}))
    return sets[0], sets[1]


def _passages(documents: Iterator[LabelledDocument]) -> Iterator[tuple[str, str]]:
    for document in documents:
        for passage in document.passages:
            yield " ".join(passage), document.label


def finetuned_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train_set: datasets.Dataset,
    test_set: datasets.Dataset,
    recipe: Recipe,
    output: Path,
    seed: int,
) -> float:
    """Train a classifier with the stock `Trainer` and return its accuracy on the test set."""
    arguments = TrainingArguments(
        output_dir=str(output),
        num_train_epochs=recipe.finetune_epochs,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=2 * recipe.batch_size,
        learning_rate=recipe.finetune_learning_rate,
        warmup_steps=20,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        seed=seed,
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
    trainer.train()
    return trainer.evaluate()["eval_accuracy"]


def _accuracy(prediction: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}


def print_table(
    before: dict[str, float], after: dict[str, float], unigram: float, accuracies: dict[str, float] | None
) -> None:
    """One table of what was reached and what to compare it with."""
    rows = [
        (
            "MLM loss, held-out (nats a token)",
            f"{before['eval_mlm_loss']:.2f}",
            f"{after['eval_mlm_loss']:.2f}",
            f"unigram {unigram:.2f}",
        ),
        ("MLM accuracy, held-out", f"{before['eval_mlm_accuracy']:.1%}", f"{after['eval_mlm_accuracy']:.1%}", ""),
        (
            "MLM perplexity, held-out",
            f"{before['eval_perplexity']:.0f}",
            f"{after['eval_perplexity']:.1f}",
            f"unigram {math.exp(unigram):.0f}",
        ),
    ]
    if "eval_pair_accuracy" in after:
        rows.append(
            (
                "sentence-pair accuracy, held-out",
                f"{before['eval_pair_accuracy']:.1%}",
                f"{after['eval_pair_accuracy']:.1%}",
                "chance 50.0%",
            )
        )
    if accuracies:
        rows.append(
            (
                "fine-tuned accuracy, unseen documents",
                f"{accuracies['without']:.1%}",
                f"{accuracies['pretrained']:.1%}",
                f"majority {accuracies['majority']:.1%}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    print(f"\n{'':{widths[0]}}  {'before':>{widths[1]}}  {'after pre-training':>18}  to compare with")
    for what, first, second, compare in rows:
        print(f"{what:{widths[0]}}  {first:>{widths[1]}}  {second:>18}  {compare}")
