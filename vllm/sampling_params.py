# SPDX-License-Identifier: Apache-2.0
"""How a request's tokens are drawn, and when it stops. Checked at construction.

Checks that need the model (vocabulary, context length, bounds of the server) are the input
processor's; everything that can be judged without a model is judged here.
"""

import math
import numbers
from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import msgspec

from vllm.exceptions import VLLMValidationError

SAMPLING_EPS = 1e-5
MAX_N = 64
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 4_096
MAX_BAD_WORDS = 1_024
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1
MAX_SCHEMA_DEPTH = 64
_MAX_SHOWN_CHARS = 200


class RequestOutputKind(IntEnum):
    """What each `RequestOutput` carries."""

    CUMULATIVE = 0  # everything so far, each time
    DELTA = 1  # what is new since the last one
    FINAL_ONLY = 2  # one output, at the end


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """A grammar that the output must match: exactly one of the five kinds.

    Attributes:
        json: a JSON schema, as text or as an object.
        regex: a regular expression the whole output matches.
        choice: texts, one of which is the output.
        grammar: a grammar in Lark or GBNF form.
        json_object: any JSON object.
        disable_any_whitespace: allow no white space between JSON tokens.
        whitespace_pattern: a regular expression for white space between JSON tokens.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        kinds = [k for k in ("json", "regex", "choice", "grammar") if getattr(self, k) is not None]
        if self.json_object:
            kinds.append("json_object")
        if len(kinds) != 1:
            raise VLLMValidationError(
                f"structured_outputs names {kinds or 'no kind'}; give exactly one of json, regex, "
                "choice, grammar, json_object",
                parameter="structured_outputs",
            )
        # What is deeper exhausts the stack of whoever encodes or walks it.
        if is_deeper(self.json, MAX_SCHEMA_DEPTH):
            raise VLLMValidationError(
                f"structured_outputs.json nests deeper than {MAX_SCHEMA_DEPTH} levels; flatten it",
                parameter="structured_outputs",
            )
        if self.choice is not None and not isinstance(self.choice, list):
            _refuse("structured_outputs.choice", self.choice, "a list of texts")
        is_json = self.json is not None or self.json_object
        if not is_json and (self.disable_any_whitespace or self.whitespace_pattern is not None):
            raise VLLMValidationError(
                "structured_outputs: disable_any_whitespace and whitespace_pattern are for json "
                f"and json_object, not for {kinds[0]}; leave them out",
                parameter="structured_outputs",
            )


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, dict=True):
    """Sampling fields of one request, with upstream's names and defaults.

    Attributes:
        n: outputs to draw for the prompt.
        presence_penalty: subtracted once from every token already in the output; [-2, 2].
        frequency_penalty: subtracted once per occurrence in the output; [-2, 2].
        repetition_penalty: divides positive and multiplies negative logits of every token in
            prompt or output; above 0, 1 is off.
        temperature: divides logits; up to 1e-5 is greedy.
        top_p: keep the smallest set of tokens with at least this probability; (0, 1].
        top_k: keep this many tokens; 0 or -1 keeps all.
        min_p: drop tokens below this share of the likeliest one's probability; [0, 1].
        seed: makes the draw reproducible, whatever else is in the batch.
        stop: texts that end generation.
        stop_token_ids: token ids that end generation.
        ignore_eos: go on past the end-of-sequence token.
        max_tokens: most tokens to generate; None fills the context.
        min_tokens: no end before this many tokens.
        logprobs: how many top logprobs to return per output token; -1 is the vocabulary.
        prompt_logprobs: the same per prompt token.
        detokenize: return text besides token ids.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: upstream's field; True only, see `__post_init__`.
        include_stop_str_in_output: keep the stop text (or token) in the output.
        output_kind: what each output carries.
        structured_outputs: a grammar the output must match.
        logit_bias: added to logits by token id; each in [-100, 100].
        allowed_token_ids: the only ids that may be drawn.
        bad_words: texts that may not appear.
        skip_reading_prefix_cache: compute the whole prompt even where its prefix is cached.
        extra_args: not supported; refused when given.
        thinking_token_budget: not supported; refused when given.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_args: dict[str, Any] | None = None
    thinking_token_budget: int | None = None

    # Filled by the input processor from the tokenizer and the model; never by a client.
    eos_token_ids: Annotated[list[int], "resolved"] = msgspec.field(default_factory=list)
    bad_words_token_ids: Annotated[list[list[int]], "resolved"] = msgspec.field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        self._check_types()
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self.stop = list(self.stop or [])
        self.stop_token_ids = list(self.stop_token_ids or [])
        self.bad_words = list(self.bad_words or [])
        if self.top_k == -1:
            self.top_k = 0
        if self.seed == -1:
            self.seed = None
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        self._check_numbers()
        self._check_collections()
        self._check_unsupported()
        if self.is_greedy:
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken rather than drawn."""
        return self.temperature <= SAMPLING_EPS

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as the list it was normalised to."""
        assert isinstance(self.stop, list)
        return self.stop

    @property
    def all_stop_token_ids(self) -> set[int]:
        """Ids that end generation: the request's own and, unless ignored, the model's."""
        ids = set(self.stop_token_ids or ())
        return ids if self.ignore_eos else ids | set(self.eos_token_ids)

    def clone(self) -> "SamplingParams":
        """A copy that shares no mutable field."""
        return msgspec.convert(msgspec.to_builtins(self, str_keys=False), SamplingParams)

    def _check_types(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            value = getattr(self, name)
            if name == "stop" and isinstance(value, str):
                continue
            if value is not None and not isinstance(value, list | tuple | set | frozenset):
                _refuse(name, value, "a list")
        if self.logit_bias is not None and not isinstance(self.logit_bias, dict):
            _refuse("logit_bias", self.logit_bias, "a mapping from token ids to numbers")
        for name in _BOOLEANS:
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "True or False")
        grammar = self.structured_outputs
        if grammar is not None and not isinstance(grammar, StructuredOutputsParams):
            _refuse("structured_outputs", grammar, "a StructuredOutputsParams")
        if self.output_kind not in tuple(RequestOutputKind):
            _refuse("output_kind", self.output_kind, "a RequestOutputKind")

    def _check_numbers(self) -> None:
        """Check ranges, and turn numbers of other kinds (NumPy's) into Python's own."""
        for name, (low, high) in _REALS.items():
            is_open = name in _OPEN_BELOW
            setattr(self, name, _real(name, getattr(self, name), low, high, open_low=is_open))
        for name, (lowest, highest, hint) in _INTEGERS.items():
            value = getattr(self, name)
            if value is not None or name in _NEVER_NONE:
                setattr(self, name, _integer(name, value, lowest, highest, hint=hint))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _refuse("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")

    def _check_collections(self) -> None:
        stop = self.stop_strings
        if len(stop) > MAX_STOP_STRINGS:
            _refuse("stop", f"{len(stop)} strings", f"at most {MAX_STOP_STRINGS}")
        for text in stop:
            if not isinstance(text, str) or not text or len(text) > MAX_STOP_CHARS:
                _refuse("stop", text, f"non-empty strings of up to {MAX_STOP_CHARS} characters")
        if stop and not self.detokenize:
            _refuse("stop", stop, "no stop strings with detokenize=False; use stop_token_ids")
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids or ())
        for word in self.bad_words or ():
            if not isinstance(word, str) or not word:
                _refuse("bad_words", word, "non-empty strings")
        if len(self.bad_words or ()) > MAX_BAD_WORDS:
            _refuse("bad_words", f"{len(self.bad_words or ())} words", f"at most {MAX_BAD_WORDS}")
        if self.logit_bias is not None:
            self.logit_bias = {
                _integer("logit_bias", token_id, 0, None, hint="keys are token ids"): _real(
                    "logit_bias", bias, -100.0, 100.0
                )
                for token_id, bias in self.logit_bias.items()
            }
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                _refuse("allowed_token_ids", [], "at least one token id")
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)

    def _check_unsupported(self) -> None:
        if self.extra_args:
            _refuse("extra_args", self.extra_args, "nothing: this engine takes no extra_args")
        if self.thinking_token_budget is not None:
            _refuse("thinking_token_budget", self.thinking_token_budget, "nothing: not supported")
        if not self.spaces_between_special_tokens:
            _refuse("spaces_between_special_tokens", False, "True: tokens are joined as decoded")


