"""Read sources of Python: records of any kind become Parquet files."""
