"""Count records of TFRecord files into a manifest."""
