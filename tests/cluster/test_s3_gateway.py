"""s3:// on the Versity S3 Gateway, which is stricter than the server of the quick tests."""

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.pipelines.cli import main
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage.objects import split_uri
from shardmill.schemas.storage.s3 import S3Storage
from tests.conftest import make_archives, make_photos, shardmill
from tests.schemas.storage.test_s3 import objects, published, upload
from tests.schemas.storage.test_storage import (
    CALLS,
    Place,
    check_concat,
    check_same_results,
    contract,
)
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server", "tests.support.s3_server"]

FLAGS = ["--image_size=32", "--num_shards=12", "--splits=train:0.7,validation:0.3"]


@pytest.fixture(scope="session")
def s3_url(gateway_url) -> str:
    """The gateway instead of the server of the quick tests."""
    return gateway_url


@pytest.fixture
def place(s3_storage, s3_bucket) -> Place:
    return Place(s3_storage, f"{s3_bucket}/root")


# The gateway stores objects as files, and does not find one with a name of 240 bytes in a folder
# with a name of 240 bytes; S3 and the server of the quick tests do.
CONTRACT = [case for case in contract() if len(case.values[1].get("name", "").encode()) < 240]


@pytest.mark.parametrize(("test", "arguments"), CONTRACT)
def test_storage_contract(test, arguments, place):
    test(place, **arguments)


@pytest.mark.parametrize("count", [1, 70])
def test_concat_joins_in_order(count, place):
    check_concat(place, count)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, max_size=14))
def test_random_calls_have_the_same_results(calls, s3_storage, s3_bucket, tmp_path):
    check_same_results(calls, Place(s3_storage, s3_bucket), tmp_path)


def test_long_listings_and_deletions_take_several_calls(s3, s3_bucket, s3_storage):
    bucket, _ = split_uri(s3_bucket)
    for number in range(1001):
        s3.put_object(Bucket=bucket, Key=f"many/{number:04d}", Body=b"")
    assert len(list(s3_storage.walk(f"{s3_bucket}/many"))) == 1001
    assert len(list(s3_storage.list_dir(f"{s3_bucket}/many"))) == 1001
    s3_storage.delete_tree(f"{s3_bucket}/many")
    assert s3_storage.stat(f"{s3_bucket}/many") is None


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("AWS_SECRET_ACCESS_KEY", "does not match .* check the credentials"),
        ("AWS_ACCESS_KEY_ID", "No user exists"),
    ],
)
def test_wrong_keys_are_reported(variable, words, s3_bucket, monkeypatch):
    monkeypatch.setenv(variable, "wrong")
    denied = S3Storage()
    for call in (denied.stat, denied.read, lambda path: denied.create(path, b"")):
        with pytest.raises(StorageError, match=words):
            call(f"{s3_bucket}/x")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    return make_photos(folder, {"cat": 120, "dog": 80}, size=(300, 200))


@pytest.fixture(scope="module")
def expected(photos, tmp_path_factory):
    """Return the files that a build on disk writes."""
    output = tmp_path_factory.mktemp("local") / "ds"
    assert main(["images", f"--input={photos}", f"--output={output}", *FLAGS]) == 0
    return dataset_files(output)


CREATE = """
import random, sys
from shardmill.schemas.storage import open_storage
folder, name, count = sys.argv[1:]
storage = open_storage(folder)
seen = storage.read_version(folder + "/swap")[1]
print("ready", flush=True)
sys.stdin.readline()
# Some keys in the same order, so that processes race; some shuffled, so that each wins some.
order = list(range(int(count)))
order[20:] = random.Random(name).sample(order[20:], len(order) - 20)
won = {n: int(storage.create(f"{folder}/{n}", name.encode())) for n in order}
print(*(won[n] for n in sorted(won)), int(storage.replace_if(folder + "/swap", name.encode(), seen)))
"""


def test_exactly_one_of_several_processes_wins(s3_bucket, s3_storage):
    folder, count, names = f"{s3_bucket}/race", 60, "abcd"
    s3_storage.replace(f"{folder}/swap", b"old")
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE, folder, name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    assert [process.stdout.readline() for process in racing] == ["ready\n"] * len(names)
    for process in racing:
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [process.communicate()[0].split() for process in racing]
    assert [process.returncode for process in racing] == [0] * len(names)
    for number in range(count + 1):
        winners = [name for name, each in zip(names, won, strict=True) if each[number] == "1"]
        assert len(winners) == 1, number
        path = f"{folder}/{number if number < count else 'swap'}"
        assert s3_storage.read(path).decode() == winners[0]
    # Not trivial: no process was always first.
    assert len({tuple(each[:count]) for each in won if "1" in each[:count]}) > 1


def test_writes_no_secret(s3, s3_bucket, expected, photos):
    """Build from bucket to bucket with credentials in variables, which child processes inherit."""
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    source = upload(s3, photos, f"{s3_bucket}/in")
    output = f"{s3_bucket}/out"
    args = ["images", f"--input={source}", f"--output={output}", *FLAGS]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = shardmill(*args, env={**bare, "AWS_EC2_METADATA_DISABLED": "1"})
    assert done.returncode == 1
    assert done.stderr.startswith(f"shardmill: Cannot look at {source}: Unable to locate cred")
    done = shardmill(*args, "--debug")
    assert done.returncode == 0, done.stderr
    files = objects(s3, output)
    assert published(files) == expected
    assert secret not in done.stdout + done.stderr + "".join(files)
    assert not any(secret.encode() in data for data in files.values())
    for command in (["verify", output, "--processes=2"], ["count", f"--input={output}"]):
        done = shardmill(*command)
        assert done.returncode == 0, done.stderr


def test_archives_in_a_bucket_give_the_bytes_of_local_ones(s3, s3_bucket, tmp_path):
    """From a bucket to disk and to a bucket: read in place, and spooled in the build folder."""
    local = make_archives(tmp_path, {"cat": 20, "dog": 16})
    source = upload(s3, local, f"{s3_bucket}/in")
    for place, output in (
        (local, tmp_path / "disk"),
        (source, tmp_path / "read"),
        (source, f"{s3_bucket}/both"),
    ):
        assert main(["images", f"--input={place}", f"--output={output}", *FLAGS]) == 0
    wanted = dataset_files(tmp_path / "disk")
    assert dataset_files(tmp_path / "read") == wanted
    files = objects(s3, f"{s3_bucket}/both")
    assert published(files) == wanted
    assert Manifest.from_json(files["manifest.json"].decode()).inputs.accepted == 4 * 36


PEAK = """
import resource, sys
from shardmill.schemas.storage import open_storage
path = sys.argv[1]
storage = open_storage(path)
piece = path + "/piece"
with storage.open_write(piece) as file:
    for _ in range(int(sys.argv[2])):
        file.write(bytes(1 << 20))
storage.concat([piece, piece, piece, piece], path + "/whole")
storage.checksum(path + "/whole")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_a_file(s3_bucket, s3_storage):
    def peak(size: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PEAK, f"{s3_bucket}/{size}", str(size)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert s3_storage.stat(f"{s3_bucket}/{size}/whole").size == size * 4 * (1 << 20)
        return int(done.stdout)

    assert peak(128) < peak(32) + (64 << 10)  # KiB
