"""Names and defaults that modules define which import torch; tests/options/test_names.py compares them with these."""

# hf_encoders.loading
CLASSES = ("hf_encoders", "transformers")
# hf_encoders.registration: the family that `--kind` stands for, the first with that kind of vocabulary, and its size
KINDS = {
    "wordpiece": ("bert", 30522),
    "bpe": ("roberta", 50265),
    "unigram": ("albert", 30000),
    "suffix-bpe": ("xlm", 30145),
}
# hf_encoders.objectives: those of running text that need nothing else, and those that transformers' models have too
TEXT_OBJECTIVES = ("mlm", "nsp", "sop", "plm", "rtd")
COMPARABLE_OBJECTIVES = ("mlm", "nsp", "sop")
# The families with a recipe for minutes, of one text, whose models fill masks
QUICKSTART_FAMILIES = ("bert", "roberta", "albert")
# hf_encoders.data
FORMS = ("csv", "tsv", "jsonl", "conll", "squad")
HELD_OUT_MEGABYTES = 10
# hf_encoders.adaptation
POSITIONS = ("copy", "interpolate")
HEAD_STEPS = 0.05
# hf_encoders.distillation
SOFT_TARGETS = ("predicted", "all")
TEMPERATURE = 2.0
LOSS_WEIGHTS = {"ce": 5.0, "mlm": 2.0, "cos": 1.0}
# hf_encoders.evaluation
MAX_TOKENS = 4096
# hf_encoders.finetuning
CHECKPOINTS = ("best", "last")
SINGLE_LABEL_METRICS = ("accuracy", "f1_macro", "matthews_correlation")
MAX_ANSWER_TOKENS = 30
N_BEST = 20
# hf_encoders.records
AXES = ("steps", "tokens", "minutes")
# hf_encoders.publishing
EXPORTS = ("native", "onnx", "safetensors-bf16")
