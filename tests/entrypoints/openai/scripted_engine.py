# SPDX-License-Identifier: Apache-2.0
"""An engine that says what a test scripts: token by token, cut where the test wants.

Lets protocol behaviour be tested without a model: every cut, every finish reason, errors before
and amid the output, clients that leave.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.exceptions import EngineDeadError, VLLMValidationError
from vllm.logprobs import Logprob, LogprobsOnePosition
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

BOS = 0
VOCAB_SIZE = 0x110000
MAX_MODEL_LEN = 64


class CharTokenizer:
    """One token per character, its code point; id 0 is the begin marker `<s>`."""

    all_special_ids = (BOS,)
    vocab_size = VOCAB_SIZE
    bos_token_id = BOS

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Code points, after the begin marker if wanted."""
        return ([BOS] if add_special_tokens else []) + [ord(char) for char in text]

    def get_vocab(self) -> dict[str, int]:
        """The begin marker stands for the vocabulary: no other token has a longer name."""
        return {"<s>": BOS}

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `token_ids`."""
        return "".join(self.convert_ids_to_tokens(token_ids))

    def get_chat_template(self, template: str | None, tools: Any = None) -> str:
        """The template; rendering does not read it."""
        return "{{ messages }}"

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        """The begin marker's text, then roles and contents."""
        tools = "".join(tool["function"]["name"] + ";" for tool in options.get("tools") or ())
        head = "\0" + tools + "".join(f"{m['role']}:{m['content']}\n" for m in messages)
        return head + ("assistant:" if options.get("add_generation_prompt") else "")

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str]:
        """One string per id."""
        return ["<s>" if i == BOS else chr(i) for i in token_ids]


@dataclass(frozen=True)
class Step:
    """What one engine step brings for a choice: tokens, and the text they release."""

    text: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobsOnePosition] = field(default_factory=list)


@dataclass
class Script:
    """What a choice says, and how it ends."""

    steps: list[Step]
    finish_reason: str = "stop"
    stop_reason: int | str | None = None


def say(text: str, *, finish_reason: str = "stop", stop_reason: Any = None) -> Script:
    """One token per character."""
    steps = [Step(c, [ord(c)], [row(ord(c), c)]) for c in text]
    return Script(steps, finish_reason, stop_reason)


def row(token_id: int, text: str, logprob: float = -0.5) -> LogprobsOnePosition:
    """Logprobs of one position: the token at rank 1 and `?` at rank 2."""
    return {
        token_id: Logprob(logprob, 1, text),
        ord("?"): Logprob(float("-inf"), 2, "?"),
    }


