"""Files that crash, stop or starve their decoder, in decoder processes with a plugin of the tests."""

import contextlib
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest

from shardmill.pipelines import ImagesConfig
from shardmill.schemas import InputRef, Reject, ShardmillError
from shardmill.schemas.errors import ResourceError
from shardmill.schemas.refs import EncodedImage
from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
from shardmill.transforms import ImageSpec, find_input
from shardmill.transforms.images import decoder_pool, scaling
from shardmill.transforms.images.decoder_protocol import DecoderOptions, Opened
from shardmill.transforms.images.image_options import DecoderLimits
from shardmill.transforms.images.resize import Size
from shardmill.transforms.match.inputs import walk_input
from shardmill.transforms.match.walk import WalkTask
from shardmill.transforms.sink.spec import Example
from tests.conftest import SOAK, make_image
from tests.support.hostile_files import CODEC, write_hostile


@pytest.fixture(autouse=True)
def _plugin(monkeypatch):
    """Start decoders that load the plugin."""
    decoder_pool.close_all()
    monkeypatch.syspath_prepend(str(CODEC))
    yield
    decoder_pool.close_all()


def encode(folder: Path, change=lambda ref: ref, **options) -> dict[str, object]:
    """Encode a folder; return the examples and the reasons of rejects by key.

    The references are changed after the folder was listed.
    """
    options = {"image_size": "16", "label_from": "none", "workers": 2, **options}
    encoder = ImagesConfig(str(folder), f"{folder}-out", **options).encoder
    refs = walk_input(find_input(str(folder)), WalkTask("", deep=True))
    refs = sorted(change(ref) for ref in refs if not ref.error)
    items = list(encoder.encode(refs, []))
    assert len(items) == len(refs)
    return {
        ref.key: item.error if isinstance(item, Reject) else item
        for ref, item in zip(refs, items, strict=True)
    }


def photos(folder: Path, count: int = 12) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        make_image(number, 40, 30).save(folder / f"{number:02d}.jpg")
    return folder


def decoder_pids() -> set[int]:
    children = psutil.Process().children()  # those of commands that tests started are not counted
    return {child.pid for child in children if "decoder_process" in command_of(child)}


def command_of(process: psutil.Process) -> str:
    """Return the command line; it is empty for a moment when a process has begun its program."""
    with contextlib.suppress(psutil.ZombieProcess):
        while not process.cmdline():
            time.sleep(0.001)
        return " ".join(process.cmdline())
    return ""


