"""Nothing that the tests run writes into the user's own cache directory, and no example fails for taking long."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("any-machine", deadline=None)  # a busy one takes long over any example
hypothesis.settings.load_profile("any-machine")


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
