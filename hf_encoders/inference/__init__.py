"""Feature extraction: embeddings of texts, without padding."""

from hf_encoders.inference.encoding import encode


__all__ = ["encode"]
