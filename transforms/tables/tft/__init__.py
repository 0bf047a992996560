"""TensorFlow Transform: analyze rows with a preprocessing_fn and apply the resulting graph."""
