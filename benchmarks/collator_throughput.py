"""Tokens a second of the collators next to transformers' own, in one run, on one core.

    python benchmarks/collator_throughput.py
    python benchmarks/collator_throughput.py --text docs.txt --rows 32 --length 128
    python benchmarks/collator_throughput.py --only-loading  # from dataset to batch, into results/loading.json

Without --text, the text is the documentation inside the Python installation. Both sides see the same tokens, in turns
of four batches; figures are medians over the turns, the slowest and the fastest after them. At the end training steps
of bert-minutes, without a data-loader worker and with one, tell how long a step waits for its batch.
"""

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler
from transformers import DataCollatorForLanguageModeling

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    HfeBertConfig,
    SentenceBlocks,
    get_objective,
    read_documents,
    split_sentences,
    tokenize_documents,
    train_tokenizer,
)
from hf_encoders.objectives.dataset import Example
from hf_encoders.objectives.randomness import Key
from hf_encoders.runs.recipe import load_recipe


STOCK, OURS = "transformers", "hf_encoders"
RESULTS = Path(__file__).parent / "results" / "loading.json"
LENGTHS = (128, 512)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", help="text files, a blank line between documents")
    parser.add_argument("--rows", type=int, default=256, help="examples in a batch (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens of an example (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each kind (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="training steps at the end (default: %(default)s)")
    parser.add_argument("--only-loading", action="store_true", help="nothing but dataset to batch, and steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Random token replacement is not supported")

    if arguments.text:
        documents = list(read_documents(arguments.text))
    else:
        documents = [split_sentences(text) for text in topics.values()]
    tokenizer = train_tokenizer((s for d in documents for s in d), HfeBertConfig, 30000, arguments.length)
    corpus = tokenize_documents(documents, tokenizer)
    if not arguments.only_loading:
        collators(arguments, tokenizer, corpus)
    rates = [
        {"objective": name, "length": length, "million_tokens_per_second": loading(tokenizer, corpus, name, length)}
        for length in LENGTHS
        for name in ("mlm", "nsp")
    ]
    steps = [waiting(tokenizer, corpus, arguments.steps, workers) for workers in (0, 1)]
    results = {"load_average": os.getloadavg()[0], "dataset_to_batch": rates, "steps_of_bert_minutes": steps}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def collators(arguments: argparse.Namespace, tokenizer, corpus: datasets.Dataset) -> None:
    """Compare the collators with those of transformers."""
    blocks = SentenceBlocks(corpus, arguments.length, redraw=False)
    chunks = DocumentChunks(corpus, arguments.length, redraw=False)
    print(f"{len(blocks.corpus.tokens):,} tokens, {len(blocks):,} blocks of at most {arguments.length} tokens")

    # Rows of one length, because stock whole-word masking cannot pad its offsets.
    inner = arguments.length - 2
    starts = np.arange(0, len(blocks.corpus.tokens) - inner, inner)
    stored = datasets.Dataset.from_dict(
        {
            "input_ids": [
                [tokenizer.cls_token_id, *blocks.corpus.tokens[i : i + inner].tolist(), tokenizer.sep_token_id]
                for i in starts
            ]
        }
    )
    random = np.random.default_rng(0)
    picks = [random.integers(0, len(starts), arguments.rows) for _ in range(4)]
    rows = [stored.__getitems__(pick.tolist()) for pick in picks]
    examples = [
        [Example([blocks.corpus.tokens[starts[i] : starts[i] + inner]], Key(0, 0, i)) for i in pick.tolist()]
        for pick in picks
    ]
    offsets = [
        [{**row, "offset_mapping": offsets_of_words(tokenizer, row["input_ids"])} for row in batch] for batch in rows
    ]
    full = np.flatnonzero(np.diff(blocks.blocks, axis=1)[:, 0] > 0.9 * inner)
    full_picks = [random.choice(full, arguments.rows) for _ in picks]
    pairs = [chunks.__getitems__(random.integers(0, len(chunks), arguments.rows)) for _ in picks]

    stock = DataCollatorForLanguageModeling(tokenizer)
    stock_words = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True)
    ours = {unit: DataCollatorForMaskedLM(tokenizer, unit=unit) for unit in ("token", "word", "ngram", "span")}
    ours["bernoulli"] = DataCollatorForMaskedLM(tokenizer, num_masked="bernoulli")
    next_sentence = DataCollatorForNextSentencePrediction(tokenizer, arguments.length)
    sentence_order = DataCollatorForSentenceOrderPrediction(tokenizer, arguments.length)
    compare(
        "tokens",
        arguments.rounds,
        {
            STOCK: lambda i: stock(rows[i]),
            "plain rows (lists)": lambda i: ours["token"](rows[i]),
            OURS: lambda i: ours["token"](examples[i]),
            "Bernoulli": lambda i: ours["bernoulli"](examples[i]),
        },
    )
    compare(
        "whole words",
        arguments.rounds,
        {
            STOCK: lambda i: stock_words(copies(offsets[i])),
            "plain rows (lists)": lambda i: ours["word"](rows[i]),
            OURS: lambda i: ours["word"](examples[i]),
            "n-grams": lambda i: ours["ngram"](examples[i]),
            "spans": lambda i: ours["span"](examples[i]),
        },
    )
    compare(
        "fetched at random, masked, made a batch",
        arguments.rounds,
        {
            STOCK: lambda i: stock(stored.__getitems__(picks[i].tolist())),
            OURS: lambda i: ours["token"](blocks.__getitems__(full_picks[i])),
        },
    )
    compare(
        "sentence pairs (the first line is plain masking of blocks)",
        arguments.rounds,
        {
            "blocks": lambda i: ours["token"](blocks.__getitems__(full_picks[i])),
            "next sentence": lambda i: next_sentence(pairs[i]),
            "sentence order": lambda i: sentence_order(pairs[i]),
        },
    )


