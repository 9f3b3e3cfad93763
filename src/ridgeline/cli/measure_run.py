"""What `measure` and `why` do alike: find the server, run the experiment, put the limit beside it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from ridgeline.cli.output import loading, say
from ridgeline.cost.ask import choose_hardware
from ridgeline.cost.facts import STORED, load_facts
from ridgeline.cost.roofline import Roofline
from ridgeline.cost.this import THIS_GPU
from ridgeline.errors import ConfigError
from ridgeline.measure.causes import find_causes
from ridgeline.measure.client import Client, run
from ridgeline.measure.deployment import Loaded, find_device, find_model, loaded_model, loaded_names, machine_has_gpu
from ridgeline.measure.endpoints import Endpoint, connect, detect
from ridgeline.measure.events import Record
from ridgeline.measure.experiment import Experiment, Settings
from ridgeline.measure.findings import find
from ridgeline.measure.latency import Latency
from ridgeline.measure.load import Watch
from ridgeline.measure.local_servers import ollama_url
from ridgeline.measure.metrics import percentile
from ridgeline.measure.start import running_server
from ridgeline.measure.validity import LEAST_BEATS
from ridgeline.quant.formats import GGUF, joined, kv_format, weight_format
from ridgeline.units import format_duration


@dataclass(frozen=True)
class Options:
    """Of the command line. None: as the server, or the checkpoint, has it."""

    model: str | None = None
    spec: str | None = None
    hardware: str | None = None
    dtype: str | None = None
    head_dtype: str | None = None
    kv_dtype: str | None = None
    api_key: str | None = None
    timeout_s: float = 600.0

    @property
    def formats(self) -> str | None:
        """Of the weights, as a plan takes them."""
        return self.dtype and joined(self.dtype, self.head_dtype)


@dataclass(frozen=True)
class _Run:
    endpoint: Endpoint
    experiment: Experiment
    loop_lag_s: float | None  # of this client's event loop, P99
    loaded: Loaded | None
    together: list[Record]
    duration_s: float
    num_busy: int  # slots of llama.cpp that others used when it began


@contextlib.contextmanager
def served(target: str, options: Options) -> Iterator[tuple[str, Options]]:
    """The URL of TARGET, and the options with what it says of the model; a MODEL is served for the block's length."""
    if looks_like_url(target):
        yield target, options
    elif target.startswith("ollama:"):
        yield ollama_url(), dataclasses.replace(options, model=options.model or target.removeprefix("ollama:"))
    else:
        formats = {"--dtype": options.dtype, "--head-dtype": options.head_dtype, "--kv-dtype": options.kv_dtype}
        flags = [word for flag, value in formats.items() if value for word in (flag, value)]
        with running_server(target, flags) as url:
            # What it runs in, it tells itself.
            yield url, dataclasses.replace(options, spec=options.spec or target, dtype=None, head_dtype=None)


def looks_like_url(target: str) -> bool:
    """`http://...` or `host:port`; anything else, and what exists as a file, is a model."""
    host, colon, port = target.partition("/")[0].rpartition(":")
    return "://" in target or (bool(colon and host) and port.isdigit() and not Path(target).exists())


def measure_latency(
    url: str, settings: Settings, options: Options, *, two_at_once: bool = False, quiet: bool = False
) -> Latency:
    """Runs the experiment; after Ctrl-C, with what was measured until then. `two_at_once`: ends with two requests sent
    together, which tell a queue from parallel slots. Raises ConfigError, or ExecutionError when nothing answers."""
    _check_names(options)
    with loading(quiet=quiet) as progress:
        done: _Run = run(_experiment(url, settings, options, progress, two_at_once))
    return _conclude(done, options)


def _check_names(options: Options) -> None:
    """What is misspelt is told before minutes are spent."""
    if options.hardware is not None:
        choose_hardware(options.hardware)
    if options.spec is not None:
        load_facts(options.spec)
    if options.head_dtype is not None and options.dtype is None:
        raise ConfigError("--head-dtype says nothing without --dtype", hint="give both, or leave it out")
    for name in (options.dtype, options.head_dtype):
        if name not in (None, STORED, GGUF):
            weight_format(name)
    if options.kv_dtype is not None:
        kv_format(options.kv_dtype)


