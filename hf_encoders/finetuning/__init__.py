"""Fine-tuning: tasks, and the one training loop that they share."""
