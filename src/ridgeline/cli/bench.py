"""`ridgeline bench`: a load test of any server. Parses, calls `measure/bench.py`, prints, stores."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ridgeline.cli.measure import ApiKey, DeviceName, Dtype, HeadDtype, KvDtype, ModelName, Spec, Timeout
from ridgeline.cli.options import Json
from ridgeline.errors import ConfigError
from ridgeline.measure.point import Load
from ridgeline.measure.workloads import NAMES, Session, Workload, load_trace
from ridgeline.units import parse_duration, parse_tokens

Arrivals = Literal["poisson", "gamma", "constant"]
Api = Literal["auto", "chat", "completions"]


def _option(kind: Any, flag: str, help: str, metavar: str | None = None, panel: str = "Load", **settings: Any) -> Any:
    return Annotated[kind, typer.Option(flag, help=help, metavar=metavar, rich_help_panel=panel, **settings)]


def _work(kind: Any, flag: str, help: str, metavar: str | None = None, **settings: Any) -> Any:
    return _option(kind, flag, help, metavar, "Workload", **settings)


# Long because each parameter is a flag, and typer reads them off the signature.
def bench(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="URL, host:port, MODEL; or `list`, `compare`.")],
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN RUN]", help="Of `compare`; `last-1 last`.")] = None,
    model: ModelName = None,
    concurrency: _option(str | None, "--concurrency", "Closed loop: so many at once; 1,4,16.", "N,...") = None,
    rate: _option(str | None, "--rate", "Open loop: requests per second.", "R,...") = None,
    trace: _option(Path | None, "--trace", "Replay JSON lines, as Mooncake's traces.", "FILE") = None,
    time_scale: _option(float | None, "--time-scale", "Times of the trace, multiplied.", min=1e-6) = None,
    arrivals: _option(Arrivals | None, "--arrivals", "Gaps between requests at --rate; poisson.") = None,
    burstiness: _option(float | None, "--burstiness", "Of gamma: below 1 in bursts, above evenly.", min=0.01) = None,
    barrier: _option(bool, "--barrier", "Send --concurrency together, wait for all, repeat.") = False,
    schedulers: _option(str | None, "--schedulers", "MODEL only: one server each.", "static,continuous") = None,
    num_requests: _option(int | None, "--requests", "Per point; 8 per worker, at least 32.", min=1) = None,
    duration: _option(str | None, "--duration", "Per point, as in 30s.", "TIME") = None,
    seed: _option(int, "--seed", "Of lengths and arrivals; texts are new each time.") = 0,
    workload: _work(str | None, "--workload", "One of " + ", ".join(NAMES) + "; fixed.", "NAME") = None,
    input_len: _work(str, "--input", "Prompt, on average.", "TOKENS") = "512",
    output_len: _work(str | None, "--output", "Answer, on average; 128.", "TOKENS") = None,
    shared: _work(float | None, "--shared-prefix", "Share of the input that all have in common; 0.5.") = None,
    turns: _work(int | None, "--turns", "Of a chat; 4.", min=1) = None,
    api: _work(Api, "--api", "auto: raw prompts where the server takes them.") = "auto",
    tokenizer: _work(str | None, "--tokenizer", "Counts where the server does not.", "MODEL") = None,
    slo: _option(str | None, "--slo", "As in ttft=1s,tpot=50ms,e2e=10s,gap=200ms.", "LIMITS", "Goals") = None,
    attainment: _option(float, "--attainment", "Share of requests that must meet it.", None, "Goals") = 0.9,
    find_capacity: _option(bool, "--find-capacity", "The highest rate that meets --slo.", None, "Goals") = False,
    check: _option(bool, "--check", "Exit 1 when the SLO is missed.", None, "Goals") = False,
    spec: Spec = None,
    hardware: DeviceName = None,
    dtype: Dtype = None,
    head_dtype: HeadDtype = None,
    kv_dtype: KvDtype = None,
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
    serve_options: Annotated[str, typer.Option(help="MODEL only: options of `serve`, as one text.")] = "",
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Charts as .html, .png or .svg.")] = None,
    as_json: Json = False,
) -> int:
    """Load-test a server: throughput, latency and goodput, beside what is possible."""
    from ridgeline.cli import bench_view

    if target in ("list", "compare"):
        return bench_view.stored(target, runs or [], as_json)
    if runs:
        raise typer.BadParameter(f"unexpected {' '.join(runs)}")
    from ridgeline.cli.bench_run import BenchOptions, run_bench
    from ridgeline.cli.measure_run import Options
    from ridgeline.measure.bench import Settings
    from ridgeline.measure.slo import parse_slo

    _refuse_idle("--rate", rate, {"--arrivals": arrivals, "--find-capacity": find_capacity or None})
    _refuse_idle("--arrivals gamma", True if arrivals == "gamma" else None, {"--burstiness": burstiness})
    _refuse_idle("--trace", trace, {"--time-scale": time_scale})
    _refuse_idle("--slo", slo, {"--check": check or None, "--find-capacity": find_capacity or None})
    settings = Settings(
        loads=parse_loads(concurrency, rate, trace is not None, barrier),
        workload=parse_workload(workload, input_len, output_len, shared, turns, uneven=barrier or bool(schedulers)),
        trace=parse_trace(trace, time_scale, duration),
        num_requests=num_requests,
        duration_s=None if duration is None else parse_duration(duration),
        arrivals=arrivals or "poisson",
        burstiness=burstiness or 1.0,
        seed=seed,
        slo=None if slo is None else parse_slo(slo, attainment),
        seeks_capacity=find_capacity,
    )
    options = BenchOptions(
        Options(model, spec, hardware, dtype, head_dtype, kv_dtype, api_key, timeout),
        api=api,
        tokenizer=tokenizer,
        schedulers=tuple(schedulers.split(",")) if schedulers else (),
        serve_options=tuple(shlex.split(serve_options)),
    )
    if report is not None:
        from ridgeline.measure.report import check_report_path

        check_report_path(report)
    result = run_bench(target, settings, options, quiet=as_json)
    bench_view.show(result, report=report, as_json=as_json)
    return bench_view.exit_status(result, check=check)


def _refuse_idle(owner: str, owner_value: Any, dependents: dict[str, Any]) -> None:
    """An option that would do nothing is a mistake."""
    idle = [name for name, value in dependents.items() if value is not None]
    if owner_value is None and idle:
        raise ConfigError(f"{idle[0]} does nothing without {owner}", hint=f"give {owner}, or leave {idle[0]} out")


def parse_workload(
    name: str | None, input_len: str, output_len: str | None, shared: float | None, turns: int | None, *, uneven: bool
) -> Workload:
    """`--shared-prefix` and `--turns` imply their workloads, and comparing schedulers uneven answers."""
    implied = [other for other, value in (("shared-prefix", shared), ("chat", turns)) if value is not None]
    names = {name or (implied[0] if implied else "uneven" if uneven and output_len is None else "fixed"), *implied}
    if len(names) > 1:
        raise ConfigError(f"the workloads {' and '.join(sorted(names))} exclude each other", hint="choose one")
    if names == {"uneven"} and output_len is not None:
        raise ConfigError("uneven answers have lengths of their own", hint="leave --output out, or --workload fixed")
    return Workload(
        name=names.pop(),
        input_len=parse_tokens(input_len),
        output_len=parse_tokens(output_len or "128"),
        shared_share=Workload.shared_share if shared is None else shared,
        num_turns=Workload.num_turns if turns is None else turns,
    )


def parse_trace(trace: Path | None, time_scale: float | None, duration: str | None) -> tuple[Session, ...]:
    if trace is None:
        return ()
    if duration is not None:
        raise ConfigError("a trace has its own duration", hint="leave --duration out; --requests N takes the first N")
    return tuple(load_trace(trace, time_scale=time_scale or 1.0))


def parse_loads(concurrency: str | None, rate: str | None, has_trace: bool, barrier: bool) -> tuple[Load, ...]:
    """One load per value; closed loop at 1 unless told otherwise. Raises ConfigError."""
    given = [
        name
        for name, is_given in (("--concurrency", concurrency), ("--rate", rate), ("--trace", has_trace))
        if is_given
    ]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other", hint="choose one")
    if barrier and given and given != ["--concurrency"]:
        raise ConfigError(f"--barrier and {given[0]} exclude each other", hint="--barrier takes --concurrency")
    if has_trace:
        return (Load("trace"),)
    if rate is not None:
        return tuple(Load("open", rate=_number("--rate", part)) for part in rate.split(","))
    counts = [_number("--concurrency", part) for part in (concurrency or "1").split(",")]
    if any(count != int(count) for count in counts):
        raise ConfigError(f"--concurrency {concurrency}", hint="whole numbers, as in 1,4,16")
    return tuple(Load("barrier" if barrier else "closed", int(count)) for count in counts)


def _number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ConfigError(f"{flag} {text!r}", hint="a number above 0, or several with commas between")
    return value
