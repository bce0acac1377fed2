# /// script
# dependencies = ["hf_encoders"]
# ///
"""The four input formats of RoBERTa (Liu et al. 2019, section 4.2 and table 2), in small.

    python examples/input_formats.py --output_dir runs/formats
    python examples/input_formats.py --text_files corpus/*.txt --take_every 16 --output_dir runs/formats

SEGMENT-PAIR and SENTENCE-PAIR with next-sentence prediction (NSP), FULL-SENTENCES and DOC-SENTENCES without. As in
the paper a step has about as many tokens in each, so batches of short pairs have more of them. All are judged on
the same held-out blocks, and each on held-out text in its own format. Table, picture and minutes of the second
command, on one core, are in docs/ablations.md.
"""

import time
from dataclasses import dataclass, field
from itertools import chain, product
from pydoc_data.topics import topics

import numpy as np
from torch.utils.data import Subset
from transformers import HfArgumentParser, TrainingArguments, set_seed

from hf_encoders import HfeBertConfig, HfeBertForPreTraining, data
from hf_encoders.data.examples import TextExamples
from hf_encoders.recipes.model_config import tokenizer_fields
from hf_encoders.records.plots import logged_points, write_comparison
from hf_encoders.training import PreTrainingTrainer


@dataclass
class Arguments:
    """What is trained on what."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "UTF-8 text, blank line between documents"})
    take_every: int = field(default=1, metadata={"help": "take one document in so many"})
    vocab_size: int = field(default=6000, metadata={"help": "most entries in the vocabulary"})
    tokens_a_step: int = field(default=1024, metadata={"help": "tokens in a batch, special ones included"})
    max_length: int = field(default=64, metadata={"help": "longest example in tokens"})
    seeds: int = field(default=1, metadata={"help": "repetitions"})


# Of each format: the data set, whether second segments are drawn for NSP, and the data set's arguments.
VARIANTS = {
    "SEGMENT-PAIR, NSP": (data.DocumentChunks, True, {}),
    "SENTENCE-PAIR, NSP": (data.DocumentChunks, True, {"segments": "sentences"}),
    "FULL-SENTENCES": (data.SentenceBlocks, False, {}),
    "DOC-SENTENCES": (data.SentenceBlocks, False, {"cross_documents": False}),
}


def main() -> None:
    """Pre-train on each format, and compare."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(learning_rate=2e-3, warmup_steps=100, adam_beta2=0.98, max_steps=500, weight_decay=0.01)
    parser.set_defaults(per_device_train_batch_size=1, per_device_eval_batch_size=128, eval_strategy="steps")
    parser.set_defaults(save_strategy="no", report_to="none", optim="adamw_torch_fused", disable_tqdm=True)
    arguments, training = parser.parse_args_into_dataclasses()
    training.eval_steps = max(1, training.max_steps // 5)

    # 1. Data: documents of sentences.
    if arguments.text_files:
        texts = list(data.read_documents(arguments.text_files, sentence_splitter=lambda line: [line]))
    else:
        texts = [[text] for text in topics.values()]
    documents = [[*chain.from_iterable(map(data.split_sentences, text))] for text in texts[:: arguments.take_every]]

    # 2. Tokenizer: WordPiece, as BERT's; held-out documents apart.
    length = arguments.max_length
    tokenizer = data.train_tokenizer(chain(*documents), HfeBertConfig, arguments.vocab_size, length)
    corpus = data.tokenize_documents(documents, tokenizer, max_sentence_tokens=length)
    corpus, held_out = data.split_train_validation(corpus, validation_share=0.1, seed=0)
    judged = data.SentenceBlocks(held_out, length, redraw=False)
    judged = Subset(judged, np.linspace(0, len(judged) - 1, min(len(judged), 500)).astype(int).tolist())

    # 3. Model: small, with larger first weights than the papers' wide models.
    config = HfeBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,
        position_embedding_type="relative_key",  # leaves the plateau of token frequencies sooner
        **tokenizer_fields(HfeBertConfig, tokenizer, length),
    )
    figures, curves = {}, {}
    for variant, seed in product(VARIANTS, range(arguments.seeds)):
        # 4. Examples and collators: groups of as many examples as the tokens of a step hold, without padding.
        data_set, is_paired, options = VARIANTS[variant]
        mlm = data.DataCollatorForMaskedLM(tokenizer, packed=True)
        collator = data.DataCollatorForNextSentencePrediction(tokenizer, packed=True) if is_paired else mlm
        examples = data_set(corpus, length, seed=seed + 1, **options)
        train_set = data.TokenBudget(examples, collator, arguments.tokens_a_step)
        own = data_set(held_out, length, redraw=False, **options)
        own = Subset(own, np.linspace(0, len(own) - 1, min(len(own), 1000)).astype(int).tolist())

        # 5. Train, and judge on held-out text.
        set_seed(seed)
        started = time.process_time()
        trainer = PreTrainingTrainer(
            HfeBertForPreTraining(config),
            training,
            lambda features, mlm=mlm, own=collator: (mlm if isinstance(features[0], TextExamples) else own)(features),
            train_set,
            {"blocks": judged, "own": own},
            processing_class=tokenizer,
        )
        trainer.train()
        found = trainer.evaluate()
        row = {
            "examples a step": len(examples) / len(train_set),
            "MLM loss on blocks": found["eval_blocks_mlm_loss"],
            "MLM loss, own format": found["eval_own_mlm_loss"],
            "NSP accuracy": found.get("eval_own_pair_accuracy"),
            "core minutes": (time.process_time() - started) / 60,
        }
        figures.setdefault(variant, []).append(row)
        if seed == 0:
            curves[variant] = logged_points(trainer.state.log_history, "eval_blocks_mlm_loss")

    # 6. Table and picture.
    labels = ("optimizer steps", "held-out MLM loss on blocks (nats a token)")
    print(write_comparison(training.output_dir, "Input formats", figures, curves, *labels))


if __name__ == "__main__":
    main()