def gone(pids: set[int], seconds: float = 10) -> bool:
    """Wait until processes have ended; a zombie has not been reaped."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


GOOD = EncodedImage("0" * 64, 3, 2, False, 6, [1, 2, 3], [4, 5, 6], {"image_hash": "a" * 64})


def reply(kind: str, **fields: object) -> bytes:
    """Return the MessagePack of a reply."""
    return msgspec.msgpack.encode({"type": kind, **fields})


def forged(message: bytes) -> tuple[str, str]:
    """Return the action of a file that writes a message to the socket of replies."""
    return ("forge", (struct.pack("<Q", len(message)) + message).hex())


CRASHES = {
    "abort": ("abort",),
    "segv": ("segv",),
    "bus": ("signal", int(signal.SIGBUS)),
    "ill": ("signal", int(signal.SIGILL)),
    "exit": ("exit", 1),
    "exit0": ("exit", 0),
    "forge_text": ("forge", "ff"),
    "forge_size": ("forge", "0000000000000080"),
    "forge_kind": forged(reply("Pickle")),
    "forge_depth": forged(b"\x91" * 5000),
    "forge_reject": forged(reply("Rejected", stage="decode", error="invented", message="")),
    "forge_encoded": forged(reply("Encoded", image=GOOD._replace(width=-1), record=b"")),
}
FORGED = [
    {"width": -1},
    {"height": -1},
    {"height": 1 << 63},
    {"width": "3"},
    {"pixels": -6},
    {"pixel_sums": [1, 2, -3]},
    {"pixel_sums": [1, 2]},
    {"pixel_sums": [1, 2, "3"]},
    {"pixel_squares": [4, -5, 6]},
    {"pixel_squares": [4, 5, 6, 7]},
    {"features": {}},
    {"features": {"image_hash": 5}},
    {"features": {"image_hash": None}},
    {"features": {"image_hash": "a" * 64, "key": 5}},
    {"features": {"image_hash": "a" * 64, "depth_reduced": "1"}},
]


def test_replies_that_a_hostile_file_forged_are_a_crash():
    """A decoder that such a file took over must not decide what the worker stores."""
    spec = DecoderOptions(ImageSpec(image_size=Size(8, 8)), FeatureSet.parse(""), DecoderLimits())
    image = decoder_pool.ImageInput(InputRef("a", "a"), {})
    decoder = decoder_pool.Decoder()
    decoder._wait_until_ready()
    ours, theirs = socket.socketpair()
    decoder._socket.close()
    decoder._socket, decoder._replies = ours, ours.makefile("rb")

    def answer(message: bytes) -> Example:
        """Return what the worker makes of a reply."""
        theirs.sendall(struct.pack("<Q", len(message)) + message)
        (example,) = decoder.make_records(spec, [image], alone=False)
        return example

    good = reply("Encoded", image=GOOD, record=b"bytes")
    deep = GOOD._replace(features={**GOOD.features, "depth_reduced": 1})
    assert (answer(good).record, answer(good).row.image) == (b"bytes", GOOD)
    assert answer(reply("Encoded", image=deep, record=b"")).row.image == deep
    images = [GOOD._replace(**change) for change in FORGED]
    forgeries = [reply("Encoded", image=forgery, record=b"") for forgery in images]
    others = [b"", b"[" * 100_000, b"\x91" * 100_000, good[:-1], good + b"0", pickle.dumps(GOOD)]
    for message in forgeries + others:
        with pytest.raises(decoder_pool.FailureError, match="crash"):
            answer(message)
    decoder.close()
    theirs.close()


@pytest.mark.heavy
def test_a_file_that_crashes_its_decoder_is_one_reject(tmp_path):
    """The pixels of the others are those of a build without it."""
    wanted = encode(photos(tmp_path / "in"))
    for name, action in CRASHES.items():
        write_hostile(tmp_path / "in" / f"05-{name}.bmp", *action)
    found = encode(tmp_path / "in")
    assert {f"05-{name}.bmp": "decoder_crashed" for name in CRASHES} | wanted == found
    assert len(decoder_pids()) <= 2


def test_a_crash_that_does_not_repeat_is_no_reject(tmp_path):
    photos(tmp_path / "in", 2)
    for action in ("abort", "signal 9", "eat", "signal 15"):
        write_hostile(
            tmp_path / "in" / f"{action[:9]}.bmp",
            "first",
            tmp_path / f"{action}.once".replace(" ", ""),
            action,
        )
    assert "Reject" not in repr(encode(tmp_path / "in"))
    assert not [
        v for v in encode(tmp_path / "in", decoder_memory="1GiB").values() if isinstance(v, str)
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("action", ["abort", "signal 9"])
def test_crashes_that_do_not_repeat_in_one_request_are_no_rejects(tmp_path, action):
    """A failure of a request is not that of each of its images."""
    photos(tmp_path / "in", 30)
    for number in range(4):
        name = tmp_path / "in" / f"{number:02d}-once.bmp"
        write_hostile(name, "first", tmp_path / f"{number}.once", action)
    assert not [item for item in encode(tmp_path / "in").values() if isinstance(item, str)]


def test_a_decoder_that_takes_too_much_memory_or_time_is_one_reject(tmp_path):
    photos(tmp_path / "in", 3)
    write_hostile(tmp_path / "in/eat.bmp", "eat")
    write_hostile(tmp_path / "in/loop.bmp", "loop")
    found = encode(tmp_path / "in", decoder_memory="1GiB", decoder_seconds=0.5)
    assert {key: item for key, item in found.items() if isinstance(item, str)} == {
        "eat.bmp": "decoder_memory",
        "loop.bmp": "decoder_timeout",
    }


@pytest.mark.heavy
def test_a_decoder_that_sleeps_or_is_stopped_is_one_reject(tmp_path):
    photos(tmp_path / "in", 3)
    write_hostile(tmp_path / "in/sleep.bmp", "sleep")
    write_hostile(tmp_path / "in/stop.bmp", "signal", int(signal.SIGSTOP))
    found = encode(tmp_path / "in", decoder_seconds=0.2)
    rejects = {key: item for key, item in found.items() if isinstance(item, str)}
    assert rejects == {"sleep.bmp": "decoder_timeout", "stop.bmp": "decoder_timeout"}


def test_a_killed_decoder_fails_the_build_with_a_sentence(tmp_path):
    write_hostile(tmp_path / "in/big.bmp", "signal", int(signal.SIGKILL), size=(9000, 4000))
    with pytest.raises(ResourceError) as caught:
        encode(photos(tmp_path / "in"))
    for words in ("in/big.bmp (9000x4000 pixels", "about 0.2 GiB", "killed", "--max_pixels"):
        assert words in str(caught.value)
    assert encode(tmp_path / "in", max_pixels=9000 * 4000 - 1)["big.bmp"] == "too_large"


@pytest.mark.heavy
def test_an_inherited_memory_limit_fails_the_build_with_a_sentence(tmp_path):
    """It is not a property of the image, and neither is a crash where memory is missing."""
    folder = tmp_path / "in"
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = max(psutil.Process().memory_info().vms, 1 << 30) + (256 << 20)
    for action in ("eat", "abort"):
        # The pixels fit; decoding is expected to need five times as much.
        write_hostile(folder / "a.bmp", action, size=(1000, limit * 6 // 10_000))
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        try:
            with pytest.raises(ResourceError, match=r"a.bmp \(1000x.*ulimit -v"):
                encode(folder, decoder_memory="1000GiB", max_pixels=10**12, workers=1)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
            decoder_pool.close_all()


def test_output_of_codecs_is_not_shown_and_does_not_block(tmp_path, capfd):
    write_hostile(tmp_path / "in/noise.bmp", "noise")
    assert not isinstance(encode(tmp_path / "in")["noise.bmp"], str)
    assert capfd.readouterr() == ("", "")


def test_decoders_get_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "secret")
    write_hostile(tmp_path / "in/a.bmp", "environment", tmp_path / "seen")
    encode(tmp_path / "in")
    for name in ("seen", "seen.proc"):  # what a codec can read, and what other processes can
        environment = (tmp_path / name).read_text()
        assert "PYTHONPATH=" in environment
        assert "secret" not in environment


@pytest.mark.heavy
def test_large_images_are_decoded_one_at_a_time(tmp_path):
    log = tmp_path / "log"
    for number in range(4):
        write_hostile(
            tmp_path / f"in/{number}.bmp", "log", log, size=(10_000, 6_712)
        )  # over 320 MiB
    encode(tmp_path / "in", workers=4)
    lines = log.read_text().splitlines()
    assert len({line.split()[1] for line in lines}) > 1
    assert [line.split()[0] for line in lines] == ["begin", "end"] * 4


@pytest.mark.heavy
def test_records_larger_than_a_pipe(tmp_path):
    make_image(1, 3000, 2000).save(tmp_path / "a.png")
    example = encode(tmp_path, image_size="3000x2000", encoding="raw")["a.png"]
    assert make_image(1, 3000, 2000).resize((2000, 3000), 2).tobytes() in example.record


def test_requests_hold_few_images_and_bytes_in_order(tmp_path):
    """Each thread that waits for storage has images to read."""
    encoder = ImagesConfig(str(tmp_path), f"{tmp_path}-out", image_size="16").encoder
    sizes = [10] * 80 + [1_600_000] * 5 + [12_000_000, 10]
    refs = [InputRef(str(number), "", size) for number, size in enumerate(sizes)]

    def lengths(threads):
        batches = [batch for batch, _ in encoder._batches(refs, threads)]
        assert [ref for batch in batches for ref in batch] == refs
        return [len(batch) for batch in batches]

    assert lengths(1) == [32, 32, 18, 2, 1, 1, 1]
    for threads in range(1, 40):
        assert len(lengths(threads)) >= min(len(refs), 2 * threads) / 2
        assert max(lengths(threads)) == min(32, -(-len(refs) // (2 * threads)))


@pytest.mark.heavy
def test_a_failure_costs_no_other_image_of_its_request(tmp_path):
    """A timeout is final: only the image that was being decoded may be rejected."""
    wanted = encode(photos(tmp_path / "in", 14), workers=1)
    write_hostile(tmp_path / "in/04-loop.bmp", "loop")
    write_hostile(tmp_path / "in/09-abort.bmp", "abort")
    rejects = {"04-loop.bmp": "decoder_timeout", "09-abort.bmp": "decoder_crashed"}
    assert encode(tmp_path / "in", workers=1, decoder_seconds=0.5) == wanted | rejects


# Processes


@pytest.mark.heavy
def test_bundles_share_processes_which_end_when_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_pool, "_IDLE_SECONDS", 0.5)
    photos(tmp_path / "in", 30)
    with ThreadPoolExecutor(3) as bundles:
        found = list(bundles.map(lambda _: encode(tmp_path / "in"), range(6)))
    assert found == [found[0]] * 6
    pids = decoder_pids()
    assert 1 <= len(pids) <= 2
    assert encode(tmp_path / "in") == found[0]
    assert decoder_pids() == pids
    assert gone(pids)
    assert encode(tmp_path / "in") == found[0]


def test_a_default_timeout_of_sockets_does_not_reach_decoders(tmp_path):
    """Beam's client of Dataflow sets one: sockets are made without blocking."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60)
    try:
        encode(photos(tmp_path / "in", 1), workers=1)
    finally:
        socket.setdefaulttimeout(before)
    (pid,) = decoder_pids()
    time.sleep(0.3)  # it waits for the next request
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_process_that_was_started_early_takes_the_first_images(tmp_path):
    photos(tmp_path / "in", 1)
    before = decoder_pids()
    with decoder_pool.use_pool(5) as pool:
        pool.start_one()
    (pid,) = decoder_pids() - before
    assert encode(tmp_path / "in", workers=5).keys() == {"00.jpg"}
    assert decoder_pids() - before == {pid}


