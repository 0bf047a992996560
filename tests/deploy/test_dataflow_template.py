"""The image and the flex template of Dataflow agree with the flags of the commands."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from google.cloud import dataflow
from google.cloud.devtools import cloudbuild
from google.protobuf import json_format

from shardmill.pipelines.commands import INPUT_KINDS, find_parser
from shardmill.pipelines.commands.build import parse_build
from shardmill.pipelines.runners.dataflow import Dataflow
from tests.conftest import ROOT

FOLDER = ROOT / "deploy" / "dataflow"
METADATA = json.loads((FOLDER / "metadata.json").read_text())
PARAMETERS = {each["name"]: each for each in METADATA["parameters"]}
IMAGE = "europe-west1-docker.pkg.dev/my-project/shardmill/shardmill:9.9.9"
LAUNCHER = IMAGE.replace("/shardmill:", "/shardmill-launcher:")
(VERSION,) = re.findall(r'^    version="(.+?)",$', (ROOT / "setup.py").read_text(), re.MULTILINE)
(BEAM,) = re.findall(
    r"^apache-beam==(\S+) ; python_full_version >= '3.11'$",
    (ROOT / "constraints.txt").read_text(),
    re.MULTILINE,
)
# What the launcher and Dataflow themselves hand to the program.
TAKEN = {
    "runner",
    "project",
    "region",
    "job_name",
    "temp_location",
    "staging_location",
    "template_location",
    "service_account_email",
    "machine_type",
    "network",
    "subnetwork",
}


@pytest.fixture(scope="module")
def modules():
    """Import the two scripts."""
    sys.path.insert(0, str(FOLDER))
    try:
        import launch  # a script of deploy/, in no package
        import template

        yield launch, template
    finally:
        sys.path.remove(str(FOLDER))


def test_metadata_is_up_to_date(modules):
    assert modules[1].metadata() == METADATA, "run `make metadata`"


def test_metadata_has_the_format_of_dataflow(modules):
    message = dataflow.ContainerSpec()
    text = json.dumps(modules[1].specification(LAUNCHER, IMAGE))
    json_format.Parse(text, dataflow.ContainerSpec.pb(message))  # rejects what it does not know
    assert message.image == LAUNCHER
    assert message.default_environment.sdk_container_image == IMAGE
    assert message.sdk_info.language == dataflow.SDKInfo.Language.PYTHON
    assert message.metadata.name == "Shardmill"
    assert len(message.metadata.parameters) == len(PARAMETERS) == len(METADATA["parameters"])
    for each in message.metadata.parameters:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", each.name)
        assert each.label
        assert each.help_text.endswith(".")
        assert each.param_type != dataflow.ParameterType.DEFAULT
        is_enum = each.param_type == dataflow.ParameterType.ENUM
        assert bool(each.enum_options) == is_enum
        assert not each.parent_name or PARAMETERS[each.parent_name]["paramType"] == "ENUM"
        for option in each.enum_options:
            assert re.fullmatch(each.regexes[0], option.value)
    assert not set(PARAMETERS) & TAKEN
    assert [each.name for each in message.metadata.parameters if not each.is_optional] == [
        "command",
        "input",
    ]


def test_each_flag_is_a_parameter(modules):
    launch, template = modules
    commands = {option["value"] for option in PARAMETERS["command"]["enumOptions"]}
    assert commands == {*INPUT_KINDS, "count"} == set(launch.COMMANDS)
    for command in commands:
        flags = {action.dest for action in find_parser(command)._actions} - template.LEFT_OUT
        assert flags == {
            name
            for name, each in PARAMETERS.items()
            if name != "command" and command in each.get("parentTriggerValues", commands)
        }


ACCEPTED = {
    "input": ["gs://my-photos/album", "gs://b.c/d/*.csv", "gs://bucket"],
    "output": ["gs://my-sets/album"],
    "manifest": ["gs://b-2/m.json"],
    "root": ["gs://bucket/a"],
    "config": ["gs://bucket/recipe.toml"],
    "image_size": ["224", "180x320"],
    "shard_bytes": ["128MiB", "1.5 GiB", "1000", "1GB", "2g"],
    "quality": ["1", "95", "100"],
    "max_reject_fraction": ["0", "0.05", "1"],
    "limit": ["10"],
    "reducing_gap": ["3", "2.5", "0"],
    "encoding": ["jpeg", "latin-1"],
    "overwrite": ["true"],
    "channels": ["3"],
    "check": ["records"],
    "seed": ["7"],
    "resize": ["pad"],
}
REJECTED = {
    "input": ["/data/photos", "s3://bucket/x", "gs://"],
    "output": ["out"],
    "seed": ["x", ""],
    "image_size": ["224x", "x"],
    "quality": ["0", "101"],
    "overwrite": ["yes"],
    "check": ["all"],
    "max_reject_fraction": ["2", "-1"],
    "channels": ["2"],
    "command": ["show", "steps"],
}


def matches(name: str, value: str) -> bool:
    """Return whether the service accepts a value: all regexes match it, with its library."""
    texts = pa.array([value])
    return all(
        pc.match_substring_regex(texts, f"^(?:{regex})$")[0].as_py()  # RE2, as Dataflow's
        for regex in PARAMETERS[name].get("regexes", [])
    )


def test_regexes_accept_valid_values_only():
    for name in PARAMETERS:
        matches(name, "x")  # RE2 rejects to compile what it cannot do
    for name, values in ACCEPTED.items():
        assert [value for value in values if not matches(name, value)] == [], name
    for name, values in REJECTED.items():
        assert [value for value in values if matches(name, value)] == [], name


LAUNCHED = [
    "--runner=DataflowRunner",
    "--project=my-project",
    "--region=europe-west1",
    "--job_name=x",
    "--template_location=gs://bucket/job",
    "--staging_location=gs://bucket/s",
    '--labels={"goog-dataflow-provided-template-type": "flex"}',
]


def test_launcher_starts_each_command(modules, monkeypatch):
    launch = modules[0]
    monkeypatch.setenv(launch.IMAGE_VARIABLE, IMAGE)
    places = ["--input=gs://bucket/in", "--output=gs://bucket/out"]
    command, *argv = launch.translate(
        [
            "--command=images",
            *places,
            "--overwrite=true",
            "--only_shrink=false",
            "--labels=gs://b/l.txt",
            "--root=",
            *LAUNCHED,
        ]
    )
    assert command == "images"
    config, beam, answer, _ = parse_build("images", argv)
    assert (config.overwrite, config.only_shrink, answer.debug) == (True, False, False)
    assert (config.labels, config.root) == ("gs://b/l.txt", type(config).root)
    prepared = Dataflow("DataflowRunner").prepare(
        [flag for flag in beam if not flag.startswith("--runner")], "y"
    )
    assert f"--sdk_container_image={IMAGE}" in prepared
    assert LAUNCHED[-1] in prepared
    assert "--temp_location=gs://bucket/s" in prepared
    assert "--job_name=y" not in prepared
    command, *argv = launch.translate(
        ["--command=rows", *places, "--label=c", "--strip=true", "--debug=true", *LAUNCHED]
    )
    config, _, answer, _ = parse_build("rows", argv)
    assert (command, config.label, config.strip, answer.debug) == ("rows", "c", True, True)
    command, *argv = launch.translate(
        ["--command=arrays", *places, "--label=c", "--sdk_container_image=mine:1", *LAUNCHED]
    )
    config, beam, *_ = parse_build("arrays", argv)
    assert (command, config.label) == ("arrays", "c")
    assert [flag for flag in beam if "image" in flag] == ["--sdk_container_image=mine:1"]
    assert launch.translate(["--command=count", "--follow_links=true", "--input=gs://b/x"])[:3] == [
        "count",
        "--follow_links=true",
        "--input=gs://b/x",
    ]


def test_reports_an_unknown_command(modules, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["launch.py", "--command=picture"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "launch.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "The command 'picture' is unknown" in capsys.readouterr().err


def instructions(path: Path) -> list[tuple[str, str]]:
    text = path.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_image_contains_all_sources_and_the_name_of_its_user():
    lines = instructions(FOLDER / "Dockerfile")
    copied = [rest.split() for word, rest in lines if word == "COPY" and "--from" not in rest]
    sources = {source for *found, _ in copied for source in found}
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert "pipelines" in tops
    assert tops | {"setup.py"} < sources
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"]
    for source in sources:
        assert list(ROOT.glob(source.replace("${EXTRAS}", "*"))), source
        assert any(fnmatch(source, line[1:]) for line in ignored), source
    # Beam's boot looks up the home of its user and exits if there is none; clusters run it as 1000.
    made = " ".join(rest for word, rest in lines if word == "RUN")
    assert "useradd --uid 1000 " in made


@pytest.mark.parametrize("extras", ["dataflow", "dataflow-tft"])
def test_the_images_install_the_constraints_with_hashes(extras):
    pins = (ROOT / "constraints.txt").read_text()
    text = (FOLDER / f"requirements-{extras}.txt").read_text().replace("\\\n", " ")
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    for name, version in locked.items():
        assert re.search(rf"^{name}=={re.escape(version)}( ;|$)", pins, re.MULTILINE), name
    assert all("--hash=sha256:" in line for line in text.splitlines())
    wanted = {"apache-beam", "blake3", "pillow", "pyarrow", "google-cloud-storage", "setuptools"}
    assert wanted | ({"tensorflow-transform"} if "tft" in extras else set()) <= locked.keys()


def test_what_is_downloaded_is_pinned():
    """Actions by commit, Airflow's packages and Flink's files by hash, Maven with checksums."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: (.+)", path.read_text()):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    deploy = ROOT / "deploy"
    requirements = (deploy / "airflow" / "requirements.txt").read_text().replace("\\\n", " ")
    assert all("--hash=sha256:" in line for line in requirements.splitlines())
    assert (deploy / "airflow" / "install.sh").read_text().count("--require-hashes") == 2
    flink = (deploy / "flink" / "install.sh").read_text()
    (version,) = re.findall(r"^FLINK=\$\{FLINK:-(.+)}$", flink, re.MULTILINE)
    sums = (deploy / "flink" / "checksums.txt").read_text()
    assert (
        len(
            re.findall(
                rf"^[0-9a-f]{{64}}  apache[-_]flink\S*-{version}[.-]\S+$", sums, re.MULTILINE
            )
        )
        == 2
    )
    for path in (deploy / "flink" / "install.sh", deploy / "flink" / "kubernetes" / "Dockerfile"):
        assert len(re.findall(r"mvn --batch-mode.* --strict-checksums ", path.read_text())) == 1
    updated = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert {each["package-ecosystem"] for each in updated} == {
        "github-actions",
        "docker",
        "maven",
        "pip",
    }


