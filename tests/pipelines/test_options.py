"""The tables of options: what a flag, a call and a copy of a config give is parsed once, alike."""

import argparse
import dataclasses
import inspect
import pickle
import typing

import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from PIL import Image

import shardmill
from shardmill.pipelines import dataset_options as tables
from shardmill.pipelines import tool_options
from shardmill.pipelines.arrays_config import ArraysConfig
from shardmill.pipelines.commands import INPUT_KINDS, find_parser
from shardmill.pipelines.commands.build import configure
from shardmill.pipelines.commands.parser import Answer, check_beam_flags, parse_flags
from shardmill.pipelines.images_config import ImagesConfig
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.schemas import option_types as of
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import format_bytes, parse_bytes
from shardmill.schemas.option_types import as_text, describe_options, options_of
from shardmill.transforms.images.image_options import DecoderLimits, ImageOptions
from shardmill.transforms.match.labels import LabelOptions
from shardmill.transforms.sink.placement import ShardOptions
from shardmill.transforms.sources.csv.dialect import CellOptions, CsvFormat, Dialect
from shardmill.transforms.tables.column_options import ColumnOptions

TABLES = {
    "images": tables.ImagesOptions,
    "rows": tables.RowsOptions,
    "arrays": tables.ArraysOptions,
    "count": tool_options.CountConfig,
    "verify": tool_options.VerifyOptions,
}


@pytest.mark.parametrize("command", TABLES)
def test_each_option_is_a_flag_with_help_and_a_parameter(command) -> None:
    table = TABLES[command]
    actions = {action.dest: action for action in find_parser(command)._actions}
    names = [*options_of(table, required=True)]
    assert {*names} == actions.keys() - {"help", "json", "quiet", "debug", "log_format", "config"}
    assert list(inspect.signature(getattr(shardmill, command)).parameters) == names
    hints = typing.get_type_hints(table, None, {"Check": str})
    for name in names:
        option = options_of(table).get(name)
        assert actions[name].help
        assert "``" not in actions[name].help
        assert f"    {name}: " in getattr(shardmill, command).__doc__
        given = typing.get_args(hints[name])[:1]
        is_switch = bool in (*given, *typing.get_args(given and given[0]))
        assert (actions[name].nargs == 0) == is_switch == bool(option and option.kind == "switch")
        if option and option.kind == "number" and option.default:
            assert as_text(option, option.default) in actions[name].help, name


def test_help_lists_all_choices_and_the_limit_of_pixels() -> None:
    for table in TABLES.values():
        for name, option in options_of(table).items():
            if option.choices and option.pattern:
                text = describe_options(table)[name][1]
                assert all(word in text for word in option.choices), name
    assert tables.ImagesOptions.max_pixels == DecoderLimits.max_pixels == 2 * Image.MAX_IMAGE_PIXELS


def test_a_switch_may_have_words() -> None:
    parser = find_parser("images")
    for value, wanted in (("", True), ("=true", True), ("=content", "content")):
        flags = vars(parser.parse_args(["--input=a", f"--update{value}", "--output=b"]))
        assert flags["update"] == ImagesConfig("a", "b", update=flags["update"]).update == wanted
    with pytest.raises(UsageError, match="ignored explicit argument 'content'"):
        find_parser("rows").parse_args(["--input=a", "--strip=content"])
    for flag, rule in (("strip", "True or False"), ("update", "True, content or False")):
        with pytest.raises(UsageError, match=f"--{flag}=all must be {rule}"):
            RowsConfig("a", "b", **{flag: "all"})


def test_works_without_docstrings(monkeypatch) -> None:
    """As in ``python -OO``."""
    for each in tables.ImagesOptions.__mro__[:-1]:
        monkeypatch.setattr(each, "__doc__", None)
    assert find_parser("images").parse_args(["--input=a", "--keep=3", "--update"]).keep == "3"


