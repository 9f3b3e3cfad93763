from __future__ import annotations

import pytest

from engine_runs import Client, make_request
from ridgeline.engine.cache import Cache
from ridgeline.engine.pages import PagePool


def test_extend_gives_pages_for_tokens_or_changes_nothing() -> None:
    cache = Cache(PagePool(6), page_size=4)
    request = make_request(range(20), Client())
    assert cache.acquire(request) == 0
    assert cache.extend(request, 9)
    assert len(request.pages) == 3
    first = list(request.pages)
    assert cache.extend(request, 12)
    assert request.pages == first, "the third page has room for token 12"
    assert cache.extend(request, 13)
    assert request.pages[:3] == first
    assert not cache.extend(request, 21)
    assert len(request.pages) == 4
    cache.check([request])
    cache.release(request)
    assert request.pages == []
    assert cache.num_available == 5
    cache.check([])


def test_check_finds_pages_that_nobody_accounts_for() -> None:
    cache = Cache(PagePool(6), page_size=4)
    request = make_request(range(20), Client())
    cache.extend(request, 4)
    with pytest.raises(AssertionError, match="1 pages held, 0 of them by requests"):
        cache.check([])
    request.pages *= 2
    with pytest.raises(AssertionError, match="2 requests hold page"):
        cache.check([request])
