"""Tables: typed columns of any source are placed, encoded, sorted in runs and merged in parts."""
