"""How an executor comes by its packed weights: from a packed file where there is a sound one, else by packing.

What was packed is kept for the next start, unless nobody wants it or nothing can be written; then the weights stay in
memory, and that is told. A first start ends as every later one begins: on the mapped file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeline.executors.packed_file import BusyError, PackedFile, PackedFileError
from ridgeline.units import format_bytes


def load_weights(
    core: Any,
    pack: Callable[[], None],
    packed: PackedFile | None,
    *,
    threads: int,
    progress: Callable[[str, float], None],
) -> list[str]:
    """Gives `core` its weights, by `pack` if need be; what a person should know of it."""
    if packed is None:
        pack()
        return []
    notices = []
    try:
        core.stand_on(packed.map(threads))
        return []
    except FileNotFoundError:
        pass
    except PackedFileError as error:
        notices.append(f"{packed.path} was packed anew: {error}")
    except OSError as error:
        notices.append(f"{packed.path} cannot be read: {error.strerror}")
    pack()
    return [*notices, _keep(core, packed, threads, progress)]


def _keep(core: Any, packed: PackedFile, threads: int, progress: Callable[[str, float], None]) -> str:
    sections = core.sections()
    size = format_bytes(sum(section.nbytes for section in sections))
    stage = f"keeping the packed weights ({size}) in {packed.path}"
    try:
        packed.write(sections, threads, lambda share: progress(stage, share))
        core.stand_on(packed.map(threads, verify=False))  # not both in memory at once
    except BusyError:
        return f"the packed weights stay in memory: another process is just writing {packed.path}"
    except (OSError, PackedFileError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or error
        return (
            f"the packed weights stay in memory, and the next start packs again: {packed.path} cannot be kept: "
            f"{problem}; --packed-dir names another place, --no-packed-file keeps none"
        )
    return (
        f"the packed weights ({size}) are kept in {packed.path}: the next start maps them; "
        "delete the file whenever you like, --no-packed-file keeps none"
    )
