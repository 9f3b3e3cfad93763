"""Models that Ollama has pulled, found in its store without asking a running Ollama.

Layout: `manifests/registry.ollama.ai/library/NAME/TAG` is JSON with a list of layers; the layer of media type
`application/vnd.ollama.image.model` is the GGUF file `blobs/sha256-...`. Ollama's own template and parameter layers
are Go templates and defaults of its server: they are not read, the GGUF file carries the model's chat template.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ridgeline.config import nearest
from ridgeline.errors import CheckpointError, ConfigError

_REGISTRY = "registry.ollama.ai"
_MODEL_TYPE = "application/vnd.ollama.image.model"
_ADAPTER_TYPE = "application/vnd.ollama.image.adapter"
_DEFAULT_TAG = "latest"
_NAME_PATTERN = r"((?:[\w-][\w.-]*/){0,2}[\w-][\w.-]*)(?::([\w-][\w.-]*))?"


def store_dir() -> Path:
    """OLLAMA_MODELS, else ~/.ollama/models."""
    return Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()


def pulled_models() -> list[str]:
    """`NAME:TAG` of the library models in the store, `USER/NAME:TAG` of the others."""
    root = store_dir() / "manifests" / _REGISTRY
    names = (path.relative_to(root).parts for path in root.glob("*/*/*"))
    return sorted(f"{name}:{tag}" if user == "library" else f"{user}/{name}:{tag}" for user, name, tag in names)


def find_gguf(model: str) -> Path:
    """The GGUF file of `NAME[:TAG]`. Raises ConfigError when Ollama has not pulled it, CheckpointError when its store
    is damaged."""
    manifest_path = _manifest_path(model)
    if not manifest_path.is_file():
        pulled = pulled_models()
        hint = nearest(model, pulled) if pulled else f"fetch it: ollama pull {model}"
        raise ConfigError(f"Ollama's store {store_dir()} has no model {model!r}", hint=hint)
    layers = _layers(manifest_path)
    if any(kind == _ADAPTER_TYPE for kind, _ in layers):
        raise ConfigError(f"Ollama's model {model!r} carries an adapter: not supported")
    digests = [digest for kind, digest in layers if kind == _MODEL_TYPE]
    if len(digests) != 1:
        raise ConfigError(f"Ollama's model {model!r} has {len(digests)} model files, must be one")
    blob = store_dir() / "blobs" / digests[0].replace(":", "-")
    if not blob.is_file():
        raise CheckpointError(f"{blob}: missing, {manifest_path} promises it", hint=f"ollama pull {model}")
    return blob


def _manifest_path(model: str) -> Path:
    match = re.fullmatch(_NAME_PATTERN, model)
    if match is None:
        raise ConfigError(f"{model!r} is not a name of Ollama's", hint="write ollama:NAME or ollama:NAME:TAG")
    parts = match[1].split("/")
    host_and_user = [_REGISTRY, "library"][: 3 - len(parts)]
    return store_dir().joinpath("manifests", *host_and_user, *parts, match[2] or _DEFAULT_TAG)


def _layers(path: Path) -> list[tuple[str, str]]:
    """(media type, digest) of each layer."""
    try:
        manifest: Any = json.loads(path.read_text(encoding="utf-8"))
        return [(str(layer["mediaType"]), str(layer["digest"])) for layer in manifest["layers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a manifest of Ollama's: {error!r}") from error
