"""Text -> documents of sentences -> token ids -> pairs or blocks -> masked batches."""

from hf_encoders.data import presets
from hf_encoders.data.blocks import SentenceBlocks
from hf_encoders.data.chunks import DocumentChunks
from hf_encoders.data.collators import DataCollatorForMaskedLM
from hf_encoders.data.corpus.documents import documents_from_dataset, read_documents
from hf_encoders.data.corpus.lexicon import jieba_entries, read_entries
from hf_encoders.data.corpus.parallel import parallel_languages, prepare_parallel_corpus
from hf_encoders.data.corpus.preparation import prepare_corpus
from hf_encoders.data.corpus.report import CorpusReport, corpus_statistics, warnings_for
from hf_encoders.data.corpus.segmentation import one_sentence_per_line, split_sentences
from hf_encoders.data.corpus.similar_words import build_similar_words, read_similar_words
from hf_encoders.data.corpus.tokenized import split_train_validation, tokenize_documents
from hf_encoders.data.dialogues import DataCollatorForDialogueLM, Dialogues
from hf_encoders.data.mixture import MixedExamples
from hf_encoders.data.packing import TokenBudget
from hf_encoders.data.pair_collators import (
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
)
from hf_encoders.data.parallel import ParallelPairs
from hf_encoders.data.permutation_collator import DataCollatorForPermutationLM, ReusedChunks
from hf_encoders.data.streaming import StreamedBlocks, StreamedChunks
from hf_encoders.data.vocabulary.padded_size import padded_vocab_size
from hf_encoders.data.vocabulary.tokenizer_training import train_tokenizer


__all__ = [
    "CorpusReport",
    "DataCollatorForDialogueLM",
    "DataCollatorForMaskedLM",
    "DataCollatorForNextSentencePrediction",
    "DataCollatorForPermutationLM",
    "DataCollatorForSentenceOrderPrediction",
    "DataCollatorForPermutationLM",
    "DataCollatorForSentenceOrderPrediction",
    "Dialogues",
    "DocumentChunks",
    "MixedExamples",
    "ParallelPairs",
    "ReusedChunks",
    "SentenceBlocks",
    "StreamedBlocks",
    "StreamedChunks",
    "TokenBudget",
    "build_similar_words",
    "corpus_statistics",
    "documents_from_dataset",
    "jieba_entries",
    "one_sentence_per_line",
    "padded_vocab_size",
    "parallel_languages",
    "prepare_corpus",
    "prepare_parallel_corpus",
    "presets",
    "read_documents",
    "read_entries",
    "read_similar_words",
    "split_sentences",
    "split_train_validation",
    "tokenize_documents",
    "train_tokenizer",
    "warnings_for",
]