_BOOLEANS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)

# Lowest and highest value; those in _OPEN_BELOW exclude the lowest.
_REALS = {
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, 1e6),
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
}
_OPEN_BELOW = frozenset({"repetition_penalty", "top_p"})
# Lowest and highest value, and a hint for the message.
_INTEGERS = {
    "n": (1, MAX_N, ""),
    "top_k": (0, MAX_COUNT, "0 or -1 keeps every token"),
    "seed": (-MAX_SEED - 1, MAX_SEED, ""),
    "max_tokens": (1, MAX_COUNT, ""),
    "min_tokens": (0, MAX_COUNT, ""),
    "logprobs": (-1, MAX_COUNT, "-1 is the whole vocabulary"),
    "prompt_logprobs": (-1, MAX_COUNT, ""),
}
_NEVER_NONE = frozenset({"n", "top_k", "min_tokens"})


def _refuse(parameter: str, value: object, allowed: str) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= _MAX_SHOWN_CHARS else f"{shown[:_MAX_SHOWN_CHARS]}..."
    raise VLLMValidationError(
        f"{parameter}={shown}: pass {allowed}", parameter=parameter, value=value
    )


def is_deeper(node: Any, limit: int) -> bool:
    """Whether dicts and lists nest deeper than `limit`; level by level, not by recursion."""
    level = [node]
    for _ in range(limit + 1):
        level = [
            child
            for n in level
            if isinstance(n, dict | list | tuple)
            for child in (n.values() if isinstance(n, dict) else n)
        ]
        if not level:
            return False
    return True


def _token_ids(name: str, given: Iterable[object]) -> list[int]:
    return [_integer(name, token_id, 0, None) for token_id in given]


def _integer(name: str, value: object, low: int, high: int | None, *, hint: str = "") -> int:
    """`value` as an int; every kind of integer but bool will do."""
    allowed = f"an integer of at least {low}" + (f" and at most {high}" if high is not None else "")
    allowed += f" ({hint})" if hint else ""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        _refuse(name, value, allowed)
    number = int(value)
    if number < low or (high is not None and number > high):
        _refuse(name, value, allowed)
    return number


def _real(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> float:
    """`value` as a float, an int staying one; every kind of real number but bool will do."""
    allowed = f"a finite number {'above' if open_low else 'from'} {low:g} up to {high:g}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        _refuse(name, value, allowed)
    # Compared before isfinite: a huge int has no float, and NaN compares false to everything.
    if not low <= value <= high or not math.isfinite(value):  # type: ignore[operator]
        _refuse(name, value, allowed)
    number: float = int(value) if isinstance(value, numbers.Integral) else float(value)
    # After the conversion: a fraction above the bound may be none as a float.
    if open_low and number == low:
        _refuse(name, value, allowed)
    return number
