# SPDX-License-Identifier: Apache-2.0
"""Logging: one format for the whole engine, on stderr, level from VLLM_LOGGING_LEVEL."""

import functools
import logging
import sys

from vllm import envs

_FORMAT = "%(levelname)s %(asctime)s [%(name)s] %(message)s"


@functools.cache
def _configure_root() -> None:
    root = logging.getLogger("vllm")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%m-%d %H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(envs.VLLM_LOGGING_LEVEL)
    root.propagate = False


def init_logger(name: str) -> logging.Logger:
    """Logger below `vllm`; the first call sets up the handler."""
    _configure_root()
    return logging.getLogger(name)


@functools.cache
def log_once(logger: logging.Logger, level: int, message: str) -> None:
    """Log `message` the first time it is seen in this process."""
    logger.log(level, message)
