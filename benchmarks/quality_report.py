"""The stored figures of `quality.py`, and the document that is written from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from divergence import Estimate, Quality, mean, perplexity, relative_perplexity

DIRECTORY = Path(__file__).parents[1] / "docs" / "results"
REFERENCE = "fp32"
PEER = "llama.cpp "  # begins the names of its rows
LOSS_TARGETS = (("int8", "bf16", 0.005),)  # perplexity: row, against row, at most so much more
NO_WORSE = (("int4-g32", PEER + "Q4_0 pure"), ("int4-g32+head=int8-g32", PEER + "Q4_0"))
NOTES = {
    "smollm2-135m": "SmolLM2 comes to us in Q4_1 with a Q8_0 head, so 4-bit figures on it mislead either way: its own\n"
    "grid (`gguf`) keeps every weight, and any other 4-bit grid rounds a second time what was rounded before.",
    "tiny-llama": "A Llama of 4 million parameters that `benchmarks/train_tiny.py` trained on the other five novels.\n"
    "Its weights never were quantized: 4-bit figures are to be read here.",
}
INTRODUCTION = """# What a number format costs in quality

Written by `benchmarks/quality.py` from `quality.json`. Of each window of 1,024 tokens of a text that is held out, the
tokens of the second half are scored. Errors are standard errors over windows, and differences are paired window by
window. KL is KL(fp32 || format), nats per token; top-1 is the share of tokens where both find the same one likeliest;
weights are all that is in memory (llama.cpp: in the file), the output matrix included. `int4-g32+head=int8-g32` is
`--dtype int4-g32 --head-dtype int8-g32`; `kv` is `--kv-dtype`. llama.cpp quantized and ran the same weights itself;
`pure` is its `--pure`: the embedding and output matrix in that format too. `gguf of Q4_0` is Ridgeline on llama.cpp's
file.
"""


class Results:
    """docs/results/quality.json: model -> text and rows. A run replaces the rows that it measures, one at a time."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._json, self._document = directory / "quality.json", directory / "quality.md"

    def begin(self, model: str, text: str, key: str) -> None:
        """Rows of another text or tokenizer are dropped: they do not compare."""
        models = self._load()
        if models.get(model, {}).get("key") != key:
            self._write(models | {model: {"text": text, "key": key, "rows": {}}})

    def add(self, model: str, name: str, quality: Quality, facts: dict[str, Any]) -> None:
        models = self._load()
        models[model]["rows"][name] = quality.to_dict() | facts
        self._write(models)
        print(f"{model}: {_line(name, models[model]['rows'])}", flush=True)

    def add_draws(self, model: str, num_windows: int, draws: list[dict[str, dict[str, float]]]) -> None:
        """Per order of the model's values: format -> change in perplexity and mean KL (`quality_draws.py`)."""
        models = self._load()
        models[model]["draws"] = {"num_windows": num_windows, "rows": draws}
        self._write(models)

    def document(self) -> str:
        """Written from all rows that are there."""
        text = "\n".join([INTRODUCTION, *(_section(model, found) for model, found in self._load().items())])
        self._document.write_text(text)
        return text

    def _load(self) -> dict[str, Any]:
        models: dict[str, Any] = json.loads(self._json.read_text()) if self._json.exists() else {}
        return models

    def _write(self, models: dict[str, Any]) -> None:
        self._json.write_text(json.dumps(models, indent=1) + "\n")


