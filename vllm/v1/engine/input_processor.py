# SPDX-License-Identifier: Apache-2.0
"""Prompts and parameters in, a complete and checked request out.

Everything that depends on the model (vocabulary, context length, bounds) is checked here, in
front, so that the core never meets a request it cannot run. Each refusal is a
`VLLMValidationError` that names the parameter.
"""

import itertools
import numbers
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import msgspec

from vllm.config import ModelConfig
from vllm.exceptions import VLLMValidationError
from vllm.inputs import PromptType
from vllm.sampling_params import SamplingParams
from vllm.tokenizers.encoding import check_text_can_fit, encode_text
from vllm.v1.engine.messages import EngineCoreRequest
from vllm.v1.engine.parallel_sampling import derive_seed

MAX_PROMPT_LOGPROBS_VALUES = 2**24
_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})


class GrammarValidator(Protocol):
    """Judges structured outputs before a request is queued."""

    def validate(self, params: SamplingParams, tokenizer: Any) -> None:
        """Raise `VLLMValidationError` with the parser's reason."""


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """A prompt in one form.

    Attributes:
        text: as given; None for token ids without text.
        token_ids: what the model runs.
        cache_salt: keeps its cached prefix apart from other salts'.
    """

    text: str | None
    token_ids: list[int]
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class ProcessedInput:
    """A request ready for the core, and the prompt's text for the answer."""

    core_request: EngineCoreRequest
    prompt: str | None


