"""The vocabulary of a Hugging Face checkpoint: `tokenizer.json` and the configs beside it.

`tokenizer.json` says how text becomes tokens; the configs name tokens and may add some. Only BPE is read, byte-level or
in SentencePiece's spelling: the families that we serve use nothing else. Merges that spell a control token are dropped,
which SentencePiece itself never does either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.resolve import read_json
from ridgeline.model.vocabulary import Spelling, Vocabulary, turn_ends

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def from_directory(directory: Path, chat_templates: Mapping[str, str]) -> Vocabulary | None:
    """The vocabulary of a Hugging Face checkpoint, or None when the directory holds no tokenizer at all."""
    path = directory / "tokenizer.json"
    if not path.exists():
        others = [name for name in ("tokenizer.model", "vocab.json") if (directory / name).exists()]
        if others:
            raise CheckpointError(
                f"{directory}: has {others[0]} but no tokenizer.json",
                hint="load it with transformers' AutoTokenizer and save_pretrained writes one",
            )
        return None
    declared = read_json(path)
    config = read_config(directory / "tokenizer_config.json")
    model_config = read_config(directory / "config.json")
    backend, continuation = _load_backends(path, declared, config)
    named = _named_tokens(config, read_config(directory / "special_tokens_map.json"))
    bos_token_id, eos_token_id = (backend.token_to_id(named.get(name, "")) for name in ("bos_token", "eos_token"))
    eos = _eos_ids(model_config) | _eos_ids(read_config(directory / "generation_config.json"))
    eos |= turn_ends(backend, chat_templates) | ({eos_token_id} if eos_token_id is not None else set())
    highest_id = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    spelling = _spelling(path, declared)
    return Vocabulary(
        backend=backend,
        continuation=continuation,
        spelling=spelling,
        size=max(highest_id + 1, model_config.get("vocab_size") or 0),
        added=backend.get_added_tokens_decoder(),
        named_tokens=named,
        bos_token_id=bos_token_id,
        eos_token_ids=frozenset(eos),
        adds_bos=_adds_bos(config, backend, bos_token_id),
        strips_leading_space=spelling == "sentencepiece" and _strips_leading_space(declared),
    )


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a file that a checkpoint may do without; none when it does."""
    return read_json(path) if path.exists() else {}


def _load_backends(path: Path, declared: dict[str, Any], config: dict[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """The backend for the beginning of a sequence and the one for what follows a control token."""
    model = declared.get("model") or {}
    if model.get("type", "BPE") != "BPE":
        raise ConfigError(f"{path}: tokenizer model {model['type']!r} is not supported", hint="supported: BPE")
    control = {token["content"] for token in declared.get("added_tokens") or () if token["special"]}
    merges = [merge for merge in model.get("merges") or () if _merged(merge) not in control]
    plain = {**declared, "model": {**model, "merges": merges}}
    backend = _backend(path, plain, config)
    if "first" not in (step.get("prepend_scheme") for step in _steps(declared, "pre_tokenizer")):
        return backend, backend
    for step in _steps(plain, "pre_tokenizer"):
        step["prepend_scheme"] = "never"
    return backend, _backend(path, plain, config)


def _backend(path: Path, declared: dict[str, Any], config: dict[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer

    try:
        backend = Tokenizer.from_str(json.dumps(declared))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: cannot be loaded: {error}") from error
    # tokenizer_config may declare tokens that tokenizer.json lacks.
    for token_id, token in sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])):
        flags = {name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        backend.add_tokens([AddedToken(token["content"], **flags)])
        if backend.token_to_id(token["content"]) != int(token_id):
            raise CheckpointError(f"{path}: has no token {token_id}, {token['content']!r} in tokenizer_config.json")
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def _merged(merge: str | list[str]) -> str:
    """What a merge makes: older files write it as "left right", newer ones as a pair."""
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _named_tokens(*configs: dict[str, Any]) -> dict[str, str]:
    """The first config that names a token wins."""
    named: dict[str, str] = {}
    for config in configs:
        for name in _TOKEN_NAMES:
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _eos_ids(config: dict[str, Any]) -> set[int]:
    declared = config.get("eos_token_id")
    return set(declared) if isinstance(declared, list) else set() if declared is None else {declared}


def _adds_bos(config: dict[str, Any], backend: Tokenizer, bos_token_id: int | None) -> bool:
    """As tokenizer_config says; else whether the post-processor puts BOS before an empty text."""
    declared = config.get("add_bos_token")
    if isinstance(declared, bool):
        return declared and bos_token_id is not None
    return bos_token_id is not None and backend.encode("").ids[:1] == [bos_token_id]


def _steps(declared: dict[str, Any], part: Literal["decoder", "pre_tokenizer"]) -> list[dict[str, Any]]:
    """What a part of tokenizer.json does: itself, or the steps of a sequence."""
    step = declared.get(part) or {}
    return list(step.get("decoders") or step.get("pretokenizers") or [step])


def _spelling(path: Path, declared: dict[str, Any]) -> Spelling:
    kinds = {step.get("type") for step in _steps(declared, "decoder")}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"ByteFallback", "Metaspace"}:
        return "sentencepiece"
    raise ConfigError(
        f"{path}: decoder {', '.join(sorted(map(str, kinds)))} is not supported",
        hint="supported: ByteLevel, and SentencePiece's ByteFallback or Metaspace",
    )


def _strips_leading_space(declared: dict[str, Any]) -> bool:
    for step in _steps(declared, "decoder"):
        if step["type"] == "Strip" and step.get("content") == " ":
            return bool(step["start"])
        if step["type"] == "Metaspace":
            return bool(step.get("prepend_scheme", "always") != "never")
    return False
