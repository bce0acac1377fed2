"""Pre-training objectives: examples, collator and model of each."""
