"""Text to documents of sentences to token ids on disk; tokenizers, and reports on both."""
