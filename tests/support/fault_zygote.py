"""A process that has imported everything and forks a ``shardmill`` process for each order.

Starting Python with Beam takes seconds; a fork takes milliseconds. Each child is a process that
runs the command from its first line, and can be killed, stopped or interrupted like any other. Its
string hashes have another seed than those of the tests.

Orders are JSON lines on stdin, answers are JSON lines on stdout. An audit hook of the interpreter
is called right before each change to the file system below a folder, in any library. There a child
can send itself a signal, let the change fail, copy the folder (which is what a kill at that moment
would leave) or the disk (which is what a power failure would leave).
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import shutil
import signal
import sys
import tempfile
import threading
import traceback

_BLOCK = 1 << 16
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_TWO_PATHS = ("os.rename", "os.link")
_NEW = ("os.mkdir", "os.symlink")
_ONE_PATH = ("os.remove", "os.rmdir", "os.mkdir", "os.truncate")


def _copy(source: str, target: str) -> None:
    """Copy a file, unless another thread has just renamed or deleted it."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target, follow_symlinks=False)


class Watch:
    """Counts changes below a folder and sends a signal right before some of them.

    Args:
        root: The folder.
        since: Counting starts with the first change whose path contains this text.
        at: Numbers of the changes before which the signal is sent, from 1.
        number: The signal.
        copies: Folder for copies of the root, one before each change; empty for none.
        log: File to which changes are written, one a line; empty for none.
        image: Image of the mounted disk of the root, which is then copied instead of the root.
        commit: File on that disk; its metadata are written to the disk before each copy, as the
            file system does from time to time. Empty for none.
        fail: Changes that fail instead of the signal: ``one``, those in ``at``, or ``all`` from
            the first of these on.
        deny: A path that cannot be opened, also if it is not below the root; empty for none.
        errno: Number of the error; by default, changes fail with EIO.
    """

    def __init__(  # noqa: PLR0917
        self,
        root: str,
        since: str,
        at: list[int],
        number: int,
        copies: str,
        log: str,
        image: str,
        commit: str,
        fail: str,
        deny: str,
        errno: int,
    ) -> None:
        self.root, self.since, self.at, self.number = root, since, at, number
        self.copies, self.image, self.commit, self.fail = copies, image, commit, fail
        self.deny, self.errno = deny, errno
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644) if log else -1
        self.count = 0
        self.begun = not since
        self.lock = threading.Lock()

    def __call__(self, event: str, args: tuple) -> None:
        if self.deny and event == "open" and args[0] == self.deny:
            raise OSError(self.errno, os.strerror(self.errno), self.deny)
        paths = self._paths(event, args)
        if paths and event != "open" and os.path.lexists(paths[0]) == (event in _NEW):
            return  # another process made this change before
        if not any(self._below(path) for path in paths):
            return
        self.begun = self.begun or any(self.since in path for path in paths)
        if not self.begun:
            return
        with self.lock:
            self.count += 1
            count = self.count
            if self.image:
                copy_disk(self.image, f"{self.copies}/{count:04d}", self.commit)
        if self.log >= 0:
            os.write(self.log, f"{count} {event} {' '.join(paths)}\n".encode())
        if self.copies and not self.image and os.path.isdir(self.root):
            shutil.copytree(
                self.root, f"{self.copies}/{count:04d}", symlinks=True, copy_function=_copy
            )
        if self.fail and (count in self.at or (self.fail == "all" and count > min(self.at))):
            number = self.errno or errno.EIO
            raise OSError(number, os.strerror(number))
        if count in self.at and not self.fail:
            os.kill(os.getpid(), self.number)

    def _paths(self, event: str, args: tuple) -> list[str]:
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            return [os.fsdecode(args[0])] if isinstance(args[0], str | bytes) else []
        if event == "os.symlink":
            return [os.fsdecode(args[1])]
        if event in _TWO_PATHS:
            return [os.fsdecode(path) for path in args[:2]]
        if event in _ONE_PATH and isinstance(args[0], str | bytes):
            folder = args[-1]
            inside = isinstance(folder, int) and folder >= 0
            base = os.readlink(f"/proc/self/fd/{folder}") + "/" if inside else ""
            return [base + os.fsdecode(args[0])]
        return []

    def _below(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")


def copy_disk(image: str, copy: str, commit: str = "") -> None:
    """Copy the image of a mounted disk: what a power failure at this moment would leave.

    Args:
        image: The image.
        copy: Path of the copy.
        commit: See ``Watch``.
    """
    if commit:
        os.utime(commit)
        descriptor = os.open(commit, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    data = b""
    while data != (data := _read(image)):  # the system may write to the disk meanwhile
        pass
    with open(copy, "wb") as file:
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            if block.count(0) < len(block):
                file.seek(start)
                file.write(block)
        file.truncate(len(data))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _child(order: dict) -> int:
    os.setpgid(0, 0)
    for number, path in ((1, order["stdout"]), (2, order["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(order["env"])
    if order.get("cwd"):
        os.chdir(order["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    if order.get("uid"):
        os.setgroups([])
        os.setgid(order["uid"])
        os.setuid(order["uid"])
    if order.get("watch"):
        sys.addaudithook(Watch(**order["watch"]))
        if order["watch"]["deny"]:
            _deny_in_decoders(order["watch"]["deny"], order["watch"]["errno"])
    if order.get("code"):
        exec(order["code"], {"__name__": "__main__"})
        return 0
    from shardmill.pipelines import cli

    return cli.main(order["argv"])


def _start(order: dict) -> dict:
    pid = os.fork()
    if pid:
        return {"pid": pid}
    code = 70
    try:
        code = _child(order)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - what a real process prints when it ends this way
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _deny_in_decoders(path: str, number: int) -> None:
    """Let decoder processes, which get this one's path of modules, load a hook as it has."""
    folder = tempfile.mkdtemp()
    hook = f"""
import os, sys
def deny(event, args):
    if event == "open" and args[0] == {path!r}:
        raise OSError({number}, os.strerror({number}), {path!r})
sys.addaudithook(deny)
"""
    pathlib.Path(folder, "sitecustomize.py").write_text(hook)
    sys.path.insert(0, folder)


def _wait(order: dict) -> dict:
    _, status, used = os.wait4(order["pid"], os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"stopped": True}
    return {"code": os.waitstatus_to_exitcode(status), "peak": used.ru_maxrss}


def _import(order: dict) -> dict:
    """Import a module, so that no later child needs to."""
    return {"imported": importlib.import_module(order["module"]).__name__}


def _import_commands() -> None:
    """Import what commands import, apart from TensorFlow, so that no child needs to."""
    import shardmill.pipelines
    import shardmill.transforms
    from shardmill.pipelines.runners.base import IN_MEMORY, find_runner

    for package in (shardmill.pipelines, shardmill.transforms):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".tft" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    find_runner(IN_MEMORY).make()  # imports the runner


def main() -> None:
    """Serve orders until stdin ends."""
    from shardmill.pipelines.report.terminal import quiet_import

    with quiet_import():
        _import_commands()
        import tests.conftest  # noqa: F401 - tests of code import it, and it caches work of Beam
    gc.collect()
    gc.freeze()  # collections of the children need not look at what was imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = set()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = {"start": _start, "wait": _wait, "import": _import}[order["order"]](order)
        children ^= {answer["pid"]} if "pid" in answer else set()
        children -= {order["pid"]} if "code" in answer else set()
        print(json.dumps(answer), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
