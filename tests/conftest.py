"""Settings of all tests.

Property tests draw the same examples in every run of `make test`, so that a red run is about the change and not about
luck; `make test-full` searches anew each time.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", deadline=None)
settings.load_profile(os.environ.get("RIDGELINE_EXAMPLES", "same"))
