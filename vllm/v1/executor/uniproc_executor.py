# SPDX-License-Identifier: Apache-2.0
"""One worker in the calling process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.v1.executor.abstract import Executor
from vllm.v1.worker.worker import Worker


class UniProcExecutor(Executor):
    """Calls its one worker directly.

    Attributes:
        driver_worker: the worker.
    """

    driver_worker: Worker

    def _init_executor(self) -> None:
        self.driver_worker = Worker(self.vllm_config)
        self.driver_worker.init_device()
        self.driver_worker.load_model()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call on the worker; it runs in this thread, so `timeout` has nothing to wait for."""
        return [self.driver_worker.call(method, *args, **(kwargs or {}))]

    def check_health(self) -> None:
        """Raise if the worker cannot run steps."""
        self.driver_worker.check_health()

    def shutdown(self) -> None:
        """Drop the model and the cache."""
        self.driver_worker.shutdown()
