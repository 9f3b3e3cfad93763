"""How tokens that are no whole characters, or share their text, are told in both shapes of logprobs."""

from __future__ import annotations

import math

import pytest

from ridgeline.engine.request import TokenLogprob
from ridgeline.server.logprobs import Echo, LegacyLogprobs, chat_logprobs
from scripted_server import BOS, CONTROL, EOS, ByteTokenizer, LiveServer, completion

PATH = "/v1/completions"


class WordTokenizer(ByteTokenizer):
    """Bytes, and words from 300 on: two of them spelled alike, and rows that spell nothing."""

    words = {300: b" \xf0\x9f", 301: b"a", 302: b"", 303: b"", 304: b"\xe2\x80", 305: b"\xe2\x80\x9c"}  # noqa: RUF012

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id] if token_id in self.words else super().token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        return CONTROL.get(token_id) or self.token_bytes(token_id).decode("utf-8", "replace")


def legacy(*tokens: TokenLogprob, spells_control: bool = False) -> LegacyLogprobs:
    return LegacyLogprobs(WordTokenizer(), spells_control=spells_control).piece(tokens)


def token(token_id: int, logprob: float | None = -1.0, top: tuple[tuple[int, float], ...] = ()) -> TokenLogprob:
    return TokenLogprob(token_id, logprob, top)


def test_alternatives_inside_a_character_stay_apart():
    top = ((0x80, -0.1), (0x81, -0.2), (0x99, -0.3), (0x9C, -0.4), (0xA9, -0.5))
    [found] = legacy(token(0x81, -0.2, top)).top_logprobs
    assert found == {
        r"bytes:\x80": -0.1, r"bytes:\x81": -0.2, r"bytes:\x99": -0.3, r"bytes:\x9c": -0.4, r"bytes:\xa9": -0.5,
    }  # fmt: skip
    assert list(found.values()) == [-0.1, -0.2, -0.3, -0.4, -0.5]  # the likeliest first


def test_parts_of_characters_are_told_as_openai_tells_them():
    assert legacy(*map(token, (304, 0x9C, 305, 300, ord("a"), EOS))).tokens == [
        r"bytes:\xe2\x80", r"bytes:\x9c", "“", r"bytes: \xf0\x9f", "a", CONTROL[EOS],
    ]  # fmt: skip
    content = chat_logprobs([token(304, -1.0, ((300, -0.5), (0xFF, -0.7), (305, -math.inf)))], WordTokenizer()).content
    assert (content[0].token, content[0].bytes) == (r"\xe2\x80", [0xE2, 0x80])
    assert [(top.token, top.logprob, top.bytes) for top in content[0].top_logprobs] == [
        (r" \xf0\x9f", -0.5, [0x20, 0xF0, 0x9F]),
        (r"\xff", -0.7, [0xFF]),
        ("“", -9999.0, [0xE2, 0x80, 0x9C]),
    ]


def test_tokens_that_share_their_text_stay_apart():
    top = ((ord("a"), -0.1), (301, -0.2), (302, -0.3), (303, -0.4))
    assert legacy(token(ord("a"), -0.1, top)).top_logprobs == [
        {"a": -0.1, "token_id:301": -0.2, "": -0.3, "token_id:303": -0.4}
    ]
    [found] = legacy(token(301, -0.2, top)).top_logprobs  # what was chosen is found under its name in `tokens`
    assert found == {"token_id:97": -0.1, "a": -0.2, "": -0.3, "token_id:303": -0.4}
    [found] = legacy(token(303, -5.0, top[:3])).top_logprobs
    assert found == {"a": -0.1, "token_id:301": -0.2, "token_id:302": -0.3, "": -5.0}
    assert legacy(token(97, None, top)).top_logprobs == [None]
    assert legacy(token(97, -math.inf)).top_logprobs == [{"a": -9999.0}]


@pytest.mark.parametrize(
    "ids",
    [
        b"a\xc3\xa9b", b"\xe2\x80\x9c", b"\xe2\x80", b"\xe2\x80a", b"\x80\x80a", b"\xff\xc3\xa9",
        b"\xf0\x9f\xe2\x80\x9cx",
        [97, 304, 0x9C, 98], [300, 0x91, 0x8D, 97], [304, 305, 97], [304, EOS, 0x9C, 97], [BOS, 97, 304],
    ],
)  # fmt: skip
@pytest.mark.parametrize("spells_control", [False, True])
def test_offsets_are_places_in_the_text(ids, spells_control):
    tokenizer = WordTokenizer()
    text = tokenizer.decode(ids, skip_special=not spells_control)
    offsets = legacy(*map(token, ids), spells_control=spells_control).text_offset
    assert offsets == sorted(offsets)
    for place, (token_id, offset) in enumerate(zip(ids, offsets, strict=True)):
        before = tokenizer.decode(ids[:place], skip_special=not spells_control)
        assert offset == len(before) <= len(text) + 1
        name = tokenizer.token_text(token_id)
        if "\ufffd" not in before + name and (spells_control or token_id not in CONTROL):
            assert text[offset:].startswith(name)


def test_offsets_go_on_after_an_echo_that_ends_inside_a_character():
    tokenizer, ids = WordTokenizer(), [97, 304]
    builder = LegacyLogprobs(tokenizer, spells_control=False)
    assert builder.echo(Echo(tokenizer.decode(ids), spells_control=False), [*map(token, ids)]).text_offset == [0, 1]
    assert builder.piece([token(0x9C), token(98)]).text_offset == [2, 3]  # the text: a, U+FFFD, U+FFFD, b
    assert builder.piece([token(99)]).text_offset == [4]


def test_a_completion_of_a_prompt_that_ends_inside_a_character(server: LiveServer) -> None:
    prompt = [*"say:é".encode(), *b"say:\xa9\xc3"]
    fields = {"echo": True, "logprobs": 5, "max_tokens": 2}
    choice = server.post(PATH, completion(prompt, **fields)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][4:6] == [r"bytes:\xc3", r"bytes:\xa9"]
    assert logprobs["tokens"][-4:] == [r"bytes:\xa9", r"bytes:\xc3", r"bytes:\xa9", r"bytes:\xc3"]
    assert all(name in top for name, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True))
    assert logprobs["text_offset"][-4:] == [len(choice["text"]) - distance for distance in (4, 3, 2, 1)]
