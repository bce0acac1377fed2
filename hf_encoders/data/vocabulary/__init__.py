"""From text to a family's tokenizer: words and their counts, a vocabulary learned from them, and what it is like."""
