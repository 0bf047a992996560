"""Beam's in-memory runner, which ends if one of its worker processes ends, and with all of them.

With ``--direct_running_mode=multi_processing`` it starts processes, and a thread waits for each.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from shardmill.schemas.errors import LostWorkerError

# As Beam names the thread that waits for a worker process, and those that read from it.
_WORKER_THREAD = "run_worker"
_READING_THREADS = {"beam_control_read", "read_grpc_client_inputs"}
# Python handles signals in the main thread, which sleeps on if SIGINT went to another thread or
# came just before it began to wait. A signal that does nothing by default wakes it.
_WAKE_SIGNAL = signal.SIGURG
_WAKE_SECONDS = 0.1


class InMemoryRunner(FnApiRunner):
    """The runner, whose workers take the place of the shells that Beam starts.

    Args:
        prefix: Words before the command line of a worker.
    """

    def __init__(self, prefix: Sequence[str]) -> None:
        super().__init__()
        self._command = shlex.join(["exec", *prefix])

    def run_via_runner_api(self, pipeline_proto: Any, options: Any) -> Any:
        """Run a pipeline."""
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == python_urns.SUBPROCESS_SDK:
                environment.payload = b"%s %s" % (self._command.encode(), environment.payload)
        return super().run_via_runner_api(pipeline_proto, options)


@contextlib.contextmanager
def watched_workers(signals: list[int]) -> Iterator[None]:
    """End the run if a worker process ends, for which Beam would wait forever.

    Beam notices it in a thread, whose error it only prints.

    Args:
        signals: Numbers of the signals that came; emptied if this sent one.

    Raises:
        LostWorkerError: A worker process has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    lost: list[str] = []
    main_thread = threading.get_ident()
    has_ended = threading.Event()
    print_error = threading.excepthook
    before = signal.signal(_WAKE_SIGNAL, lambda *_: None)

    def watch(error: threading.ExceptHookArgs) -> None:
        name = "" if error.thread is None else error.thread.name
        if name in _READING_THREADS and isinstance(error.exc_value, grpc.RpcError):
            return  # the other thread notices it, too
        if name != _WORKER_THREAD:
            print_error(error)
        elif not lost and not signals:
            lost.append(str(error.exc_value))
            os.kill(os.getpid(), signal.SIGINT)
            _kill_other_workers()
            while not signals and not has_ended.wait(_WAKE_SECONDS):
                signal.pthread_kill(main_thread, _WAKE_SIGNAL)

    threading.excepthook = watch
    try:
        yield
    except BaseException as error:
        if not lost:
            threading.excepthook = print_error
            raise
        signals.clear()
        raise LostWorkerError(
            f"A worker process of Beam has ended ({lost[0]}), perhaps because memory was short: "
            "run again to resume, with fewer --direct_num_workers."
        ) from error
    finally:
        has_ended.set()
        signal.signal(_WAKE_SIGNAL, before or signal.SIG_DFL)
    threading.excepthook = print_error


def _kill_other_workers() -> None:
    """Kill the worker processes for which other threads wait, also those that are being started.

    Beam would wait for workers that have not yet connected, and Python for their threads.
    """
    while threads := [
        thread
        for thread in threading.enumerate()
        if thread.name == _WORKER_THREAD and thread is not threading.current_thread()
    ]:
        frames = sys._current_frames()  # noqa: SLF001
        for thread in threads:
            frame = frames.get(thread.ident or 0)
            while frame is not None:
                process = frame.f_locals.get("p")  # of SubprocessSdkWorker.run
                if isinstance(process, subprocess.Popen):
                    process.kill()
                frame = frame.f_back
        time.sleep(0.05)
