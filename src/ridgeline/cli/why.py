"""`ridgeline why`: what binds the server on this machine, in words, within a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.measure import ApiKey, DeviceName, Dtype, KvDtype, ModelName, Spec
from ridgeline.cli.options import Json
from ridgeline.cli.output import print_json
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.measure.latency import Latency

_BUDGET_S = 40.0  # of a minute: finding the server, loading its model and the limit need the rest
_SILENCE_S = 45.0


def why(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="As for measure; the server on this machine unless given.")
    ] = None,
    model: ModelName = None,
    spec: Spec = None,
    hardware: DeviceName = None,
    dtype: Dtype = None,
    kv_dtype: KvDtype = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> int:
    """Say in words why a server is as fast as it is, and what to try. Takes a minute at most."""
    from ridgeline.cli.measure_run import Options, measure_latency, served
    from ridgeline.measure.experiment import Settings

    settings = Settings(
        repeats=5, output_len=48, lengths=(256, 1024, 4096), length_repeats=2, chat=True, budget_s=_BUDGET_S
    )
    options = Options(model, spec, hardware, dtype, None, kv_dtype, api_key, _SILENCE_S)
    others: list[str] = []
    if target is None:
        target, *others = find_local(api_key)
    with served(target, options) as (url, found):
        latency = measure_latency(url, settings, found, two_at_once=True, quiet=as_json)
    if as_json:
        print_json(latency.as_json() | {"answer": answer(latency)})
    else:
        _print([*answer(latency), *(f"Another server answers at {url}: `ridgeline why {url}`." for url in others)])
    return 0 if latency.findings.valid else 1


def _print(paragraphs: list[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text("\n\n".join(paragraphs)))


def find_local(api_key: str | None) -> list[str]:
    """URLs, the one to measure first. Raises ConfigError when none answers."""
    from ridgeline.measure.client import run
    from ridgeline.measure.local_servers import find_servers, ports_in_words

    urls = [endpoint.url for endpoint in run(find_servers(api_key=api_key))]
    if not urls:
        raise ConfigError(
            f"no language model server answers on this machine's ports {ports_in_words()}",
            hint="start one, or give its URL: ridgeline why http://HOST:PORT",
        )
    return urls


def answer(latency: Latency) -> list[str]:
    """Paragraphs: what was measured, what binds, what was noticed, what to try."""
    from ridgeline.measure.explain import binds, tokens_per_s
    from ridgeline.units import format_duration

    endpoint, findings = latency.endpoint, latency.findings
    ttft, tpot = findings.repeats.ttft_median_s, latency.tpot_s
    head = f"{endpoint.short_name} on {endpoint.server} ({endpoint.url})"
    if ttft is None or not tpot:
        paragraphs = [f"{head} gave no answer that could be timed."]
    else:
        paragraphs = [f"{head} answers after {format_duration(ttft)} and then makes {tokens_per_s(tpot)}."]
    paragraphs += [f"Not valid: {reason}." for reason in findings.invalid_reasons]
    if latency.roofline is not None and latency.context is not None:
        paragraphs.append(binds(latency.roofline, latency.context))
    paragraphs += [latency.explanation, " ".join(latency.slopes), *latency.causes]
    if latency.counterfactuals:
        paragraphs.append("With the same bandwidth reached: " + "; ".join(latency.counterfactuals) + ".")
    return paragraphs
