"""A call from Python that dies leaves no process, publishes nothing, and can be made again.

Callers are scripts, threads, forked processes and more. A hook in the build stops it at a moment,
the caller dies, and the build continues. The judge looks for processes by an entry of PATH, which
decoders inherit too.
"""

import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import shardmill
from tests.conftest import ROOT
from tests.support.fault_tools import SOAK, check_dataset, images, make_source, zygote

pytestmark = pytest.mark.heavy

SECONDS = 60  # limit of each step, of which none takes more than a few on an idle machine
OPTIONS = {"image_size": 16, "shard_examples": 8, "max_reject_fraction": 0.2}

# Loaded by each process of a test. The build stops itself right before it touches a path.
HOOK = """
import os, signal, sys, threading, time
moment, folder, late = (os.environ["TEST_" + name] for name in ("MOMENT", "FOLDER", "LATE"))
if sys.orig_argv[1:3] == ["-m", "shardmill.pipelines.calls"]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel sends it to orphaned groups
    once = threading.Lock()

    def stop(event, args):
        paths = [path for path in args if isinstance(path, str)]
        if event not in ("open", "os.rename", "os.scandir", "os.listdir"):
            return
        if any(moment in path for path in paths) and once.acquire(blocking=False):
            with open(folder + "/stopped", "w") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            while not late:  # only the thread that watches ends the build
                time.sleep(1)

    sys.addaudithook(stop)
    if late:
        start = threading.Thread.start

        def start_unless_watch(thread):
            if "end_with_parent" not in getattr(thread._target, "__qualname__", ""):
                start(thread)

        threading.Thread.start = start_unless_watch
"""
CALLER = f"""
import asyncio, multiprocessing, os, signal, sys, threading, time
folder, launcher, death = sys.argv[1:]

def wait_for(name):
    while not os.path.exists(folder + "/" + name):
        time.sleep(0.01)

def note(name, text=""):
    with open(folder + "/" + name + "~", "w") as file:
        file.write(text)
    os.rename(folder + "/" + name + "~", folder + "/" + name)

def exit_when_asked():
    wait_for("die")
    os._exit(3)

def leave_sibling():
    wait_for("stopped")
    pid = os.fork()  # with a copy of all pipes of this process
    if not pid:
        time.sleep(600)
    note("sibling", str(pid))

def call():
    import shardmill
    note("caller", str(os.getpid()))
    if death == "_exit":
        threading.Thread(target=exit_when_asked, daemon=True).start()
    if launcher == "sibling":
        threading.Thread(target=leave_sibling, daemon=True).start()
    shardmill.images(folder + "/in", folder + "/out", **{OPTIONS})

def alarm(number, frame):
    raise TimeoutError

def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, alarm)
    if launcher == "nohup":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if launcher in ("fork", "spawn"):
        process = multiprocessing.get_context(launcher).Process(target=call)
        process.start()
        process.join()
    elif launcher in ("thread", "daemon"):
        thread = threading.Thread(target=call, daemon=launcher == "daemon")
        thread.start()
        if death == "end":
            return wait_for("die")
        thread.join()
    elif launcher == "asyncio":
        asyncio.run(asyncio.to_thread(call))
    elif death == "exception":
        try:
            call()
        except TimeoutError:
            note("caught")
            wait_for("judged")
    else:
        call()

if __name__ == "__main__":
    main()
"""
LAUNCHERS = ["script", "thread", "fork", "spawn", "nohup", "shell", "asyncio", "sibling"]
DEATHS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "_exit": 0}
MOMENTS = {
    "matching": "/in/",
    "decoding": "/parts/",
    "assembling": "/shards/",
    "publishing": "/gen-",
    "late": "/gen-",  # the thread that watches comes too late
}
# Other deaths, each with the only launcher that can die like this.
OTHERS = [("daemon", "end"), ("terminal", "close"), ("script", "exception")]
EVERY = [
    (launcher, death, moment)
    for launcher, death in [(a, b) for a in LAUNCHERS for b in DEATHS] + OTHERS
    for moment in MOMENTS
    if (launcher, death) != ("nohup", "hup")  # it does not die
]
# Each launcher, death and moment at least once.
SOME = [
    ("script", "kill", "late"),
    ("thread", "_exit", "assembling"),
    ("fork", "kill", "decoding"),
    ("spawn", "term", "publishing"),
    ("nohup", "kill", "matching"),
    ("shell", "hup", "late"),
    ("asyncio", "term", "decoding"),
    ("sibling", "kill", "decoding"),
    ("daemon", "end", "late"),
    ("terminal", "close", "assembling"),
    ("script", "exception", "publishing"),
]


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition is true."""
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


def state_of(pid: int) -> str:
    """Return the state of a process, as in /proc; Z if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@dataclass
