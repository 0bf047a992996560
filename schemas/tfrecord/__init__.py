"""TFRecord files: framing, checksums, GZIP members, compression, scanning and reading."""
