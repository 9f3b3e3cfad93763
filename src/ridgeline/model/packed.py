"""Where the packed weights of a checkpoint are kept: `<cache>/ridgeline/packed/<model>-<format>-<hash>.ridge`.

The hash is of the checkpoint's place, so that a changed checkpoint replaces its packed file instead of leaving an old
one behind; the file itself knows which weights it was made from.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.config import ModelConfig
from ridgeline.errors import ConfigError
from ridgeline.model.fingerprint import weights_fingerprint
from ridgeline.model.resolve import ModelFiles

if TYPE_CHECKING:
    from ridgeline.executors.packed_file import PackedFile


def packed_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "ridgeline" / "packed"


def packed_file(files: ModelFiles, config: ModelConfig, formats: str) -> PackedFile | None:
    """The file for weights in `formats`, an executor's name of its number formats; None when none is wanted.

    Raises ConfigError for settings that contradict each other.
    """
    if config.executor != "native" or not config.packed_file:
        why = "packed_file is off" if config.executor == "native" else f"the {config.executor} executor keeps none"
        for name in ("packed_dir", "packed_disk"):
            if getattr(config, name) is not None:
                raise ConfigError(f"{name} is of packed weights, and {why}", hint="leave one of them out")
        return None
    from ridgeline.executors.packed_file import DEFAULT_MAX_BYTES, SUFFIX, PackedFile

    directory = packed_directory() if config.packed_dir is None else Path(config.packed_dir).expanduser()
    place = f"{files.path.resolve()} {config.weights}"
    name = re.sub(r"[^\w.]+", "-", files.name) + ("-random" if config.weights == "random" else "")
    digest = hashlib.blake2b(place.encode(), digest_size=4).hexdigest()
    path = directory / f"{name}-{formats}-{digest}{SUFFIX}"
    return PackedFile(path, weights_fingerprint(files, config.weights), config.packed_disk or DEFAULT_MAX_BYTES)
