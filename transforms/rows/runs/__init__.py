"""Runs: sorted records of one input range, and their merge into parts."""
