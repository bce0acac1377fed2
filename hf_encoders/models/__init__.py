"""Everything that is saved with a checkpoint: configurations, models and their blocks.

These files are copied into the checkpoint's folder. They import only the standard library, torch, transformers,
huggingface_hub and each other, as `from .name import x`.
"""
