"""Pre-training objectives, one per file, and what they share."""
