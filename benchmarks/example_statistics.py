"""What the examples of a text look like in the papers' modes and by default: labels, lengths, how much of the text is
in none, and how well the lengths of the segments alone predict the label.

    python benchmarks/example_statistics.py docs.txt

Prints a Markdown table. A WordPiece tokenizer of 8,000 entries is trained on the text itself.
"""

import argparse
from dataclasses import replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_encoders import DataCollatorForNextSentencePrediction as NSP
from hf_encoders import DataCollatorForSentenceOrderPrediction as SOP
from hf_encoders import DocumentChunks, HfeBertConfig, read_documents, tokenize_documents, train_tokenizer
from hf_encoders.objectives import presets


PASSES, ROWS, LENGTHS = 4, 256, (32, 64, 128, 512)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="text files, a blank line between documents")
    documents = list(read_documents(parser.parse_args().text))
    tokenizer = train_tokenizer((s for d in documents for s in d), HfeBertConfig, 8000)
    corpus = tokenize_documents(documents, tokenizer)
    print(
        "| examples | number | with a label | label 1 | mean length | in no example of an epoch | of four | "
        "lengths predict |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, collator_class, paper in (
        ("NSP", NSP, presets.BERT_CHUNKS),
        ("SOP", SOP, presets.ALBERT_CHUNKS),
    ):
        for mode, rule in (("", {}), (", paper", paper)):
            for length in LENGTHS:
                chunks = DocumentChunks(corpus, length, **rule)
                print(f"| {name}{mode}, {length} | {row(chunks, collator_class(tokenizer, length))} |", flush=True)


def row(chunks: DocumentChunks, collator) -> str:
    """One line of the table."""
    labels, lengths, pairs, documents = [], [], [], []
    chunks.corpus = replace(chunks.corpus, tokens=chunks.corpus.tokens[:])  # one array, in which segments are found
    starts = chunks.corpus.sentence_offsets[chunks.corpus.document_offsets]
    is_in_none, left_out = np.ones(len(chunks.corpus.tokens), dtype=bool), []
    for epoch in range(PASSES):
        chunks.set_epoch(epoch)
        is_in_none_of_epoch = np.ones_like(is_in_none)
        for i in range(0, len(chunks), ROWS):
            examples = chunks[i : i + ROWS]
            for pair in map(collator.prepare, examples):
                for segment in pair.segments:  # a view of the corpus's tokens
                    begin = (segment.ctypes.data - chunks.corpus.tokens.ctypes.data) // segment.itemsize
                    is_in_none_of_epoch[begin : begin + len(segment)] = False
                pairs.append([*map(len, pair.segments), 0][:2])
            documents += np.searchsorted(starts, [example.begin for example in examples], "right").tolist()
            batch = collator(examples)
            labels += batch[collator.label_name].tolist()
            lengths += batch["attention_mask"].sum(dim=1).tolist()
        left_out.append(is_in_none_of_epoch.mean())
        is_in_none &= is_in_none_of_epoch
    labels, lengths, is_pair = np.array(labels), np.array(lengths), np.array(labels) >= 0
    predicted = predicted_by_lengths(np.array(pairs)[is_pair], labels[is_pair], np.array(documents)[is_pair])
    return (
        f"{len(labels) // PASSES:,} | {is_pair.mean():.2f} | {labels[is_pair].mean():.3f} | {lengths.mean():.1f} | "
        f"{np.mean(left_out):.1%} | {is_in_none.mean():.1%} | {predicted:.3f}"
    )


def predicted_by_lengths(lengths: np.ndarray, labels: np.ndarray, documents: np.ndarray) -> float:
    """Accuracy on half of the documents of what the other half teaches about both lengths, their ratio and their sum:
    the better of a logistic regression and gradient boosting.
    """
    total = lengths.sum(axis=1)
    features = np.column_stack([lengths, lengths[:, 0] / total, total])
    half = documents % 2 == 0
    models = make_pipeline(StandardScaler(), LogisticRegression()), HistGradientBoostingClassifier()
    return max(model.fit(features[half], labels[half]).score(features[~half], labels[~half]) for model in models)


if __name__ == "__main__":
    main()
