"""What differs between Beam's runners."""

from __future__ import annotations

from shardmill.pipelines.runners.base import IN_MEMORY, Job, Runner, take_runner

__all__ = ["IN_MEMORY", "Job", "Runner", "find_runner", "take_runner"]


def find_runner(name: str) -> Runner:
    """Return the runner of a name.

    Args:
        name: A name as ``take_runner`` returns it; upper or lower case.
    """
    plain = name.lower().removesuffix("runner")
    if name == IN_MEMORY:
        from shardmill.pipelines.runners.memory import InMemory

        return InMemory(name)
    if plain == "flink":
        from shardmill.pipelines.runners.flink import Flink

        return Flink(name)
    if plain == "prism":
        from shardmill.pipelines.runners.prism import Prism

        return Prism(name)
    if plain == "dataflow":
        from shardmill.pipelines.runners.dataflow import Dataflow

        return Dataflow(name)
    return Runner(name)
