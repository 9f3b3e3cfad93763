"""A server whose model says what the test wants: everything is real except the executor, the tokenizer (bytes) and the
chat template.

The scripted model repeats what stands after the last `say:` in its prompt and ends; without `say:` it babbles letters
that depend on (seed, choice, position) for ever. `<BROKEN>` in the prompt fails the step, `<NAN>` spoils the row.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np

from ridgeline.config import EngineConfig, ServerConfig
from ridgeline.engine.loop import Engine
from ridgeline.engine.plan import MAX_TOP_LOGPROBS, NO_TOKEN, SamplerSetup, StepPlan, StepResult
from ridgeline.errors import ExecutionError, RequestError
from ridgeline.server.run import Server, listen
from ridgeline.server.state import ServerState

EOS = 256
BOS = 257
CONTROL = {EOS: "<|end|>", BOS: "<|start|>"}
VOCAB_SIZE = 258
CONTEXT_LEN = 512
DEADLINE_S = 30.0


class ByteTokenizer:
    vocab_size = VOCAB_SIZE
    bos_token_id = BOS
    eos_token_ids = frozenset({EOS})
    adds_bos = True
    strips_leading_space = False
    named_tokens = {"bos_token": CONTROL[BOS], "eos_token": CONTROL[EOS]}  # noqa: RUF012

    def encode(self, text: str, *, control: bool = False, bos: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            found = next((i for i, spelling in CONTROL.items() if control and text.startswith(spelling)), None)
            if found is not None:
                ids.append(found)
                text = text[len(CONTROL[found]) :]
            else:
                ids += text[0].encode()
                text = text[1:]
        return [BOS, *ids] if bos and ids[:1] != [BOS] else ids

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        parts = [CONTROL[i].encode() if i in CONTROL and not skip_special else self.token_bytes(i) for i in ids]
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in CONTROL else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return CONTROL.get(token_id) or bytes([token_id]).decode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        return token_id in CONTROL


class BracketTemplate:
    """`[role]content` for each message, and its tool calls."""

    takes_tools = True
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

    def encode(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True, extra: Any = None
    ) -> list[int]:
        if any("{{" in message["content"] for message in messages):
            raise RequestError("the chat template failed: unexpected {{", param="messages")
        shown = [f"[{m['role']}]{m['content']}{_shown_tools(m)}" for m in messages]
        text = (extra or {}).get("preamble", "") + "".join(shown)
        return ByteTokenizer().encode(text, bos=True)


def _shown_tools(message: dict[str, Any]) -> str:
    calls = [
        f"{call['id']}:{call['function']['name']}{call['function']['arguments']}"
        for call in message.get("tool_calls", [])
    ]
    return "".join([*calls, message.get("tool_call_id", "")])


class Gate:
    """Lets steps through: all of them when open, else as many as were allowed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._permits = math.inf

    def open(self) -> None:
        self._set(math.inf)

    def close(self) -> None:
        self._set(0)

    def allow(self, num_steps: int) -> None:
        self._set(num_steps)

    def pass_through(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._permits > 0, DEADLINE_S)
            self._permits -= 1

    def _set(self, permits: float) -> None:
        with self._changed:
            self._permits = permits
            self._changed.notify_all()


@dataclass
class ScriptedExecutor:
    """Close `gate` and the model stands still in its next step."""

    num_pages: int = 65
    page_size: int = 16
    max_step_tokens: int = 256
    num_sampler_slots: int = 64
    vocab_size: int = VOCAB_SIZE
    batch_invariant: bool = True
    arithmetic_id: str = "scripted"
    gate: Gate = field(default_factory=Gate)
    slots: dict[int, tuple[SamplerSetup, int]] = field(default_factory=dict)  # slot -> (setup, output tokens so far)

    setups: list[SamplerSetup] = field(default_factory=list)  # all there ever were

    def submit(self, plan: StepPlan) -> Any:
        self.setups += plan.setups
        for setup in plan.setups:
            self.slots[setup.slot] = (setup, len(setup.output_ids))
        return SimpleNamespace(wait=lambda: self._run(plan))

    def close(self) -> None:
        pass

    def _run(self, plan: StepPlan) -> StepResult:
        self.gate.pass_through()
        time.sleep(0)  # waits for nothing: it hands the GIL over, as a native step does
        num_rows = len(plan.logit_rows)
        result = StepResult(
            token_ids=np.full(num_rows, NO_TOKEN, np.int32),
            logprobs=np.zeros(num_rows, np.float32),
            top_ids=np.tile(np.arange(MAX_TOP_LOGPROBS, dtype=np.int32) + 97, (num_rows, 1)),
            top_logprobs=np.tile(-np.arange(1, MAX_TOP_LOGPROBS + 1, dtype=np.float32), (num_rows, 1)),
            finite=np.ones(num_rows, np.bool_),
        )
        for row, slot in enumerate(plan.sampler_slots):
            if slot >= 0:
                setup, position = self.slots[int(slot)]
                result.token_ids[row], result.finite[row] = _next_token(setup, position)
                self.slots[int(slot)] = (setup, position + 1)
            result.logprobs[row] = -0.5 if slot >= 0 else -float("inf")
        return result


