# SPDX-License-Identifier: Apache-2.0
"""`LLM`: text in, text out, in the caller's own process.

Owns lists of prompts, their order and the progress bar; everything else is the engine's.
"""

import itertools
import numbers
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.inputs import PromptType, TokensPrompt
from vllm.logger import init_logger
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.input_processor import ProcessedInput
from vllm.v1.engine.llm_engine import LLMEngine

if TYPE_CHECKING:
    from torch import nn

    from vllm.v1.metrics.loggers import PrometheusStatLogger
    from vllm.v1.metrics.reader import Metric

logger = init_logger(__name__)

ChatMessages = Sequence[Mapping[str, Any]]


class LLM:
    """A model and an engine that runs it.

    Args:
        model: folder, .gguf file or hub id; the default model if left out.
        **kwargs: engine arguments, see `EngineArgs`.

    Attributes:
        llm_engine: the engine.

    Raises:
        ConfigError: an argument is wrong, or wrong for this model or machine.
        ModelLoadError: the checkpoint does not match the model.
        TypeError: there is no such argument.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        config = EngineArgs(model, **kwargs).create_engine_config()
        self._stats: PrometheusStatLogger | None = None
        if not config.observability_config.disable_log_stats:
            self._stats = _make_stats(config)
        self.llm_engine = LLMEngine(config, stat_loggers=[self._stats] if self._stats else [])
        # Callers who step the engine themselves choose their ids: ours must be none of theirs.
        self._id_prefix = f"llm-{uuid.uuid4().hex[:12]}"
        self._request_counter = itertools.count()

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: object | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one or a list of texts, lists of token ids, or dicts with either.
            sampling_params: for all, or one per prompt; None takes the model's defaults.
            use_tqdm: show a progress bar, or a function that makes one.
            lora_request: adapters are refused.
            priority: one per prompt, for the priority policy; lower runs first.

        Returns:
            An output per prompt, in their order. One whose computation failed has the
            finish reason "error" and says why in `error`.

        Raises:
            VLLMValidationError: a prompt or parameter is wrong; then nothing has been run.
        """
        listed = as_prompt_list(prompts)
        params = self._params_per_prompt(sampling_params, len(listed))
        priorities = _per_prompt("priority", priority, len(listed), 0)
        processor = self.llm_engine.input_processor
        # All are checked before the first one runs.
        processed = [
            processor.process(
                f"{self._id_prefix}-{next(self._request_counter)}",
                prompt,
                params[i],
                priority=priorities[i],
                lora_request=lora_request,
                cap_max_tokens=True,
            )
            for i, prompt in enumerate(listed)
        ]
        for item in processed:
            item.core_request.sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        return self._run(processed, use_tqdm)

    def chat(
        self,
        messages: ChatMessages | Sequence[ChatMessages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        lora_request: object | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them.

        Args:
            messages: dicts with `role` and `content`.
            sampling_params: for all, or one per conversation.
            use_tqdm: see `generate`.
            lora_request: adapters are refused.
            chat_template: instead of the model's.
            add_generation_prompt: end the prompt with the head of an assistant message.
            continue_final_message: continue the last message instead.
            **options: `tools`, `documents` and `chat_template_kwargs`, see `render_chat`.

        Raises:
            VLLMValidationError: a message or parameter is wrong; then nothing has been run.
        """
        from vllm.entrypoints.chat_utils import render_chat

        unknown = options.keys() - {"tools", "documents", "chat_template_kwargs"}
        if unknown:
            raise TypeError(f"chat() takes no argument {min(unknown)!r}")
        if self.get_tokenizer() is None:
            raise VLLMValidationError(
                "messages need a tokenizer, and this engine has none; use generate with token ids",
                parameter="messages",
            )
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        template = chat_template or self.llm_engine.model_config.chat_template
        prompts = [
            TokensPrompt(
                prompt_token_ids=render_chat(
                    self.get_tokenizer(),
                    conversation,
                    chat_template=template,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    **options,
                )
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def get_tokenizer(self) -> Any:
        """The tokenizer; None when the engine serves token ids only."""
        return self.llm_engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """Parameters with the defaults that the model brings."""
        return SamplingParams(**self.llm_engine.model_config.generation_defaults)

    def get_metrics(self) -> "list[Metric]":
        """The engine's metrics, under their Prometheus names.

        Raises:
            RuntimeError: statistics are off (disable_log_stats).
        """
        if self._stats is None:
            raise RuntimeError("statistics are off; build the LLM with disable_log_stats=False")
        from vllm.v1.metrics.reader import get_metrics

        return get_metrics(self._stats.registry)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker's method by name, or a function with each worker; results by rank."""
        return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: "Callable[[nn.Module], Any]") -> list[Any]:
        """Call `func` with the model of each worker."""
        return self.llm_engine.apply_model(func)

    def shutdown(self) -> None:
        """Release what the engine holds; it takes no more requests."""
        self.llm_engine.shutdown()

    close = shutdown

    def _params_per_prompt(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * count
        if not isinstance(given, Sequence):
            raise VLLMValidationError(
                f"sampling_params is {type(given).__name__}; pass SamplingParams or a list of them",
                parameter="sampling_params",
            )
        return _per_prompt("sampling_params", given, count, None)

    def _run(
        self, processed: Sequence[ProcessedInput], use_tqdm: bool | Callable[..., Any]
    ) -> list[RequestOutput]:
        """Run requests to their end; if that is interrupted, leave nothing behind.

        Outputs of other requests, which the caller has added to the engine, wait for its `step`.
        """
        ids = [item.core_request.request_id for item in processed]
        progress = _Progress(len(processed), use_tqdm)
        pending = set(ids)
        finished: dict[str, RequestOutput] = {}
        others: list[RequestOutput] = []
        try:
            for item in processed:
                self.llm_engine.add_processed(item)
            while pending:
                for output in self.llm_engine.step():
                    if output.request_id not in pending:
                        others.append(output)
                    elif output.finished:
                        pending.discard(output.request_id)
                        finished[output.request_id] = output
                        progress.add(output)
        except BaseException:
            self.llm_engine.abort_request(ids, quiet=True)
            raise
        finally:
            progress.close()
            self.llm_engine.put_back(others)
        failed = [output for output in finished.values() if output.error is not None]
        if failed:
            logger.error("%d of %d prompts failed: %s", len(failed), len(ids), failed[0].error)
        return [finished[request_id] for request_id in ids]


def _make_stats(config: VllmConfig) -> "PrometheusStatLogger":
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    model_config = config.model_config
    return PrometheusStatLogger(
        model_config.served_model_name[0],
        model_config.max_model_len,
        cache_config=config.cache_config,
    )


class _Progress:
    """A bar with the tokens per second so far, or nothing."""

    def __init__(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._bar: Any = None
        self._num_in = 0
        self._num_out = 0
        if not use_tqdm or not total:
            return
        make = use_tqdm
        if not callable(make):
            from tqdm import tqdm

            make = tqdm
        self._bar = make(
            total=total, desc="Processed prompts", dynamic_ncols=True, postfix=self._postfix(0.0)
        )

    def add(self, output: RequestOutput) -> None:
        """Count a finished prompt."""
        if self._bar is None:
            return
        self._num_in += len(output.prompt_token_ids or ())
        self._num_out += sum(len(choice.token_ids) for choice in output.outputs)
        self._bar.set_postfix_str(self._postfix(self._bar.format_dict["elapsed"]), refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def _postfix(self, elapsed_s: float) -> str:
        seconds = elapsed_s or 1.0
        return (
            f"input {self._num_in / seconds:.1f} tokens/s, "
            f"output {self._num_out / seconds:.1f} tokens/s"
        )


def as_prompt_list(prompts: Any) -> list[PromptType]:
    """One prompt or many, as a list."""
    if isinstance(prompts, str | dict):
        return [prompts]  # type: ignore[list-item]
    if isinstance(prompts, bytes | bytearray):
        raise VLLMValidationError("prompts is bytes; decode it to text", parameter="prompts")
    if isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], numbers.Integral):
        return [list(prompts)]
    if isinstance(prompts, Sequence):
        return list(prompts)
    raise VLLMValidationError(
        f"prompts is {type(prompts).__name__}; pass a text, token ids, a dict or a list of these",
        parameter="prompts",
    )


def _per_prompt(name: str, given: Sequence[Any] | None, count: int, default: Any) -> Sequence[Any]:
    if given is None:
        return [default] * count
    if len(given) != count:
        raise VLLMValidationError(
            f"{name} has {len(given)} entries for {count} prompts; pass one for each",
            parameter=name,
        )
    return given