def test_an_early_process_that_cannot_start_fails_only_a_build_with_images(tmp_path, monkeypatch):
    photos(tmp_path / "in", 1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with decoder_pool.use_pool(1) as pool:
        pool.start_one()
    assert decoder_pids() == set()
    with pytest.raises(ShardmillError, match="did not start"):
        encode(tmp_path / "in", workers=1)


def test_a_process_killed_while_idle_is_replaced(tmp_path):
    photos(tmp_path / "in", 3)
    write_hostile(tmp_path / "in/k.bmp", "first", tmp_path / "once", "signal", 9)
    wanted = encode(tmp_path / "in", workers=1)
    (pid,) = decoder_pids()
    os.kill(pid, signal.SIGKILL)
    assert encode(tmp_path / "in", workers=1) == wanted
    assert gone({pid})


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0, 0.3, 0.6, 0.9] if SOAK else [0, 0.6])
def test_a_process_killed_while_it_starts_is_started_again(tmp_path, monkeypatch, share):
    """As an out-of-memory killer does; nothing of the images was at fault."""
    began = time.monotonic()
    wanted = encode(photos(tmp_path / "in", 4))
    # One kill: two could hit both attempts at one image, which is an error.
    seconds, kills, start = time.monotonic() - began, iter(range(1)), decoder_pool.Decoder.__init__

    def start_and_kill(self):
        start(self)
        for _ in kills:
            time.sleep(share * seconds)
            self.kill()
            break

    decoder_pool.close_all()
    monkeypatch.setattr(decoder_pool.Decoder, "__init__", start_and_kill)
    assert encode(tmp_path / "in") == wanted
    decoder_pool.close_all()
    kills = iter(range(1000))
    if not share:
        with pytest.raises(ResourceError, match="the process was killed"):
            encode(tmp_path / "in")


