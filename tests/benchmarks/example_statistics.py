"""What the examples of a text look like in the papers' modes and by default: label rates, lengths, masked shares, how
much of the text is in none, and how well the lengths of the segments alone predict the label.

    python tests/benchmarks/example_statistics.py docs.txt

Prints a Markdown table. Tokenizers of 30,000 entries are trained on the text itself: WordPiece for BERT, Unigram for
ALBERT.
"""

import argparse

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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
from hf_encoders.data.ragged import ranges
from hf_encoders.data.sentence_pairs import truncate_pairs


PASSES, ROWS = 4, 256


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
    print(
        "| examples | number | with a label | label 1 | mean length | masked | [MASK]/random/kept | in no example of "
        "an epoch | of four | lengths predict |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    bert_paper, albert_paper = (paper_modes.BERT_CHUNKS, bert_76), (paper_modes.ALBERT_CHUNKS, albert_77)
    for name, tokenizer, collator_class, length, chunk_rule, masking in (
        *((f"BERT, {length}", bert, next_sentence, length, {}, {}) for length in (32, 64, 128, 512)),
        *((f"BERT, {length}, paper", bert, next_sentence, length, *bert_paper) for length in (64, 128, 512)),
        *(
            (f"ALBERT, {length}", albert, sentence_order, length, {}, {"unit": "ngram"})
            for length in (32, 64, 128, 512)
        ),
        *((f"ALBERT, {length}, paper", albert, sentence_order, length, *albert_paper) for length in (64, 128, 512)),
    ):
        chunks = DocumentChunks(corpora[id(tokenizer)], length, **chunk_rule)
        print(f"| {name} | {row(chunks, collator_class(tokenizer, length, **masking), tokenizer)} |", flush=True)


def row(chunks: DocumentChunks, collator, tokenizer) -> str:
    """One line of the table."""
    labels, lengths, kinds, pairs = [], [], np.zeros(3), []
    is_in_none, left_out = np.ones(len(chunks.corpus.tokens), dtype=bool), []
    for epoch in range(PASSES):
        chunks.set_epoch(epoch)
        is_in_none_of_epoch = np.ones_like(is_in_none)
        for i in range(0, len(chunks), ROWS):
            examples = chunks.examples(np.arange(i, min(i + ROWS, len(chunks))))
            drawn = truncate_pairs(collator.draw_pairs(examples), examples.max_tokens, examples.keys)
            is_in_none_of_epoch[ranges(drawn.begin.ravel(), drawn.end.ravel())] = False
            pairs.append(drawn.end - drawn.begin)
            batch = collator([examples])
            labels += batch[collator.label_name].tolist()
            lengths += batch["attention_mask"].sum(dim=1).tolist()
            predicted = batch["labels"] != -100
            ids, originals = batch["input_ids"][predicted], batch["labels"][predicted]
            is_mask, is_kept = ids == tokenizer.mask_token_id, ids == originals
            kinds += [int(kind.sum()) for kind in (is_mask, ~is_mask & ~is_kept, is_kept)]
        left_out.append(is_in_none_of_epoch.mean())
        is_in_none &= is_in_none_of_epoch
    labels, lengths = np.array(labels), np.array(lengths)
    shares = "/".join(f"{share:.3f}" for share in kinds / kinds.sum())
    predicted = predicted_by_lengths(np.concatenate(pairs)[labels >= 0], labels[labels >= 0])
    return (
        f"{len(labels) // PASSES:,} | {np.mean(labels >= 0):.3f} | {np.mean(labels[labels >= 0]):.3f} | "
        f"{lengths.mean():.1f} | {kinds.sum() / lengths.sum():.4f} | {shares} | {np.mean(left_out):.3f} | "
        f"{is_in_none.mean():.3f} | {predicted:.3f}"
    )


def predicted_by_lengths(lengths: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy on half of the pairs of what the other half teaches about both lengths and their ratio: the better of a
    logistic regression and gradient boosting.
    """
    features = np.column_stack([lengths, lengths[:, 0] / lengths.sum(axis=1)])
    half = np.arange(len(labels)) % 2 == 0
    models = make_pipeline(StandardScaler(), LogisticRegression()), HistGradientBoostingClassifier()
    return max(model.fit(features[half], labels[half]).score(features[~half], labels[~half]) for model in models)


if __name__ == "__main__":
    main()