class Scene:
    """A caller, its build, and the folder in which they and the test leave notes."""

    folder: Path
    mark: str

    def pid(self, name: str) -> int:
        """Wait for a note, and return the process that it names."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text(), f"there is no note {name}")
        return int(path.read_text())

    def living(self) -> set[int]:
        """Return the processes with the mark."""
        pids = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                marked = self.mark.encode() in path.read_bytes()
            except OSError:  # it has ended
                continue
            if marked:
                pids.add(int(path.parent.name))
        return {pid for pid in pids if state_of(pid) != "Z"}

    def start(self, launcher: str, death: str, moment: str) -> tuple[subprocess.Popen, int]:
        """Start a caller; return it, and this side of its terminal or -1."""
        site = self.folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(HOOK)
        script = self.folder / "caller.py"
        script.write_text(CALLER)
        path = os.environ["PATH"] + os.pathsep + f"/{self.mark}"
        late = "1" if moment == "late" else ""
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(site), "TEST_LATE": late}
        environment |= {"TEST_MOMENT": MOMENTS[moment], "TEST_FOLDER": str(self.folder)}
        words = [sys.executable, str(script), str(self.folder), launcher, death]
        if launcher == "shell":
            words = ["sh", "-c", '"$@"; exit $?', "sh", *words]
        ours, stream = -1, subprocess.DEVNULL
        if launcher == "terminal":
            ours, stream = pty.openpty()
            words = ["setsid", "--ctty", "--wait", *words]
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdin=stream,
            stdout=stream,
            stderr=stream,
            start_new_session=launcher != "terminal",
        )
        if ours >= 0:
            os.close(stream)
        return process, ours

    def kill_all(self) -> None:
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("callers") / "in")


@pytest.fixture(scope="module")
def wanted(source) -> dict[str, bytes]:
    """Return the files of an undisturbed build."""
    output = source.parent / "wanted"
    assert zygote().run(*images(source, output)).code == 0
    return check_dataset(output)


@pytest.mark.sweep
@pytest.mark.parametrize(("launcher", "death", "moment"), EVERY if SOAK else SOME)
def test_nothing_outlives_a_caller(launcher, death, moment, source, wanted, tmp_path):
    (tmp_path / "in").symlink_to(source)
    output = tmp_path / "out"
    scene = Scene(tmp_path, f"mark-{uuid.uuid4().hex}")
    process, terminal = scene.start(launcher, death, moment)
    try:
        caller, build = scene.pid("caller"), scene.pid("stopped")
        kept = {scene.pid("sibling")} if launcher == "sibling" else set()
        wait_until(lambda: state_of(build) in "TZ", "the build does not stop")
        if death == "exception":
            os.kill(caller, signal.SIGALRM)
            kept.add(caller)
        elif death == "close":
            os.close(terminal)
        elif DEATHS.get(death):
            os.kill(caller, DEATHS[death])
        else:
            (tmp_path / "die").touch()
        if death == "exception":
            wait_until((tmp_path / "caught").exists, "the caller catches nothing")
        else:
            wait_until(lambda: state_of(caller) == "Z", "the caller does not die")
        if state_of(build) == "T":
            os.kill(build, signal.SIGCONT)
        wait_until(lambda: scene.living() <= kept, "a process outlives the caller")
        (tmp_path / "judged").touch()
    finally:
        scene.kill_all()
        process.wait()
    assert not (output / "manifest.json").exists()
    finished = len(list(output.glob(".build-*/parts/*.json")))
    assert finished or moment in ("matching", "decoding")
    ended = zygote().run(*images(source, output))
    assert ended.code == 0, ended.stderr
    assert ended.parts()[1] == finished
    assert check_dataset(output) == wanted


def test_a_call_leaves_the_standard_input_of_its_caller(source, tmp_path):
    """The build has another one, which stays open while the caller lives."""
    code = f"import shardmill, sys; shardmill.images(*sys.argv[1:], **{OPTIONS}); print(input())"
    words = [sys.executable, "-c", code, str(source), str(tmp_path / "out")]
    done = subprocess.run(words, input="a line\n", capture_output=True, text=True, check=True)
    assert done.stdout == "a line\n"
    assert shardmill.verify(tmp_path / "out").sound
