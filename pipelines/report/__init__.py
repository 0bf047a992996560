"""Terminal output: progress, summaries and reports about datasets."""
