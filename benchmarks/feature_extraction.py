"""Embeddings of a list of mixed texts in their given order: `hf_encoders.encode` beside stock code, interleaved.

    OMP_NUM_THREADS=1 python -m benchmarks.feature_extraction
    OMP_NUM_THREADS=1 python -m benchmarks.feature_extraction --max-tokens 512 1024 2048 4096 --against sorted

Texts are one to four consecutive sentences of the documentation inside Python, in random order. All have the same
BERT with random weights, and a tokenizer trained on the text; tokenizing is part of the time. The rest are

  unsorted       transformers' class with SDPA, `--batch-size` texts at a time as they come, padded to the longest
  sorted         the same, all texts sorted by their number of tokens before, and put back into order
  sentence       `SentenceTransformer.encode` of the stock model, which sorts by characters
  compiled       sorted, by `torch.compile(dynamic=True)`; compilation is not part of the time
  onnx           sorted, by ONNX Runtime (`hf-encoders export --to onnx`)

Prints seconds of the list, median and range over the rounds; the ratio to the time here in each round, likewise;
and the largest difference of an embedding from the one here. `--dtype bfloat16` casts the weights.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModel, PreTrainedTokenizerBase

from hf_encoders import HfeBertConfig, HfeBertModel, encode, train_tokenizer
from hf_encoders.commands.benchmark import CHARACTERS_PER_LIBRARY
from hf_encoders.corpus.documents import splitter_for
from hf_encoders.corpus.python_docs import read_python_documents
from hf_encoders.publishing.export import ONNX_FILE, export_checkpoint, native_config


MOST_SENTENCES = 4
AGAINST = ("sorted", "unsorted", "sentence", "compiled", "onnx")
Embed = Callable[[list[str]], torch.Tensor]


def make_texts(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """The texts, and all sentences for the tokenizer."""
    random = np.random.default_rng(seed)
    documents = [document.sentences for document in read_python_documents(splitter_for("en"), CHARACTERS_PER_LIBRARY)]
    texts = []
    for document in documents:
        start = 0
        while start < len(document):
            stop = start + int(random.integers(1, MOST_SENTENCES + 1))
            texts.append(" ".join(document[start:stop]))
            start = stop
    sentences = [sentence for document in documents for sentence in document]
    return [texts[i] for i in random.permutation(len(texts))[:count]], sentences


def padded(forward: Callable, tokenizer: PreTrainedTokenizerBase, size: int, length: int, is_sorted: bool) -> Embed:
    """Batches of `size` texts padded to the longest; `forward` gives the last hidden states of one."""

    def embed(texts: list[str]) -> torch.Tensor:
        ids = tokenizer(texts, truncation=True, max_length=length, return_attention_mask=False)["input_ids"]
        order = np.argsort([-len(row) for row in ids], kind="stable") if is_sorted else np.arange(len(ids))
        means = []
        for start in range(0, len(ids), size):
            rows = {"input_ids": [ids[i] for i in order[start : start + size]]}
            batch = tokenizer.pad(rows, return_tensors="pt")
            with torch.no_grad():
                states, mask = forward(batch).float(), batch["attention_mask"][..., None]
            means.append((states * mask).sum(dim=1) / mask.sum(dim=1))
        return torch.cat(means)[np.argsort(order)]

    return embed


def make_onnx(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Callable:
    """The forward pass in ONNX Runtime, with as many threads as torch has."""
    import onnxruntime

    model.save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", "onnx", folder / "onnx", "AutoModel")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / "onnx" / ONNX_FILE, options, providers=["CPUExecutionProvider"])
    names = {node.name for node in session.get_inputs()}

    def forward(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: batch[name] if name in batch else torch.zeros_like(batch["input_ids"]) for name in names}
        return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in inputs.items()})[0])

    return forward


def make_sentence_transformer(
    stock: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path, size: int, length: int
) -> Embed:
    """sentence-transformers with mean pooling, which it adds to a folder without pooling."""
    from sentence_transformers import SentenceTransformer

    stock.save_pretrained(folder / "stock")
    tokenizer.save_pretrained(folder / "stock")
    model = SentenceTransformer(str(folder / "stock"), device="cpu", model_kwargs={"dtype": stock.dtype})
    model.max_seq_length = length
    return lambda texts: model.encode(texts, batch_size=size, convert_to_tensor=True, show_progress_bar=False).float()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("texts", 2000), ("hidden-size", 384), ("layers", 6), ("heads", 6), ("vocab-size", 30522)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("length", 512), ("batch-size", 32), ("rounds", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[None], help="of `encode`; several are compared")
    parser.add_argument("--against", nargs="*", choices=AGAINST, default=["sorted", "unsorted", "sentence", "onnx"])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    texts, sentences = make_texts(options.texts)
    tokenizer = train_tokenizer(sentences, HfeBertConfig, options.vocab_size, options.length)
    torch.manual_seed(0)
    width, length, size = options.hidden_size, options.length, options.batch_size
    config = HfeBertConfig(
        vocab_size=options.vocab_size, hidden_size=width, num_hidden_layers=options.layers,
        num_attention_heads=options.heads, intermediate_size=4 * width, max_position_embeddings=length,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    ours = HfeBertModel(config, add_pooling_layer=False).eval()
    stock = AutoModel.from_config(native_config(config), add_pooling_layer=False).eval()
    stock.load_state_dict(ours.state_dict())
    for model in (ours, stock):
        model.to(getattr(torch, options.dtype))

    def by_states(model: torch.nn.Module) -> Callable:
        return lambda batch: model(**batch).last_hidden_state

    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Embed] = {
            "here" if budget is None else f"here, {budget} tokens": lambda texts, budget=budget: encode(
                ours, tokenizer, texts, max_length=length, max_tokens=budget, progress=False
            )
            for budget in options.max_tokens
        }
        make = {
            "sorted": lambda: padded(by_states(stock), tokenizer, size, length, True),
            "unsorted": lambda: padded(by_states(stock), tokenizer, size, length, False),
            "compiled": lambda: padded(by_states(torch.compile(stock, dynamic=True)), tokenizer, size, length, True),
            "onnx": lambda: padded(make_onnx(ours, tokenizer, Path(folder)), tokenizer, size, length, True),
            "sentence": lambda: make_sentence_transformer(stock, tokenizer, Path(folder), size, length),
        }
        ways |= {name: make[name]() for name in options.against}
        report(ways, texts, tokenizer, options)


def report(
    ways: dict[str, Embed], texts: list[str], tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace
) -> None:
    """Run all ways in turn, and print."""
    lengths = np.array([len(row) for row in tokenizer(texts, truncation=True, max_length=options.length)["input_ids"]])
    print(
        f"{len(texts)} texts, {lengths.sum():,} tokens, {lengths.mean():.0f} on average, {lengths.max()} at most; "
        f"{options.layers} x {options.hidden_size}, {options.dtype}, {options.threads} thread(s), torch "
        f"{torch.__version__}, transformers {transformers.__version__}"
    )
    first, *_ = ways
    embeddings = {name: embed(texts) for name, embed in ways.items()}  # warms up, too
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(options.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.perf_counter()
            ways[name](texts)
            seconds[name].append(time.perf_counter() - start)
    for name, taken in seconds.items():
        ratios = sorted(other / base for other, base in zip(taken, seconds[first], strict=True))
        difference = (embeddings[name] - embeddings[first]).abs().max().item()
        print(
            f"{name:>20}: {statistics.median(taken):7.2f} s ({min(taken):.2f} to {max(taken):.2f}), "
            f"{statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f}), differs by {difference:.1e}"
        )


if __name__ == "__main__":
    main()