def test_a_forked_process_starts_its_own(tmp_path):
    wanted = encode(photos(tmp_path / "in"), workers=1)
    before = decoder_pids()
    pid = os.fork()
    if not pid:  # the child of the fork
        with contextlib.suppress(BaseException):
            same = encode(tmp_path / "in", workers=1) == wanted
            different = decoder_pids() and not decoder_pids() & before
            decoder_pool.close_all()  # as at the end of a process; not those of the parent
            os._exit(0 if same and different else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert encode(tmp_path / "in", workers=1) == wanted
    assert decoder_pids() == before


@pytest.mark.heavy
def test_a_process_forked_while_images_are_decoded_starts_its_own(tmp_path):
    """Locks that other threads held at the fork are never released in the child."""
    wanted = encode(photos(tmp_path / "in"), workers=1)
    write_hostile(tmp_path / "slow/k.bmp", "sleep")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(encode, tmp_path / "slow", workers=1, decoder_seconds=0.2)
        time.sleep(1)
        assert waiting.running()
        pid = os.fork()
        if not pid:  # the child of the fork
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # without the timeout of pytest
            signal.alarm(20)
            with contextlib.suppress(BaseException):
                os._exit(0 if encode(tmp_path / "in", workers=1) == wanted else 3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_that_does_not_start_is_one_sentence(tmp_path, monkeypatch):
    photos(tmp_path / "in", 1)
    (tmp_path / "broken/PIL").mkdir(parents=True)
    (tmp_path / "broken/PIL/__init__.py").write_text("raise ImportError('no PIL here')")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "broken"), *sys.path])
    with pytest.raises(ShardmillError, match=r"did not start \(ImportError: no PIL here\)"):
        encode(tmp_path / "in", workers=1)