def test_stages_of_the_image():
    lines = instructions(FOLDER / "Dockerfile")
    settings = dict(rest.split("=", 1) for word, rest in lines if word == "ARG" and "=" in rest)
    assert settings["BEAM"] == BEAM
    stages = [rest.split(" AS ") for word, rest in lines if word == "FROM"]
    assert [name for _, name in stages] == ["beam", "launcher", "build", "worker", "template"]
    assert stages[-1][0] == "worker"
    assert settings["PYTHON"].replace(".", "") in stages[1][0]
    last = lines[next(n for n, (word, rest) in enumerate(lines) if rest.endswith(" AS worker")) :]
    assert not [rest for word, rest in last if word == "USER"]  # the bases expect root
    assert [rest for word, rest in last if word == "ENTRYPOINT"] == [
        '["/opt/apache/beam/boot"]',
        '["/opt/google/dataflow/python_template_launcher"]',
    ]
    assert not [rest for word, rest in last if word == "RUN" and re.search(r"pip|apt", rest)]


def test_cloud_build_defines_its_substitutions():
    text = (FOLDER / "cloudbuild.yaml").read_text()
    found = yaml.safe_load(text)
    build = cloudbuild.Build()
    json_format.ParseDict(found, cloudbuild.Build.pb(build))  # rejects what it does not know
    known = set(build.substitutions) | {"PROJECT_ID"}
    assert set(re.findall(r"\$\{(\w+)\}", text)) <= known
    assert build.options.dynamic_substitutions
    names = [step.id for step in build.steps]
    assert names == [
        "image",
        "launcher",
        "version",
        "push",
        "push-launcher",
        "specification",
        "template",
    ]
    assert build.substitutions["_VERSION"] == VERSION
    args = [
        arg for step in build.steps for arg in step.args if arg.startswith(("--file", "deploy/"))
    ]
    for arg in args:
        assert (ROOT / arg.removeprefix("--file=")).is_file()
    built = [arg for step in build.steps for arg in step.args if arg.startswith("--target=")]
    assert built == ["--target=worker", "--target=template"]
    for arg in (*build.steps[0].args, *build.steps[1].args):
        if arg.startswith("--build-arg="):
            name = arg.split("=")[1]
            assert ("ARG", name) in [
                (word, rest.partition("=")[0]) for word, rest in instructions(FOLDER / "Dockerfile")
            ]


