"""What planning knows about a model: exact parameters, bytes and FLOPs, from `config.json` alone.

The formulas are in `parameters`, `kv` and `flops`; here they meet one model. Formats are names (`bf16`, `int4-g128`,
`q4_0`, ...), two joined by `+` where the output matrix has its own. "stored" is what the model was released in, from
its `quantization_config`, or exactly from its files where they are at hand; "gguf" is a GGUF file in our own executor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.config import nearest
from ridgeline.cost import flops, kv
from ridgeline.cost import parameters as weights
from ridgeline.cost.checkpoint import StoredTensors, read_gguf, read_held, read_safetensors
from ridgeline.errors import ConfigError
from ridgeline.model.anatomy import Anatomy
from ridgeline.model.catalog import catalog_entry, catalog_names
from ridgeline.model.families import ASSUMED_BF16, describe
from ridgeline.model.gguf_config import config_of
from ridgeline.quant.formats import FORMATS, GGUF, kv_format, weight_format
from ridgeline.quant.released import Release, release

if TYPE_CHECKING:
    from ridgeline.model.gguf import GgufFile
    from ridgeline.model.resolve import ModelFiles

STORED = "stored"
_GGUF_EMBEDDING, _GGUF_HEAD, _GGUF_EXPERTS = "token_embd.weight", "output.weight", "_exps."


@dataclass(frozen=True)
class ModelFacts:
    """Exact figures of one model. Sizes are bytes of the whole model, not of one device."""

    name: str
    anatomy: Anatomy
    nominal_parameters: float | None = None  # the round figure that textbooks use; catalog entries only
    files: StoredTensors | None = None  # what a checkpoint directory or a GGUF file holds
    is_gguf: bool = False
    held: StoredTensors | None = None  # a GGUF file's tensors as our executor holds them with dtype `gguf`

    @property
    def architecture(self) -> str:
        return self.anatomy.architecture

    @property
    def max_context(self) -> int:
        return self.anatomy.max_context_len

    @property
    def tied(self) -> bool:
        """The output matrix is the embedding table."""
        return self.anatomy.tied

    @property
    def parameters(self) -> int:
        """Unique ones: a tied output matrix counts once."""
        return weights.total_parameters(self.anatomy)

    @property
    def active_parameters(self) -> int:
        """Those that take part in one token, tables included."""
        return weights.active_parameters(self.anatomy)

    @property
    def embedding_parameters(self) -> int:
        """The input table."""
        return self.anatomy.embedding.num_values

    @property
    def read_parameters(self) -> int:
        """Read per decoded token at batch 1: the active ones without an input table that is only looked up."""
        return self.active_parameters - (0 if self.tied else self.embedding_parameters)

    @property
    def expert_parameters(self) -> int:
        experts = (layer.experts for layer in self.anatomy.layers)
        return sum(e.total * e.num_values for e in experts if e)

    @property
    def stored_format(self) -> str:
        """A name for what "stored" means: `bf16`, `fp8-128x128`, ..., or that of the files."""
        if self.is_gguf:
            return "gguf"
        return self._release.fmt.name if self._release else self.anatomy.stored_dtype

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences for the reader: what the figures take for granted or leave out."""
        return () if self.is_gguf else (*self.anatomy.assumptions, *self.anatomy.warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the assumptions that a reader should be told in any case: something may be amiss."""
        return () if self.is_gguf else self.anatomy.warnings

    @property
    def note(self) -> str | None:
        """What the files hold beside the unique parameters; None when there is nothing to explain."""
        if self.files is None or self.is_gguf or self._release:
            return None
        return self.files.explain(self.parameters, self.tied)

    @cached_property
    def _release(self) -> Release | None:
        config = self.anatomy.quantization
        return release(config, self.name) if config else None

    @cached_property
    def _stored_formats(self) -> weights.WeightFormats:
        plain = FORMATS[self.anatomy.stored_dtype]
        released = self._release
        if released is None:
            return weights.WeightFormats(plain, plain, plain)
        modules = [
            weights.module_name(matrix, i)
            for i, layer in enumerate(self.anatomy.layers)
            for matrix in layer.matrices + (layer.experts.matrices if layer.experts else ())
        ]
        released.refuse_unknown(modules, len(self.anatomy.layers), self.name)
        return weights.WeightFormats(released.fmt, plain, plain, released)

    def _formats(self, fmt: str) -> weights.WeightFormats:
        if fmt.lower() == STORED:
            return self._stored_formats
        if fmt.lower().startswith(GGUF):
            if "+" in fmt:
                hint = "leave --head-dtype out, the file's own is counted"
                raise ConfigError(f"a plan in {GGUF} has no output matrix of another format: {fmt!r}", hint=hint)
            raise ConfigError(f"{self.name} is no .gguf file, so there is no format {fmt!r}")
        own, _, head = fmt.partition("+")
        return weights.uniform_formats(weight_format(own), weight_format(head) if head else None)

    def weight_bytes(self, fmt: str) -> int:
        """All weights in `fmt`, or as stored, without a copy of a tied output matrix."""
        if fmt.lower() == GGUF and self.held:
            return self.held.num_bytes
        if fmt.lower() == STORED and self.files:
            return self.files.num_bytes - self.files.tied_copy_bytes(self.tied)
        return weights.weight_bytes(self.anatomy, self._formats(fmt))

    def decode_read_bytes(self, fmt: str, batch: int = 1) -> float:
        """Weights that one decode step of `batch` sequences reads."""
        if fmt.lower() == STORED and self.is_gguf and self.files:
            return self._gguf_read_bytes(self.files, batch)
        if fmt.lower() == GGUF and self.held:
            return self._gguf_read_bytes(self.held, batch)
        return weights.decode_read_bytes(self.anatomy, self._formats(fmt), batch)

    def _gguf_read_bytes(self, files: StoredTensors, batch: int) -> float:
        """As `parameters.decode_read_bytes`, from the bytes of the file's tensors."""
        unread = 0.0
        if _GGUF_HEAD in files.tensors:
            unread += files.bytes_of(_GGUF_EMBEDDING) * (1 - min(batch / self.anatomy.vocab_size, 1))
        experts = next((layer.experts for layer in self.anatomy.layers if layer.experts), None)
        if experts:
            names = [name for name in files.tensors if _GGUF_EXPERTS in name]
            unread += files.bytes_of(*names) * (1 - weights.distinct_experts(experts, batch) / experts.total)
        return files.num_bytes - unread

    def cache_groups(self, kv_fmt: str = "bf16") -> tuple[kv.CacheGroup, ...]:
        """The layers by kind of cache, with their bytes."""
        return kv.cache_groups(self.anatomy, kv_format(kv_fmt))

    def kv_bytes_per_token(self, kv_fmt: str = "bf16") -> int:
        """By how much one sequence grows per token: windows that are full and states do not."""
        return kv.kv_bytes_per_token(self.anatomy, kv_format(kv_fmt))

    def kv_bytes(self, context: int, kv_fmt: str = "bf16") -> int:
        """Of one sequence at this context, windows and states included."""
        return kv.kv_bytes(self.anatomy, context, kv_format(kv_fmt))

    def kv_read_bytes(self, context: int, kv_fmt: str = "bf16") -> int:
        """Cache traffic of one decode step of one sequence at this context."""
        return kv.decode_read_bytes(self.anatomy, context, kv_format(kv_fmt))

    def linear_flops(self, num_tokens: int, num_logit_rows: int) -> float:
        """Products with weights: layers per token, the output matrix per row of logits."""
        return flops.linear_flops(self.anatomy, num_tokens, num_logit_rows)

    def attention_flops(self, start: int, end: int) -> float:
        """Of the tokens at positions start..end-1, causal, over all that came before."""
        return flops.attention_flops(self.anatomy, start, end)


def facts_from_config(
    config: dict[str, Any], *, name: str, source: str | None = None, nominal_parameters: float | None = None
) -> ModelFacts:
    """Raises ConfigError for what is missing or unknown in a `config.json`."""
    return ModelFacts(name, describe(config, source=source or name), nominal_parameters)


def load_facts(model: str, dtype: str | None = None) -> ModelFacts:
    """A path (config.json, checkpoint directory, .gguf), a catalog name, `ollama:NAME` or a Hugging Face id, of which
    only the config.json is fetched. For the `dtype` gguf it is the files of that name even where the catalog has one.
    Raises ConfigError or CheckpointError."""
    needs_files = dtype == GGUF or Path(model).expanduser().exists()
    entry = None if needs_files else catalog_entry(model)
    if entry:
        return facts_from_config(entry["config"], name=model, nominal_parameters=entry.get("nominal_parameters"))
    from ridgeline.model import hub  # what is at hand by name needs none of this
    from ridgeline.model.resolve import read_json, resolve_model

    if re.fullmatch(hub.ID_PATTERN, model) and not Path(model).exists():
        path = hub.find_config(model)
        return facts_from_config(read_json(path), name=model, source=str(path))
    try:
        files = resolve_model(model)
    except ConfigError as error:
        if error.message.startswith("unknown model"):
            raise ConfigError(f"unknown model {model!r}", hint=nearest(model.lower(), catalog_names())) from error
        raise
    if files.kind == "gguf":
        return _gguf_facts(files.name, files.gguf)
    path = files.path / "config.json" if files.kind == "directory" else files.path
    config = read_json(path)
    anatomy = describe(config, source=str(path))
    stored = read_safetensors(files.path) if files.kind == "directory" else None
    if stored is not None:
        anatomy = _as_stored(anatomy, stored, files, config.get("dtype") or config.get("torch_dtype"))
    return ModelFacts(files.name, anatomy, files=stored)


def _as_stored(anatomy: Anatomy, stored: StoredTensors, files: ModelFiles, said_dtype: str | None) -> Anatomy:
    """What the tensors say counts, as in `model/stored.py`: their number type, and an output matrix of its own."""
    from ridgeline.model.stored import dtype_warning, own_head_warning

    source, warnings, assumptions = str(files.path), list(anatomy.warnings), anatomy.assumptions
    dtype = stored.main_dtype if stored.main_dtype and not anatomy.quantization else anatomy.stored_dtype
    if dtype != anatomy.stored_dtype and said_dtype:
        warnings.append(dtype_warning(source, said_dtype, dtype))
    if stored.main_dtype:
        assumptions = tuple(line for line in assumptions if line != ASSUMED_BF16)
    own_head = stored.tied_copy_bytes(anatomy.tied) > 0 and files.has_own_head
    if own_head:
        warnings.append(own_head_warning(source))
    return replace(
        anatomy,
        stored_dtype=dtype,
        tied=anatomy.tied and not own_head,
        assumptions=assumptions,
        warnings=tuple(warnings),
    )


def _gguf_facts(name: str, file: GgufFile) -> ModelFacts:
    path = file.path
    shapes = {tensor.name: tensor.shape for tensor in file.tensors.values()}
    stored = read_gguf(file)
    anatomy = describe(config_of(file.metadata, shapes, source=str(path)), source=str(path))
    described, held = weights.total_parameters(anatomy), stored.num_parameters
    if described != held:
        raise ConfigError(f"{path}: the file holds {held:,} parameters, its metadata describes {described:,}")
    return ModelFacts(name, anatomy, files=stored, is_gguf=True, held=read_held(file))
