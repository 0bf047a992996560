"""Every field of a public dataclass is explained in its docstring, from which the reference is made."""

import dataclasses
import importlib
import re

import pytest

PACKAGES = ("", ".pipelines", ".transforms", ".loaders", ".schemas")


def public_dataclasses() -> list[type]:
    found = set()
    for package in PACKAGES:
        module = importlib.import_module(f"shardmill{package}")
        for name in module.__all__:
            each = getattr(module, name)
            if isinstance(each, type) and (
                dataclasses.is_dataclass(each) or hasattr(each, "_fields")
            ):
                found.add(each)
    parts = ("Split", "Shard", "Inputs", "Build", "Damaged", "CatalogFile")
    found |= {
        getattr(importlib.import_module("shardmill.schemas.dataset.manifest"), n) for n in parts
    }
    return sorted(found, key=lambda each: each.__qualname__)


def explained(kind: type) -> set[str]:
    """Return the names in the sections Attributes and Args of a class and its base classes."""
    names = set()
    for each in kind.__mro__:
        text = each.__dict__.get("__doc__") or ""
        for section in re.findall(
            r"^ *(?:Attributes|Args):\n((?:\s+\S.*\n|\n(?=     ))+)", f"{text}\n", re.MULTILINE
        ):
            names |= set(re.findall(r"^\s+(\w+): ", section, re.MULTILINE))
    return names


@pytest.mark.parametrize("kind", public_dataclasses(), ids=lambda kind: kind.__qualname__)
def test_every_field_is_explained(kind) -> None:
    fields = getattr(kind, "_fields", None) or [each.name for each in dataclasses.fields(kind)]
    assert [name for name in fields if name not in explained(kind)] == []


def test_public_classes_are_found() -> None:
    names = {kind.__name__ for kind in public_dataclasses()}
    assert {"ImagesConfig", "BuildResult", "SinkSpec", "Outcome", "InputRef", "Manifest"} <= names