@pytest.mark.skipif(not scaling.HAS_SIMD, reason="cykooz-resizer is not installed")
def test_a_worker_that_would_scale_to_other_pixels_decodes_nothing(tmp_path, monkeypatch):
    photos(tmp_path / "in", 1)
    scaling.exact_extensions.cache_clear()
    monkeypatch.setattr(scaling, "_SAMPLE_HASH", "of another machine")
    with pytest.raises(ShardmillError, match=r"cykooz-resizer .* other machines"):
        encode(tmp_path / "in", workers=1)


PARENT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it
from shardmill.transforms.images.decoder_pool import Decoder, ImageInput
from shardmill.transforms.images.decoder_protocol import DecoderOptions
from shardmill.transforms.images.convert import ImageSpec
from shardmill.transforms.images.image_options import DecoderLimits
from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
spec = DecoderOptions(ImageSpec(image_size=8), FeatureSet.parse(""), DecoderLimits())
idle = Decoder()
busy = Decoder()
print(idle._process.pid, busy._process.pid, "apache_beam" in sys.modules, flush=True)
from shardmill.schemas.refs import InputRef
image = ImageInput(InputRef("a", "a"), -1, sys.argv[1].encode())
list(busy.make_records(spec, [image], alone=False))
"""


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("action", ["sleep", "loop"])
def test_no_decoder_outlives_its_parent(number, action):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, f"HOSTILE 20 10 {action}"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        *pids, beam = parent.stdout.readline().split()
        assert beam == b"False"
        time.sleep(0.2)
        parent.send_signal(number)
        parent.wait(30)
    assert gone({int(pid) for pid in pids})


def test_an_interrupt_of_the_terminal_does_not_reach_decoders(tmp_path):
    photos(tmp_path / "in", 3)
    wanted = encode(tmp_path / "in", workers=1)
    (pid,) = decoder_pids()
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.1)
    assert encode(tmp_path / "in", workers=1) == wanted
    assert decoder_pids() == {pid}


def test_exit_codes_without_a_reply():
    """Other signals say nothing about the image."""
    kinds = {code: decoder_pool._failure_kind(code, Opened()) for code in range(-31, 80)}
    assert {code for code, kind in kinds.items() if kind == "crash"} == {
        -4,
        -6,
        -7,
        -8,
        -11,
        *(set(range(80)) - {77}),
    }
    assert kinds[-signal.SIGPROF] == "timeout"
    assert kinds[-signal.SIGKILL] == kinds[-signal.SIGTERM] == "killed"


@pytest.mark.nightly
def test_threads_do_not_deadlock_with_failures_and_large_images(tmp_path):
    """One process: a retry alone and a large image wait for each other's lock or process."""
    for number in range(6):
        action = ("abort",) if number % 2 else ("noise",)
        write_hostile(tmp_path / f"in/{number}.bmp", *action, size=(10_000, 6_712))
    done = threading.Event()

    def run() -> None:
        with ThreadPoolExecutor(3) as bundles:
            list(bundles.map(lambda _: encode(tmp_path / "in", workers=1), range(3)))
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(120)


def test_files_that_decoders_cannot_open_are_read_by_the_worker(tmp_path, monkeypatch):
    """Such as relative paths: decoders have another working folder."""
    wanted = {key: item.record for key, item in encode(photos(tmp_path / "in", 40)).items()}
    monkeypatch.chdir(tmp_path)
    found = encode(tmp_path / "in", lambda ref: ref._replace(uri=os.path.relpath(ref.uri)))
    assert {key: item.record for key, item in found.items()} == wanted


def test_a_file_that_changed_after_it_was_listed_is_not_decoded(tmp_path):
    """The decoder compares size and modification time of what it reads."""

    def change(ref: InputRef) -> InputRef:
        if ref.key == "03.jpg":
            make_image(99, 40, 30).save(ref.uri)
        return ref

    found = encode(photos(tmp_path / "in", 8), change)
    assert found.pop("03.jpg") == "changed"
    assert not [item for item in found.values() if isinstance(item, str)]


def test_files_from_before_1970_are_decoded(tmp_path):
    folder = photos(tmp_path / "in", 6)
    for number, path in enumerate(sorted(folder.iterdir())):
        os.utime(path, ns=(0, number - 4))
    assert not [item for item in encode(folder).values() if isinstance(item, str)]
