"""Tokenizer: text to token ids and token ids to exact bytes.

`encode` parses control tokens only when asked to (`control=True`): what a user types stays text, whatever it spells.
`token_bytes` inverts a single token; a token may be a part of a character, so text comes from joining bytes first and
decoding UTF-8 after (`decode` here, `engine/text.py` in a stream), and both give the same text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ridgeline.errors import RequestError
from ridgeline.model.chat_template import read_chat_templates
from ridgeline.model.gguf_vocabulary import SPACE_MARK, from_gguf
from ridgeline.model.hf_vocabulary import from_directory
from ridgeline.model.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import AddedToken

    from ridgeline.model.resolve import ModelFiles


def load_tokenizer(files: ModelFiles) -> Tokenizer | None:
    """The tokenizer of a checkpoint, or None when it has none (a bare `config.json`, a GGUF without vocabulary)."""
    if files.kind == "config":
        return None
    templates = read_chat_templates(files)
    if files.kind == "gguf":
        vocabulary = from_gguf(files.gguf.metadata, templates, source=str(files.path))
    else:
        vocabulary = from_directory(files.path, templates)
    return None if vocabulary is None else Tokenizer(vocabulary)


class Tokenizer:
    """Thread-safe; nothing changes after construction."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._backend = vocabulary.backend
        self._continuation = vocabulary.continuation
        self._spell = _byte_level_bytes if vocabulary.spelling == "byte_level" else _sentencepiece_bytes
        self._added = vocabulary.added
        self._control = {token.content: (token_id, token) for token_id, token in self._added.items() if token.special}
        self._control_pattern = _control_pattern(token for _, token in self._control.values())
        self.vocab_size = vocabulary.size
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        self.adds_bos = vocabulary.adds_bos
        self.strips_leading_space = vocabulary.strips_leading_space
        self.named_tokens = vocabulary.named_tokens

    def encode(self, text: str, *, control: bool = False, bos: bool = False) -> list[int]:
        """Token ids of `text`. `control`: parse the control tokens that it spells, else they are plain text. `bos`: put
        the BOS token first, if this model's tokenizer adds one and `text` did not bring it."""
        _check_text(text, "prompt")
        ids = self.encode_pieces(self.split_control(text) if control else [text])
        return self.with_bos(ids) if bos else ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """`ids` with the BOS token in front, where this model's tokenizer adds one and it is not there yet."""
        if not self.adds_bos or self.bos_token_id is None or ids[:1] == [self.bos_token_id]:
            return ids
        return [self.bos_token_id, *ids]

    def split_control(self, text: str) -> list[str | int]:
        """`text` cut at the control tokens that it spells: pieces of plain text and control tokens' ids, in order. A
        token declared `lstrip` or `rstrip` swallows the white space on that side."""
        pieces: list[str | int] = []
        end, strip = 0, False
        for match in self._control_pattern.finditer(text):
            token_id, token = self._control[match[0]]
            between = text[end : match.start()]
            between = between.lstrip() if strip else between
            pieces += [between.rstrip() if token.lstrip else between, token_id]
            end, strip = match.end(), token.rstrip
        pieces.append(text[end:].lstrip() if strip else text[end:])
        return [piece for piece in pieces if piece != ""]

    def replace_control(self, text: str, replacement: Callable[[str], str]) -> str:
        """`text` with `replacement(token)` in place of each control token that it spells."""
        _check_text(text, "messages")
        return self._control_pattern.sub(lambda match: replacement(match[0]), text)

    def encode_pieces(self, pieces: Sequence[str | int]) -> list[int]:
        """The inverse of `split_control`: ids as they are, every string as plain text."""
        ids: list[int] = []
        backend = self._backend
        for piece in pieces:
            ids += [piece] if isinstance(piece, int) else backend.encode(piece, add_special_tokens=False).ids
            backend = self._continuation
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; control tokens are left out, or spelled out. Bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(self.token_bytes(i) if skip_special else self._spelled_bytes(i) for i in ids)
        text = data.decode("utf-8", "replace")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token contributes to the text; none for control tokens and padding rows."""
        return b"" if self.is_control(token_id) else self._spelled_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The token for people's eyes: control tokens spelled out, parts of characters as U+FFFD."""
        return self._spelled_bytes(token_id).decode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        self._check(token_id)
        token = self._added.get(token_id)
        return token is not None and token.special

    def _spelled_bytes(self, token_id: int) -> bytes:
        self._check(token_id)
        if token_id in self._added:
            return self._added[token_id].content.encode()
        spelling = self._backend.id_to_token(token_id)
        return b"" if spelling is None else self._spell(spelling)

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary of {self.vocab_size:,} tokens",
                hint=f"ids are 0 to {self.vocab_size - 1}",
                token_id=token_id,
                vocab_size=self.vocab_size,
            )


def _check_text(text: str, param: str) -> None:
    """Raises RequestError for half a surrogate pair, which is how Python spells bytes of a terminal or file that are no
    UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"holds {text[error.start]!a} at character {error.start}, which is no text"
        raise RequestError(f"{param} {problem}", param=param, hint="send UTF-8") from None


def _control_pattern(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """Finds control tokens, the longest first."""
    alternatives = [
        rf"(?<!\w){re.escape(token.content)}(?!\w)" if token.single_word else re.escape(token.content)
        for token in sorted(tokens, key=lambda token: -len(token.content))
    ]
    return re.compile("|".join(alternatives) or r"(?!)")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others as U+0100 and up, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_bytes(spelling: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in spelling])
    except KeyError:  # not spelled in the byte alphabet: the token is its own text
        return spelling.encode()


def _sentencepiece_bytes(spelling: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(spelling)
    return bytes.fromhex(byte[1]) if byte else spelling.replace(SPACE_MARK, " ").encode()
