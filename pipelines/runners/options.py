"""Beam's pipeline options, read faster."""

from __future__ import annotations

from typing import Any, TypeVar

from apache_beam.options.pipeline_options import PipelineOptions

_View = TypeVar("_View", bound=PipelineOptions)


class CachedOptions(PipelineOptions):
    """Pipeline options that make each view of them once.

    Wiring a build asks for 500 views, and Beam parses the flags for each: half of the time of the
    wiring. All views share the values, so that one of each kind suffices.
    """

    def view_as(self, cls: type[_View]) -> _View:
        """See ``PipelineOptions.view_as``."""
        views: dict[type, Any] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        view: _View = views[cls]
        return view

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without views: a copy has its own values, and makes its own views."""
        return {**super().__getstate__(), "_views": {}}
