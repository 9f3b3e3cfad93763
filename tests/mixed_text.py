"""Lines of mixed text for tokenizer tests: code, emoji, CJK, digits, white space runs and more, from a seed."""

from __future__ import annotations

import random

# Tokenizer input, its TODO included: people's prompts hold such comments.
_FRAGMENTS = [
    "def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {", '{"a": [1, 2.5e-3], "b": null}', "a_b-c/d.e@f",
    "https://example.com/?q=1&r=%20", "x1y22z333", "<b>&amp;</b>", "// TODO: 2x", "SELECT * FROM t WHERE id=42;",
    "hello", " world", "The quick brown fox", "don't", "DON'T", "I'LL", " we've", "'s", "Straße", "naïve", "ďábelské",
    "👋", "🏳️‍🌈", "👩‍👩‍👧", " 🙂", "日本語", "你好，世界", "삼겹살", "שלום", "مرحبا", "हिन्दी", "Привет", "ελληνικά",
    "0", "7", "42", " 007", "12345", "3.14159", "1,000,000", "²³", "½", "٣٤٥", "Ⅳ", "e\u0301", "ﬁ", "\u00a0", "\u3000",
    " ", "  ", "   ", "\t", "\t\t ", "\n", "\n\n", " \n ", "\r\n", "!!!", "...", "—", "“quoted”", "$%^&*", "\u200b",
]  # fmt: skip


def mixed_lines(count: int = 1000, seed: int = 0, extra: tuple[str, ...] = ()) -> list[str]:
    """`count` lines of up to 16 fragments; those in `extra` are as frequent as all others together."""
    chooser = random.Random(seed)
    fragments = _FRAGMENTS + [text for text in extra for _ in range(len(_FRAGMENTS) // len(extra))]
    return ["".join(chooser.choices(fragments, k=chooser.randint(1, 16))) for _ in range(count)]
