"""The flags of a build are the options of its config, and the docstrings are their help."""

from dataclasses import fields

import pytest

from shardmill.pipelines.commands import find_parser
from shardmill.pipelines.commands.build_flags import build_parser
from shardmill.pipelines.dataset_options import DatasetOptions, ImagesOptions, describe_options
from shardmill.pipelines.input_kinds import INPUT_KINDS
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS
from shardmill.schemas.tfrecord.gzip_member import COMPRESSIONS
from shardmill.transforms.images.decode import MAX_PIXELS
from shardmill.transforms.images.resize import INTERPOLATIONS, RESIZES
from shardmill.transforms.match.labels import LABEL_FROM


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_each_option_is_a_flag_with_help(kind) -> None:
    actions = {action.dest: action for action in find_parser(kind)._actions}
    config = INPUT_KINDS[kind].load_config()
    options = {each.name: each for each in fields(config)}
    missing = options.keys() - actions.keys()
    assert missing <= {"follow_links"}, "arrays do not walk folders"
    for name, option in options.items() - {(each, options[each]) for each in missing}:
        action = actions[name]
        if (kind, name) == ("images", "threads"):
            continue  # hidden: an error names --workers
        assert action.help
        assert "``" not in action.help
        assert (action.nargs == 0) == (option.type == "bool"), name
        assert action.nargs == 0 or action.metavar
        if option.default not in (None, "", False, 0) and isinstance(option.default, int | float):
            assert f"{option.default:g}" in action.help or str(option.default) in action.help, name


def test_help_lists_all_choices_and_the_limit_of_pixels() -> None:
    texts = {name: text for name, (_, text) in describe_options(ImagesOptions).items()}
    for name, choices in (
        ("resize", RESIZES), ("interpolation", INTERPOLATIONS), ("encoding", ENCODINGS),
        ("label_from", LABEL_FROM),
    ):  # fmt: skip
        assert ", ".join(choices) in texts[name]
    assert " or ".join(COMPRESSIONS) in texts["compression"]
    assert ImagesOptions.max_pixels == MAX_PIXELS


def test_works_without_docstrings(monkeypatch) -> None:
    """As in ``python -OO``."""
    monkeypatch.setattr(DatasetOptions, "__doc__", None)
    parser = build_parser("x", "what", "example", DatasetOptions, {"running": "input keep update"})
    assert parser.parse_args(["--input=a", "--keep=3", "--update"]).keep == 3
