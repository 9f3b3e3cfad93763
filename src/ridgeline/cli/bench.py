"""`ridgeline bench`: a load test of any server. Parses, calls `measure/bench.py`, prints, stores."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ridgeline.cli.measure import ApiKey, DeviceName, Dtype, KvDtype, ModelName, Spec, Timeout
from ridgeline.cli.options import Json
from ridgeline.cli.output import print_json
from ridgeline.errors import ConfigError
from ridgeline.units import parse_duration, parse_tokens

Arrivals = Literal["poisson", "gamma", "constant"]
Api = Literal["auto", "chat", "completions"]


def _option(kind: Any, flag: str, help: str, metavar: str | None = None, panel: str = "Load", **settings: Any) -> Any:
    return Annotated[kind, typer.Option(flag, help=help, metavar=metavar, rich_help_panel=panel, **settings)]


def _work(kind: Any, flag: str, help: str, metavar: str | None = None, **settings: Any) -> Any:
    return _option(kind, flag, help, metavar, "Workload", **settings)


def bench(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="URL, host:port, MODEL; or `list`, `compare`.")],
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN RUN]", help="Of `compare`; `last-1 last`.")] = None,
    model: ModelName = None,
    concurrency: _option(str | None, "--concurrency", "Closed loop: so many at once; 1,4,16.", "N,...") = None,
    rate: _option(str | None, "--rate", "Open loop: requests per second.", "R,...") = None,
    trace: _option(Path | None, "--trace", "Replay JSON lines, as Mooncake's traces.", "FILE") = None,
    time_scale: _option(float, "--time-scale", "Times of the trace, multiplied.", min=1e-6) = 1.0,
    arrivals: _option(Arrivals, "--arrivals", "Gaps between requests at --rate.") = "poisson",
    burstiness: _option(float, "--burstiness", "Of gamma: below 1 in bursts, above 1 evenly.", min=0.01) = 1.0,
    barrier: _option(bool, "--barrier", "Send --concurrency together, wait for all, repeat.") = False,
    schedulers: _option(str | None, "--schedulers", "MODEL only: one server each.", "static,continuous") = None,
    num_requests: _option(int | None, "--requests", "Per point; 8 per worker, at least 32.", min=1) = None,
    duration: _option(str | None, "--duration", "Per point, as in 30s.", "TIME") = None,
    seed: _option(int, "--seed", "Of lengths and arrivals; texts are new each time.") = 0,
    workload: _work(str, "--workload", "fixed, uniform, lognormal, uneven, natural, shared-prefix, chat.", "NAME") = "",
    input_len: _work(str, "--input", "Prompt, on average.", "TOKENS") = "512",
    output_len: _work(str, "--output", "Answer, on average.", "TOKENS") = "128",
    shared: _work(float, "--shared-prefix", "Share of the input, of shared-prefix.") = 0.5,
    turns: _work(int, "--turns", "Of a chat.", min=1) = 4,
    api: _work(Api, "--api", "auto: raw prompts where the server takes them.") = "auto",
    tokenizer: _work(str | None, "--tokenizer", "Counts where the server does not.", "MODEL") = None,
    slo: _option(str | None, "--slo", "As in ttft=1s,tpot=50ms,e2e=10s,gap=200ms.", "LIMITS", "Goals") = None,
    attainment: _option(float, "--attainment", "Share of requests that must meet it.", None, "Goals") = 0.9,
    find_capacity: _option(bool, "--find-capacity", "The highest rate that meets --slo.", None, "Goals") = False,
    check: _option(bool, "--check", "Exit 1 when the SLO is missed.", None, "Goals") = False,
    spec: Spec = None,
    hardware: DeviceName = None,
    dtype: Dtype = None,
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
    from ridgeline.measure.workloads import Workload, load_trace

    limits = None if slo is None else parse_slo(slo, attainment)
    if limits is None and (check or find_capacity):
        raise ConfigError("--check and --find-capacity need a goal", hint="give one, as in --slo ttft=1s,tpot=50ms")
    settings = Settings(
        loads=parse_loads(concurrency, rate, trace is not None, barrier),
        workload=Workload(
            name=workload or ("uneven" if barrier or schedulers else "fixed"),
            input_len=parse_tokens(input_len),
            output_len=parse_tokens(output_len),
            shared_share=shared,
            num_turns=turns,
        ),
        trace=() if trace is None else tuple(load_trace(trace, time_scale=time_scale)),
        num_requests=num_requests,
        duration_s=None if duration is None else parse_duration(duration),
        arrivals=arrivals,
        burstiness=burstiness,
        seed=seed,
        slo=limits,
        seeks_capacity=find_capacity,
    )
    if find_capacity and settings.loads[0].rate is None:
        raise ConfigError("--find-capacity needs a rate to start from", hint="as in --rate 1")
    options = BenchOptions(
        Options(model, spec, hardware, dtype, kv_dtype, api_key, timeout),
        api=api,
        tokenizer=tokenizer,
        schedulers=tuple(schedulers.split(",")) if schedulers else (),
        serve_options=tuple(shlex.split(serve_options)),
    )
    if report is not None:
        from ridgeline.measure.report import check_report_path

        check_report_path(report)
    result = run_bench(target, settings, options, quiet=as_json)
    if report is not None:
        from ridgeline.measure.bench_chart import save_bench_report

        save_bench_report(report, result)
    if as_json:
        print_json(result)
    else:
        bench_view.print_result(result)
    return bench_view.exit_status(result, check=check)


def parse_loads(concurrency: str | None, rate: str | None, has_trace: bool, barrier: bool) -> Any:
    """One load per value; closed loop at 1 unless told otherwise. Raises ConfigError."""
    from ridgeline.measure.point import Load

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
