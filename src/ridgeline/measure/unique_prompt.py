"""Prompts that no prefix cache can have seen: a unique line first, then text whose length is chosen word by word.

The line comes first, or every repeat would be a cache hit: as the system message of a chat, or at the head of a raw
prompt. It has a fixed number of common words of four letters, so that its length hardly varies, in tokens of whatever
vocabulary. The text is plain English sentences, since random tokens distort speculative decoding and the routing of
experts; it is the same for every request, and the text of n words is a prefix of that of n + 1.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from ridgeline.measure.endpoints import GenerationRequest

LINE_WORDS = 8  # each one of about a hundred: no two lines are alike by chance

_SUBJECTS = "the engineer,a young teacher,the old captain,her neighbour,the night guard,a tired farmer,the painter"
_VERBS = "carried,found,described,repaired,counted,measured,remembered,lost,sold,drew,opened,noticed"
_OBJECTS = "a brass lamp,two letters,the river map,an empty notebook,the last train ticket,a wooden clock,some bread"
_PLACES = "near the harbour,behind the library,under the bridge,at the edge of town,in the quiet garden,by the window"
_TIMES = "before noon,after the storm,every other week,late in the evening,while it rained,once the market closed"
_WORDS = (
    "time year life part hand week case work home room area book word side kind head line city name team idea "
    "body back face door path army wind road form rule food tree fire land king wall rock bird fish ship rain "
    "snow star moon song game plan test role deal risk size type rate cost site page text file list unit term "
    "note sign mark news film club farm hall bank shop park gate lake hill wood gold iron coal salt milk meat "
    "rice corn seed leaf root bone skin hair nose foot neck knee desk lamp ring coat shoe boat"
)


def unique_line(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS.split(), k=LINE_WORDS)) + "."


def text(num_words: int) -> str:
    return " ".join(islice(_words(), num_words))


def request(
    rng: random.Random, num_words: int, *, chat: bool, max_tokens: int, num_ctx: int | None = None
) -> GenerationRequest:
    """A request with a unique line and `num_words` words of text; no cache is asked for."""
    line, body = unique_line(rng), text(num_words)
    if chat:
        messages = ({"role": "system", "content": line}, {"role": "user", "content": f"Continue this text: {body}"})
        return GenerationRequest(messages=messages, max_tokens=max_tokens, num_ctx=num_ctx)
    return GenerationRequest(prompt=f"{line}\n{body}", max_tokens=max_tokens, num_ctx=num_ctx)


def _words() -> Iterator[str]:
    """Endless sentences, always the same ones."""
    rng = random.Random(20)
    parts = [group.split(",") for group in (_SUBJECTS, _VERBS, _OBJECTS, _PLACES, _TIMES)]
    while True:
        sentence = " ".join(rng.choice(choices) for choices in parts)
        yield from f"{sentence[0].upper()}{sentence[1:]}.".split()
