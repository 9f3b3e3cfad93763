"""Prompts with a line of their own."""

import random

from ridgeline.measure.unique_prompt import LINE_WORDS, request, text, unique_line


def test_lines_differ_and_are_equally_long():
    rng = random.Random(0)
    lines = [unique_line(rng) for _ in range(1000)]
    assert len(set(lines)) == 1000
    assert {len(line) for line in lines} == {5 * LINE_WORDS}


def test_text_is_plain_words_and_grows_at_its_end():
    assert len(text(100).split()) == len(text(100).split(" ")) == 100
    assert text(101).startswith(text(100) + " ")
    sentences = text(2000).split(". ")
    assert len(set(sentences)) > 0.9 * len(sentences), "hardly a sentence comes twice"


def test_the_line_comes_first_and_the_text_is_shared():
    rng = random.Random(0)
    first, second = (request(rng, 5, chat=False, max_tokens=3).prompt.split("\n") for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1] == text(5)
    chat = request(rng, 5, chat=True, max_tokens=3)
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert chat.messages[1]["content"].endswith(text(5))
