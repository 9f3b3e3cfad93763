import pytest

from ridgeline.errors import ConfigError
from ridgeline.units import format_bytes, parse_bytes, parse_tokens


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 << 29), ("512mib", 1 << 29), ("4096", 4096), (4096, 4096), ("3 kB", 3000)],
)
def test_bytes(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "2 potatoes", "-1GB", "0", "0.1", "1e9", "nan"])
def test_no_size(text):
    with pytest.raises(ConfigError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "tokens"), [("8k", 8192), ("4096", 4096), ("1M", 1 << 20), ("1.5K", 1536)])
def test_tokens(text, tokens):
    assert parse_tokens(text) == tokens


def test_large_counts_are_exact():
    assert parse_bytes("9007199254740993") == 9007199254740993


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (999, "999 B"),
        (1000, "1.00 KB (0.98 KiB)"),
        (269_030_016, "269 MB (257 MiB)"),
        (2 * 10**9, "2.00 GB (1.86 GiB)"),
        (999_700, "1.00 MB (976 KiB)"),
        (5 * 10**15, "5000 TB (4547 TiB)"),
    ],
)
def test_format(num_bytes, text):
    assert format_bytes(num_bytes) == text
