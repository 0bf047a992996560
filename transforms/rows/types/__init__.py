"""Column types: inference, casts and typed values."""