def copies(batch: list[dict]) -> list[dict]:
    """Rows again, because padding takes keys out of them."""
    return [dict(row) for row in batch]


def offsets_of_words(tokenizer, ids: list[int]) -> list[tuple[int, int]]:
    """Offsets that say which pieces belong to a word, all that is asked of them; (0, 0) for special tokens."""
    offsets, end = [], 0
    for token in tokenizer.convert_ids_to_tokens(ids):
        if token in tokenizer.all_special_tokens:
            offsets.append((0, 0))
            continue
        begin = end if token.startswith("##") else end + 1
        end = begin + 1
        offsets.append((begin, end))
    return offsets


def compare(what: str, rounds: int, contestants: dict[str, Callable[[int], dict]]) -> None:
    """Time all contestants in turns of four batches and print tokens per second, and the ratio to the first."""
    rates = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, make in contestants.items():
            begin = time.perf_counter()
            batches = [make(i) for i in range(4)]
            seconds = time.perf_counter() - begin
            if turn:  # the first one warms up
                rates[name].append(sum(int(batch["attention_mask"].sum()) for batch in batches) / seconds / 1e6)
    first = statistics.median(next(iter(rates.values())))
    print(f"\n{what}: million tokens/s (slowest-fastest), ratio to the first line")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"  {name:20} {median:8.2f} ({min(values):.2f}-{max(values):.2f})  {median / first:6.1f}")


def loading(tokenizer, corpus: datasets.Dataset, name: str, length: int, turns: int = 9) -> dict[str, float]:
    """Time examples in random order from the dataset to padded batches of 32; return million real tokens/s."""
    objective = get_objective(name)
    dataset = objective.dataset_class(corpus, length, redraw=False)
    collator = {"mlm": DataCollatorForMaskedLM, "nsp": DataCollatorForNextSentencePrediction}[name]
    collator = collator(tokenizer, **({"max_length": length} if name == "nsp" else {}))
    rates = []
    for turn in range(turns + 1):
        order = np.random.default_rng(turn).permutation(len(dataset))[: 32 * 16]
        begin = time.perf_counter()
        batches = [collator(dataset[order[i : i + 32]]) for i in range(0, len(order), 32)]
        seconds = time.perf_counter() - begin
        if turn:  # the first one warms up
            rates.append(sum(int(batch["attention_mask"].sum()) for batch in batches) / seconds / 1e6)
    rates = {"median": statistics.median(rates), "slowest": min(rates), "fastest": max(rates)}
    print(f"{name} at {length}: {rates['median']:.2f} million tokens/s from dataset to batch")
    return {key: round(rate, 3) for key, rate in rates.items()}


def waiting(tokenizer, corpus: datasets.Dataset, steps: int, workers: int) -> dict[str, float]:
    """Train the model of bert-minutes; return what a step takes, and what of it is waiting for a batch."""
    recipe = load_recipe("bert-minutes")
    length, examples = recipe.phases[-1].length, recipe.phases[-1].examples
    torch.manual_seed(0)
    model = get_objective("nsp").new_model(recipe.model_config(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    chunks = DocumentChunks(corpus, length, redraw=False)
    collator = DataCollatorForNextSentencePrediction(tokenizer, length)
    sampler = RandomSampler(chunks, replacement=True, num_samples=(steps + 5) * examples)
    loader = iter(DataLoader(chunks, examples, sampler=sampler, collate_fn=collator, num_workers=workers))
    waited, trained = [], []
    for _ in range(steps + 5):
        begin = time.perf_counter()
        batch = next(loader)
        waited.append(time.perf_counter() - begin)
        model(**batch, return_logits=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trained.append(time.perf_counter() - begin - waited[-1])
    waited, trained = waited[5:], trained[5:]
    result = {
        "workers": workers,
        "steps": steps,
        "examples": examples,
        "length": length,
        "median_step_ms": round(statistics.median(trained) * 1e3, 2),
        "median_wait_ms": round(statistics.median(waited) * 1e3, 2),
        "longest_wait_ms": round(max(waited) * 1e3, 2),
        "share_waited": round(sum(waited) / sum(waited + trained), 4),
    }
    print(f"bert-minutes: {result}")
    return result


if __name__ == "__main__":
    main()
