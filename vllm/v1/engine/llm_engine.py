# SPDX-License-Identifier: Apache-2.0
"""The synchronous front end: the caller adds requests and calls `step`, all in one process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.config import ModelConfig, VllmConfig
from vllm.exceptions import ConfigError
from vllm.inputs import PromptType
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.engine.engine_protocols import ResolvesConfig, StatLogger
from vllm.v1.engine.engine_tokenizer import load_tokenizer
from vllm.v1.engine.input_processor import InputProcessor, ProcessedInput
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.token_text import TokenText
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.structured_output import StructuredOutputManager

if TYPE_CHECKING:
    from torch import nn

    from vllm.v1.executor.abstract import Executor


class LLMEngine:
    """Runs requests when asked to.

    Args:
        vllm_config: the resolved configuration.
        stat_loggers: given the numbers of each step.

    Attributes:
        tokenizer: None when the engine serves token ids only.

    Raises:
        ConfigError: an argument is one of the server's.
    """

    def __init__(self, vllm_config: VllmConfig, *, stat_loggers: Sequence[StatLogger] = ()) -> None:
        _refuse_server_limits(vllm_config)
        model_config = vllm_config.model_config
        self.stat_loggers = list(stat_loggers)
        self.log_stats = not vllm_config.observability_config.disable_log_stats
        self.tokenizer: Any = None
        if not model_config.skip_tokenizer_init:
            self.tokenizer = load_tokenizer(
                model_config, download_dir=vllm_config.load_config.download_dir
            )
        self.engine_core = InprocClient(vllm_config, log_stats=self.log_stats)
        max_model_len = self.engine_core.engine_core.max_model_len
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
        self.output_processor = OutputProcessor(token_text, log_stats=self.log_stats)
        self._early_outputs: list[RequestOutput] = []
        self._iteration = IterationStats()

    @classmethod
    def from_engine_args(
        cls, engine_args: ResolvesConfig, *, stat_loggers: Sequence[StatLogger] = ()
    ) -> "LLMEngine":
        """Resolve the arguments and build the engine."""
        return cls(engine_args.create_engine_config(), stat_loggers=stat_loggers)

    @classmethod
    def from_vllm_config(
        cls, vllm_config: VllmConfig, *, stat_loggers: Sequence[StatLogger] = ()
    ) -> "LLMEngine":
        """Build the engine from a resolved configuration."""
        return cls(vllm_config, stat_loggers=stat_loggers)

    @property
    def model_config(self) -> ModelConfig:
        """The model's part of the configuration."""
        return self.vllm_config.model_config

    @property
    def model_executor(self) -> "Executor":
        """What runs the model."""
        return self.engine_core.engine_core.executor

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: object | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Queue a request; `step` brings its outputs.

        `max_tokens` is an upper bound: the context may end an output earlier.

        Raises:
            VLLMValidationError: prompt or parameters are wrong, or the id is in use.
        """
        processed = self.input_processor.process(
            request_id,
            prompt,
            params,
            arrival_time=arrival_time,
            priority=priority,
            lora_request=lora_request,
            cap_max_tokens=True,
        )
        self.add_processed(processed)

    def add_processed(self, processed: ProcessedInput) -> None:
        """Queue a request that the input processor has made."""
        request = processed.core_request
        children = self.output_processor.add_request(request, processed.prompt)
        try:
            for child in children:
                self.engine_core.add_request(child)
        except BaseException:
            self.abort_request([request.request_id], quiet=True)
            raise

    def abort_request(self, request_ids: str | Sequence[str], *, quiet: bool = False) -> None:
        """End requests; unknown ids are skipped.

        Args:
            quiet: do not tell of them in the next `step`'s outputs.
        """
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        core_ids, outputs = self.output_processor.abort_requests(ids, self._iteration)
        self.engine_core.abort_requests(core_ids)
        if not quiet:
            self._early_outputs += outputs

    def step(self) -> list[RequestOutput]:
        """Run one step; the outputs it brought, by each request's `output_kind`."""
        early, self._early_outputs = self._early_outputs, []
        outputs = self.engine_core.get_output()
        iteration, self._iteration = self._iteration, IterationStats()
        processed = self.output_processor.process_outputs(
            outputs, iteration if self.log_stats else None
        )
        self.engine_core.abort_requests(processed.reqs_to_abort)
        for stat_logger in self.stat_loggers:
            stat_logger.record(outputs.scheduler_stats, iteration)
        return early + processed.request_outputs

    def put_back(self, outputs: Sequence[RequestOutput]) -> None:
        """Let the next `step` tell of outputs that were taken and are another caller's."""
        self._early_outputs[:0] = outputs

    def has_unfinished_requests(self) -> bool:
        """Whether a further `step` has something to do or to tell."""
        return bool(self._early_outputs) or self.output_processor.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        """Outputs that have not ended; a prompt for n counts n times."""
        return self.output_processor.num_unfinished_requests

    def get_tokenizer(self) -> Any:
        """The tokenizer; None when the engine serves token ids only."""
        return self.tokenizer

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False if requests run and were not to be reset."""
        return self.engine_core.engine_core.reset_prefix_cache(reset_running_requests)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker's method by name, or a function with each worker; results by rank."""
        return self.engine_core.engine_core.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: "Callable[[nn.Module], Any]") -> list[Any]:
        """Call `func` with the model of each worker."""
        return self.collective_rpc("apply_model", args=(func,))

    def shutdown(self) -> None:
        """Release what the engine holds; it takes no more requests."""
        self.engine_core.shutdown()


def _refuse_server_limits(vllm_config: VllmConfig) -> None:
    """Refuse bounds on the queue: here the caller holds it, and would only refuse itself."""
    for name in ("max_waiting_requests", "max_waiting_tokens"):
        value = getattr(vllm_config.scheduler_config, name)
        if value is not None:
            raise ConfigError(
                f"{name}={value}: only the server (vllm serve, AsyncLLM) bounds its queue; "
                "leave it out and add fewer requests at a time"
            )


def with_max_model_len(vllm_config: VllmConfig, max_model_len: int) -> VllmConfig:
    """The configuration with the length that the core settled on."""
    if max_model_len == vllm_config.model_config.max_model_len:
        return vllm_config
    return replace(
        vllm_config,
        model_config=replace(vllm_config.model_config, max_model_len=max_model_len),
        scheduler_config=replace(vllm_config.scheduler_config, max_model_len=max_model_len),
    )