def shown(target: str) -> list[list[str]]:
    """Return the commands of a target of the Makefile."""
    done = subprocess.run(
        [
            "make",
            "-n",
            target,
            "PROJECT=my-project",
            "BUCKET=my-bucket",
            "REGION=europe-west4",
            "PARAMETERS=command=rows;input=gs://bucket/*.csv;output=gs://bucket/o;null_values=?,-",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("gcloud", "docker", ".venv"))
    ]
    return [shlex.split(line) for line in lines]


def test_make_prints_commands(modules):
    flags = {
        "gcloud dataflow flex-template run": {
            "template-file-gcs-location",
            "project",
            "region",
            "staging-location",
            "temp-location",
            "parameters",
        },
        # A repository that exists is left as it is.
        "gcloud artifacts repositories describe": {"repository-format", "location", "project"},
        "gcloud services enable": {"project"},
        "gcloud storage cp": {"project"},
        "gcloud auth configure-docker": set(),
        "docker push": set(),
        "docker build": {"file", "target", "build-arg", "tag"},
    }
    seen = {}
    for target in ("dataflow-setup", "dataflow-image", "dataflow-template", "dataflow-run"):
        for command in shown(target):
            name = next((key for key in flags if " ".join(command).startswith(key + " ")), None)
            if name is not None:
                given = {word[2:].partition("=")[0] for word in command if word.startswith("--")}
                assert given <= flags[name], command
                seen.setdefault(name, []).append(command)
    assert set(seen) == set(flags)
    (repository,) = seen["gcloud artifacts repositories describe"]
    assert repository[repository.index("||") :][1:5] == [
        "gcloud",
        "artifacts",
        "repositories",
        "create",
    ]
    image, launcher = (
        next(word for word in command if word.startswith("--tag="))[6:]
        for command in seen["docker build"]
    )
    assert image.startswith("europe-west4-docker.pkg.dev/my-project/shardmill/shardmill:")
    assert launcher == image.replace("/shardmill:", "/shardmill-launcher:")
    assert f"--build-arg=IMAGE={image}" in seen["docker build"][1]
    assert [command[-1] for command in seen["docker push"]] == [image, launcher]
    (run,) = seen["gcloud dataflow flex-template run"]
    template = next(word for word in run if "template-file" in word).partition("=")[2]
    assert seen["gcloud storage cp"][0][-2] == template
    parameters = next(word for word in run if word.startswith("--parameters=")).partition("=")[2]
    assert parameters.startswith("^;^")  # sets the separator of gcloud's list
    values = dict(each.split("=", 1) for each in parameters[3:].split(";"))
    assert all(matches(name, value) for name, value in values.items())
    assert values["null_values"] == "?,-"
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", run[4])
