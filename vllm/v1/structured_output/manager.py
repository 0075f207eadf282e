# SPDX-License-Identifier: Apache-2.0
"""Grammars of running requests: compiled off the step loop, advanced token by token.

The front end validates with the same code, so a request that arrives at the core compiles; what
fails here all the same ends that request alone.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from threading import Lock
from typing import Any

import msgspec
import numpy as np

from vllm.config import StructuredOutputsConfig
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.request import Request
from vllm.v1.structured_output.guidance import Grammar, GrammarError, GuidanceTokenizer
from vllm.v1.structured_output.json_schema import locate, parse_schema
from vllm.v1.structured_output.spec import build_grammar

logger = init_logger(__name__)

_NUM_THREADS = 2  # one slow grammar does not hold up the next


@dataclass(slots=True)
class _Compilation:
    """A grammar on its way, since when."""

    future: "Future[Grammar]"
    started: float


class StructuredOutputManager:
    """Compiles, keeps and advances grammars.

    Args:
        vocab_size: the model's.
        get_tokenizer: called once, when the first grammar comes.
        config: limits.
    """

    def __init__(
        self,
        vocab_size: int,
        get_tokenizer: Callable[[], Any],
        config: StructuredOutputsConfig,
    ) -> None:
        self._vocab_size = vocab_size
        self._get_tokenizer = get_tokenizer
        self._config = config
        self._lock = Lock()
        self._tokenizer_lock = Lock()
        self._tokenizer: GuidanceTokenizer | None = None
        self._compiled: OrderedDict[bytes, Future[Grammar]] = OrderedDict()
        self._compiling: dict[str, _Compilation] = {}
        self._running: dict[str, Grammar] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._bitmask = np.zeros((0, (vocab_size + 31) // 32), dtype=np.int32)

    def validate(self, params: SamplingParams, tokenizer: Any = None) -> None:
        """Compile the grammar of `params`, so that a broken one never leaves the front end.

        Args:
            params: any; without a grammar there is nothing to judge.
            tokenizer: the engine's, None where it has none.

        Raises:
            VLLMValidationError: with the parser's reason and, for a schema, where in it.
        """
        if params.structured_outputs is None:
            return
        if tokenizer is None:
            raise _error("these need a tokenizer, and this engine has none; leave them out")
        future = self._submit(params.structured_outputs)
        try:
            error = future.exception(self._config.compile_timeout_s)
        except (FutureTimeoutError, CancelledError):
            future.cancel()  # one that has not begun; nobody else shall queue behind it
            raise self._too_slow() from None
        if error is not None:
            raise _for_client(error) from None

    def grammar_init(self, request: Request) -> None:
        """Start to compile the request's grammar, without waiting."""
        params = request.sampling_params.structured_outputs
        assert params is not None, "the request has no grammar"
        self._compiling[request.request_id] = _Compilation(self._submit(params), time.monotonic())

    def is_ready(self, request: Request) -> bool:
        """Whether the grammar is compiled.

        Raises:
            VLLMValidationError: it cannot be compiled, or took too long.
        """
        request_id = request.request_id
        if request_id in self._running:
            return True
        compilation = self._compiling[request_id]
        if compilation.future.cancelled():
            raise self._too_slow()
        if compilation.future.done():
            error = compilation.future.exception()
            if error is not None:
                raise _for_client(error) from None
            del self._compiling[request_id]
            self._running[request_id] = compilation.future.result().copy()
            return True
        if time.monotonic() - compilation.started > self._config.compile_timeout_s:
            compilation.future.cancel()
            raise self._too_slow()
        return False

    def grammar_bitmask(self, requests: Sequence[Request]) -> GrammarOutput | None:
        """What each request's grammar allows now; a grammar that broke allows nothing.

        The sampler then finds a row with no token left, and that request ends alone. The bitmask
        is valid until the next call.
        """
        if not requests:
            return None
        if len(self._bitmask) < len(requests):
            rows = max(len(requests), 2 * len(self._bitmask))
            self._bitmask = np.zeros((rows, (self._vocab_size + 31) // 32), dtype=np.int32)
        bitmask = self._bitmask[: len(requests)]
        for row, request in zip(bitmask, requests, strict=True):
            grammar = self._running[request.request_id]
            error = grammar.fill_bitmask(row, request.stop_token_ids)
            if error is not None:
                logger.warning("grammar of request %s: %s", request.request_id, error)
        return GrammarOutput([request.request_id for request in requests], bitmask)

    def accept_tokens(self, request: Request, token_ids: list[int]) -> bool:
        """Advance the grammar; False if it does not allow the tokens."""
        return self._running[request.request_id].accept(token_ids, request.stop_token_ids)

    def is_terminated(self, request: Request) -> bool:
        """Whether the output is complete and nothing may follow."""
        return self._running[request.request_id].is_terminated

    def clear(self, request_id: str) -> None:
        """Forget the request's grammar."""
        self._running.pop(request_id, None)
        self._compiling.pop(request_id, None)

    def _submit(self, params: StructuredOutputsParams) -> "Future[Grammar]":
        """The grammar at its start: one that is known, or one that is compiled in the pool.

        Refusals are kept like grammars, so that asking again costs nothing.
        """
        key = _key(params)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
            future = self._compiled.get(key)
            if future is None or _is_worth_another_try(future):
                future = self._compiled[key] = self._pool.submit(self._compile, params)
            self._compiled.move_to_end(key)
            while len(self._compiled) > self._config.cache_size:
                self._compiled.popitem(last=False)
        return future

    def _compile(self, params: StructuredOutputsParams) -> Grammar:
        grammar_text = build_grammar(params, self._config)
        tokenizer = self._library_tokenizer()
        try:
            return tokenizer.compile(grammar_text)
        except GrammarError as error:
            if params.json is None:
                raise
            pointer = locate(
                parse_schema(params.json),
                error.reason,
                is_bad_pattern=lambda p: not tokenizer.can_compile(p),
                reason_of=tokenizer.refusal_of_schema,
            )
            raise _error(f"json{f' at {pointer}' if pointer else ''}: {error.reason}") from None

    def _library_tokenizer(self) -> GuidanceTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = GuidanceTokenizer(self._get_tokenizer(), self._vocab_size)
            return self._tokenizer

    def _too_slow(self) -> VLLMValidationError:
        limit = self._config.compile_timeout_s
        return _error(f"compiling took longer than {limit:g} s; simplify the grammar")


def _key(params: StructuredOutputsParams) -> bytes:
    try:
        return hashlib.sha256(msgspec.msgpack.encode(params)).digest()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _error(f"these cannot be read: {error}") from None


def _is_worth_another_try(future: "Future[Grammar]") -> bool:
    """Whether it failed by no fault of the grammar."""
    if not future.done():
        return False
    if future.cancelled():
        return True
    error = future.exception()
    return error is not None and not isinstance(error, VLLMValidationError)


def _error(message: str) -> VLLMValidationError:
    return VLLMValidationError(f"structured_outputs: {message}", parameter="structured_outputs")


def _for_client(error: BaseException) -> VLLMValidationError:
    """The error of a compilation, raised anew: the kept one is shared by all who ask."""
    if isinstance(error, VLLMValidationError):
        return VLLMValidationError(str(error), parameter=error.parameter)
    logger.error("compiling a grammar failed", exc_info=error)
    return _error(f"compiling the grammar failed ({type(error).__name__})")
