"""What differs between Beam's runners."""

from __future__ import annotations

from importlib import import_module

from shardmill.pipelines.runners.base import IN_MEMORY, InMemory, Job, Runner, take_runner
from shardmill.schemas.errors import UsageError

__all__ = ["IN_MEMORY", "Job", "Runner", "find_runner", "take_runner"]

# Class of each module; a module is imported when its runner is used.
_CLASSES = {"flink": "Flink", "prism": "Prism", "dataflow": "Dataflow"}


def find_runner(name: str) -> Runner:
    """Return the runner of a name.

    Args:
        name: A name as ``take_runner`` returns it; upper or lower case.

    Raises:
        UsageError: Shardmill was not tried on the runner.
    """
    if name == IN_MEMORY:
        return InMemory(name)
    module = name.lower().removesuffix("runner")
    if module not in _CLASSES:
        if "." not in name and module != "portable":  # a class, or the job server of any runner
            raise UsageError("runner-unknown", name=name)
        return Runner(name)
    runner: Runner = getattr(import_module(f"{__name__}.{module}"), _CLASSES[module])(name)
    return runner
