"""Metrics as `evaluate.Metric` modules that need no network.

A file is a metric: `evaluate.load("hf_encoders/evaluation/metrics/f1.py")` is `hf_encoders.F1()`. A result is one flat
dictionary of numbers, as `evaluate.combine`, the intervals of `evaluate.evaluator` and `Trainer`'s log expect.
"""
