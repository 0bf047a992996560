"""Statistics of feature values and pixels."""
