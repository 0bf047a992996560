"""The kinds of input that Shardmill builds datasets from: the only list of them.

The list of commands, the parameters of the Dataflow template, the settings of the Airflow DAGs and
tests of the docs are derived from it. docs/add-an-input-kind.md walks through adding one.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from shardmill.pipelines.build_config import BuildConfig
    from shardmill.transforms.runtime.progress import Progress


class ProgressUnit(NamedTuple):
    """The unit in which progress is shown.

    Attributes:
        name: Name of the unit.
        size: What pipelines count, inputs or bytes, in one unit.
        rejected: Word for rejected inputs.
    """

    name: str = "images"
    size: int = 1
    rejected: str = "rejected"

    def new_progress(self) -> Progress:
        """Return the progress of a run that has not begun."""
        from shardmill.transforms.runtime.progress import Progress

        return Progress(unit=self.name, per_unit=self.size, rejects_name=self.rejected)


IMAGES = ProgressUnit("images")
MEBIBYTES = ProgressUnit("MiB", 1 << 20, "damaged")


@dataclass(frozen=True)
class InputKind:
    """A kind of input.

    Its name decides where its code is: ``pipelines/<name>.py`` wires the pipeline,
    ``pipelines/<name>_config.py`` defines ``<Name>Config``.

    Attributes:
        name: Of the command, in lower case.
        help: What the command does, for the list of commands.
        inputs: What inputs are called in summaries.
        unit: Unit in which progress is shown.
        options: Module of ``pipelines`` that defines ``<Name>Options``, its flags.
    """

    name: str
    help: str
    inputs: str
    unit: ProgressUnit
    options: str = "dataset_options"

    def load_pipeline(self) -> Any:
        """Return the module that wires the pipeline; imports Apache Beam."""
        return import_module(f"shardmill.pipelines.{self.name}")

    def load_config(self) -> type[BuildConfig]:
        """Return the class of its options."""
        return cast("type[BuildConfig]", self._load(f"{self.name}_config", "Config"))

    def load_options(self) -> Any:
        """Return the table of its options, which is faster to import."""
        return self._load(self.options, "Options")

    def _load(self, module: str, suffix: str) -> Any:
        found = import_module(f"shardmill.pipelines.{module}")
        return getattr(found, f"{self.name.capitalize()}{suffix}")


INPUT_KINDS = {
    kind.name: kind
    for kind in (
        InputKind("images", "build a dataset from a folder of images", "images", IMAGES),
        InputKind(
            "rows",
            "build a dataset from CSV, Parquet or JSON Lines files",
            "rows",
            ProgressUnit("MiB of rows", 1 << 20),
        ),
        InputKind("arrays", "build a dataset from NumPy arrays", "rows", MEBIBYTES),
    )
}
