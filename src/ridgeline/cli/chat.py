"""`ridgeline chat`: a conversation in the terminal, with a model of ours or with a server.

On a terminal, Ctrl-C stops the answer (what has come stays in the history) and Ctrl-D leaves. In a pipe each line of
stdin is a turn and only answers go to stdout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Protocol

import typer

from ridgeline.cli.options import MODEL_OPTIONS, SAMPLING_OPTIONS, pick, sampling_params, takes
from ridgeline.cli.output import loading, say, tell, warn
from ridgeline.errors import RidgelineError
from ridgeline.llm import DEFAULT_MODEL, LLM

Message = dict[str, str]

_HELP = "/system TEXT sets the system message, /clear forgets the conversation, /exit (or Ctrl-D) leaves"

Target = Annotated[
    str, typer.Argument(metavar="[MODEL|URL]", help="A model, or the URL of an OpenAI-compatible server.")
]
RemoteModel = Annotated[str | None, typer.Option("--model", help="With a URL: the model to talk to; else its first.")]
ApiKey = Annotated[str | None, typer.Option("--api-key", help="With a URL.", envvar="OPENAI_API_KEY", show_envvar=True)]
System = Annotated[str | None, typer.Option("--system", help="The system message.")]


class Partner(Protocol):
    """Whoever answers."""

    name: str

    def answer(self, messages: list[Message]) -> Iterator[str]: ...

    def close(self) -> None: ...


class LocalPartner:
    def __init__(self, llm: LLM, options: dict[str, Any]) -> None:
        self.name = llm.runtime.name
        self._llm = llm
        self._params = dataclasses.replace(sampling_params(llm.default_params, options), starts_text=True)

    def answer(self, messages: list[Message]) -> Iterator[str]:
        for delta in self._llm.stream(self._llm.render(messages), self._params):
            yield delta.text

    def close(self) -> None:
        self._llm.close()


class RemotePartner:
    def __init__(self, url: str, model: str | None, api_key: str | None, options: dict[str, Any]) -> None:
        from ridgeline.cli.remote import RemoteChat

        self._remote = RemoteChat(url, model=model, api_key=api_key, tell=say)
        self._params = self._remote.spelled({name: value for name, value in options.items() if value not in (None, [])})
        self.name = f"{self._remote.name} at {self._remote.base_url}"

    def answer(self, messages: list[Message]) -> Iterator[str]:
        return self._remote.stream(messages, self._params)

    def close(self) -> None:
        self._remote.close()


@takes(SAMPLING_OPTIONS, MODEL_OPTIONS)
def chat(
    target: Target = DEFAULT_MODEL,
    model: RemoteModel = None,
    api_key: ApiKey = None,
    system: System = None,
    **options: Any,
) -> None:
    """Chat in the terminal, with a model or with a server."""
    partner = _partner(target, model, api_key, options)
    try:
        Conversation(partner, system, on_terminal=sys.stdin.isatty()).run()
    finally:
        partner.close()


def _partner(target: str, model: str | None, api_key: str | None, options: dict[str, Any]) -> Partner:
    if target.startswith(("http://", "https://")):
        return RemotePartner(target, model, api_key, pick(SAMPLING_OPTIONS, options))
    if model is not None:
        raise typer.BadParameter("--model goes with a URL")
    with loading() as progress:
        llm = LLM(target, progress=progress, max_requests=1, **pick(MODEL_OPTIONS, options))
    warn(llm.runtime.spec.warnings)
    tell(llm.runtime.notices)
    return LocalPartner(llm, options)


@dataclasses.dataclass
class Conversation:
    """The turns so far. A turn that failed leaves no trace in the history."""

    partner: Partner
    system: str | None
    on_terminal: bool
    turns: list[Message] = dataclasses.field(default_factory=list)

    def run(self) -> None:
        if self.on_terminal:
            print(f"{self.partner.name}: {_HELP}", file=sys.stderr)
        for line in self._lines():
            if line.startswith("/"):
                if not self._command(line):
                    return
            elif line.strip():
                self._turn(line)

    def _lines(self) -> Iterator[str]:
        if not self.on_terminal:
            yield from (line.rstrip("\n") for line in sys.stdin)
            return
        with contextlib.suppress(ImportError):  # Windows, where the terminal does this itself
            import readline  # noqa: F401  (its import gives input() line editing and a history)

        while True:
            try:
                yield input("> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)

    def _command(self, line: str) -> bool:
        """False: leave."""
        name, _, argument = line.partition(" ")
        match name:
            case "/exit" | "/quit":
                return False
            case "/clear":
                self.turns.clear()
            case "/system":
                self.system = argument.strip() or None
            case _:
                print(_HELP, file=sys.stderr)
        return True

    def _turn(self, text: str) -> None:
        question = {"role": "user", "content": text}
        before = [{"role": "system", "content": self.system}] if self.system else []
        pieces: list[str] = []
        stream = self.partner.answer([*before, *self.turns, question])
        try:
            for piece in stream:
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
        except KeyboardInterrupt:
            if not self.on_terminal:
                raise
            print(" (stopped)", end="", file=sys.stderr)
        except RidgelineError as error:
            if not self.on_terminal:
                raise
            print(f"error: {error}", file=sys.stderr)
            return
        finally:
            _close(stream)
        print(flush=True)
        self.turns += [question, {"role": "assistant", "content": "".join(pieces)}]


def _close(stream: Iterator[str]) -> None:
    """Ends the request now, instead of when the generator is collected."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()
