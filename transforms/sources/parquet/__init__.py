"""Read Parquet files: footers, row groups and their rows."""
