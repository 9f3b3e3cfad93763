"""Models of the Hugging Face hub: the local cache that all its tools share, else a download.

Cache layout: `models--Org--Name/refs/main` holds a commit, `models--Org--Name/snapshots/COMMIT/` the files. A download
needs the optional package huggingface_hub, which shows its own progress bars on stderr.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.errors import CheckpointError, ConfigError

ID_PATTERN = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_PREFIX = "models--"
_FILES = ("*.json", "*.safetensors", "*.jinja")  # no pickles, no other frameworks
_COPIES = ("*/*", "consolidated*")  # the same weights again, in other layouts


def cache_dir() -> Path:
    """Where the hub's tools keep models: by environment variable, else ~/.cache/huggingface/hub."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{cache_home}/huggingface").expanduser() / "hub"


def cached_ids() -> list[str]:
    """Ids of the models in the cache, complete ones only."""
    ids = (path.name.removeprefix(_PREFIX).replace("--", "/", 1) for path in cache_dir().glob(_PREFIX + "*"))
    return sorted(model_id for model_id in ids if find_cached(model_id))


def find_cached(model_id: str) -> Path | None:
    """The snapshot of `main`, or the only one, when it is complete: config and all weight files."""
    root = cache_dir() / (_PREFIX + model_id.replace("/", "--"))
    main = root / "refs" / "main"
    if main.is_file():
        snapshot = root / "snapshots" / main.read_text().strip()
    else:
        snapshots = list((root / "snapshots").glob("*"))
        if len(snapshots) != 1:
            return None
        snapshot = snapshots[0]
    return snapshot if _is_complete(snapshot) else None


def find_or_download(model_id: str) -> Path:
    """The directory with the model's files. Raises ConfigError that says how to provide them by hand."""
    return find_cached(model_id) or _download(model_id)


def find_config(model_id: str) -> Path:
    """`config.json` alone, from the cache or downloaded. Raises ConfigError."""
    snapshots = cache_dir() / (_PREFIX + model_id.replace("/", "--")) / "snapshots"
    cached = sorted(snapshots.glob("*/config.json"))
    if cached:
        return cached[-1]
    return _fetch(
        model_id,
        lambda hub: hub.hf_hub_download(model_id, "config.json", cache_dir=cache_dir()),
        by_hand="give the path of its config.json",
    )


def _fetch(model_id: str, download: Callable[[Any], str], *, by_hand: str) -> Path:
    """What `download` gets by the package huggingface_hub. Raises ConfigError that says why it cannot, and what to do
    instead."""
    missing = f"{model_id} is not in the local hub cache {cache_dir()}"
    if _is_offline():
        raise ConfigError(f"{missing}, and HF_HUB_OFFLINE forbids a download", hint=by_hand)
    try:
        import huggingface_hub
    except ImportError as error:
        hint = f"pip install 'ridgeline[hub]', or {by_hand}"
        raise ConfigError(f"{missing}, and huggingface_hub is not installed", hint=hint) from error
    try:
        return Path(download(huggingface_hub))
    except Exception as error:  # the package lets its HTTP client's errors through: no common base
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{missing}, and the download failed: {reason}", hint=by_hand) from error


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _is_complete(snapshot: Path) -> bool:
    from ridgeline.model.safetensors import INDEX_FILE, SINGLE_FILE, shard_names

    if not (snapshot / "config.json").exists():
        return False
    if not (snapshot / INDEX_FILE).exists():
        return (snapshot / SINGLE_FILE).exists()
    try:
        shards = set(shard_names(snapshot).values())
    except CheckpointError:
        return False
    return all((snapshot / shard).exists() for shard in shards)


def _download(model_id: str) -> Path:
    by_hand = "put config.json, tokenizer.json and the .safetensors files in a directory and give its path"
    patterns = {"allow_patterns": list(_FILES), "ignore_patterns": list(_COPIES)}
    path = _fetch(
        model_id, lambda hub: hub.snapshot_download(model_id, cache_dir=cache_dir(), **patterns), by_hand=by_hand
    )
    if not _is_complete(path):
        raise ConfigError(f"{model_id} on the hub has no config.json with safetensors weights", hint=by_hand)
    return path
