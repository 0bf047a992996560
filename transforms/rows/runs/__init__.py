"""Write the sorted records of each input range as a run, and merge runs into parts."""
