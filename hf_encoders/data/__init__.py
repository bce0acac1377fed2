"""Text -> documents of sentences -> token ids -> pairs or blocks -> masked batches."""

from hf_encoders.data import presets
from hf_encoders.data.blocks import SentenceBlocks
from hf_encoders.data.chunks import DocumentChunks
from hf_encoders.data.collators import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
)
from hf_encoders.data.corpus.documents import documents_from_dataset, read_documents
from hf_encoders.data.corpus.parallel import parallel_languages, prepare_parallel_corpus
from hf_encoders.data.corpus.preparation import prepare_corpus
from hf_encoders.data.corpus.report import CorpusReport, corpus_statistics, warnings_for
from hf_encoders.data.corpus.segmentation import one_sentence_per_line, split_sentences
from hf_encoders.data.corpus.tokenized import split_train_validation, tokenize_documents
from hf_encoders.data.dialogues import DataCollatorForDialogueLM, Dialogues
from hf_encoders.data.mixture import MixedExamples
from hf_encoders.data.packing import TokenBudget
from hf_encoders.data.parallel import ParallelPairs
from hf_encoders.data.streaming import StreamedBlocks, StreamedChunks
from hf_encoders.data.vocabulary.padded_size import padded_vocab_size
from hf_encoders.data.vocabulary.tokenizer_training import train_tokenizer


__all__ = [
    "CorpusReport",
    "DataCollatorForDialogueLM",
    "DataCollatorForMaskedLM",
    "DataCollatorForNextSentencePrediction",
    "DataCollatorForSentenceOrderPrediction",
    "Dialogues",
    "DocumentChunks",
    "MixedExamples",
    "ParallelPairs",
    "SentenceBlocks",
    "StreamedBlocks",
    "StreamedChunks",
    "TokenBudget",
    "corpus_statistics",
    "documents_from_dataset",
    "one_sentence_per_line",
    "padded_vocab_size",
    "parallel_languages",
    "prepare_corpus",
    "prepare_parallel_corpus",
    "presets",
    "read_documents",
    "split_sentences",
    "split_train_validation",
    "tokenize_documents",
    "train_tokenizer",
    "warnings_for",
]
