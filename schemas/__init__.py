"""Data types and formats: records, manifests, schemas, file names and storage.

Importing it loads neither apache_beam nor tensorflow: training jobs import it on machines that
have only one of them, or none.
"""
