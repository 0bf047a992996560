"""What threads of Beam print is hidden until the process exits; what a command prints is not."""

import subprocess
import sys

import pytest

# A command whose job has ended, in a separate process: the threads stay quiet until it exits.
COMMAND = """
import logging, os, sys, threading
from shardmill.pipelines.cli import report_errors
from shardmill.pipelines.report.terminal import THREAD_PREFIX, hide_thread_errors, quiet_logs

def in_thread(name, function):
    thread = threading.Thread(target=function, name=name)
    thread.start()
    thread.join()

def lose_server():
    raise ConnectionError("Stream removed")

def run():
    with quiet_logs(debug=DEBUG):
        hide_thread_errors()
        in_thread("read_state", lose_server)
        in_thread(THREAD_PREFIX + "show", lambda: print("encoding", file=sys.stderr))
    in_thread("read_state", lose_server)
    logging.error("Failed to read inputs in the data plane.")
    print("shardmill: sentence", file=sys.stderr)
    assert not sys.stderr.isatty()
    return CODE

code = report_errors(run, json=False)
in_thread("read_state", lose_server)
os.write(2, b"E0000 native code")
sys.exit(code)
"""


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("debug", [False, True])
def test_threads_of_beam_print_nothing(debug, code):
    """Beam's threads print tracebacks when their server ends, before or after the command."""
    settings = f"DEBUG, CODE = {debug}, {code}"
    done = subprocess.run(
        [sys.executable, "-c", settings + COMMAND], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    if debug:
        assert done.stderr.count("ConnectionError: Stream removed") == 3
    else:
        assert done.stderr == "encoding\nshardmill: sentence\n"
