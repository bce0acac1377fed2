"""`hf-encoders benchmark`: comparison with transformers' own classes on the user's machine, text and settings."""
