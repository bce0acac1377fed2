"""What the examples of a text look like in the papers' modes and by default: label rates, lengths, masked shares,
and how well the lengths of the segments alone tell the label.

    python tests/benchmarks/example_statistics.py docs.txt

Prints a Markdown table. Tokenizers of 30,000 entries are trained on the text itself: WordPiece for BERT, Unigram for
ALBERT.
"""

import argparse
from collections.abc import Iterator

import datasets
import numpy as np

from hf_encoders import HfeAlbertConfig, HfeBertConfig
from hf_encoders.data import (
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    paper_modes,
    read_documents,
    tokenize_documents,
    train_tokenizer,
)


PASSES, ROWS = 5, 256


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="text files, a blank line between documents")
    documents = list(read_documents(parser.parse_args().text))
    bert = train_tokenizer((s for d in documents for s in d), HfeBertConfig, 30000, 512)
    albert = train_tokenizer((s for d in documents for s in d), HfeAlbertConfig, 30000, 512)
    corpora = {id(tokenizer): tokenize_documents(documents, tokenizer) for tokenizer in (bert, albert)}
    next_sentence, sentence_order = DataCollatorForNextSentencePrediction, DataCollatorForSentenceOrderPrediction
    bert_76 = {**paper_modes.BERT_MASKING, "max_predictions": 76}
    albert_77 = {**paper_modes.ALBERT_MASKING, "max_predictions": 77}
    print("| examples | number | label 1 | mean length | full length | masked | [MASK]/random/kept | lengths tell |")
    print("|---|---|---|---|---|---|---|---|")
    for name, tokenizer, collator_class, length, chunk_rule, masking in (
        ("BERT, 64, default", bert, next_sentence, 64, {}, {}),
        ("ALBERT, 64, default, n-grams", albert, sentence_order, 64, {}, {"unit": "ngram"}),
        ("BERT, 128, paper", bert, next_sentence, 128, paper_modes.BERT_CHUNKS, paper_modes.BERT_MASKING),
        ("BERT, 128, default", bert, next_sentence, 128, {}, {}),
        ("BERT, 512, paper (76 predictions)", bert, next_sentence, 512, paper_modes.BERT_CHUNKS, bert_76),
        ("BERT, 512, default", bert, next_sentence, 512, {}, {}),
        ("ALBERT, 512, paper (20 predictions)", albert, sentence_order, 512, paper_modes.ALBERT_CHUNKS,
         paper_modes.ALBERT_MASKING),
        ("ALBERT, 512, paper (77 predictions)", albert, sentence_order, 512, paper_modes.ALBERT_CHUNKS, albert_77),
        ("ALBERT, 512, default, n-grams", albert, sentence_order, 512, {}, {"unit": "ngram"}),
    ):  # fmt: skip
        chunks = DocumentChunks(corpora[id(tokenizer)], length, **chunk_rule)
        print(f"| {name} | {row(chunks, collator_class(tokenizer, length, **masking), length, tokenizer)} |")


def row(chunks: DocumentChunks, collator, length: int, tokenizer) -> str:
    """One line of the table."""
    labels, lengths, kinds, seconds = [], [], np.zeros(3), []
    for batch in batches(chunks, collator):
        labels += batch[collator.label_name].tolist()
        lengths += batch["attention_mask"].sum(dim=1).tolist()
        seconds += batch["token_type_ids"].sum(dim=1).tolist()
        predicted = batch["labels"] != -100
        ids, originals = batch["input_ids"][predicted], batch["labels"][predicted]
        is_mask, is_kept = ids == tokenizer.mask_token_id, ids == originals
        kinds += [int(kind.sum()) for kind in (is_mask, ~is_mask & ~is_kept, is_kept)]
    lengths = np.array(lengths)
    shares = "/".join(f"{share:.3f}" for share in kinds / kinds.sum())
    return (
        f"{len(labels) // PASSES:,} | {np.mean(np.array(labels) == 1):.3f} | {lengths.mean():.1f} | "
        f"{np.mean(lengths == length):.3f} | {kinds.sum() / lengths.sum():.4f} | {shares} | "
        f"{told_by_lengths(np.array(labels), lengths, np.array(seconds)):.3f}"
    )


def told_by_lengths(labels: np.ndarray, lengths: np.ndarray, seconds: np.ndarray) -> float:
    """Accuracy of the best guess of the label from the lengths of both segments, counted on other pairs."""
    cells = (lengths // 4) * 1000 + seconds // 4
    is_counted, is_pair = np.arange(len(labels)) % 2 == 0, labels >= 0
    counts = np.bincount(cells[is_counted & is_pair], labels[is_counted & is_pair] - 0.5, cells.max() + 1)
    tried = ~is_counted & is_pair
    return float(((counts[cells[tried]] > 0) == labels[tried]).mean())


def batches(chunks: datasets.Dataset, collator) -> Iterator[dict]:
    """Several epochs."""
    for epoch in range(PASSES):
        chunks.set_epoch(epoch)
        for i in range(0, len(chunks), ROWS):
            yield collator(chunks.__getitems__(range(i, min(i + ROWS, len(chunks)))))


if __name__ == "__main__":
    main()
