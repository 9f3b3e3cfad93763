"""Quick ways to run things: settings for tiny models, and a server process on a free port."""

import contextlib
import subprocess
import sys
import threading

EXECUTOR = "native"
QUICK_OPTIONS = {"threads": 1, "executor": EXECUTOR}  # and little KV memory, so that loading takes milliseconds
QUICK = ["--kv-memory", "1MB", "--threads", "1", "--executor", EXECUTOR]


@contextlib.contextmanager
def running_server(*arguments, timeout_s=120):
    """A `ridgeline serve` process; gives the API's URL and what it printed once it was ready. Must stop cleanly."""
    command = [sys.executable, "-m", "ridgeline.cli", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            ready_text = _read_until_curl(process.stdout)
            url = ready_text.split()[1] if ready_text else None
            assert url, f"the server did not start: {process.stderr.read()}"
            yield url, ready_text
        finally:
            process.terminate()
            errors = process.communicate(timeout=60)[1]
            watchdog.cancel()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def _read_until_curl(stdout):
    """The lines that announce a server, which end with the body of a curl command; "" when it ends before."""
    text = ""
    for line in stdout:
        text += line
        if line.lstrip().startswith("-d "):
            return text
    return ""
