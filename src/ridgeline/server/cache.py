"""What a request may ask of the prefix cache, and why its prompt was not cached any further.

An explanation quotes the caller's own prompt and nothing else: what is stored may be somebody else's words. Only the
caller's namespace was searched for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from ridgeline.engine.cache import MissReport
from ridgeline.server.checks import refusal

DAY_S = 24 * 3600.0
EXPLAIN_HEADER = "x-cache-explain"
_CONTEXT_TOKENS = 16  # of text, before and after the first difference
_CLOCK = re.compile(
    r"\d{1,2}(?::\d{1,2})+|\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\b1\d{9}(?:\d{3})?\b"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CacheOptions:
    """`salt` separates those who must not share; `ttl_s` None: as the server's `--prefix-ttl`."""

    salt: str = ""
    ttl_s: float | None = None
    memory_only: bool = False
    explain: bool = False


def cache_options(fields: Mapping[str, Any], *, default_salt: str, explain: bool) -> CacheOptions:
    """Of a request's checked fields. `explain`: whether the header asks for it."""
    ttl_s = fields.get("cache_ttl")
    retention = fields.get("prompt_cache_retention")
    if retention == "24h":
        if ttl_s is not None:
            raise refusal("cache_ttl", "and prompt_cache_retention are both given", hint="give one of them")
        ttl_s = DAY_S
    salt = f"salt:{fields['cache_salt']}" if "cache_salt" in fields else default_salt
    return CacheOptions(salt, ttl_s, retention == "in_memory", fields.get("explain_cache", explain))


def key_salt(api_key: str) -> str:
    """The salt of those who use `api_key`; it does not give the key away, and no `cache_salt` can be equal to it."""
    return "key:" + hashlib.blake2b(api_key.encode(), digest_size=16).hexdigest()


class Speller(Protocol):
    def decode(self, ids: list[int], skip_special: bool = True) -> str: ...


class CacheExplanation(Struct):
    """One prompt's. `first_difference` is the index of the first prompt token that nothing stored continues with; None:
    there is none. `text_before` and `text_after` are the prompt's own text on both sides of it."""

    prompt_tokens: int
    cached_tokens: int
    matching_tokens: int  # of the nearest stored prefix, not rounded to pages, expired ones included
    first_difference: int | None
    text_before: str | None
    text_after: str | None
    reasons: list[str]


@dataclass(frozen=True)
class Missed:
    """One prompt and what came of it. `salted`: its namespace is its own, by its cache_salt or its API key."""

    prompt_ids: Sequence[int]
    miss: MissReport
    num_cached_tokens: int  # in the end; what lay on disk included
    page_size: int
    salted: bool
    speller: Speller | None

    @property
    def place(self) -> int:
        return self.miss.num_matching_tokens

    def explanation(self) -> CacheExplanation:
        differs = self.place < len(self.prompt_ids)
        return CacheExplanation(
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=self.num_cached_tokens,
            matching_tokens=self.place,
            first_difference=self.place if differs else None,
            text_before=self._spell(self.prompt_ids, self.place - _CONTEXT_TOKENS, self.place) if differs else None,
            text_after=self._spell(self.prompt_ids, self.place, self.place + _CONTEXT_TOKENS) if differs else None,
            reasons=self._reasons(),
        )

    def _reasons(self) -> list[str]:
        num_tokens, size, ago_s = len(self.prompt_ids), self.page_size, self.miss.expired_ago_s
        if num_tokens <= size:
            return [f"prefix shorter than one page: {num_tokens} tokens; whole pages of {size} hit"]
        if self.num_cached_tokens == (num_tokens - 1) // size * size:
            return [f"every full page hit; the other {num_tokens - self.num_cached_tokens} tokens are always computed"]
        if ago_s is not None:
            return [f"expired {ago_s:.0f} s ago; a longer cache_ttl or --prefix-ttl would have kept it"]
        if self.place == 0:
            reasons = ["no stored prompt begins like this one: it is the first, or was evicted or flushed"]
            if self.salted:
                reasons.append("other salt: a prompt is shared only under the same cache_salt or API key")
            return reasons
        reasons = [self._difference()]
        if self.place % size and self.num_cached_tokens < self.place:
            num_pages = self.place // size
            reasons.append(f"whole pages of {size} tokens hit: {self.place} matching tokens fill {num_pages} of them")
        return reasons

    def _difference(self) -> str:
        if self._stored_end <= self.place:
            return f"the stored prefix ends at token {self.place}: what follows is new, or was evicted or flushed"
        if self._clock_changed():
            return "a timestamp in the system prompt changes on every call: move it behind what stays the same"
        if self.place < self.page_size:
            return f"prefix shorter than one page: the common part ends at token {self.place}"
        return f"the prompt goes on differently at token {self.place}"

    @property
    def _stored_end(self) -> int:
        return self.miss.stored_start + len(self.miss.stored_ids)

    def _clock_changed(self) -> bool:
        """Whether the first difference lies in something like a date or a time, in the prompt and in what is stored."""
        start = max(self.miss.stored_start, self.place - _CONTEXT_TOKENS)
        stop = min(self._stored_end, self.place + _CONTEXT_TOKENS)
        at = len(self._spell(self.prompt_ids, start, self.place) or "")
        stored = self.miss.stored_ids[start - self.miss.stored_start : stop - self.miss.stored_start]
        texts = (self._spell(self.prompt_ids, start, stop), self._spell(stored, 0, len(stored)))
        return all(any(m.start() <= at <= m.end() for m in _CLOCK.finditer(text or "")) for text in texts)

    def _spell(self, token_ids: Sequence[int], start: int, stop: int) -> str | None:
        return None if self.speller is None else self.speller.decode(list(token_ids[max(0, start) : stop]), False)
