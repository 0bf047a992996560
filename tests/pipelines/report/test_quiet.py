"""What threads of Beam print is hidden; what a command prints is not."""

import logging
import sys
import threading

import pytest

from shardmill.pipelines.report.terminal import THREAD_PREFIX, quiet_threads


def printed(name: str, text: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: print(text, file=sys.stderr), name=name)
    thread.start()
    thread.join()
    return thread


@pytest.mark.parametrize("hidden", [True, False])
def test_threads_of_beam_print_nothing(hidden, capsys):
    """Beam's worker prints the traceback of an error that the command reports in a sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL if hidden else logging.NOTSET)
    try:
        with quiet_threads():
            printed("Thread-7", "Traceback")
            printed(f"{THREAD_PREFIX}show", "encoding")
            print("shardmill: sentence", file=sys.stderr)
            assert not sys.stderr.isatty()
    finally:
        logging.disable(before)
    lines = ["encoding", "shardmill: sentence"]
    assert capsys.readouterr().err.splitlines() == (lines if hidden else ["Traceback", *lines])
