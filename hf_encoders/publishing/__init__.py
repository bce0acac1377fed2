"""The description of a model: its record, curves, card, checks, publication and export."""
