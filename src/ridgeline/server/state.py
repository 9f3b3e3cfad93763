"""What the handlers share: settings, the model that is served (once it is loaded), and whether we are leaving."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.config import ServerConfig, nearest
from ridgeline.engine.loop import Engine
from ridgeline.errors import RequestError
from ridgeline.model.runtime import ModelRuntime
from ridgeline.server.bridge import Bridge
from ridgeline.server.errors import shutting_down
from ridgeline.server.metrics import ServerMetrics

Load = Callable[[], tuple[ModelRuntime, Engine]]


@dataclass(frozen=True)
class Served:
    """A loaded model and the engine that runs it."""

    runtime: ModelRuntime
    engine: Engine
    bridge: Bridge
    names: tuple[str, ...]  # that clients may use; the first one is shown


@dataclass
class ServerState:
    """`load` runs on its own thread while the server already answers `/health`; `on_loaded` is called on the loop's
    thread afterwards, with `served` or `load_error` set."""

    config: ServerConfig
    load: Load
    on_loaded: Callable[[ServerState], None] = lambda state: None
    port: int = 0  # that is listened on
    served: Served | None = None
    load_error: BaseException | None = None
    is_loading: bool = False
    is_shutting_down: bool = False
    started_at: int = field(default_factory=lambda: int(time.time()))
    metrics: ServerMetrics = field(default_factory=ServerMetrics)

    @property
    def runtime(self) -> ModelRuntime:
        return self.require().runtime

    def require(self) -> Served:
        """The served model, or the 503 that says why there is none."""
        if self.is_shutting_down:
            raise shutting_down()
        if self.load_error is not None:
            raise RequestError(
                f"the model could not be loaded: {self.load_error}", code="model_load_failed", status=503
            )
        if self.served is None:
            raise RequestError(
                "the model is still loading", code="model_loading", status=503, hint="wait until /health says 200"
            )
        return self.served

    def require_model(self, name: str | None) -> Served:
        """The model of that name; None, where a request leaves it out: the one that is served."""
        served = self.require()
        if name is not None and name not in served.names:
            hint = nearest(name, list(served.names))
            raise RequestError(
                f"there is no model {name!r} here", code="model_not_found", param="model", status=404, hint=hint
            )
        return served
