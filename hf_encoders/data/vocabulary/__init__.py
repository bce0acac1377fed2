"""Training and measuring a tokenizer of a family's kind."""
