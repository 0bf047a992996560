"""Beam's counters: a fixed list of names, the same on every runner."""

from apache_beam.metrics import Metrics

NAMESPACE = "shardmill"
EXAMPLES = Metrics.counter(NAMESPACE, "examples_encoded")
REJECTS = Metrics.counter(NAMESPACE, "inputs_rejected")
PARTS_MADE = Metrics.counter(NAMESPACE, "parts_made")
PARTS_FOUND = Metrics.counter(NAMESPACE, "parts_found")
SHARDS = Metrics.counter(NAMESPACE, "shards_assembled")
FILES = Metrics.counter(NAMESPACE, "files_counted")
DAMAGED = Metrics.counter(NAMESPACE, "files_damaged")
RECORDS = Metrics.counter(NAMESPACE, "records_scanned")
ENCODE_MILLISECONDS = Metrics.distribution(NAMESPACE, "encode_milliseconds")
INPUT_BYTES = Metrics.distribution(NAMESPACE, "input_bytes")
PART_BYTES = Metrics.distribution(NAMESPACE, "part_bytes")
