"""Read CSV files: dialect, decompression, quotes, row bounds and cells."""
