"""Read CSV: dialects, decompression, quotes, row bounds and cells."""
