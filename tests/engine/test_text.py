"""Streams of text: whole characters, stop strings that never leak, the same text as without a stream."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.engine.request import SamplingParams
from ridgeline.engine.text import Detokenizer, StopMatcher, TextStream
from ridgeline.errors import RequestError

GREETING = "👋 삼겹살 ďábelské"


@dataclass
class Pieces:
    """A tokenizer whose token ids are places in a list; control tokens are given by their text."""

    pieces: list[bytes | str]
    strips_leading_space: bool = False
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = list(range(len(self.pieces)))

    def token_bytes(self, token_id: int) -> bytes:
        piece = self.pieces[token_id]
        return piece if isinstance(piece, bytes) else b""

    def token_text(self, token_id: int) -> str:
        piece = self.pieces[token_id]
        return piece if isinstance(piece, str) else piece.decode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        return isinstance(self.pieces[token_id], str)


def one_byte_tokens(text: str, **options: bool) -> Pieces:
    return Pieces([bytes([byte]) for byte in text.encode()], **options)


def streamed(tokenizer: Pieces, **params: object) -> tuple[list[str], str | None]:
    """Each push's text, one token at a time until a stop string; then what `finish` gives."""
    stream = TextStream(tokenizer, SamplingParams(**params))
    texts = []
    for token_id in tokenizer.ids:
        update = stream.push([token_id])
        texts.append(update.text)
        if update.stop is not None:
            assert stream.finish() == ""
            return texts, update.stop
    return [*texts, stream.finish()], None


class TestDetokenizer:
    def test_characters_arrive_whole_one_byte_at_a_time(self):
        texts, _ = streamed(one_byte_tokens(GREETING))
        assert [text for text in texts if text] == list(GREETING)

    def test_bytes_that_are_no_text_become_replacement_characters(self):
        texts, _ = streamed(Pieces([b"a", b"\xff", b"\xf0\x9f", b"b", b"\xf0\x9f"]))
        assert texts == ["a", "\ufffd", "", "\ufffdb", "", "\ufffd"]

    @given(st.lists(st.binary(max_size=3)))
    def test_any_bytes_give_the_text_of_the_whole(self, pieces):
        texts, _ = streamed(Pieces(pieces))
        assert "".join(texts) == b"".join(pieces).decode("utf-8", "replace")

    def test_the_vocabulary_own_leading_space_goes_once(self):
        for spaces, expected in ((1, "a b"), (2, " a b")):
            tokenizer = one_byte_tokens(" " * spaces + "a b", strips_leading_space=True)
            own = Detokenizer(tokenizer, starts_text=True)
            assert "".join(own.push(token_id) for token_id in range(spaces + 3)) == expected
            assert "".join(streamed(tokenizer)[0]) == " " * spaces + "a b"  # as more of the prompt's text
        assert "".join(streamed(one_byte_tokens(" a b"))[0]) == " a b"

    @pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a<|im_end|>b")])
    def test_control_tokens_are_left_out_or_spelled_out(self, skip, expected):
        texts, _ = streamed(Pieces([b"a", "<|im_end|>", b"b"]), skip_special_tokens=skip)
        assert "".join(texts) == expected

    def test_an_unfinished_character_survives_a_control_token(self):
        detokenizer = Detokenizer(Pieces([b"\xc3", "<|im_end|>", b"\xa9"]))
        assert [detokenizer.push(i) for i in range(3)] == ["", "", "é"]


class TestStopStrings:
    def test_one_that_is_split_over_tokens_never_leaks(self):
        texts, stop = streamed(one_byte_tokens("go on###END, more"), stop=("###END",))
        assert texts == ["g", "o", " ", "o", "n", "", "", "", "", "", ""]
        assert stop == "###END"

    def test_text_is_held_back_only_while_it_may_become_one(self):
        texts, stop = streamed(one_byte_tokens("a##b####"), stop=("###END",))
        assert texts == ["a", "", "", "##b", "", "", "", "#", "###"]
        assert stop is None

    @pytest.mark.parametrize(
        ("text", "stops", "expected", "stop"),
        [
            ("abcdef", ("def", "bc"), "a", "bc"),  # the first in the text, not in the list
            ("xabcd", ("abcd", "bc"), "xa", "bc"),  # the first that is complete
            ("xabc", ("bc", "abc"), "x", "abc"),  # of those that end together, the longest
            ("aab", ("ab",), "a", "ab"),
            ("ababac", ("abac",), "ab", "abac"),
            ("", ("a",), "", None),
        ],
    )
    def test_which_one_counts(self, text, stops, expected, stop):
        for tokenizer in (one_byte_tokens(text), Pieces([text.encode()])):
            texts, found = streamed(tokenizer, stop=stops)
            assert ("".join(texts), found) == (expected, stop)

    def test_included_on_request(self):
        texts, _ = streamed(Pieces([b"a#", b"#b"]), stop=("##",), include_stop_str=True)
        assert texts == ["a", "##"]

    def test_a_stop_in_the_middle_of_a_push_leaves_the_rest_unused(self):
        stream = TextStream(one_byte_tokens("abcdef"), SamplingParams(stop=("cd",)))
        assert stream.push([0]).num_tokens_used == 1
        update = stream.push([1, 2, 3, 4, 5])
        assert (update.text, update.stop, update.num_tokens_used) == ("b", "cd", 3)

    def test_half_a_character_after_a_stop_is_forgotten(self):
        stream = TextStream(Pieces([b"#\xf0"]), SamplingParams(stop=("#",)))
        assert stream.push([0]).stop == "#"
        assert stream.finish() == ""

    @pytest.mark.parametrize(
        ("min_tokens", "expected", "stop"),
        [(0, "", "#"), (1, "", "#"), (2, "#a", "#"), (4, "#a#", "#"), (5, "#a##b", None)],
    )
    def test_none_counts_before_min_tokens(self, min_tokens, expected, stop):
        texts, found = streamed(Pieces([b"#", b"a", b"#", b"#", b"b"]), stop=("#",), min_tokens=min_tokens)
        assert ("".join(texts), found) == (expected, stop)

    def test_one_that_begins_before_min_tokens_and_ends_after_counts(self):
        texts, found = streamed(one_byte_tokens("xabcd"), stop=("abcd", "bc"), min_tokens=5)
        assert ("".join(texts), found) == ("x", "abcd")

    def test_an_empty_one_is_refused(self):
        with pytest.raises(RequestError, match="empty") as caught:
            StopMatcher(("a", ""))
        assert caught.value.param == "stop"


def cut_at_first_stop(text: str, stops: list[str], include: bool) -> str:
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[:end] if include else text[: end - max(map(len, ending))]
    return text


@given(
    text=st.text("ab#é👋", max_size=24),
    cuts=st.sets(st.integers(1, 40)),
    stops=st.lists(st.text("ab#é", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    pushes=st.integers(1, 5),
)
def test_a_stream_gives_the_text_of_the_whole_cut_at_the_first_stop(text, cuts, stops, include, pushes):
    data = text.encode()
    borders = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    tokenizer = Pieces([data[start:end] for start, end in itertools.pairwise(borders)])
    stream = TextStream(tokenizer, SamplingParams(stop=tuple(stops), include_stop_str=include))
    result, passed = "", cut_at_first_stop(text, stops, include)
    for first in range(0, len(tokenizer.ids), pushes):
        update = stream.push(tokenizer.ids[first : first + pushes])
        result += update.text
        assert passed.startswith(result)  # nothing leaks on the way
        if update.stop is not None:
            break
    assert result + stream.finish() == passed
