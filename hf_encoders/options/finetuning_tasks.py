"""Options of each fine-tuning task."""

import argparse

from hf_encoders.options.names import MAX_ANSWER_TOKENS, N_BEST, SINGLE_LABEL_METRICS


def add_sequence_classification(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hf_encoders/finetuning/sequence_classification.py`."""
    add_text_arguments(
        parser, "column of the label: text or a whole number; with --multi-label also A,B,...: a column of 0 or 1 each"
    )
    add = parser.add_argument
    text = "any number of labels: a list, text with --label-separator, or one column per label"
    add("--multi-label", action="store_true", help=text)
    add("--label-separator", default=",", metavar="TEXT", help="between the labels of a row (default: %(default)s)")
    text = "chooses the best checkpoint (default: accuracy; with --multi-label always f1_micro)"
    add("--best-metric", choices=SINGLE_LABEL_METRICS, help=text)


def add_sequence_regression(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hf_encoders/finetuning/sequence_regression.py`."""
    add_text_arguments(parser, "column of the number")


def add_token_classification(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hf_encoders/finetuning/token_classification.py`."""
    add = parser.add_argument
    add("--tokens-column", default="tokens", metavar="NAME", help="column with lists of words (default: tokens)")
    add("--tags-column", default="ner_tags", metavar="NAME", help="column with lists of tags (default: ner_tags)")
    text = "accuracy over words as the metric, whatever the tags (default: entity F1 if they are B-X, I-X and O)"
    add("--word-metrics", action="store_true", help=text)
    add("--label-all-tokens", action="store_true", help="label all tokens of a word, B-X as I-X after the first")
    text = "shared by windows of a long sentence (default: a third of the longest input)"
    add("--window-overlap", type=int, metavar="TOKENS", help=text)


def add_question_answering(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hf_encoders/finetuning/question_answering.py`."""
    add = parser.add_argument
    for name in ("id", "question", "context", "answers"):
        add(f"--{name}-column", default=name, metavar="NAME", help=f"column of the {name} (default: {name})")
    default = "or a third of the longest input if that is less"
    add("--doc-stride", type=int, metavar="TOKENS", help=f"shared by neighbouring windows (default: 128, {default})")
    add("--max-question-length", type=int, metavar="TOKENS", help=f"the rest is cut off (default: 64, {default})")
    text = "longest predicted answer (default: %(default)s)"
    add("--max-answer-length", type=int, default=MAX_ANSWER_TOKENS, metavar="TOKENS", help=text)
    add("--n-best", type=int, default=N_BEST, metavar="N", help="candidates per question (default: %(default)s)")
    text = "leave out questions whose answer is not found in the context (default: an error)"
    add("--skip-invalid", action="store_true", help=text)
    add("--allow-no-answer", action="store_true", help="questions may have no answer, as in SQuAD 2.0")
    text = "predict 'no answer' if it scores this much more than the best answer (default: %(default)s)"
    add("--null-threshold", type=float, default=0.0, metavar="X", help=text)


def add_multiple_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hf_encoders/finetuning/multiple_choice.py`."""
    add = parser.add_argument
    add("--prompt-column", default="prompt", metavar="NAME", help="column of the prompt or question (default: prompt)")
    add(
        "--ending-columns", nargs="+", default=["endings"], metavar="NAME", help="one of lists, or one for each ending"
    )
    add("--label-column", default="label", metavar="NAME", help="number of the right ending, from 0 (default: label)")


def add_text_arguments(parser: argparse.ArgumentParser, label: str) -> None:
    """Add options for the columns; `label` describes the label column."""
    add = parser.add_argument
    add("--text-column", default="text", metavar="NAME", help="column of the text (default: text)")
    add("--text-pair-column", metavar="NAME", help="column of the second text of a pair (default: none)")
    add("--label-column", default="label", metavar="NAME", help=f"{label} (default: label)")
