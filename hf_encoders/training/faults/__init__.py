"""Checkpoints, interruptions and errors that a training run survives."""
