"""Parts that plug into `Trainer`: a thin subclass for pre-training, and callbacks."""
