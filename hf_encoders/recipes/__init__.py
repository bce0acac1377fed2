"""Recipes: what a pre-training run trains on, with and for how long; and the run itself."""
