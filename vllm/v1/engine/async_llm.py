# SPDX-License-Identifier: Apache-2.0
"""The asynchronous front end: many requests at once, the core in a child process.

One task takes the core's outputs and fills each request's mailbox; every other part runs in the
tasks of the callers. Requests leave by one door whether they end, are aborted, or their caller
goes away.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.exceptions import EngineDeadError
from vllm.inputs import PromptType
from vllm.logger import init_logger
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.tokenizers.encoding import LONG_TEXT_CHARS, run_tokenizer
from vllm.v1.engine.collector import RequestOutputCollector
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.core_launcher import CoreProcess
from vllm.v1.engine.engine_protocols import ResolvesConfig, StatLogger
from vllm.v1.engine.engine_tokenizer import load_tokenizer
from vllm.v1.engine.input_processor import InputProcessor, ProcessedInput
from vllm.v1.engine.llm_engine import with_max_model_len
from vllm.v1.engine.messages import EngineCoreOutputs
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.token_text import TokenText
from vllm.v1.engine.waiting_bounds import check_waiting_bounds
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.structured_output import StructuredOutputManager

logger = init_logger(__name__)

_DRAIN_POLL_S = 0.02


class AsyncLLM:
    """Serves requests concurrently in one event loop.

    Args:
        vllm_config: the resolved configuration.
        stat_loggers: given the numbers of each batch of outputs.
        process: a core process that was started ahead; None starts one.

    Attributes:
        tokenizer: None when the engine serves token ids only.
        dead_error: why the engine is gone; None while it lives.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        *,
        stat_loggers: Sequence[StatLogger] = (),
        process: CoreProcess | None = None,
    ) -> None:
        self.stat_loggers = list(stat_loggers)
        self.dead_error: EngineDeadError | None = None
        model_config = vllm_config.model_config
        process = process or CoreProcess()
        try:
            # The core sets to work first, and loads the model while the tokenizer is made here.
            self.client = AsyncMPClient(process, vllm_config)
            self.tokenizer: Any = None
            if not model_config.skip_tokenizer_init:
                self.tokenizer = load_tokenizer(
                    model_config, download_dir=vllm_config.load_config.download_dir
                )
            max_model_len = self.client.wait_ready()
        except BaseException:
            process.stop(0.0)
            raise
        self.vllm_config = with_max_model_len(vllm_config, max_model_len)
        grammars = StructuredOutputManager(
            model_config.vocab_size, lambda: self.tokenizer, vllm_config.structured_outputs_config
        )
        self.input_processor = InputProcessor(
            self.model_config,
            self.tokenizer,
            grammars,
            takes_priority=vllm_config.scheduler_config.policy == "priority",
        )
        token_text = None if self.tokenizer is None else TokenText(self.tokenizer)
        log_stats = not vllm_config.observability_config.disable_log_stats
        self.output_processor = OutputProcessor(token_text, log_stats=log_stats)
        self._log_stats = log_stats
        self._handler: asyncio.Task[None] | None = None
        self._is_closing = False
        # Aborts between two batches of outputs, for the statistics.
        self._aborted = IterationStats()

    @classmethod
    def from_engine_args(
        cls, engine_args: ResolvesConfig, *, stat_loggers: Sequence[StatLogger] = ()
    ) -> "AsyncLLM":
        """Resolve and start; the core's process imports its libraries meanwhile."""
        process = CoreProcess()
        try:
            vllm_config = engine_args.create_engine_config()
        except BaseException:
            process.stop(0.0)
            raise
        return cls(vllm_config, stat_loggers=stat_loggers, process=process)

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: VllmConfig,
        *,
        stat_loggers: Sequence[StatLogger] = (),
        process: CoreProcess | None = None,
    ) -> "AsyncLLM":
        """Start from a resolved configuration, in `process` if it was started ahead."""
        return cls(vllm_config, stat_loggers=stat_loggers, process=process)

    @property
    def model_config(self) -> ModelConfig:
        """The model's part of the configuration."""
        return self.vllm_config.model_config

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return self.dead_error is None and not self._is_closing

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
        return self.dead_error is not None

    @property
    def num_unfinished_requests(self) -> int:
        """Outputs that have not ended; a request for n counts n times."""
        return self.output_processor.num_unfinished_requests

    @property
    def num_waiting_requests(self) -> int:
        """Outputs beyond those that can run at once: what `max_waiting_requests` bounds."""
        num_slots = self.vllm_config.scheduler_config.max_num_seqs
        return self.output_processor.waiting_load(num_slots)[0]

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: object | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; closing the generator or cancelling its task aborts it.

        Yields:
            Outputs by `sampling_params.output_kind`; the last one has `finished` set.

        Raises:
            VLLMValidationError: prompt or parameters are wrong.
            EngineOverloadedError: the waiting queue is full.
            RequestFailedError: the engine failed on this request.
            EngineDeadError: the engine is gone.
        """
        self.check_room([(1, 0)])
        processed = await process_input(
            self.input_processor,
            request_id,
            prompt,
            sampling_params,
            priority=priority,
            lora_request=lora_request,
        )
        queue = self._add(processed)
        finished = False
        try:
            while not finished:
                output = queue.get_nowait() or await queue.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self._abort([request_id])

    def check_room(self, requests: Sequence[tuple[int, int]]) -> None:
        """Refuse requests that the queue's bounds leave no room for, all or none of them.

        Args:
            requests: outputs and prompt tokens of each.

        Raises:
            VLLMValidationError: there is never room for them.
            EngineOverloadedError: the waiting queue is full.
            EngineDeadError: the engine is gone, or going.
        """
        if self.dead_error is not None:
            raise self.dead_error
        if self._is_closing:
            raise EngineDeadError("the engine is shutting down and takes no more requests")
        self._start_handler()
        self.client.check_health()
        check_waiting_bounds(self.vllm_config.scheduler_config, self.output_processor, requests)

    async def abort(self, request_id: str | Sequence[str]) -> None:
        """End requests by id; their generators yield a last output with reason "abort"."""
        self._abort([request_id] if isinstance(request_id, str) else request_id)

    async def get_tokenizer(self) -> Any:
        """The tokenizer; None when the engine serves token ids only."""
        return self.tokenizer

    async def check_health(self) -> None:
        """Raise `EngineDeadError` if the core has died or has stopped moving."""
        self._start_handler()
        if self.dead_error is not None:
            raise self.dead_error
        self.client.check_health()

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False if requests run and were not to be reset."""
        await self.check_health()
        return bool(await self.client.call_utility("reset_prefix_cache", reset_running_requests))

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call one of the allowed methods on every worker."""
        await self.check_health()
        call = self.client.call_utility(
            "collective_rpc", method, timeout, list(args), dict(kwargs or {})
        )
        results: list[Any] = await asyncio.wait_for(call, timeout)
        return results

    async def get_request_counts(self) -> tuple[int, int]:
        """Running and waiting requests, as the core's scheduler counts them."""
        await self.check_health()
        running, waiting = await self.client.call_utility("get_request_counts")
        return running, waiting

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for those there are; False if some are left."""
        self._is_closing = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.output_processor.has_unfinished_requests():
            if asyncio.get_running_loop().time() >= deadline or self.errored:
                return False
            await asyncio.sleep(_DRAIN_POLL_S)
        return True

    def shutdown(self) -> None:
        """Stop at once: requests still running get `EngineDeadError`. Idempotent."""
        self._is_closing = True
        if self._handler is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._handler.cancel()
        stopped = EngineDeadError("the engine is shut down")
        self.output_processor.fail_all(stopped)
        self.client.fail_calls(stopped)
        self.client.shutdown()

    def _add(self, processed: ProcessedInput) -> RequestOutputCollector:
        """Queue a request; nothing is awaited between the check and the adding."""
        request = processed.core_request
        params = request.sampling_params
        self.check_room([(params.n, len(request.prompt_token_ids))])
        queue = RequestOutputCollector(params.output_kind, request.request_id)
        children = self.output_processor.add_request(request, processed.prompt, queue)
        try:
            for child in children:
                self.client.add_request(child)
        except BaseException:
            self._abort([request.request_id])
            raise
        return queue

    def _abort(self, request_ids: Sequence[str]) -> None:
        core_ids, _ = self.output_processor.abort_requests(request_ids, self._aborted)
        if self.dead_error is None:
            with suppress(EngineDeadError):
                self.client.abort_requests(core_ids)

    def _start_handler(self) -> None:
        """Start the task that takes outputs, in the loop of the first caller."""
        if self._handler is None and self.dead_error is None:
            self._handler = asyncio.get_running_loop().create_task(self._handle_outputs())
            self.client.on_exit(self._on_core_exit)

    async def _handle_outputs(self) -> None:
        try:
            while True:
                self._take(await self.client.get_output())
                # A burst of outputs must not keep the callers' tasks from running.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("the output handler failed")
            self._die(EngineDeadError("the engine's output handler failed; see the log"))

    def _take(self, outputs: EngineCoreOutputs) -> None:
        iteration = None
        if self._log_stats:
            iteration, self._aborted = self._aborted, IterationStats()
        processed = self.output_processor.process_outputs(outputs, iteration)
        self.client.abort_requests(processed.reqs_to_abort)
        for stat_logger in self.stat_loggers:
            stat_logger.record(outputs.scheduler_stats, iteration)

    def _on_core_exit(self) -> None:
        if self._is_closing and not self.output_processor.has_unfinished_requests():
            return
        try:
            self.client.check_health()
        except EngineDeadError as error:
            self._die(error)

    def _die(self, error: EngineDeadError) -> None:
        if self.dead_error is None:
            logger.error("%s", error)
            self.dead_error = error
            if self._handler is not None:
                self._handler.cancel()
            self.output_processor.fail_all(error)
            self.client.fail_calls(error)


async def process_input(
    processor: InputProcessor,
    request_id: str,
    prompt: PromptType,
    params: SamplingParams,
    **options: Any,
) -> ProcessedInput:
    """Tokenize and validate; what takes long does not hold up the loop."""
    call = partial(processor.process, request_id, prompt, params, **options)
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    size = len(text) if isinstance(text, str) else 0
    if size <= LONG_TEXT_CHARS and getattr(params, "structured_outputs", None) is not None:
        # A grammar takes long, not its tokenizing: it must not hold up the long texts either.
        return await asyncio.to_thread(call)
    return await run_tokenizer(call, size=size)
