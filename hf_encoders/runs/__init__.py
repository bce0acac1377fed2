"""Recipes, and runs: what is trained on which text, from which checkpoint, with and for how long."""
