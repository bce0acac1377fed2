"""Students of a teacher: initialised from its layers, and trained on what it predicts."""

from hf_encoders.distillation.student import spread_layers, student_config, student_family, student_from
from hf_encoders.distillation.teacher import DistillationOptions, fingerprint, with_teacher


__all__ = [
    "DistillationOptions",
    "fingerprint",
    "spread_layers",
    "student_config",
    "student_family",
    "student_from",
    "with_teacher",
]
