"""`ridgeline inspect`: what is in a checkpoint, and whether it can be served.

What is read is the spec, the tensors' names and types, the vocabulary and the template, never the weights: so it is
quick, and works for models that do not fit in memory. What is broken is reported beside what is not.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ridgeline.cli.options import Json, Model, takes
from ridgeline.cli.output import print_json, warn
from ridgeline.cost.memory import kv_bytes_per_token, weight_bytes
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.quant.formats import SERVED
from ridgeline.units import format_bytes

if TYPE_CHECKING:
    from ridgeline.model.chat_template import ChatTemplate
    from ridgeline.model.resolve import ModelFiles
    from ridgeline.model.spec import ModelSpec
    from ridgeline.model.tokenizer import Tokenizer

_SAMPLE = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "First question"},
    {"role": "assistant", "content": "First answer"},
    {"role": "user", "content": "Second question"},
]


@takes()
def inspect(model: Model, as_json: Json = False) -> None:
    """Show what a checkpoint holds: dimensions, formats, tokenizer, chat template."""
    report = inspect_model(model)
    warn(report["assumptions"])
    if as_json:
        print_json(report)
    else:
        _print(report)


def inspect_model(model: str) -> dict[str, Any]:
    """The report, as `--json` prints it. Raises ConfigError or CheckpointError when there is no spec to be had."""
    from ridgeline.model.resolve import load_spec, resolve_model

    files = resolve_model(model)
    spec = load_spec(files)
    problems: list[str] = []
    formats = _collect(problems, lambda: _formats(files, spec), [])
    _collect(problems, lambda: _check_servable(spec), None)
    tokenizer, template = _collect(problems, lambda: _text_side(files), (None, None))
    return {
        "model": files.name,
        "kind": files.kind,
        "path": str(files.path),
        "architecture": spec.architecture,
        "parameters": spec.num_parameters,
        "spec": {key: value for key, value in dataclasses.asdict(spec).items() if key != "warnings"},
        "formats": formats,
        "stored_bytes": sum(row["bytes"] for row in formats),
        "bf16_weight_bytes": weight_bytes(spec, "bf16"),
        "runs_as": _runs_as(files, spec) if formats else [],
        "bf16_kv_bytes_per_token": kv_bytes_per_token(spec, "bf16"),
        "tokenizer": _tokenizer_facts(files, tokenizer),
        "chat_template": _lint(template, tokenizer),
        "sampling": _collect(problems, lambda: _sampling(files), None),
        "assumptions": list(spec.warnings),
        "servable": not problems,
        "problems": problems,
    }


def _collect(problems: list[str], attempt: Any, otherwise: Any) -> Any:
    try:
        return attempt()
    except RidgelineError as error:
        problems.append(str(error))
        return otherwise


def _check_servable(spec: ModelSpec) -> None:
    from ridgeline.model.program import supports

    supports(spec)


def _text_side(files: ModelFiles) -> tuple[Tokenizer | None, ChatTemplate | None]:
    from ridgeline.model.chat_template import load_chat_template
    from ridgeline.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(files)
    return tokenizer, None if tokenizer is None else load_chat_template(files, tokenizer)


def _sampling(files: ModelFiles) -> dict[str, Any]:
    """What the checkpoint recommends, and what it sets beside that goes unread here."""
    from ridgeline.model.generation import generation_defaults, unread_settings

    return {"defaults": generation_defaults(files), "unread": unread_settings(files)}


def _formats(files: ModelFiles, spec: ModelSpec) -> list[dict[str, Any]]:
    """Per class of weights (`q` of every layer is one class) and storage type: tensors, parameters, bytes."""
    from ridgeline.model.tensors import stored_bytes
    from ridgeline.model.weights import open_weights

    rows: dict[tuple[str, str], dict[str, Any]] = defaultdict(lambda: {"tensors": 0, "parameters": 0, "bytes": 0})
    weights = open_weights(files, spec)
    for name, shape in weights.shapes.items():
        stored_type = weights.stored_type(name)
        row = rows[name.rpartition(".")[2], stored_type]
        row["tensors"] += 1
        row["parameters"] += math.prod(shape)
        row["bytes"] += stored_bytes(stored_type, shape)
    weights.close()
    return [{"weights": kind, "format": stored_type, **row} for (kind, stored_type), row in rows.items()]


def _runs_as(files: ModelFiles, spec: ModelSpec) -> list[dict[str, Any]]:
    """Each `--dtype`: both sides of its products, and the memory its weights take."""
    from ridgeline.model.quantized import arithmetic, held_bytes, in_format
    from ridgeline.model.weights import open_weights

    source = open_weights(files, spec)
    rows = []
    for dtype in SERVED:
        try:
            weights = in_format(source, spec, dtype)
        except ConfigError:  # gguf, of another kind of file
            continue
        rows.append({"dtype": dtype, "arithmetic": arithmetic(weights, dtype), "bytes": held_bytes(weights, dtype)})
    source.close()
    return rows


def _tokenizer_facts(files: ModelFiles, tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    if tokenizer is None:
        return None

    def spelled(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.token_text(token_id)

    return {
        "vocab_size": tokenizer.vocab_size,
        "pre_tokenizer": _pre_tokenizer(files),
        "bos": spelled(tokenizer.bos_token_id),
        "adds_bos": tokenizer.adds_bos,
        "eos": [spelled(token_id) for token_id in sorted(tokenizer.eos_token_ids)],
    }


def _pre_tokenizer(files: ModelFiles) -> str | None:
    if files.kind == "gguf":
        metadata = files.gguf.metadata
        return metadata.get("tokenizer.ggml.pre") or metadata.get("tokenizer.ggml.model")
    path = files.path / "tokenizer.json"
    stage = json.loads(path.read_text(encoding="utf-8")).get("pre_tokenizer") if path.exists() else None
    if stage is None:
        return None
    return " + ".join(str(part.get("type")) for part in stage.get("pretokenizers") or [stage])


def _lint(template: ChatTemplate | None, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Renders a conversation and looks for what commonly goes wrong with templates."""
    if template is None or tokenizer is None:
        return {"present": False, "problems": [], "sample": None}
    try:
        sample = template.render(_SAMPLE)
        ids = template.encode(_SAMPLE)
        without_prompt = template.encode(_SAMPLE, add_generation_prompt=False)
    except RidgelineError as error:
        return {"present": True, "problems": [f"a plain conversation does not render: {error}"], "sample": None}
    problems = [f"{m['role']} message is left out" for m in _SAMPLE if m["content"] not in sample]
    num_bos = ids.count(tokenizer.bos_token_id) if tokenizer.adds_bos and tokenizer.bos_token_id is not None else 1
    if num_bos != 1:
        problems.append(f"{num_bos} BOS tokens in a conversation, there should be one")
    if ids == without_prompt:
        problems.append("add_generation_prompt changes nothing: the model is not told to answer")
    return {"present": True, "problems": problems, "sample": sample}


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    spec = report["spec"]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (
        ("model", f"{report['model']} ({report['path']})"),
        ("architecture", f"{report['architecture']}, {report['parameters'] / 1e6:,.1f} M parameters"),
        ("layers", f"{spec['num_layers']} of width {spec['hidden_size']}, MLP {spec['intermediate_size']}"),
        ("attention", f"{spec['num_heads']} heads, {spec['num_kv_heads']} KV heads of {spec['head_dim']}"),
        ("context", f"{spec['max_context_len']:,} tokens"),
        ("stored", format_bytes(report["stored_bytes"])),
        ("as bf16", f"{format_bytes(report['bf16_weight_bytes'])}, KV {report['bf16_kv_bytes_per_token']:,} B/token"),
        ("tokenizer", _tokenizer_line(report["tokenizer"])),
        ("chat template", _template_line(report["chat_template"])),
        ("sampling", _sampling_line(report["sampling"])),
        ("can be served", "yes" if report["servable"] else "no: " + "; ".join(report["problems"])),
    ):
        facts.add_row(f"[bold]{name}", value)
    console.print(facts)
    table = Table("weights", "format", "tensors", "parameters", "bytes", title="stored formats", title_justify="left")
    for row in report["formats"]:
        table.add_row(row["weights"], row["format"], *(f"{row[k]:,}" for k in ("tensors", "parameters", "bytes")))
    if report["formats"]:
        console.print(table)
    table = Table("--dtype", "products", "weight bytes", title="runs as", title_justify="left")
    for row in report["runs_as"]:
        table.add_row(row["dtype"], row["arithmetic"], f"{row['bytes']:,}")
    if report["runs_as"]:
        console.print(table)


def _tokenizer_line(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "none: prompts must be token ids"
    bos = f"BOS {facts['bos']} {'added' if facts['adds_bos'] else 'not added'}" if facts["bos"] else "no BOS"
    return f"{facts['vocab_size']:,} tokens, {facts['pre_tokenizer']}, {bos}, EOS {' '.join(facts['eos'])}"


def _template_line(facts: dict[str, Any]) -> str:
    if not facts["present"]:
        return "none: raw completions only"
    return "; ".join(facts["problems"]) or "renders a conversation as it should"


def _sampling_line(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "cannot be read"
    defaults = ", ".join(f"{name} {value:g}" for name, value in facts["defaults"].items()) or "nothing recommended"
    return "; ".join([defaults, *(f"not read here: {setting}" for setting in facts["unread"])])
