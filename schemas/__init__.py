"""What things are: names, formats, records and where bytes lie.

Importing this package loads neither apache_beam nor tensorflow: trainers import it on machines
that have only one of them, or none.
"""
