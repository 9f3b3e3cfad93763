"""How an executor comes by its packed weights: from a packed file where there is a sound one, else by packing.

What was packed is kept for the next start, unless nobody wants it or nothing can be written; then the weights stay in
memory, and that is told. A first start ends as every later one begins: on the mapped file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.executors.packed_directory import StoredFile, make_room
from ridgeline.executors.packed_file import BusyError, PackedFile, PackedFileError, file_bytes
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
    try:
        core.stand_on(packed.map(threads))
        return []
    except FileNotFoundError:
        problem = ""
    except (PackedFileError, ValueError) as error:  # ValueError: sections of other sizes
        problem = str(error)
    except OSError as error:
        problem = f"unreadable: {error.strerror}"
    pack()
    return _keep(core, packed, problem, threads, progress)


def _keep(
    core: Any, packed: PackedFile, problem: str, threads: int, progress: Callable[[str, float], None]
) -> list[str]:
    """Writes the file, and stands `core` on it. `problem` is that of the file before, if there was one."""
    sections = core.sections()
    num_bytes = file_bytes(sections)
    size = format_bytes(num_bytes)
    before = f"{packed.path} was {problem}: " if problem else ""
    in_memory = f"{before}the packed weights ({size}) stay in memory"
    if num_bytes > packed.max_bytes:
        bound = format_bytes(packed.max_bytes)
        return [f"{in_memory}, and the next start packs again: --packed-disk allows files of {bound} in all"]
    told: list[str] = []
    try:
        told += _tell_deleted(make_room(packed.path, num_bytes, packed.max_bytes), packed)
        packed.write(
            sections, threads, lambda share: progress(f"keeping the packed weights ({size}) in {packed.path}", share)
        )
        core.stand_on(packed.map(threads, verify=False))  # not both in memory at once
    except BusyError:
        return [*told, f"{in_memory}: another process is just writing {packed.path}"]
    except (OSError, PackedFileError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        return [
            *told,
            f"{in_memory}, and the next start packs again: {packed.path} cannot be kept: {why}; "
            "--packed-dir names another place, --no-packed-file keeps none",
        ]
    if problem:
        return [*told, f"{before}it is packed anew ({size})"]
    return [
        *told,
        f"the packed weights ({size}) are kept in {packed.path}: the next start maps them; the file may be deleted at "
        "any time, --no-packed-file keeps none",
    ]


def _tell_deleted(deleted: Sequence[StoredFile], packed: PackedFile) -> list[str]:
    if not deleted:
        return []
    names = ", ".join(f"{file.path.name} ({format_bytes(file.num_bytes)})" for file in deleted)
    bound = format_bytes(packed.max_bytes)
    return [f"deleted from {packed.path.parent}, to stay within the {bound} of --packed-disk, longest unused: {names}"]
