# SPDX-License-Identifier: Apache-2.0
"""Executors: how the engine core reaches the workers."""

from vllm.v1.executor.abstract import Executor

__all__ = ["Executor"]
