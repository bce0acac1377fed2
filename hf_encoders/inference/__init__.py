"""Feature extraction: embeddings of texts, without padding."""

from hf_encoders.inference.encoding import encode
from hf_encoders.inference.sentences import encode_sentences


__all__ = ["encode", "encode_sentences"]
