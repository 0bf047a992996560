"""Sources of tables: each reads one format as typed columns."""
