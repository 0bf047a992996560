"""Rows: CSV text becomes cells, typed columns, framed records, runs and parts."""
