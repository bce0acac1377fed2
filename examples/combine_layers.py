# /// script
# dependencies = ["hf_encoders"]
# ///
"""Tag words from several layers of an encoder, concatenated (BERT, Devlin et al. 2018, section 5.3) or mixed (ELMo).

    python examples/combine_layers.py --model runs/quickstart/model --output_dir runs/layers
    python examples/combine_layers.py --model NAME --train_file a.conll --test_file b.conll --output_dir out

`--layers -4 -3 -2 -1` selects hidden states: 0 is the embeddings, -1 the last layer. The encoder is frozen (the
paper's feature-based approach) unless `--fine_tune True`. Without files, the task is to find Python's keywords in its
own documentation; the first command takes about a minute on one CPU core.
"""

import keyword
from dataclasses import dataclass, field
from itertools import chain
from pydoc_data.topics import topics

from hf_encoders import split_sentences
from hf_encoders.corpus.labelled_files import read_file
from hf_encoders.finetuning import token_classification
from hf_encoders.tokenizer_loading import load_tokenizer

import torch
from datasets import Dataset, DatasetDict
from torch import nn
from transformers import AutoModel, HfArgumentParser, Trainer, TrainingArguments, set_seed
from transformers.modeling_outputs import TokenClassifierOutput


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    model: str = field(metadata={"help": "path or Hub name of an encoder"})
    train_file: str | None = field(default=None, metadata={"help": "CoNLL, or JSON lines with tokens, ner_tags"})
    test_file: str | None = field(default=None, metadata={"help": "same format, for evaluation"})
    layers: list[int] = field(default_factory=lambda: [-2, -1], metadata={"help": "hidden states to combine"})
    weighted: bool = field(default=False, metadata={"help": "sum them with trained weights instead of concatenating"})
    fine_tune: bool = field(default=False, metadata={"help": "train the encoder too"})
    max_length: int = field(default=64, metadata={"help": "maximum length of a window in tokens"})


class TokenTagger(nn.Module):
    """A classifier on several hidden states of an encoder.

    The weights of the sum are a softmax over one trained number per layer, which starts at 0 (Peters et al. 2018,
    equation 1, without its overall factor).
    """

    def __init__(self, encoder: nn.Module, layers: list[int], num_labels: int, weighted: bool):
        super().__init__()
        self.encoder, self.layers = encoder, layers
        self.weights = nn.Parameter(torch.zeros(len(layers))) if weighted else None
        width = encoder.config.hidden_size * (1 if weighted else len(layers))
        self.classifier = nn.Linear(width, num_labels)

    def forward(self, input_ids, attention_mask, token_type_ids=None, labels=None, num_items_in_batch=None):
        """`(B, T)` ids -> `(B, T, num_labels)` scores, and the mean loss over the labelled tokens of the batch."""
        states = self.encoder(input_ids, attention_mask, token_type_ids, output_hidden_states=True).hidden_states
        chosen = [states[layer] for layer in self.layers]
        if self.weights is None:
            features = torch.cat(chosen, dim=-1)
        else:
            shares = self.weights.softmax(dim=0)
            features = sum(share * state for share, state in zip(shares, chosen, strict=True))
        logits = self.classifier(features)
        total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return TokenClassifierOutput(loss=total / (num_items_in_batch or (labels != -100).sum()), logits=logits)


def keywords_in_documentation() -> DatasetDict:
    """Sentences of Python's documentation with a keyword in them; every fourth topic is for the test."""
    rows = {"train": [], "test": []}
    for number, text in enumerate(topics.values()):
        for words in (sentence.split() for sentence in chain.from_iterable(map(split_sentences, [text]))):
            tags = ["B-KEYWORD" if word.strip("`.,:;()\"'*") in keyword.kwlist else "O" for word in words]
            if "B-KEYWORD" in tags:
                rows["test" if number % 4 == 0 else "train"].append({"tokens": words, "ner_tags": tags})
    return DatasetDict({part: Dataset.from_list(found) for part, found in rows.items()})


def main() -> None:
    """Train and evaluate."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(learning_rate=3e-3, num_train_epochs=2, per_device_train_batch_size=32)
    parser.set_defaults(save_strategy="no", report_to="none", disable_tqdm=True)
    arguments, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)
    # 1. Data.
    if arguments.train_file:
        splits = DatasetDict({"train": read_file(arguments.train_file), "test": read_file(arguments.test_file)})
    else:
        splits = keywords_in_documentation()

    # 2. Windows; the first token of each word has its tag.
    tokenizer = load_tokenizer(arguments.model)
    max_length = min(arguments.max_length, tokenizer.model_max_length)
    task = token_classification.prepare(splits, tokenizer, max_length=max_length)

    # 3. Encoder and classifier; trust_remote_code runs the code that lies beside the weights.
    encoder = AutoModel.from_pretrained(arguments.model, trust_remote_code=True).requires_grad_(arguments.fine_tune)
    model = TokenTagger(encoder, arguments.layers, len(task.label_names), arguments.weighted)

    # 4. Train and evaluate.
    metrics = task.compute_metrics("test")
    sets = {"train_dataset": task.train_set, "eval_dataset": task.eval_sets["test"]}
    trainer = Trainer(model, training, task.data_collator, **sets, compute_metrics=metrics)
    trainer.train()
    print(trainer.evaluate())
    if arguments.weighted:
        print(dict(zip(arguments.layers, model.weights.softmax(dim=0).tolist(), strict=True)))
    trainer.save_model()


if __name__ == "__main__":
    main()