def _section(model: str, found: dict[str, Any]) -> str:
    rows = found["rows"]
    reference = rows[REFERENCE]
    arithmetic = sorted({"-".join(row["arithmetic"].split("-")[:3]) for name, row in rows.items() if PEER not in name})

    def largest_first(name: str) -> tuple[bool, int, str]:
        return PEER in name, -rows[name]["weight_bytes"], name

    lines = [
        f"## {model}\n",
        *([NOTES[model] + "\n"] if model in NOTES else []),
        f"Text: {found['text']}, {len(reference['nll'])} windows, {reference['num_tokens']:,} tokens scored. "
        f"Arithmetic: {', '.join(arithmetic)}.\n",
        "| format | weights, MB | perplexity | against fp32 | mean KL | 99.9 % KL | top-1 |",
        "|---|---|---|---|---|---|---|",
        *(_line(name, rows) for name in sorted(rows, key=largest_first)),
        "",
        *(_loss_verdict(rows, *target) for target in LOSS_TARGETS if {*target[:2]} <= rows.keys()),
        *(_kl_verdict(rows, *target) for target in NO_WORSE if {*target} <= rows.keys()),
        *(_draws(**found["draws"]) if "draws" in found else []),
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, rows: dict[str, Any]) -> str:
    row = rows[name]
    value = perplexity(row["nll"])
    cells = [name, f"{row['weight_bytes'] / 1e6:,.1f}", f"{value.value:.3f} ± {value.error:.2f}"]
    if name == REFERENCE:
        return f"| {' | '.join(cells)} | - | - | - | - |"
    change, kl, top = relative_perplexity(row["nll"], rows[REFERENCE]["nll"]), mean(row["kl"]), mean(row["same_top"])
    cells += [_percent(change), f"{kl.value:.5f} ± {kl.error:.5f}", f"{row['kl_p999']:.4f}"]
    return f"| {' | '.join(cells)} | {top.value:.2%} ± {top.error:.2%} |"


def _loss_verdict(rows: dict[str, Any], name: str, base: str, limit: float) -> str:
    change = relative_perplexity(rows[name]["nll"], rows[base]["nll"])
    verdict = _verdict(change, limit)
    return f"- {name} against {base}: perplexity {_percent(change)}, at most {limit:+.1%}: {verdict}."


def _kl_verdict(rows: dict[str, Any], name: str, base: str) -> str:
    """KL decides: perplexity may fall by chance when a format is far from fp32."""
    further = mean([a - b for a, b in zip(rows[name]["kl"], rows[base]["kl"], strict=True)])
    change = relative_perplexity(rows[name]["nll"], rows[base]["nll"])
    return (
        f"- {name} against {base}: mean KL {further.value:+.5f} ± {further.error:.5f}, no further from fp32: "
        f"{_verdict(further, 0.0)}; perplexity {_percent(change)}."
    )


def _draws(num_windows: int, rows: list[dict[str, dict[str, float]]]) -> list[str]:
    """One model is one draw of rounding errors: what a format costs over several."""

    def over_draws(key: str, name: str, base: str | None = None) -> Estimate:
        return mean([row[name][key] - (row[base][key] if base else 0) for row in rows])

    lines = [
        "\nWith the model's values in "
        f"{len(rows)} orders ({num_windows} windows each; errors over orders): no prediction of fp32 changes, but\n"
        "every group does. What one order says of perplexity is chance: compare the error of the rows above.\n",
        "| format | perplexity against fp32 | one order more or less | mean KL |",
        "|---|---|---|---|",
    ]
    for name in rows[0]:
        change, kl = over_draws("perplexity", name), over_draws("kl", name)
        spread = change.error * len(rows) ** 0.5
        lines.append(f"| {name} | {_percent(change)} | {spread:.2%} | {kl.value:.5f} ± {kl.error:.5f} |")
    lines.append("")
    for name, base in NO_WORSE:
        if {name, base} <= rows[0].keys():
            change, kl = over_draws("perplexity", name, base), over_draws("kl", name, base)
            lines.append(
                f"- {name} against {base}: perplexity {_percent(change)}, no higher: {_verdict(change, 0.0)}; "
                f"mean KL {kl.value:+.5f} ± {kl.error:.5f}, no further from fp32: {_verdict(kl, 0.0)}."
            )
    return lines


def _verdict(found: Estimate, limit: float) -> str:
    """A value above the limit by less than two standard errors is not decided by this text."""
    if found.value <= limit:
        return "met"
    return "undecided" if found.value - 2 * found.error <= limit else "missed"


def _percent(change: Estimate) -> str:
    return f"{change.value:+.2%} ± {change.error:.2%}"
