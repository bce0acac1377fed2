"""What is known of a run: its record, curves, pictures, hardware, floating-point operations and memory."""
