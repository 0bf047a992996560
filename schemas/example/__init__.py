"""tf.train.Example: a canonical serializer and a parser, without TensorFlow."""
