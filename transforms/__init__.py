"""What happens to data: pure functions, and the PTransforms that wire them."""
