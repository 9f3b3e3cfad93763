"""The command line: one thin file per command, which parses, calls and prints.

Exit statuses: 0 done; 1 failed, with a line on stderr that says why and one that says what to do; 2 usage; 130 after
Ctrl-C. A reader of our output that goes away ends us quietly, with 1. With `--json`, a failure is one JSON object
`{"error": {code, message, hint}}` on stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    try:
        from ridgeline.cli.app import run  # takes a moment, in which Ctrl-C should not print a traceback either

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
