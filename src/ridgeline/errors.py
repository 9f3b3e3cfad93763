"""The errors that people see.

Every message says what is wrong, with the numbers; `hint` says what to do about it. The server maps them to
OpenAI's error shape, the command line to one line on stderr and an exit status.
"""

from __future__ import annotations

import reprlib
from typing import Any


def shown(value: Any) -> str:
    """`value` as a message quotes it: whatever a client sent, in a line."""
    return reprlib.repr(value)


class RidgelineError(Exception):
    """Base of all errors that carry a message for a person.

    `details` holds the numbers behind the message under stable keys, for programs.
    """

    code = "error"

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class RequestError(RidgelineError):
    """A request that cannot be honoured as it was written. `param` is the field at fault."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_value",
        param: str | None = None,
        status: int = 400,
        hint: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, hint=hint, **details)
        self.code = code
        self.param = param
        self.status = status

    def of_entry(self, index: int) -> RequestError:
        """The same refusal, of one entry of a list of prompts: what was wrong with `prompt` is with `prompt[index]`."""
        if self.param == "prompt":
            self.param = f"prompt[{index}]"
            self.message = f"{self.param}: {self.message}"
        return self


class CapacityError(RequestError):
    """A request that can never fit in this server's context or KV memory."""


class OverloadedError(RidgelineError):
    """The waiting queue is full; `retry_after_s` estimates when there will be room."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class ConfigError(RidgelineError):
    """A setting, a model name or a model's configuration that Ridgeline cannot work with."""

    code = "config_error"


class CheckpointError(RidgelineError):
    """A checkpoint file that is missing, truncated or inconsistent; the message names file and tensor."""

    code = "checkpoint_error"


class ExecutionError(RidgelineError):
    """A step, or one row of it, could not be computed."""

    code = "execution_error"
