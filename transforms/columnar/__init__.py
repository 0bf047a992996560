"""Columns of values to serialized tf.train.Examples; shared by rows and arrays."""
