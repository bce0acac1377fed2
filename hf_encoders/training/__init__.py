"""What plugs into `Trainer`: a thin subclass for pre-training, and callbacks."""