SAME = [
    (ImagesConfig, "image_size", ["180x320", (180, 320), [180, 320], np.array([180, 320])]),
    (ImagesConfig, "image_size", ["224", 224, np.int64(224), (224, 224)]),
    (
        ImagesConfig,
        "splits",
        ["train:0.5,test:0.5", {"train": 0.5, "test": 0.5}, "train:1/2,test:1/2"],
    ),
    (ImagesConfig, "features", ["a=image/key,image/width", ["a=image/key", "image/width"]]),
    (ImagesConfig, "features", ["a=image/key", {"a": "image/key"}]),
    (ImagesConfig, "decoder_memory", ["2GiB", 2 << 30, "2g"]),
    (ImagesConfig, "quality", ["90", 90, np.int32(90)]),
    (ImagesConfig, "reducing_gap", ["2", 2, 2.0]),
    (ImagesConfig, "seed", [None, 0, "0"]),
    (RowsConfig, "null_values", ["?,-", ["?", "-"], ("?", "-")]),
    (ArraysConfig, "arrays", ["x,y", ["x", "y"]]),
    (ImagesConfig, "beam_options", [["runner=X", "y"], {"runner": "X", "y": True, "z": None}]),
    (ImagesConfig, "beam_options", [["labels=a=b", "labels=c=d"], {"labels": ["a=b", "c=d"]}]),
]


@pytest.mark.parametrize(("config", "name", "given"), SAME, ids=lambda v: str(v)[:40])
def test_values_mean_the_same_in_every_form(config, name, given, tmp_path) -> None:
    """Also those of a copy and of a pickle; and the command of the manifest gives them again."""
    first, *others = (config(tmp_path, "out", **{name: each}) for each in given)
    for other in (*others, dataclasses.replace(first), pickle.loads(pickle.dumps(first))):
        assert other == first
        assert other.identity() == first.identity()
    if name != "beam_options":
        kind = config.__name__.removesuffix("Config").lower()
        flags = vars(find_parser(kind).parse_known_args(first.command(kind)[2:])[0])
        again = config(
            **{each: flags[each] for each in flags.keys() & options_of(config).keys()},
            input=tmp_path,
            output="out",
        )
        assert getattr(again, name) == getattr(first, name)


@pytest.mark.parametrize("command", INPUT_KINDS)
def test_a_repeated_flag_adds_items_to_its_list(command) -> None:
    """No item of an earlier flag is lost, as that of --input is not."""
    options = options_of(TABLES[command])
    lists = [name for name, option in options.items() if option.is_list]
    assert {"splits", *{"annotations", "select", "arrays"}.intersection(options)} <= {*lists}
    for name in lists:
        words = ["--input=i", "--output=o", f"--{name}=a:1", f"--{name}=b=2,c:3"]
        assert vars(find_parser(command).parse_known_args(words)[0])[name] == "a:1,b=2,c:3"


@pytest.mark.parametrize("name", ["input", "seed"])
def test_a_config_does_not_change(name) -> None:
    config = ImagesConfig("in", "out")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, 3)


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_identity_has_all_options_but_those_that_change_no_byte(kind) -> None:
    """An option is in the identity unless the table says that it changes nothing."""
    config = INPUT_KINDS[kind].load_config()
    free = {name for name, option in options_of(config).items() if not option.decides}
    assert free >= {"root", "keep", "update", "overwrite", "dry_run", "max_reject_fraction"}
    assert free <= {
        "root",
        "keep",
        "limits",
        "update",
        "overwrite",
        "dry_run",
        "max_reject_fraction",
        "beam_options",
        "follow_links",
        "threads",
        "workers",
        "labels",
        "annotations",
        "masks",
        "limit",
        "schema",
        "preprocessing",
        "image_suffix",
        "zip_encoding",  # in the identity of the inputs
        "sample_bytes",
        "max_rejected_files",
        "resizer",  # in the versions of codecs, if it is Pillow
        "label_order",  # if it is not the default
    }


@pytest.mark.parametrize(
    ("text", "size"),
    [("128MiB", 128 << 20), ("1G", 1 << 30), ("5000", 5000), ("1.5kb", 1536), ("2 TB", 2 << 40)],
)
def test_parses_sizes(text: str, size: int) -> None:
    assert (
        parse_bytes(text, "shard_bytes") == size == parse_bytes(format_bytes(size), "shard_bytes")
    )


