"""Records of runs: facts, curves, pictures, tables, hardware and floating-point operations."""