async def _experiment(url: str, settings: Settings, options: Options, progress: Any, two_at_once: bool) -> _Run:
    endpoint = await _find_endpoint(url, options)
    start = time.monotonic()
    async with connect(endpoint, timeout_s=options.timeout_s, tell=say) as client:
        loaded = loaded_model(await _running(client), endpoint.model)
        num_busy = await _num_busy_slots(client)
        experiment = Experiment(
            endpoint,
            client.stream,
            settings,
            loaded_context=loaded.context_len if loaded else None,
            progress=progress,
            announce=_announce,
        )
        together: list[Record] = []
        watch = Watch(client.clock)
        try:
            async with watch.beating():
                await experiment.run()
            if two_at_once:
                together = await experiment.ask_together()
        except asyncio.CancelledError:  # Ctrl-C: what was measured is kept
            if not experiment.records:
                raise
            _forgive_cancellation()
        loaded = loaded_model(await _running(client), endpoint.model)
    lags = sorted(watch.lags)
    return _Run(
        endpoint,
        experiment,
        loop_lag_s=percentile(lags, 0.99) if len(lags) >= LEAST_BEATS else None,
        loaded=loaded,
        together=together,
        duration_s=time.monotonic() - start,
        num_busy=num_busy,
    )


async def _find_endpoint(url: str, options: Options) -> Endpoint:
    """Of Ollama's models, the one that is in memory: that is what its user waits for."""
    endpoint = await detect(url, api_key=options.api_key, model=options.model)
    if options.model is not None or endpoint.kind != "ollama":
        return endpoint
    async with connect(endpoint) as client:
        names = loaded_names(await _running(client))
    if not names or endpoint.model in names:
        return endpoint
    return await detect(url, api_key=options.api_key, model=names[0])


async def _running(client: Client) -> Any:
    """What Ollama has in memory now; None for another server, or one that no longer answers (the records tell)."""
    if client.endpoint.kind != "ollama":
        return None
    try:
        return await client.get("/api/ps")
    except (aiohttp.ClientError, TimeoutError):
        return None


async def _num_busy_slots(client: Client) -> int:
    """Of llama.cpp, which tells unless it was started with --no-slots."""
    slots = await client.get("/slots") if client.endpoint.kind == "llamacpp" else None
    return sum(bool(slot.get("is_processing")) for slot in slots) if isinstance(slots, list) else 0


def _forgive_cancellation() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _announce(seconds: float) -> None:
    print(f"measuring: expected to take {format_duration(max(seconds, 1.0))}", file=sys.stderr, flush=True)


def _conclude(done: _Run, options: Options) -> Latency:
    findings = find(done.experiment, done.loop_lag_s)
    roofline, reason = _roofline(done, options)
    return Latency(
        endpoint=done.endpoint,
        findings=findings,
        roofline=roofline,
        limit_reason=reason,
        causes=find_causes(done.endpoint, findings, done.loaded, roofline, done.together, num_busy=done.num_busy),
        duration_s=done.duration_s,
    )


def _roofline(done: _Run, options: Options) -> tuple[Roofline | None, str]:
    """The limit's source, or None and why there is none."""
    device = find_device(done.endpoint, done.loaded, options.hardware, has_gpu=machine_has_gpu())
    if device.name is None:
        return None, device.reason
    model = find_model(done.endpoint, options.spec, options.formats, options.kv_dtype)
    if isinstance(model, str):
        return None, model
    try:
        hardware = choose_hardware(device.name)
    except ConfigError as error:
        if device.name != THIS_GPU or options.hardware:
            raise
        return None, f"{device.reason}, and {error.message}: name it with --hardware, or run `ridgeline probe`"
    if hardware is None:
        return None, "this machine's speed could not be measured: name a device with --hardware"
    roofline = Roofline(model.facts, hardware, model.dtype, model.kv_dtype)
    try:
        known = roofline.bandwidth is not None
    except ConfigError as error:  # a format that this model cannot have: what was measured is worth showing
        return None, error.message
    if not known:
        return None, f"the bandwidth of {hardware.name} is unknown: name another with --hardware"
    return roofline, f"{device.reason}; {model.facts.name} as {roofline.format_name}, KV cache in {model.kv_dtype}"
