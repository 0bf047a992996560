"""Read JSON Lines files: lines as rows of typed columns."""
