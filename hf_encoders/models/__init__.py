"""Everything that ships to the Hub with a checkpoint: configurations, models and the blocks they are made of.

These files are copied flat beside the weights. They import nothing but the standard library, torch, transformers,
huggingface_hub and each other as `from .name import x`.
"""
