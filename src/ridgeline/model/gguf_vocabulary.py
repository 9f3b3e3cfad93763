"""The vocabulary of a GGUF file.

Two kinds exist among the models that we serve. `gpt2` is byte-level BPE: the file holds tokens and merges, and names
the rule that cuts text into words before merging (`tokenizer.ggml.pre`) without spelling it out; a rule that is not in
`_WORD_RULES` is refused by name, since a wrong one degrades a model without any other sign. `llama` is SentencePiece
BPE: the file holds tokens and scores, and a pair of neighbours merges when it spells a token, the best score first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.config import nearest
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.checkpoint_fields import CheckpointFields
from ridgeline.model.fields import short
from ridgeline.model.vocabulary import Vocabulary, turn_ends

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

SPACE_MARK = "\u2581"  # SentencePiece writes spaces so

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class _WordRule:
    """How text is cut into words, and what else a family's byte-level BPE does its own way."""

    cut: Literal["gpt2", "digits", "regex"]
    regex: str = ""
    nfc: bool = False  # text is normalized to NFC first
    whole_words: bool = False  # a word that is a token is taken whole, even if no merges lead to it
    adds_bos: bool = False  # unless the file says otherwise


_GPT2 = _WordRule("gpt2")
_SMOLLM = _WordRule("digits")
_QWEN2 = _WordRule("regex", _QWEN2_WORDS, nfc=True)
_LLAMA3 = _WordRule("regex", _LLAMA3_WORDS, whole_words=True, adds_bos=True)
_WORD_RULES = {
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "qwen2": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def from_gguf(metadata: Mapping[str, Any], chat_templates: Mapping[str, str], *, source: str) -> Vocabulary | None:
    """The vocabulary that a GGUF file's `metadata` declares, or None when it declares none.

    Raises ConfigError for a kind or a pre-tokenizer that is not known, CheckpointError for missing or odd entries.
    """
    fields = CheckpointFields(metadata, source)
    kind = fields.text("tokenizer.ggml.model", "no_vocab")
    if kind in ("no_vocab", "none"):
        return None
    file = _File(metadata, source)
    if kind == "gpt2":
        rule = _word_rule(metadata, source)
        backend, adds_bos, adds_space = _byte_level(file, rule), rule.adds_bos, False
    elif kind == "llama":
        adds_space = fields.optional_flag("tokenizer.ggml.add_space_prefix") is not False
        backend, adds_bos = _sentencepiece(file, adds_space), True
    else:
        raise ConfigError(f"{source}: tokenizer model {kind!r} is not supported", hint="supported: gpt2, llama")
    added = file.added()
    backend.add_tokens(list(added.values()))
    backend.encode_special_tokens = True
    bos = file.named_id("bos")
    declared_bos = fields.optional_flag("tokenizer.ggml.add_bos_token")
    eos = {i for name in ("eos", "eot", "eom") if (i := file.named_id(name)) is not None}
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    named_ids = {variable: file.named_id(name) for name, variable in names.items()}
    return Vocabulary(
        backend=backend,
        continuation=backend,
        spelling="byte_level" if kind == "gpt2" else "sentencepiece",
        size=len(file.tokens),
        added=added,
        named_tokens={name: file.tokens[i] for name, i in named_ids.items() if i is not None},
        bos_token_id=bos,
        eos_token_ids=frozenset(eos | turn_ends(backend, chat_templates)),
        adds_bos=bos is not None and (adds_bos if declared_bos is None else declared_bos),
        strips_leading_space=adds_space,
    )


class _File:
    """The vocabulary's entries in the metadata, checked."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self.source = source
        self.tokens: list[str] = self.array("tokens", str)
        self.types: list[int] = self.array("token_type", int)
        if len(self.types) != len(self.tokens):
            raise CheckpointError(f"{source}: {len(self.tokens):,} tokens but {len(self.types):,} token types")
        # A token that no text may become needs no place in the backend; its id stays a hole.
        self.ids = {token: i for i, token in enumerate(self.tokens) if self.types[i] != UNUSED}

    def array(self, name: str, *kinds: type) -> list[Any]:
        """The list under `name`, all of whose values are of one of `kinds`."""
        values = self._metadata.get(f"tokenizer.ggml.{name}")
        if values is None:
            raise CheckpointError(f"{self.source}: has no tokenizer.ggml.{name}", hint="convert the model again")
        if not isinstance(values, list) or not set(map(type, values)) <= set(kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise CheckpointError(
                f"{self.source}: tokenizer.ggml.{name} is {short(values)}, not a list of {expected} values",
                hint="convert the model again",
            )
        return values

    def named_id(self, name: str) -> int | None:
        """The token that the file calls the bos, eos, eot, eom, unknown or padding token."""
        token_id = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is None:
            return None
        if type(token_id) is not int:
            raise CheckpointError(f"{self.source}: tokenizer.ggml.{name}_token_id is {short(token_id)}, not a token id")
        if not 0 <= token_id < len(self.tokens):
            raise CheckpointError(
                f"{self.source}: {name} token {token_id:,} is outside the vocabulary of {len(self.tokens):,} tokens"
            )
        return token_id

    def added(self) -> dict[int, AddedToken]:
        from tokenizers import AddedToken

        kinds = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}  # type -> is it a control token?
        return {
            i: AddedToken(self.tokens[i], special=kinds[kind], normalized=False)
            for i, kind in enumerate(self.types)
            if kind in kinds
        }


def _word_rule(metadata: Mapping[str, Any], source: str) -> _WordRule:
    name = CheckpointFields(metadata, source).optional_text("tokenizer.ggml.pre")
    if name is None:
        raise ConfigError(
            f"{source}: does not name its pre-tokenizer (tokenizer.ggml.pre)",
            hint="old converters left it out: convert the model again, a guess would degrade it",
        )
    if name not in _WORD_RULES:
        raise ConfigError(f"{source}: pre-tokenizer {name!r} is not supported", hint=nearest(name, list(_WORD_RULES)))
    return _WORD_RULES[name]


def _byte_level(file: _File, rule: _WordRule) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = [tuple(merge.split(" ", 1)) for merge in file.array("merges", str)]
    try:
        model = models.BPE(vocab=file.ids, merges=merges, ignore_merges=rule.whole_words)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{file.source}: tokens and merges do not fit together: {error}") from error
    backend = Tokenizer(model)
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _words(rule)
    backend.decoder = decoders.ByteLevel()
    return backend


def _words(rule: _WordRule) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if rule.cut == "regex":
        return Sequence([Split(Regex(rule.regex), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    gpt2 = ByteLevel(add_prefix_space=False, use_regex=True)
    return Sequence([Digits(individual_digits=True), gpt2]) if rule.cut == "digits" else gpt2


def _sentencepiece(file: _File, adds_space: bool) -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers

    unknown = file.named_id("unknown")
    model = models.BPE(
        vocab=file.ids,
        merges=_merges_by_score(file),
        unk_token=None if unknown is None else file.tokens[unknown],
        fuse_unk=True,
        byte_fallback=BYTE in file.types,
    )
    backend = Tokenizer(model)
    marks = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), marks]) if adds_space else marks
    return backend


def _merges_by_score(file: _File) -> list[tuple[str, str]]:
    """Every way to make a normal token of two others, the token with the best score first."""
    scores = file.array("scores", float, int)
    if len(scores) != len(file.tokens):
        raise CheckpointError(f"{file.source}: {len(file.tokens):,} tokens but {len(scores):,} scores")
    pieces = {token: i for token, i in file.ids.items() if file.types[i] == NORMAL}
    merges: list[tuple[str, str]] = []
    for piece in sorted(pieces, key=lambda piece: -scores[pieces[piece]]):
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        merges += [(left, right) for left, right in splits if left in pieces and right in pieces]
    return merges
