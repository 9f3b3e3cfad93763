"""How `bench` runs: start or find the server, predict, load it, show progress, store what came out."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ridgeline.cli.measure_run import Options, looks_like_url, served
from ridgeline.cli.output import say
from ridgeline.cost.ask import choose_hardware
from ridgeline.errors import ConfigError
from ridgeline.measure import metrics
from ridgeline.measure.bench import Bench, Settings
from ridgeline.measure.client import run
from ridgeline.measure.deployment import Loaded, find_device, find_model, loaded_model, machine_has_gpu
from ridgeline.measure.endpoints import Endpoint, connect, detect
from ridgeline.measure.point import Load, Run
from ridgeline.measure.predict import predict, unpredicted
from ridgeline.measure.start import running_server
from ridgeline.measure.store import Store
from ridgeline.units import format_duration

_REFRESH_S = 0.5
_RECENT = 200  # requests of the figures that run along
_ENDING = (signal.SIGINT, signal.SIGTERM)
_KNOWN_SCHEDULERS = ("static", "continuous")


@dataclass(frozen=True)
class BenchOptions:
    server: Options
    api: str = "auto"
    tokenizer: str | None = None
    schedulers: tuple[str, ...] = ()
    serve_options: tuple[str, ...] = ()


def run_bench(target: str, settings: Settings, options: BenchOptions, *, quiet: bool) -> dict[str, Any]:
    """All points, stored; after Ctrl-C, those so far. Raises ConfigError when there is nothing to measure."""
    unknown = [name for name in options.schedulers if name not in _KNOWN_SCHEDULERS]
    if unknown:
        raise ConfigError(f"--schedulers {','.join(unknown)}", hint="static, continuous or both")
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    points: list[dict[str, Any]] = []
    runs: list[Run] = []
    about: dict[str, Any] = {}
    for scheduler in options.schedulers or (None,):
        loads = tuple(replace(load, scheduler=scheduler) for load in settings.loads)
        with _server(target, options, scheduler) as (url, found):
            bench, about = run(_run(url, replace(settings, loads=loads), replace(options, server=found), quiet))
        points += bench.points
        runs += bench.runs
        if bench.is_stopped:
            break
    summary = {
        "started": started,
        "target": target,
        "workload": asdict(settings.workload),
        "seed": settings.seed,
        **about,
        "points": points,
        "capacity": _capacity(bench),
        "partial": bench.is_stopped,
        "valid": bool(points) and all(point["valid"] for point in points),
    }
    return {"id": Store().save(summary, [run.records for run in runs]), **summary}


def _capacity(bench: Bench) -> dict[str, Any] | None:
    """The search goes by each rate's attainment; the verdict says whether that of the best one is more than luck."""
    if bench.capacity is None:
        return None
    best, missed = bench.capacity.best, bench.capacity.broken
    judged = next((point["slo"] for point in bench.points if best is not None and point["rate"] == best), {})
    sureness = {name: judged.get(name) for name in ("verdict", "more_requests")}
    return {"rate": best, "missed_at": missed, **sureness}


@contextlib.contextmanager
def _server(target: str, options: BenchOptions, scheduler: str | None) -> Iterator[tuple[str, Options]]:
    """Its URL, and the options with what is known of its model."""
    extra = [*options.serve_options, *(["--scheduler", scheduler] if scheduler else [])]
    if not extra:
        with served(target, options.server) as found:
            yield found
        return
    if looks_like_url(target) or target.startswith("ollama:"):
        raise ConfigError(f"{target} runs already", hint="--schedulers and --serve-options are for a MODEL")
    with running_server(target, extra) as url:
        yield url, replace(options.server, spec=options.server.spec or target)


async def _run(url: str, settings: Settings, options: BenchOptions, quiet: bool) -> tuple[Bench, dict[str, Any]]:
    server = options.server
    endpoint = await detect(url, api_key=server.api_key, model=server.model)
    chat = _chooses_chat(options.api, endpoint)
    count_tokens = None if options.tokenizer is None else _counter(options.tokenizer)
    async with connect(endpoint, timeout_s=server.timeout_s, count_tokens=count_tokens, tell=say) as client:
        running = await client.get("/api/ps") if endpoint.kind == "ollama" else None
        loaded = loaded_model(running, endpoint.model)
        predictor = _predictor(endpoint, settings, server, loaded)
        settings = replace(settings, chat=chat, loaded_context=loaded.context_len if loaded else None)
        bench = Bench(client, settings, predict=predictor, on_point=lambda point: None)
        async with _stops_at_ctrl_c(bench), _shown(bench, quiet):
            await bench.run()
    about = {
        "server": endpoint.server,
        "url": endpoint.url,
        "model": endpoint.model,
        "api": "chat" if chat else "completions",
        "rtt_s": endpoint.rtt_s,
        "concessions": [str(concession) for concession in client.concessions],
    }
    return bench, about


