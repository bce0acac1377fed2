"""Scores of models without training them, metrics, and embeddings of texts."""
