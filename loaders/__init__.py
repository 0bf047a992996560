"""How a trainer reads a dataset. Imports only ``shardmill.schemas``, never Apache Beam."""

from shardmill.loaders.steps import steps_per_epoch

__all__ = ["steps_per_epoch"]
