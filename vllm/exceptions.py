# SPDX-License-Identifier: Apache-2.0
"""The errors the engine raises, client fault apart from server fault.

A message says what came, what is allowed and what to do. It never holds paths of the server,
addresses or traces when it can reach a client.
"""

from typing import Any


class VLLMError(Exception):
    """Base of every typed error."""


class VLLMValidationError(VLLMError, ValueError):
    """A client asked for something invalid or unsupported (HTTP 400).

    Args:
        message: what came, what is allowed, what to do.
        parameter: name of the offending field, as the client spelled it.
        value: the offending value, for logs.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value


class ModelNotFoundError(VLLMValidationError):
    """The request names a model this server does not serve (HTTP 404)."""


class EngineOverloadedError(VLLMError):
    """The waiting queue is full (HTTP 503 with Retry-After).

    Args:
        message: what the limit is.
        retry_after_s: a hint for the client, in seconds.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDeadError(VLLMError, RuntimeError):
    """The engine core has died or stopped answering (HTTP 503)."""


class RequestFailedError(VLLMError, RuntimeError):
    """The engine failed while it ran this request; others are unaffected (HTTP 500)."""


class ConfigError(VLLMError, ValueError):
    """An engine argument is wrong, or wrong for this model or machine; raised at start-up."""


class ModelLoadError(VLLMError, ValueError):
    """The checkpoint does not match the model: a tensor is missing, unused or mis-shaped."""
