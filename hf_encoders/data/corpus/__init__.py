"""Text to documents of sentences to token ids on disk, and reports on them.

`preparation.py` prepares a corpus from files and datasets with several processes, `tokenized.py` from any documents in
this process; `sentence_store.py` reads a corpus as flat arrays.
"""

from hf_encoders.data.corpus.documents import documents_from_dataset, read_documents
from hf_encoders.data.corpus.preparation import prepare_corpus
from hf_encoders.data.corpus.report import (
    CorpusReport,
    CorpusStatistics,
    corpus_statistics,
    unigram_cross_entropy,
    warnings_for,
)
from hf_encoders.data.corpus.segmentation import one_sentence_per_line, split_sentences, splitter_for
from hf_encoders.data.corpus.sentence_store import SentenceStore
from hf_encoders.data.corpus.tokenized import split_train_validation, tokenize_documents


__all__ = [
    "CorpusReport",
    "CorpusStatistics",
    "SentenceStore",
    "corpus_statistics",
    "documents_from_dataset",
    "one_sentence_per_line",
    "prepare_corpus",
    "read_documents",
    "split_sentences",
    "split_train_validation",
    "splitter_for",
    "tokenize_documents",
    "unigram_cross_entropy",
    "warnings_for",
]
