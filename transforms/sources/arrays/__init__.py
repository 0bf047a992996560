"""NumPy arrays become records of raw bytes."""