def _next_token(setup: SamplerSetup, position: int) -> tuple[int, bool]:
    prompt = bytes(i for i in setup.prompt_ids if i < EOS)
    if b"<BROKEN>" in prompt:
        raise ExecutionError("the step failed: asked to")
    if b"say:" in prompt:
        reply = [*prompt.rpartition(b"say:")[2], EOS]
        return reply[position] if position < len(reply) else EOS, b"<NAN>" not in prompt
    key = f"{setup.seed} {setup.choice} {position}".encode()
    return 97 + hashlib.blake2b(key).digest()[0] % 26, b"<NAN>" not in prompt


def parts(executor: ScriptedExecutor, config: EngineConfig) -> tuple[Any, Engine]:
    """What a server loads: a runtime, as far as the server looks at it, and an engine."""
    runtime = SimpleNamespace(
        name="scripted",
        tokenizer=ByteTokenizer(),
        chat_template=BracketTemplate(),
        executor=executor,
        context_len=CONTEXT_LEN,
        dtype="fp32",
        kv_dtype="fp32",
        generation_defaults={"temperature": 0.5, "top_k": 7},
        close=executor.close,
    )
    return runtime, Engine(executor, runtime.tokenizer, config, context_len=CONTEXT_LEN)


@dataclass
class LiveServer:
    """A server on a real socket, in a thread of this process."""

    url: str
    state: ServerState
    executor: ScriptedExecutor
    server: Server
    thread: threading.Thread
    http: httpx.Client

    def post(self, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def exchange(self, *parts: bytes) -> bytes:
        """Sends a request as it is, part by part; all that comes back until the server hangs up."""
        with socket.create_connection(("127.0.0.1", self.state.port), timeout=DEADLINE_S) as connection:
            for part in parts:
                connection.sendall(part)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Polls /health until `condition` holds for its body."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            body: dict[str, Any] = self.get("/health").json()
            if condition(body):
                return body
            assert body["status"] != "failed", body
        raise AssertionError(f"not in {DEADLINE_S} s; the last answer was {body}")

    def wait_idle(self) -> dict[str, Any]:
        return self.wait_for(lambda body: body["running"] == body["waiting"] == 0)

    def end(self) -> None:
        self.executor.gate.open()
        self.http.close()
        self.server.should_exit = True
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


Start = Callable[..., LiveServer]


@contextlib.contextmanager
def serving() -> Iterator[Start]:
    """A function that starts servers; all are ended at last."""
    servers: list[LiveServer] = []

    def start(
        *,
        engine: EngineConfig | None = None,
        num_pages: int = 65,
        load: Callable[[], None] = lambda: None,
        wait: bool = True,
        **config: Any,
    ) -> LiveServer:
        executor = ScriptedExecutor(num_pages)

        def load_all() -> tuple[Any, Engine]:
            load()
            return parts(executor, engine or EngineConfig())

        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        state = ServerState(ServerConfig(**config), load_all, port=port)
        server = Server(state)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{port}"
        live = LiveServer(url, state, executor, server, thread, httpx.Client(base_url=url, timeout=DEADLINE_S))
        servers.append(live)
        if wait:
            live.wait_for(lambda body: body["status"] == "ok")
        return live

    try:
        yield start
    finally:
        for live in servers:
            live.end()


def events_of(response: httpx.Response) -> list[Any]:
    """The data of a finished stream's events; the last one is None for [DONE]."""
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [None if item == "[DONE]" else json.loads(item) for item in data]


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": prompt, **fields}
