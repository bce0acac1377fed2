"""TF-IDF and a linear model, for each kind of task: what a fine-tuned encoder has to be better than.

Words and pairs of neighbouring words, or runs of two to four characters where words are not divided by blanks. No
setting was searched for.
"""

import re
from typing import Any

import datasets
import numpy as np
import scipy.sparse
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import normalize

from hf_encoders import Accuracy, Correlation, Seqeval, Squad


STRENGTH = 10.0  # C of the logistic regressions: less regularisation than 1, for many rare features


def vectorizer(texts: list[str]) -> TfidfVectorizer:
    """Fitted to the training texts; by characters where the average word is longer than 20 of them."""
    average = np.mean([len(text) / max(len(text.split()), 1) for text in texts])
    unit = {"analyzer": "char", "ngram_range": (2, 4)} if average > 20 else {"ngram_range": (1, 2)}
    return TfidfVectorizer(sublinear_tf=True, **unit).fit(texts)


def pair_features(first: Any, second: Any) -> Any:
    """Both texts, what they share and what they do not, and their cosine; `(rows, 4 V + 1)`."""
    shared = first.multiply(second)
    return scipy.sparse.hstack([first, second, shared, abs(first - second), shared.sum(axis=1)]).tocsr()


def text_features(
    train: datasets.Dataset, test: datasets.Dataset, text_column: str, text_pair_column: str | None
) -> tuple[Any, Any]:
    """Features of texts or pairs of both parts."""
    columns = [text_column] if text_pair_column is None else [text_column, text_pair_column]
    tfidf = vectorizer([text for column in columns for text in train[column]])
    parts = []
    for rows in (train, test):
        matrices = [tfidf.transform(rows[column][:]) for column in columns]
        parts.append(matrices[0] if len(matrices) == 1 else pair_features(*matrices))
    return parts[0], parts[1]


def classification_baseline(
    train: datasets.Dataset,
    test: datasets.Dataset,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
) -> float:
    """Accuracy of a logistic regression."""
    features = text_features(train, test, text_column, text_pair_column)
    names, labels = np.unique(train[label_column][:], return_inverse=True)
    model = LogisticRegression(C=STRENGTH, max_iter=1000).fit(features[0], labels)
    references = np.searchsorted(names, test[label_column][:])
    return Accuracy(keep_in_memory=True).compute(predictions=model.predict(features[1]), references=references)[
        "accuracy"
    ]


def regression_baseline(
    train: datasets.Dataset,
    test: datasets.Dataset,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
) -> float:
    """Pearson's correlation of a ridge regression."""
    features = text_features(train, test, text_column, text_pair_column)
    predictions = Ridge().fit(features[0], train[label_column][:]).predict(features[1])
    correlation = Correlation(keep_in_memory=True)
    return correlation.compute(predictions=predictions, references=test[label_column][:])["pearsonr"]


def choice_baseline(train: datasets.Dataset, test: datasets.Dataset, ending_columns: list[str]) -> float:
    """Accuracy of a logistic regression of pairs of prompt and ending that takes the likeliest ending of a row."""
    tfidf = vectorizer([text for column in ("prompt", *ending_columns) for text in train[column]])
    parts = []
    for rows in (train, test):
        prompts = tfidf.transform(rows["prompt"][:])
        parts.append([pair_features(prompts, tfidf.transform(rows[column][:])) for column in ending_columns])
    right = [[int(label) == i for label in train["label"]] for i in range(len(ending_columns))]
    model = LogisticRegression(C=STRENGTH, max_iter=1000).fit(scipy.sparse.vstack(parts[0]), np.concatenate(right))
    scores = np.stack([model.decision_function(features) for features in parts[1]])
    references = [int(label) for label in test["label"]]
    return Accuracy(keep_in_memory=True).compute(predictions=scores.argmax(axis=0), references=references)["accuracy"]


def word_features(words: list[str]) -> list[dict[str, float]]:
    """Each word's form, ends and case, and its neighbours."""
    padded = ["<s>", *words, "</s>"]
    words_features = []
    for i, word in enumerate(words, 1):
        features = {f"word {word.lower()}": 1.0, f"end {word[-3:]}": 1.0, f"start {word[:3]}": 1.0}
        features |= {f"before {padded[i - 1].lower()}": 1.0, f"after {padded[i + 1].lower()}": 1.0}
        features |= {f"capital {word[:1].isupper()}": 1.0, f"all capitals {word.isupper()}": 1.0}
        words_features.append(features)
    return words_features


def token_baseline(train: datasets.Dataset, test: datasets.Dataset) -> float:
    """Entity F1 of a logistic regression of words; TF-IDF has nothing to count here."""
    encoder = DictVectorizer()
    features = encoder.fit_transform([word for words in train["tokens"] for word in word_features(words)])
    model = LogisticRegression(C=STRENGTH, max_iter=200).fit(features, np.concatenate(train["ner_tags"][:]))
    predictions = [model.predict(encoder.transform(word_features(words))).tolist() for words in test["tokens"]]
    figures = Seqeval(keep_in_memory=True).compute(predictions=predictions, references=test["ner_tags"][:])
    return figures["overall_f1"]


def question_baseline(train: datasets.Dataset, test: datasets.Dataset) -> float:
    """SQuAD F1, 0 to 100, of the sentence of the context that is most like the question; nothing is trained."""
    tfidf = vectorizer([*train["context"], *train["question"]])
    predictions, references = [], []
    for row in test:
        sentences = [part for part in re.split(r"(?<=[.!?;])\s+", row["context"]) if part.strip()] or [row["context"]]
        scores = normalize(tfidf.transform(sentences)) @ tfidf.transform([row["question"]]).T
        predictions.append({"id": row["id"], "prediction_text": sentences[int(scores.toarray().argmax())]})
        references.append({"id": row["id"], "answers": row["answers"]})
    return Squad(keep_in_memory=True).compute(predictions=predictions, references=references)["f1"]
