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
from ridgeline.model.checkpoint_fields import CheckpointFields, read_fields
from ridgeline.model.fields import short
from ridgeline.model.resolve import read_json
from ridgeline.model.vocabulary import Spelling, Vocabulary, turn_ends

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


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
    declared = CheckpointFields(read_json(path), str(path))
    config = read_fields(directory / "tokenizer_config.json")
    model_config = read_fields(directory / "config.json")
    backend, continuation = _load_backends(declared, config)
    named = _named_tokens(config, read_fields(directory / "special_tokens_map.json"))
    bos_token_id, eos_token_id = (backend.token_to_id(named.get(name, "")) for name in ("bos_token", "eos_token"))
    generation_config = read_fields(directory / "generation_config.json")
    eos = {*model_config.token_ids("eos_token_id"), *generation_config.token_ids("eos_token_id")}
    eos |= turn_ends(backend, chat_templates) | ({eos_token_id} if eos_token_id is not None else set())
    highest_id = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    spelling = _spelling(declared)
    return Vocabulary(
        backend=backend,
        continuation=continuation,
        spelling=spelling,
        size=max(highest_id + 1, model_config.count("vocab_size", 0, minimum=0)),
        added=backend.get_added_tokens_decoder(),
        named_tokens=named,
        bos_token_id=bos_token_id,
        eos_token_ids=frozenset(eos),
        adds_bos=_adds_bos(config, backend, bos_token_id),
        strips_leading_space=spelling == "sentencepiece" and _strips_leading_space(declared),
    )


def _load_backends(declared: CheckpointFields, config: CheckpointFields) -> tuple[Tokenizer, Tokenizer]:
    """The backend for the beginning of a sequence and the one for what follows a control token."""
    model = declared.under("model")
    kind = model.text("type", "BPE")
    if kind != "BPE":
        raise ConfigError(f"{declared.source}: tokenizer model {kind!r} is not supported", hint="supported: BPE")
    control = {token.text("content") for token in declared.objects("added_tokens") if token.flag("special")}
    merges = [merge for merge in model.items("merges") if _merged(model, merge) not in control]
    plain = {**declared.values, "model": {**model.values, "merges": merges}}
    added = _tokens_of_the_config(config)
    backend = _backend(plain, added, declared.source)
    if "first" not in (step.get("prepend_scheme") for step in _steps(declared, "pre_tokenizer")):
        return backend, backend
    later = plain | {"pre_tokenizer": _never_prepending(declared.table("pre_tokenizer"))}
    return backend, _backend(later, added, declared.source)


def _never_prepending(stage: dict[str, Any]) -> dict[str, Any]:
    """The pre-tokenizer `stage`, but that it puts no space before a text."""
    if stage.get("pretokenizers"):
        return stage | {"pretokenizers": [_never_prepending(step) for step in stage["pretokenizers"]]}
    return stage | {"prepend_scheme": "never"}


def _tokens_of_the_config(config: CheckpointFields) -> dict[int, AddedToken]:
    """What tokenizer_config.json declares, by id: tokenizer.json may lack some. A flag left out is the library's."""
    from tokenizers import AddedToken

    tokens = config.under("added_tokens_decoder")
    added: dict[int, AddedToken] = {}
    for key in tokens.values:
        if not (key.isascii() and key.isdigit()) or len(key) > 9:
            raise tokens.error(key, "is not the id of a token")
        if not isinstance(tokens.get(key), dict):
            raise tokens.error(key, f"is {short(tokens.get(key))}, not an object")
        token = tokens.under(key)
        given = {name: token.optional_flag(name) for name in _TOKEN_FLAGS}
        flags = {name: flag for name, flag in given.items() if flag is not None}
        if not (content := token.text("content")):
            raise token.error("content", "is missing or empty")
        added[int(key)] = AddedToken(content, **flags)
    return dict(sorted(added.items()))


def _backend(declared: dict[str, Any], added: dict[int, AddedToken], source: str) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_str(json.dumps(declared))
        for token_id, token in added.items():
            backend.add_tokens([token])
            if backend.token_to_id(token.content) != token_id:
                problem = f"has no token {token_id}, {token.content!r} in tokenizer_config.json"
                raise CheckpointError(f"{source}: {problem}", hint="fetch both files again, from one place")
    except CheckpointError:
        raise
    except BaseException as error:  # the library raises bare Exception, and where it panics less than that
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        raise CheckpointError(
            f"{source}: cannot be loaded: {error}", hint="mend the file, or fetch it again"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def _merged(model: CheckpointFields, merge: Any) -> str:
    """What a merge makes: older files write it as "left right", newer ones as a pair."""
    if isinstance(merge, str):
        return merge.replace(" ", "", 1)
    if not isinstance(merge, list) or not all(isinstance(part, str) for part in merge):
        raise model.error("merges", f'holds {short(merge)}, not a pair of tokens or "left right"')
    return "".join(merge)


def _named_tokens(*configs: CheckpointFields) -> dict[str, str]:
    """The first config that names a token wins."""
    named: dict[str, str] = {}
    for config in configs:
        for name in _TOKEN_NAMES:
            inside = isinstance(config.get(name), dict)
            text = config.under(name).optional_text("content") if inside else config.optional_text(name)
            if text is not None:
                named.setdefault(name, text)
    return named


def _adds_bos(config: CheckpointFields, backend: Tokenizer, bos_token_id: int | None) -> bool:
    """As tokenizer_config says; else whether the post-processor puts BOS before an empty text."""
    declared = config.optional_flag("add_bos_token")
    if declared is not None:
        return declared and bos_token_id is not None
    return bos_token_id is not None and backend.encode("").ids[:1] == [bos_token_id]


def _steps(declared: CheckpointFields, part: Literal["decoder", "pre_tokenizer"]) -> list[CheckpointFields]:
    """What a part of tokenizer.json does: itself, or the steps of a sequence."""
    step = declared.under(part)
    return step.objects("decoders") or step.objects("pretokenizers") or [step]


def _spelling(declared: CheckpointFields) -> Spelling:
    kinds = {step.text("type", "none") for step in _steps(declared, "decoder")}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"ByteFallback", "Metaspace"}:
        return "sentencepiece"
    raise ConfigError(
        f"{declared.source}: decoder {', '.join(sorted(kinds))} is not supported",
        hint="supported: ByteLevel, and SentencePiece's ByteFallback or Metaspace",
    )


def _strips_leading_space(declared: CheckpointFields) -> bool:
    for step in _steps(declared, "decoder"):
        if step.text("type") == "Strip" and step.get("content") == " ":
            return step.count("start", 0, minimum=0) > 0
        if step.text("type") == "Metaspace":
            return step.text("prepend_scheme", "always") != "never"
    return False
