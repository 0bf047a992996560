"""Caches for what Apache Beam repeats while it builds and runs a pipeline.

In a build of a few photos, Beam 2.77 creates an argument parser 390 times, and inspects the same
functions 3,000 times: more than half of the CPU time. Neither result changes within a process.
It also formats 100 stacks, for messages about wrong type hints.
"""

import bz2
import copy
import functools
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from apache_beam.internal import cloudpickle_pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statecache
from apache_beam.transforms import core, ptransform, userstate, util
from apache_beam.typehints import decorators, trivial_inference

_create_view = PipelineOptions.view_as
_find_specs = userstate.get_dofn_specs
_find_arguments = core.get_function_args_defaults
_find_signature = decorators.get_signature
_find_mixture = core._check_fn_use_yield_and_return
_infer_type = trivial_inference.infer_return_type
_options: dict[tuple[type, tuple[str, ...]], dict] = {}
_specs: dict[object, tuple] = {}
_arguments: dict[tuple[bool, Callable], tuple[list, list]] = {}
_signatures: dict[tuple, Any] = {}
_mixtures: dict[object, bool] = {}
_types: dict[tuple, Any] = {}


def _view_as(options: PipelineOptions, kind: type) -> PipelineOptions:
    """Parse the flags once for each class of options."""
    if options._flags is None:
        return _create_view(options, kind)  # reads sys.argv
    key = kind, tuple(options._flags)
    if key not in _options:
        _options[key] = vars(kind(list(options._flags))._visible_options)
    for name in _options[key].keys() - options._all_options.keys():
        options._all_options[name] = copy.copy(_options[key][name])
    view = object.__new__(kind)
    view._flags = options._flags
    view._visible_options = SimpleNamespace(**_options[key])
    view._all_options = options._all_options
    return view


def _get_dofn_specs(dofn: core.DoFn) -> tuple:
    """Inspect the methods of a class of this project and of functions once, and other DoFns once."""
    kind = type(dofn)
    ours = kind.__module__.startswith("shardmill.") or kind is core.CallableWrapperDoFn
    key = kind if ours else dofn
    if key not in _specs:
        _specs[key] = _find_specs(dofn)
    return _specs[key]


def _get_function_args_defaults(function: Callable) -> tuple[list, list]:
    key = hasattr(function, "__self__"), getattr(function, "__func__", function)
    if key not in _arguments:
        _arguments[key] = _find_arguments(function)
    names, defaults = _arguments[key]
    return [*names], [*defaults]


def _get_signature(function: Callable) -> Any:
    """Inspect the functions of one piece of code once, unless their defaults may differ."""
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None or plain.__defaults__ or plain.__kwdefaults__ or hasattr(plain, "__wrapped__"):
        return _find_signature(function)
    key = code, plain is function, *plain.__annotations__.values()
    if key not in _signatures:
        _signatures[key] = _find_signature(function)
    return _signatures[key]


def _mixes_yield_and_return(function: Callable) -> bool:
    key = getattr(function, "__code__", function)
    if key not in _mixtures:
        _mixtures[key] = _find_mixture(function)
    return _mixtures[key]


def _infer_return_type(function: Any, inputs: Sequence, *options: Any) -> Any:
    """Infer the type once for functions without state: other calls depend on their values."""
    code = getattr(function, "__code__", None)
    state = (getattr(function, name, None) for name in ("__self__", "__closure__", "__defaults__"))
    if code is None or any(value is not None for value in state):
        return _infer_type(function, inputs, *options)
    key = code, str(inputs), *options
    if key not in _types:
        _types[key] = _infer_type(function, inputs, *options)
    return _types[key]


def install() -> None:
    """Replace functions of Beam in this process."""
    PipelineOptions.view_as = _view_as
    userstate.get_dofn_specs = _get_dofn_specs
    core.get_function_args_defaults = _get_function_args_defaults
    core._check_fn_use_yield_and_return = _mixes_yield_and_return
    for module in (core, decorators, ptransform, util):
        module.get_signature = _get_signature
    decorators.IOTypeHints._make_origin = classmethod(lambda *_, **__: [])
    trivial_inference.infer_return_type = _infer_return_type
    statecache.get_deep_size = sys.getsizeof  # else it reads the globals of all modules each time
    compress = functools.lru_cache(1000)(bz2.compress)  # most pickles equal earlier ones
    cloudpickle_pickler.bz2 = SimpleNamespace(compress=compress, decompress=bz2.decompress)
