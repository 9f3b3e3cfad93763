"""From names to a plan, for the command line and for Python: which device, which format, then `make_plan`."""

from __future__ import annotations

import sys
from typing import Any

from ridgeline.cost.facts import STORED, ModelFacts, load_facts
from ridgeline.cost.hardware import THIS, Hardware, find_device
from ridgeline.cost.plan import Plan, make_plan
from ridgeline.cost.question import Question
from ridgeline.cost.this import THIS_GPU, from_probe, load_this, load_this_gpu, save
from ridgeline.errors import ConfigError
from ridgeline.native_part import NativePartError, native_part
from ridgeline.quant.formats import FORMATS


def plan(
    model: str, *, hardware: str = THIS, dtype: str = "auto", kv_dtype: str = "bf16", devices: int = 1, **question: Any
) -> Plan:
    """What fits, how fast it can go and why, as `ridgeline plan` prints it. `question` has the fields of `Question`:
    input_len, output_len, batch, cached, context. Raises ConfigError.

        ridgeline.plan("qwen3-0.6b", hardware="h100-sxm", batch=32).batch_throughput_tokens_per_s
    """
    facts, device = load_facts(model, dtype), choose_hardware(hardware)
    wanted = Question(devices=devices, **question)
    device = None if device is None else device.times(devices)
    return make_plan(facts, device, wanted, dtype=choose_dtype(facts, dtype), kv_dtype=kv_dtype)


def choose_dtype(facts: ModelFacts, dtype: str) -> str:
    """`auto`: as the checkpoint holds it, part by part where its parts differ."""
    own, plus, head = dtype.lower().partition("+")
    if own == "auto":
        own = facts.stored_format if facts.stored_format in FORMATS and not facts.anatomy.quantization else STORED
    if plus and own == STORED:
        raise ConfigError("a head_dtype needs a dtype", hint="as stored, the output matrix has its own already")
    return own + plus + head


def choose_hardware(name: str) -> Hardware | None:
    """A device of the table, `this` or `this-gpu`. None, with the reason on stderr, where this machine cannot be
    measured. Raises ConfigError for a name that is unknown or ambiguous."""
    if name == THIS:
        return load_this() or _quick_look()
    if name == THIS_GPU:
        return load_this_gpu()
    return find_device(name)


def _quick_look() -> Hardware | None:
    """The first plan on a machine measures it for two seconds, and says so."""
    from ridgeline.cost.probe import QUICK, measure

    try:
        native_part()
        print("measuring this machine for two seconds; `ridgeline probe` does it well", file=sys.stderr)
        probe = measure(QUICK).as_json()
        save(probe)
    except (NativePartError, MemoryError, RuntimeError) as error:  # none here, or no memory for its buffers
        print(
            f"this machine was not measured ({getattr(error, 'message', error)}): figures of speed are left out; "
            "--hardware names a device, --bandwidth, --compute and --memory describe one",
            file=sys.stderr,
        )
        return None
    except ConfigError as error:
        print(f"measured, but not kept: {error}", file=sys.stderr)
    return from_probe(probe)
