"""How well models fill in names: whole entities of held-out documents are masked, and all models see the same masks.

    python benchmarks/entity_recovery.py runs/ernie/model runs/bert/model --corpus units --lexicon jieba

CORPUS is the prepared corpus that the models were trained on; the documents are those that `hf-encoders pretrain` held
out. Prints a Markdown table: perplexity and accuracy of tokens that are masked one by one (80/10/10), accuracy of the
tokens of masked entities, and the share of entities of which all tokens are right.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

import hf_encoders  # noqa: F401  registers the classes
from hf_encoders import DataCollatorForMaskedLM, SentenceBlocks, split_train_validation
from hf_encoders.corpus.flat_corpus import offsets_of
from hf_encoders.corpus.units import JIEBA, Lexicon, jieba_entries, read_entries
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.objectives.batch import IGNORED, Row, batch
from hf_encoders.writing import markdown_table


BATCH = 64  # examples
MASKED_ENTITIES = 0.5  # share of an example's entities, so that most of the text around each is there


def main() -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="folders of models with one tokenizer")
    parser.add_argument("--corpus", required=True, help="the corpus that they were trained on, with its words")
    parser.add_argument("--lexicon", default=JIEBA, help="names, one a line, or jieba (default)")
    parser.add_argument("--length", type=int, default=64, help="of the examples in tokens (default: 64)")
    parser.add_argument("--validation-share", type=float, default=0.02, help="as in the runs (default: 0.02)")
    parser.add_argument("--seed", type=int, default=42, help="as in the runs (default: 42)")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.models[0])
    lexicon = Lexicon(jieba_entries() if arguments.lexicon == JIEBA else read_entries(arguments.lexicon), tokenizer)
    corpus = datasets.load_from_disk(arguments.corpus)
    _, held_out = split_train_validation(corpus, arguments.validation_share, arguments.seed)
    examples, collator = SentenceBlocks(held_out, arguments.length, redraw=False), DataCollatorForMaskedLM(tokenizer)
    parts = [examples[i : i + BATCH] for i in range(0, len(examples), BATCH)]
    plain = [collator(part) for part in parts]
    random = np.random.default_rng(0)
    entities = [
        with_masked_entities([collator.tokens(example) for example in part], lexicon, tokenizer, random)
        for part in parts
    ]
    lengths = np.concatenate([sizes for _, sizes in entities])
    print(f"{len(examples):,} examples; {len(lengths):,} masked entities of {lengths.sum():,} tokens\n")
    rows = [("model", "perplexity", "accuracy", "tokens of entities", "whole entities")]
    for folder in arguments.models:
        model = AutoModelForMaskedLM.from_pretrained(folder).eval()
        nll, right = (np.concatenate(values) for values in zip(*scores(model, plain), strict=True))
        _, recovered = map(np.concatenate, zip(*scores(model, [masked for masked, _ in entities]), strict=True))
        whole = np.minimum.reduceat(recovered, offsets_of(lengths)[:-1])
        shares = (f"{values.mean():.1%}" for values in (right, recovered, whole))
        rows.append((str(folder), f"{np.exp(nll.mean()):.1f}", *shares))
    print(markdown_table(rows))


def with_masked_entities(
    rows: list[Row], lexicon: Lexicon, tokenizer: object, random: np.random.Generator
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """A batch in which whole entities are masked, and their lengths in tokens, in the order of the batch."""
    masked, sizes = [], []
    for row in rows:
        ids, labels = row["input_ids"].copy(), np.full(len(row["input_ids"]), IGNORED)
        special = np.isin(ids, tokenizer.all_special_ids)
        spans = lexicon.find(ids, ((row["word_starts"] & UnitStart.WORD) != 0) & ~special, special)
        chosen = [span for span, draw in zip(spans, random.random(len(spans)), strict=True) if draw < MASKED_ENTITIES]
        for begin, end in chosen:
            ids[begin:end], labels[begin:end] = tokenizer.mask_token_id, row["input_ids"][begin:end]
        masked.append({"input_ids": ids, "labels": labels})
        sizes.append(np.array([end - begin for begin, end in chosen], dtype=np.int64))
    return batch(masked, {"input_ids": tokenizer.pad_token_id, "labels": IGNORED}), np.concatenate(sizes)


@torch.no_grad()
def scores(model: PreTrainedModel, batches: list[dict[str, torch.Tensor]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cross-entropy in nats, and whether the best token is right, of the predicted tokens of each batch."""
    for arguments in batches:
        inputs = {name: values for name, values in arguments.items() if name != "labels"}
        is_predicted = arguments["labels"] != IGNORED
        logits, labels = model(**inputs).logits[is_predicted], arguments["labels"][is_predicted]
        nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        yield nll.numpy(), (logits.argmax(-1) == labels).numpy()


if __name__ == "__main__":
    main()