def _chooses_chat(api: str, endpoint: Endpoint) -> bool:
    return api == "chat" or (api == "auto" and not endpoint.capabilities.completions)


def _counter(model: str) -> Callable[[str], int]:
    from ridgeline.model.resolve import resolve_model
    from ridgeline.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve_model(model))
    if tokenizer is None:
        raise ConfigError(f"--tokenizer {model}: there is none with it")
    return lambda text: len(tokenizer.encode(text))


def _predictor(
    endpoint: Endpoint, settings: Settings, server: Options, loaded: Loaded | None
) -> Callable[[Load], dict[str, Any]]:
    """What `plan` says of a load, or why it says nothing."""
    device = find_device(endpoint, loaded, server.hardware, has_gpu=machine_has_gpu())
    model = find_model(endpoint, server.spec, server.formats, server.kv_dtype) if device.name else device.reason
    hardware = None if isinstance(model, str) or device.name is None else choose_hardware(device.name)
    sessions = settings.trace or settings.workload.sessions(1_000, settings.seed)
    input_len = round(sum(session.input_len for session in sessions) / len(sessions))
    output_len = round(sum(session.output_len for session in sessions) / len(sessions))

    def predicted(load: Load) -> dict[str, Any]:
        if isinstance(model, str):
            return unpredicted(model)
        if hardware is None:
            return unpredicted("this machine could not be measured: name a device with --hardware")
        return predict(model, hardware, input_len=input_len, output_len=output_len, batch=load.concurrency or 1)

    return predicted


@contextlib.asynccontextmanager
async def _stops_at_ctrl_c(bench: Bench) -> AsyncIterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the run and keeps what was measured; a second one ends everything."""

    def stop() -> None:
        let_go()
        bench.stop()

    let_go = _handle_endings(asyncio.get_running_loop(), stop)
    try:
        yield
    finally:
        let_go()


def _handle_endings(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Callable[[], None]:
    """Calls `stop` in `loop` at each of the signals, until what this gives back is called."""
    try:
        for number in _ENDING:
            loop.add_signal_handler(number, stop)
    except NotImplementedError:  # Windows
        previous = {n: signal.signal(n, lambda *_: loop.call_soon_threadsafe(stop)) for n in _ENDING}
    else:
        previous = {}

    def let_go() -> None:
        for number in _ENDING:
            if number in previous:
                signal.signal(number, previous[number])
            else:
                loop.remove_signal_handler(number)

    return let_go


@contextlib.asynccontextmanager
async def _shown(bench: Bench, quiet: bool) -> AsyncIterator[None]:
    """A line on a terminal, twice a second: cheap, since it runs beside what is being measured."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(_show(bench))
    try:
        yield
    finally:
        task.cancel()
        sys.stderr.write("\r\x1b[K")


async def _show(bench: Bench) -> None:
    while True:
        sys.stderr.write(f"\r\x1b[K{progress_line(bench)}")
        sys.stderr.flush()
        await asyncio.sleep(_REFRESH_S)


def progress_line(bench: Bench) -> str:
    progress = bench.progress
    if progress.load is None or progress.watch is None:
        return "warming up"
    recent = progress.records[-_RECENT:]
    total = "" if progress.total is None else f"/{progress.total}"
    ttft = metrics.median(metrics.defined(metrics.ttft_sched, recent))
    tpot = metrics.median(metrics.defined(metrics.tpot, recent))
    told = [f"{name} {format_duration(value)}" for name, value in (("TTFT", ttft), ("TPOT", tpot)) if value]
    failed = sum(not record.ok for record in progress.records)
    done, elapsed_s = len(progress.records), progress.watch.elapsed_s
    rate = [f"{done / elapsed_s:.2f}/s"] if elapsed_s else []
    parts = [progress.load.name, f"{done}{total} done", *rate, f"{progress.watch.now_in_flight} in flight"]
    return " · ".join([*parts, *told, *([f"{failed} failed"] if failed else [])])