@dataclass
class ScriptedEngine:
    """Implements the server's `EngineClient`.

    Attributes:
        scripts: what choice i of every prompt says (the last one repeats).
        step_s: seconds per step.
        error: raised in place of the first output.
        error_at: with `late_error`, the step before which that is raised.
        room: outputs that there is ever room for at once.
        seen: prompt, parameters and priority of every request.
        active: requests that have begun and not ended; `aborted` were closed early.
    """

    scripts: list[Script] = field(default_factory=lambda: [say("hello")])
    step_s: float = 0.0
    error: Exception | None = None
    late_error: Exception | None = None
    error_at: int = 1
    num_cached_tokens: int | None = 0
    errored: bool = False
    room: int | None = None
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = field(default_factory=CharTokenizer)
    seen: list[tuple[Any, SamplingParams, int]] = field(default_factory=list)
    active: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)

    @property
    def model_config(self) -> Any:
        """The fields of `ModelConfig` that the server reads."""
        return SimpleNamespace(
            served_model_name=("tiny", "alias"),
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            generation_defaults=self.generation_defaults,
            chat_template=None,
        )

    def check_room(self, requests: Sequence[tuple[int, int]]) -> None:
        """Refuse more outputs than `room`."""
        num_outputs = sum(n for n, _ in requests)
        if self.room is not None and num_outputs > self.room:
            raise VLLMValidationError(f"{num_outputs} outputs at once", parameter="prompt")

    async def check_health(self) -> None:
        """Raise once dead."""
        if self.errored:
            raise EngineDeadError("the engine has died")

    async def get_tokenizer(self) -> Any:
        """The character tokenizer, unless the test took it away."""
        return self.tokenizer

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Say the script."""
        self.seen.append((prompt, sampling_params, priority))
        ids = prompt["prompt_token_ids"]
        if len(ids) >= MAX_MODEL_LEN:
            raise VLLMValidationError(
                f"prompt of {len(ids)} tokens: the limit is {MAX_MODEL_LEN - 1}",
                parameter="prompt",
            )
        if self.error is not None:
            raise self.error
        assert request_id not in self.active, "request ids must be unique"
        self.active.add(request_id)
        try:
            is_delta = sampling_params.output_kind is RequestOutputKind.DELTA
            said = self._deltas(sampling_params) if is_delta else self._finals(sampling_params)
            async for completions, finished in said:
                yield self._output(request_id, prompt, sampling_params, completions, finished)
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request_id)
            raise
        finally:
            self.active.discard(request_id)

    def _output(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams,
        completions: list[CompletionOutput],
        finished: bool,
    ) -> RequestOutput:
        ids = prompt["prompt_token_ids"]
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            pieces = CharTokenizer().convert_ids_to_tokens(ids)
            prompt_logprobs = [None, *(row(i, t) for i, t in zip(ids[1:], pieces[1:], strict=True))]
        return RequestOutput(
            request_id=request_id,
            prompt=prompt.get("prompt"),
            prompt_token_ids=ids,
            prompt_logprobs=prompt_logprobs,
            outputs=completions,
            finished=finished,
            num_cached_tokens=self.num_cached_tokens,
        )

    def _script(self, index: int) -> Script:
        return self.scripts[min(index, len(self.scripts) - 1)]

    async def _deltas(
        self, params: SamplingParams
    ) -> AsyncGenerator[tuple[list[CompletionOutput], bool], None]:
        num_steps = max(len(self._script(i).steps) for i in range(params.n))
        for at in range(max(num_steps, 1)):
            await self._pause(at)
            changed = [
                self._delta(self._script(i), i, at, params)
                for i in range(params.n)
                if at < max(len(self._script(i).steps), 1)
            ]
            yield changed, at + 1 >= num_steps

    def _delta(
        self, script: Script, index: int, at: int, params: SamplingParams
    ) -> CompletionOutput:
        step = script.steps[at] if script.steps else Step("")
        is_last = at + 1 >= len(script.steps)
        return CompletionOutput(
            index=index,
            text=step.text,
            token_ids=step.token_ids,
            logprobs=step.logprobs if params.logprobs is not None else None,
            finish_reason=script.finish_reason if is_last else None,
            stop_reason=script.stop_reason if is_last else None,
        )

    async def _finals(
        self, params: SamplingParams
    ) -> AsyncGenerator[tuple[list[CompletionOutput], bool], None]:
        scripts = [self._script(i) for i in range(params.n)]
        for at in range(max(len(s.steps) for s in scripts)):
            await self._pause(at)
        yield [self._final(s, i, params) for i, s in enumerate(scripts)], True

    @staticmethod
    def _final(script: Script, index: int, params: SamplingParams) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text="".join(s.text for s in script.steps),
            token_ids=[i for s in script.steps for i in s.token_ids],
            logprobs=[r for s in script.steps for r in s.logprobs]
            if params.logprobs is not None
            else None,
            finish_reason=script.finish_reason,
            stop_reason=script.stop_reason,
        )

    async def _pause(self, at: int) -> None:
        await asyncio.sleep(self.step_s)
        if self.late_error is not None and at == self.error_at:
            raise self.late_error
