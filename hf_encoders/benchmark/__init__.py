"""`hf-encoders benchmark`: this package beside transformers' own classes, on the user's machine, text and settings."""