class InputProcessor:
    """Tokenizes and validates.

    Args:
        model_config: the model's limits.
        tokenizer: None when the engine serves token ids only.
        grammars: judges structured outputs.
        takes_priority: whether the scheduler heeds priorities; if not, requests bring none.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        tokenizer: Any | None,
        grammars: GrammarValidator,
        *,
        takes_priority: bool = False,
    ) -> None:
        self.model_config = model_config
        self.tokenizer = tokenizer
        self.max_model_len = model_config.max_model_len
        self._grammars = grammars
        self._takes_priority = takes_priority
        self._seed_indices = itertools.count(1)
        own_eos = getattr(tokenizer, "eos_token_id", None)
        eos_ids = [*model_config.eos_token_ids, *([own_eos] if own_eos is not None else [])]
        self._eos_token_ids = sorted({i for i in eos_ids if 0 <= i < model_config.vocab_size})

    def process(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
        lora_request: object | None = None,
        cap_max_tokens: bool = False,
    ) -> ProcessedInput:
        """Make a request.

        Args:
            request_id: unique among unfinished requests.
            params: left unchanged.
            arrival_time: seconds since the epoch; None is now.
            priority: lower runs first under the priority policy.
            lora_request: adapters are refused.
            cap_max_tokens: read `max_tokens` as an upper bound that the context may lower,
                instead of refusing what does not fit.

        Raises:
            VLLMValidationError: something is wrong with prompt or parameters.
        """
        if lora_request is not None:
            _refuse("lora_request", "adapters are not supported; send the request without one")
        self._check_priority(priority)
        parsed = self.parse_prompt(prompt)
        complete = self._complete(params)
        self._resolve_max_tokens(complete, len(parsed.token_ids), cap=cap_max_tokens)
        self._check_prompt_logprobs(complete, len(parsed.token_ids))
        core_request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=parsed.token_ids,
            sampling_params=complete,
            arrival_time=time.time() if arrival_time is None else arrival_time,
            cache_salt=parsed.cache_salt,
            priority=priority,
        )
        return ProcessedInput(core_request, parsed.text)

    def parse_prompt(self, prompt: PromptType) -> ParsedPrompt:
        """Bring a prompt into one form and check its ids and length."""
        given: Any = {"prompt": prompt} if isinstance(prompt, str) else prompt
        if not isinstance(given, dict):
            given = {"prompt_token_ids": _as_ids("prompt_token_ids", given)}
        text, ids, salt = self._parse_dict(given)
        if ids is None and text == "":
            # Some tokenizers would add a begin marker: what is allowed must not hang on that.
            self.check_prompt_length(0)
        if ids is None and text and self.tokenizer is not None:
            check_text_can_fit(self.tokenizer, len(text), self.max_model_len)
        token_ids = self.tokenize(text or "") if ids is None else _as_ids("prompt_token_ids", ids)
        self.check_token_ids("prompt", token_ids)
        self.check_prompt_length(len(token_ids))
        return ParsedPrompt(text, token_ids, salt)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text.

        Raises:
            VLLMValidationError: the engine has no tokenizer.
        """
        if self.tokenizer is None:
            _refuse("prompt", "this engine has no tokenizer; pass prompt_token_ids")
        return encode_text(self.tokenizer, text, add_special_tokens=add_special_tokens)

    def _check_priority(self, priority: int) -> None:
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 2**31:
            _refuse("priority", f"priority={priority!r}: pass a 32-bit integer", priority)
        if priority and not self._takes_priority:
            _refuse(
                "priority",
                f"priority={priority}: this engine runs requests in order of arrival; start it "
                'with scheduling_policy="priority", or leave the priority out',
                priority,
            )

    def check_token_ids(self, parameter: str, token_ids: Iterable[int]) -> None:
        """Refuse ids outside the model's vocabulary."""
        vocab_size = self.model_config.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                _refuse(
                    parameter,
                    f"{parameter}: token id {token_id} is outside the vocabulary; pass ids from "
                    f"0 to {vocab_size - 1}",
                    token_id,
                )

    def check_prompt_length(self, num_prompt_tokens: int) -> None:
        """Refuse an empty prompt, and one that leaves no room for a token."""
        if num_prompt_tokens == 0:
            _refuse(
                "prompt",
                "the prompt is empty; pass a text, or at least one token id (the begin token's, to "
                "begin from nothing)",
            )
        if num_prompt_tokens >= self.max_model_len:
            _refuse(
                "prompt",
                f"the prompt has {num_prompt_tokens} tokens; this model's context is "
                f"{self.max_model_len} tokens for prompt and output together, so pass at most "
                f"{self.max_model_len - 1} prompt tokens",
                num_prompt_tokens,
            )

    def _parse_dict(self, given: dict[str, Any]) -> tuple[str | None, Any, str | None]:
        unknown = sorted(map(str, given.keys() - _PROMPT_KEYS))
        if unknown:
            _refuse(
                unknown[0],
                f"prompt key {unknown[0]!r} is not supported; pass 'prompt' or 'prompt_token_ids'",
            )
        text, ids, salt = (
            given.get("prompt"),
            given.get("prompt_token_ids"),
            given.get("cache_salt"),
        )
        if text is None and ids is None:
            _refuse("prompt", "the prompt is missing; pass 'prompt' or 'prompt_token_ids'")
        if text is not None and not isinstance(text, str):
            _refuse("prompt", f"prompt is {type(text).__name__}; pass a string", text)
        if salt is not None and (not isinstance(salt, str) or not salt):
            _refuse("cache_salt", f"cache_salt={salt!r}: pass a non-empty string", salt)
        return text, ids, salt

    def _complete(self, params: SamplingParams) -> SamplingParams:
        """A checked copy with everything resolved that needs the model."""
        if not isinstance(params, SamplingParams):
            _refuse("sampling_params", f"{type(params).__name__}: pass SamplingParams")
        try:
            # The caller may have changed fields since construction: all checks run again.
            complete = params.clone()
        except msgspec.ValidationError as error:
            _refuse("sampling_params", f"sampling parameters: {error}")
        self.check_token_ids("stop_token_ids", complete.stop_token_ids or ())
        self.check_token_ids("logit_bias", complete.logit_bias or ())
        self.check_token_ids("allowed_token_ids", complete.allowed_token_ids or ())
        complete.logprobs = self._resolve_logprobs("logprobs", complete.logprobs)
        complete.prompt_logprobs = self._resolve_logprobs(
            "prompt_logprobs", complete.prompt_logprobs
        )
        self._check_needs_tokenizer(complete)
        if complete.structured_outputs is not None:
            self._grammars.validate(complete, self.tokenizer)
        complete.eos_token_ids = list(self._eos_token_ids)
        complete.bad_words_token_ids = self._bad_words_ids(complete.bad_words or [])
        if complete.seed is None:
            complete.seed = self._draw_seed()
        return complete

    def _draw_seed(self) -> int:
        """A seed for a request without one; a sequence of them where the engine has a seed.

        Never the engine's own: equal prompts would all get the same output.
        """
        if self.model_config.seed is None:
            return secrets.randbits(63)
        return derive_seed(self.model_config.seed, next(self._seed_indices))

    def _resolve_logprobs(self, name: str, value: int | None) -> int | None:
        """The number of likeliest tokens, -1 resolved, within the engine's bound."""
        if value is None:
            return None
        bound, vocab_size = self.model_config.max_logprobs, self.model_config.vocab_size
        wanted = vocab_size if value == -1 else value
        limit = vocab_size if bound == -1 else min(bound, vocab_size)
        if wanted > limit:
            what = f"{name}={value}" + (f" (the vocabulary, {vocab_size})" if value == -1 else "")
            _refuse(
                name,
                f"{what}: pass at most {limit}, or start the engine with a higher max_logprobs",
                value,
            )
        return wanted

    def _check_needs_tokenizer(self, params: SamplingParams) -> None:
        if self.tokenizer is not None:
            return
        for name in ("stop", "bad_words", "structured_outputs"):
            if getattr(params, name):
                _refuse(name, f"{name} needs a tokenizer, and this engine has none; leave it out")

    def _bad_words_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Token sequences of each word, as it begins a text and as it follows a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip()):
                ids = tuple(self.tokenize(text, add_special_tokens=False))
                if ids:
                    found[ids] = None
        sequences = [list(ids) for ids in found]
        for ids_ in sequences:
            self.check_token_ids("bad_words", ids_)
        return sequences

    def _resolve_max_tokens(
        self, params: SamplingParams, num_prompt_tokens: int, *, cap: bool
    ) -> None:
        room = self.max_model_len - num_prompt_tokens
        if params.max_tokens is None or (cap and params.max_tokens > room):
            params.max_tokens = room
        if params.max_tokens > room:
            _refuse(
                "max_tokens",
                f"the prompt has {num_prompt_tokens} tokens and max_tokens={params.max_tokens} "
                f"asks for that many more, {num_prompt_tokens + params.max_tokens} in all; this "
                f"model's context is {self.max_model_len} tokens, so pass max_tokens of at most "
                f"{room} or a shorter prompt",
                params.max_tokens,
            )
        if params.min_tokens > params.max_tokens:
            _refuse(
                "min_tokens",
                f"min_tokens={params.min_tokens}: the context has room for {params.max_tokens} "
                "output tokens; pass at most that",
                params.min_tokens,
            )

    def _check_prompt_logprobs(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        if params.prompt_logprobs is None:
            return
        num_values = num_prompt_tokens * (params.prompt_logprobs + 1)
        if num_values > MAX_PROMPT_LOGPROBS_VALUES:
            _refuse(
                "prompt_logprobs",
                f"prompt_logprobs={params.prompt_logprobs} over {num_prompt_tokens} prompt tokens "
                f"is {num_values} values; at most {MAX_PROMPT_LOGPROBS_VALUES} are returned, so "
                "ask for fewer or send a shorter prompt",
                params.prompt_logprobs,
            )


def _as_ids(parameter: str, given: Any) -> list[int]:
    """`given` as a list of ints of its own; integers of other kinds (NumPy's) will do.

    Raises:
        VLLMValidationError: it is no sequence of integers.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        _refuse(parameter, f"a prompt is text or a list of token ids, not {type(given).__name__}")
    return [i if type(i) is int else _as_id(parameter, i) for i in given]


def _as_id(parameter: str, token_id: Any) -> int:
    if isinstance(token_id, bool) or not isinstance(token_id, numbers.Integral):
        _refuse(parameter, f"{token_id!r} is no token id; pass integers", token_id)
    return int(token_id)


def _refuse(parameter: str, message: str, value: object = None) -> NoReturn:
    raise VLLMValidationError(message, parameter=parameter, value=value)
