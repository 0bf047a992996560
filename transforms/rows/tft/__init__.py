"""TensorFlow Transform: analysis and application of a preprocessing_fn."""
