"""What tells about a model: its record, curves, card, checks, publication and export."""
