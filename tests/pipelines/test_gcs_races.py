"""Publishers of one gs:// output at the same time, one of them as late as can be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardmill.schemas.storage.gcs import GcsStorage
from shardmill.transforms.publish.publish import recover_output
from tests.conftest import SOAK, make_photos
from tests.pipelines.test_images_gcs import download, run
from tests.support.fault_tools import check_dataset

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = pytest.mark.heavy

NEW = {"num_shards": 2, "overwrite": True}
OLD = {"num_shards": 3, "overwrite": True}


class Late:
    """Holds back the first call of a kind on some name until it is let go."""

    def __init__(self, front, kind: str, ending: str) -> None:
        self.kind, self.ending = kind, ending
        self.reached, self.release, self.lock = (
            threading.Event(),
            threading.Event(),
            threading.Lock(),
        )
        front.hook = self

    def __call__(self, call) -> None:
        with self.lock:
            mine = call.kind == self.kind and call.name.endswith(self.ending)
            mine = mine and not self.reached.is_set()
            if mine:
                self.reached.set()
        if mine:
            assert self.release.wait(120)


@pytest.fixture
def source(tmp_path):
    return make_photos(tmp_path / "photos", {"cat": 9, "dog": 7}, size=(40, 30))


FINISH, AGAIN = "others finish it", "others publish the old one again"
MOMENTS = [
    ("delete", "manifest.json", FINISH),
    ("rewrite", "", AGAIN),
    ("delete", "-of-00003.tfrecord.gz", AGAIN),
]
MORE = [
    ("delete", "manifest.json", AGAIN),
    ("rewrite", "", FINISH),
    ("delete", "-of-00003.tfrecord.gz", FINISH),
    ("delete", ".publish.json", FINISH),
    ("delete", ".publish.json", AGAIN),
]


@pytest.mark.parametrize("moment", MOMENTS + MORE * SOAK, ids="-".join)
def test_a_late_publisher_harms_nobody(moment, source, strict_bucket, front, tmp_path):
    """One stands still right before a call; others complete its work, and maybe do theirs."""
    kind, ending, others = moment
    output = f"{strict_bucket}/out"
    assert run(source, output, **OLD).status == "published"
    late = Late(front, kind, ending)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run, source, output, **NEW)
        assert late.reached.wait(120)
        recover_output(GcsStorage(), output)
        if others == AGAIN:
            assert run(source, output, **OLD).status == "published"
        before = {entry.path: entry.version for entry in GcsStorage().walk(output)}
        late.release.set()
        assert slow.result().status in ("published", "up_to_date")
    after = {entry.path: entry.version for entry in GcsStorage().walk(output)}
    check_dataset(download(output, tmp_path / "out"))
    if others == FINISH:
        assert after == before
