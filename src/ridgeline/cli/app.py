"""One command, from its arguments to its exit status: parses, runs, reports what went wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.exceptions import TyperException

from ridgeline.cli import INTERRUPTED
from ridgeline.errors import RidgelineError

# Each is a function in a module of its name.
_COMMANDS = ("plan", "probe", "measure", "why", "bench", "serve", "generate", "chat", "inspect", "doctor")


def run(arguments: Sequence[str]) -> int:
    """The exit status. Ctrl-C is the caller's to handle."""
    as_json = "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)
    _open_closed_streams()
    try:
        status = build(arguments)(list(arguments), standalone_mode=False, prog_name="ridgeline")
        sys.stdout.flush()
        if status == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except RidgelineError as error:
        _report(as_json, error.code, error.message, error.hint)
        return 1
    except TyperException as error:
        if as_json:
            _report(as_json, "usage", error.format_message(), "see --help")
        else:
            error.show()
        return error.exit_code
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:  # a full disk, a directory that is not there, a file that may not be read
        problem = error.strerror or str(error)
        if error.filename is None:  # stdout itself, most likely
            _discard_output()
            _report(False, "io_error", f"cannot read or write: {problem}", None)
        else:
            _report(as_json, "io_error", f"{error.filename}: {problem}", None)
        return 1


def _open_closed_streams() -> None:
    """A stream that our parent closed is as good as /dev/null; and what a locale cannot show must not end us."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (it lives as long as the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="surrogateescape" if name == "stdin" else "replace")


def _discard_output() -> None:
    """So that the interpreter's last flush is quiet."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build(arguments: Sequence[str]) -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    # Only the command that is called is imported: `plan` should not wait for what `serve` needs.
    for name in [name for name in _COMMANDS if [name] == arguments[:1]] or _COMMANDS:
        app.command()(getattr(import_module(f"ridgeline.cli.{name}"), name))
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        import ridgeline

        print(f"ridgeline {ridgeline.__version__}")
        raise typer.Exit


def _common(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Predicts, serves, measures and proves language-model inference."""


def _report(as_json: bool, code: str, message: str, hint: str | None) -> None:
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}))
        return
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
