"""The tables of docs/results/peers.md, from the runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peerlib.cases import CASES, CLIENTS, DECODE_STEPS, OUTPUT_TOKENS, PROMPT_TOKENS, Case
from peerlib.results import Comparison, Figure, Run, comparisons, isa_of, latest

_NONE = ""


def document(runs: Sequence[Run], titles: Mapping[str, str]) -> str:
    """`titles` of the models."""
    sections = [
        _section([run for run in runs if isa_of(run) == isa], model, title + (f", kept to {isa}" if isa else ""))
        for isa in sorted({isa_of(run) for run in runs})
        for model, title in titles.items()
    ]
    return "\n".join([_HEAD, *(section for section in sections if section), _sources(runs)])


_HEAD = f"""# Beside other engines

Written by `benchmarks/peers.py`. Every engine has the same weights, made from one checkpoint, and the same number of
threads; engines take turns for several rounds, figures are medians. A peer stands with its best setting in each case.
Ridgeline is timed through its engine, sampling and scheduling included, llama.cpp by its own llama-bench and
llama-batched-bench, which do not sample. A decode step is the mean of {DECODE_STEPS}; sequences of a batch have
{PROMPT_TOKENS} tokens in context; HTTP is {CLIENTS} clients in a closed loop, {PROMPT_TOKENS} tokens in and
{OUTPUT_TOKENS} out, from `ridgeline bench`.

Ratio: how many times better than the best peer of the same run, of any format; for decode at 128 of the same number of
bits. Floor: what the machine's bandwidth and matrix throughput, measured in the same run, allow Ridgeline's format.
Kept to an instruction set: Ridgeline by RIDGELINE_ISA, llama.cpp by a build for it; ceilings are those of that path.
"""


def _section(runs: Sequence[Run], model: str, title: str) -> str:
    compared = comparisons(runs, model)
    if not compared:
        return ""
    return f"## {title}\n\n{_all_engines(runs, model)}\n\n{_ratios(compared)}\n"


def _all_engines(runs: Sequence[Run], model: str) -> str:
    """Medians of every engine."""
    found = latest(runs, model)
    titles = {name: facts["title"] for run in runs if run["model"] == model for name, facts in run["engines"].items()}
    ours_first = sorted((name for name in titles if name in found), key=lambda name: not name.startswith("ridgeline"))
    rows = [["", *(titles[name] for name in ours_first)]]
    for case in CASES.values():
        cells = [_cell(case, found[name].get(case.key)) for name in ours_first]
        if any(cells):
            rows.append([f"{case.label}, {case.unit}", *cells])
    return _table(rows)


def _cell(case: Case, figure: Figure | None) -> str:
    if figure is None:
        return _NONE
    return _number(case, figure.value) + (f" ({figure.setting})" if figure.setting else "")


def _ratios(compared: Sequence[Comparison]) -> str:
    rows = [["work", "format", "ours", "best peer", "its figure", "ratio", "target", "floor", "of the floor"]]
    for one in compared:
        peer = _NONE if one.peer_figure is None else _number(one.case, one.peer_figure.value)
        rows.append(
            [
                f"{one.case.label}, {one.case.unit}", one.ours.removeprefix("Ridgeline "),
                _number(one.case, one.figure.value), one.peer or _NONE, peer, _times(one.ratio), _times(one.target),
                _NONE if one.floor is None else _number(one.case, one.floor), _share(one.floor_share),
            ]
        )  # fmt: skip
    return _table(rows)


def _number(case: Case, value: float) -> str:
    return f"{value:,.{case.digits}f}"


def _times(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f} x"


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _sources(runs: Sequence[Run]) -> str:
    """What ran where, and what casts doubt on it."""
    lines = ["## Runs", ""]
    for run in runs:
        engines = ", ".join(f"{facts['title']} ({facts['version']})" for facts in run["engines"].values())
        part = f"{run['part']}{isa_of(run) and f' by {isa_of(run)}'}"
        lines.append(f"- {run['model']}, {part}, {run['rounds']} rounds: {engines}. {run['machine']}; "
                     f"{run['ceilings']}.")  # fmt: skip
        lines += [f"  - {note}" for note in run["notes"]]
    return "\n".join(lines) + "\n"
