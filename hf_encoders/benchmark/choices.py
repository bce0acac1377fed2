"""List what the benchmark can measure, with its defaults; nothing here imports torch."""

from typing import NamedTuple


class Size(NamedTuple):
    """Fields of the configuration, and the rows per batch: of up to `LONG` tokens, and longer ones; then on CUDA."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    batch_size: int
    long_batch_size: int
    cuda_batch_size: int
    long_cuda_batch_size: int


# Base and large are the BERT paper's. On CUDA, as many rows as transformers' classes should fit into 24 GB.
SIZES = {
    "small": Size(4, 256, 4, 32, 8, 512, 128),
    "mini": Size(6, 384, 6, 32, 8, 256, 64),
    "base": Size(12, 768, 12, 16, 6, 128, 32),
    "large": Size(24, 1024, 16, 8, 2, 64, 16),
}
LONG = 128  # tokens; longer rows get `long_batch_size`
VOCAB_SIZE = 30522  # bert-base-uncased's
DROPOUT = 0.1  # the BERT and RoBERTa papers'
EXAMPLES = ("paragraphs", "sentences", "documents", "full")
PAIRS = "pairs"  # kind of the rows of a pair objective
TASKS = ("pretraining", "inference")
DTYPES = ("float32", "bfloat16")
# Implementations besides transformers' sdpa and this package's.
BASELINES = {
    "eager": "transformers eager",
    "flash": "transformers flash",
    "grouped": "transformers sdpa, by length",
    "modernbert": "transformers ModernBERT, by length",
    "compiled": "hf_encoders compiled",
}
STEPS = {"cpu": 2, "cuda": 10}  # batches per turn
# On a CPU, eager attention and ModernBERT double the time, and compiling takes minutes.
DEFAULTS = {
    "cpu": {"size": ["small"], "length": [128], "dtype": ["float32"], "against": ["grouped"]},
    "cuda": {
        "size": ["base", "large"],
        "length": [128, 512],
        "dtype": ["bfloat16"],
        "against": ["flash", "grouped", "modernbert", "compiled"],
    },
}
MIN_LENGTH = 8  # tokens of a row
