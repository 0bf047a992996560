"""schema.pbtxt: columns, feature specs and image features."""
