"""Text -> documents of sentences -> token ids on disk, and what can be told about them.

`preparation.py` makes a lasting corpus of files and data sets with several processes, `tokenized.py` one of any
documents in this process; `sentence_store.py` looks at a corpus as flat arrays.
"""

from hf_encoders.data.corpus.preparation import prepare_corpus
from hf_encoders.data.corpus.report import (
    CorpusReport,
    CorpusStatistics,
    corpus_statistics,
    unigram_cross_entropy,
    warnings_for,
)
from hf_encoders.data.corpus.segmentation import (
    documents_from_dataset,
    one_sentence_per_line,
    read_documents,
    split_sentences,
)
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
    "tokenize_documents",
    "unigram_cross_entropy",
    "warnings_for",
]
