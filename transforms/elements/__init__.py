"""Elements of a PCollection become records: read, type and check them, and write them as runs."""
