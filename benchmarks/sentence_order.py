"""Sentence order on text that an encoder has not read: docstrings of the standard library.

    hf-encoders sample --output sample
    python -m benchmarks.sentence_order --model runs/albert-hour/model --without sample/text/*.txt

Every pair is of the unbiased cut of `DataCollatorForSentenceOrderPrediction`. Docstrings that share eight words in a
row with a file of `--without`, the text of the encoder, are left out. Beside the model's accuracy stands that of
"the longer segment first is swapped", which needs no encoder. Some minutes on one core for 4 layers of width 128.
"""

import argparse
import re
from pathlib import Path

import torch

from hf_encoders import (
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    HfeAlbertForPreTraining,
    split_sentences,
    tokenize_documents,
)
from hf_encoders.corpus.python_docs import read_python_documents
from hf_encoders.tokenizer_loading import load_tokenizer


FEWEST_CHARACTERS, MOST_CHARACTERS = 200, 3_000_000  # of a docstring; of a library
WORDS_IN_A_ROW = 8
SWAPPED = 1
ROWS = 64


def main() -> None:
    """A line per length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR", help="ALBERT with its pair head")
    parser.add_argument("--without", nargs="+", type=Path, required=True, metavar="FILE", help="text that it has read")
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[64, 128], metavar="N", help="default: 64 128 tokens"
    )
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.model, "--model")
    model = HfeAlbertForPreTraining.from_pretrained(arguments.model).eval()
    passages = unread_docstrings(arguments.without)
    print(f"{len(passages):,} docstrings", flush=True)
    documents = tokenize_documents(passages, tokenizer)
    torch.manual_seed(0)
    for length in arguments.lengths:
        chunks = DocumentChunks(documents, length, redraw=False)
        right, longer = is_right(model, DataCollatorForSentenceOrderPrediction(tokenizer, max_length=length), chunks)
        accuracy, count = right.mean().item(), len(right)
        error = (accuracy * (1 - accuracy) / count) ** 0.5
        print(
            f"{length} tokens: {count:,} pairs, {accuracy:.1%} right (standard error {error:.1%}); "
            f"longer first is swapped: {longer.mean().item():.1%}",
            flush=True,
        )


def unread_docstrings(read: list[Path]) -> list[list[str]]:
    """Docstrings of the standard library as lists of sentences, without those that share words in a row with files."""
    known = {row for path in read for line in path.read_text(encoding="utf-8").splitlines() for row in rows_of(line)}
    documents = read_python_documents(split_sentences, MOST_CHARACTERS)
    passages = [passage for document in documents if document.label == "python" for passage in document.passages]
    long = [passage for passage in passages if len(" ".join(passage)) > FEWEST_CHARACTERS]
    return [passage for passage in long if known.isdisjoint(rows_of(" ".join(passage)))]


def rows_of(text: str) -> set[tuple[str, ...]]:
    """All rows of `WORDS_IN_A_ROW` words of a text, in lower case and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return set(zip(*(words[first:] for first in range(WORDS_IN_A_ROW)), strict=False))


def is_right(
    model: torch.nn.Module, collator: DataCollatorForSentenceOrderPrediction, chunks: DocumentChunks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every pair, whether the model is right, and whether "the longer segment first is swapped" is."""
    right, longer = [], []
    for first in range(0, len(chunks), ROWS):
        batch = collator([chunks[row] for row in range(first, min(first + ROWS, len(chunks)))])
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        with torch.inference_mode():
            answers = model(**inputs).sop_logits.argmax(-1)
        labels = batch["sentence_order_label"]
        is_pair = labels >= 0
        second = (inputs["token_type_ids"] == 1).sum(1) - 1  # tokens without [SEP]
        begin = inputs["attention_mask"].sum(1) - second - 3
        right.append((answers == labels)[is_pair])
        longer.append(((begin > second) == (labels == SWAPPED))[is_pair])
    return torch.cat(right).double(), torch.cat(longer).double()


if __name__ == "__main__":
    main()
