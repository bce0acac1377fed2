"""Describe, check, publish and export a model."""