@dataclasses.dataclass(kw_only=True)
class LaterOptions(ImageOptions):
    """A release with two more options, one of which says that it was added."""

    sharpen: of.Switch = of.switch(added=True)  # noqa: RUF009
    dither: of.Switch = of.switch()  # noqa: RUF009


def test_an_added_option_is_in_no_identity_at_its_default() -> None:
    """Else a new option would make each dataset decode all images again."""
    before = ImageOptions(quality=90).record_identity()
    assert LaterOptions(quality=90).record_identity() == {**before, "dither": False}
    after = LaterOptions(quality=90, sharpen=True).record_identity()
    assert after == {**before, "dither": False, "sharpen": True}


@pytest.mark.parametrize(
    ("command", "groups"),
    [
        ("images", (ImageOptions, DecoderLimits, LabelOptions, ShardOptions, CsvFormat)),
        ("rows", (ColumnOptions, Dialect, CellOptions, ShardOptions)),
        ("arrays", (ShardOptions,)),
    ],
)
def test_a_component_gets_the_options_of_its_group(command, groups) -> None:
    table = TABLES[command]("in", "out", num_shards=7)
    for group in groups:
        picked = table.pick(group)
        assert type(picked) is group
        assert vars(picked) == {name: getattr(table, name) for name in options_of(group)}
        assert options_of(group).items() <= options_of(table).items()  # one object each


def test_a_list_for_an_option_of_beam_with_one_value_is_an_error() -> None:
    """What Beam's own options make of two values judges: of several they keep both."""
    beam = argparse.ArgumentParser(allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(beam)
    parser, lists, singles = find_parser("images"), [], []
    for action in beam._actions:
        if action.nargs == 0 or action.type not in (None, str, int):
            continue  # JSON
        if action.dest.startswith(("s3", "hdfs")) or "audit" in action.dest:
            continue  # of other storages
        texts = [*action.choices][:2] if action.choices else ["1", "2"]
        texts = ['{"a": "1"}', '{"b": "2"}'] if "overrides" in action.dest else texts
        for flag in action.option_strings:
            flags = ImagesConfig("in", "out", beam_options={flag[2:]: texts}).beam_options
            assert [*flags] == [f"{flag}={text}" for text in texts]
            kept = vars(beam.parse_args(flags))[action.dest]
            keeps_both = isinstance(kept, list | dict) and len(kept) >= 2
            (lists if keeps_both else singles).extend([flags] if len(texts) == 2 else [])
    assert len(lists) >= 10
    assert len(singles) >= 80
    for flags in lists:
        check_beam_flags(flags, parser, once=True)
    for flags in singles[::4]:
        name = flags[0].partition("=")[0][2:]
        with pytest.raises(UsageError, match=f"The option {name} of Apache Beam takes one value"):
            check_beam_flags(flags, parser, once=True)
    check_beam_flags(singles[0], parser)  # on a command line the last one wins
    check_beam_flags(singles[0][:1], parser, once=True)


def test_a_list_of_switches_of_beam_is_an_error() -> None:
    for given in ([True, False], (True, True), [False, "x"]):
        with pytest.raises(UsageError, match="streaming of Apache Beam takes one value, not"):
            ImagesConfig("in", "out", beam_options={"streaming": given})
    assert ImagesConfig("in", "out", beam_options={"streaming": [True]}).beam_options == (
        "--streaming",
    )


def test_lists_for_options_of_beam_are_errors_of_calls_and_files(tmp_path) -> None:
    sentence = "The option job_name of Apache Beam takes one value, not 'a', 'b': give one of them"
    with pytest.raises(UsageError, match=sentence):
        configure(
            "images",
            {"input": "in", "output": "out", "beam_options": {"job_name": ["a", "b"]}},
            [],
            Answer(),
        )
    file = tmp_path / "o.toml"
    file.write_text('[options]\njob_name = ["a", "b"]\n')
    with pytest.raises(UsageError, match=sentence):
        parse_flags(find_parser("images"), ["in", "out", f"--config={file}"])
