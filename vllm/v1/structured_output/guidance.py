# SPDX-License-Identifier: Apache-2.0
"""The one door to llguidance: says whether it is there, and makes tokenizers and matchers.

Its messages are cut to what a client may read: the parser's reason, no paths, no addresses.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from vllm.exceptions import VLLMValidationError

_MAX_REASON_CHARS = 500


class GuidanceTokenizer:
    """A model's vocabulary as llguidance wants it.

    Args:
        tokenizer: a Hugging Face fast tokenizer.
        vocab_size: the model's; ids that the tokenizer lacks are never allowed.

    Raises:
        VLLMValidationError: llguidance is not installed, or cannot read this tokenizer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._library = llguidance = _library()
        # Some tokenizers know more tokens than the model has logits; the surplus is cut off again.
        num_tokens = max(vocab_size, _num_tokens(tokenizer))
        try:
            self._handle = llguidance.hf.from_tokenizer(tokenizer, n_vocab=num_tokens)
        except (TypeError, ValueError, AttributeError) as error:
            raise VLLMValidationError(
                f"structured_outputs: not available for this model, since its tokenizer cannot be "
                f"used by the grammar library ({readable(str(error))})",
                parameter="structured_outputs",
            ) from None
        self.vocab_size = vocab_size
        self._eos_ids = [i for i in self._handle.eos_tokens if i < vocab_size]
        self._limits = llguidance.LLParserLimits(verbose_errors=False)

    def compile(self, grammar: str) -> "Grammar":
        """A grammar at its start.

        Raises:
            GrammarError: it cannot be parsed, uses what is not supported, or matches no text.
        """
        matcher = self._library.LLMatcher(self._handle, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        # A warning says that a part of the grammar is ignored: then it would not be enforced.
        warnings = matcher.get_grammar_warnings()
        if warnings:
            raise GrammarError(warnings[0])
        compiled = Grammar(matcher, self._eos_ids, self.vocab_size)
        compiled.check_first_step()
        return compiled

    def can_compile(self, regex: str) -> bool:
        """Whether the library takes a regular expression."""
        return self._refusal(grammar_of("regex", regex)) is None

    def refusal_of_schema(self, schema: dict[str, Any]) -> str | None:
        """Why the library does not read a JSON schema, None if it does."""
        return self._refusal(json_schema_grammar(json.dumps(schema), {}))

    def _refusal(self, grammar: str) -> str | None:
        matcher = self._library.LLMatcher(self._handle, grammar, log_level=0, limits=self._limits)
        return readable(matcher.get_error()) if matcher.is_error() else None


class GrammarError(VLLMValidationError):
    """The grammar library refused a grammar.

    Args:
        message: the library's.

    Attributes:
        reason: the message in one line fit for a client.
    """

    def __init__(self, message: str) -> None:
        self.reason = readable(message)
        super().__init__(f"structured_outputs: {self.reason}", parameter="structured_outputs")


class Grammar:
    """A grammar and how far the output has come in it.

    The library lets the tokenizer's own end token follow a complete text. Which tokens end a
    request is the request's to say, so the library's choice is replaced by the `stop_ids`.
    """

    def __init__(self, matcher: Any, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size
        self._has_ended = False

    def copy(self) -> "Grammar":
        """The same grammar at the same place, independent from here on."""
        return Grammar(self._matcher.deep_copy(), self._eos_ids, self._vocab_size)

    def fill_bitmask(self, row: np.ndarray, stop_ids: Collection[int] = ()) -> str | None:
        """Set the bits of allowed tokens in `row`; none are set if the grammar broke.

        Args:
            row: [ceil(V / 32)], int32, contiguous.
            stop_ids: tokens that may follow a complete text.

        Returns:
            Why the grammar cannot go on, or None.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        if self._matcher.is_error():
            row.fill(0)
            return self.error
        row[:] = mask[: len(row)]
        surplus = self._vocab_size % 32
        if surplus:
            row[-1] &= (1 << surplus) - 1
        bits = row.view(np.uint32)
        for token_id in self._eos_ids:
            bits[token_id >> 5] &= ~_bit(token_id)
        if self._matcher.is_accepting():
            for token_id in stop_ids:
                if token_id < self._vocab_size:
                    bits[token_id >> 5] |= _bit(token_id)
        return None

    def accept(self, token_ids: list[int], stop_ids: Collection[int] = ()) -> bool:
        """Advance; False if a token is not allowed here. One of `stop_ids` ends a complete text."""
        for token_id in token_ids:
            if token_id in stop_ids and self._matcher.is_accepting():
                self._has_ended = True
            elif self._has_ended or self._matcher.try_consume_tokens([token_id]) != 1:
                return False
        return True

    def check_first_step(self) -> None:
        """Take a step on a copy, so that what breaks at once is refused beforehand.

        Raises:
            GrammarError: nothing but the empty text matches, or the grammar is too complex.
        """
        probe = self.copy()
        row = np.zeros((self._vocab_size + 31) // 32, dtype=np.int32)
        error = probe.fill_bitmask(row)
        allowed = np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0]
        if error is not None or not len(allowed):
            raise GrammarError(error or "no text but the empty one matches")
        probe.accept([int(allowed[0])])
        error = probe.fill_bitmask(row)
        if error is not None:
            raise GrammarError(error)

    @property
    def error(self) -> str | None:
        """Why the grammar cannot go on, or None."""
        if not self._matcher.is_error():
            return None
        message = readable(self._matcher.get_error())
        # How the library says that it found no way on from the very start.
        return "no text matches" if message.startswith("NoExtension") else message

    @property
    def is_terminated(self) -> bool:
        """Whether the output is complete and nothing may follow."""
        if self._has_ended:
            return True
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()


def _library() -> Any:
    """The module, or the reason why there is no constraint: never an output without one."""
    try:
        import llguidance
        import llguidance.hf
    except ImportError:
        raise VLLMValidationError(
            "structured_outputs: not available, since this server has no grammar library; install "
            "llguidance on it or leave structured_outputs and response_format out",
            parameter="structured_outputs",
        ) from None
    return llguidance


def _bit(token_id: int) -> np.uint32:
    bit: np.uint32 = np.uint32(1 << (token_id & 31))
    return bit


def _num_tokens(tokenizer: Any) -> int:
    try:
        return len(tokenizer)
    except TypeError:
        return 0  # not a tokenizer: the library says so


def json_schema_grammar(schema: str, whitespace: dict[str, Any]) -> str:
    """llguidance's grammar for a JSON schema; a keyword it cannot enforce is an error."""
    options = {"lenient": False, **whitespace}
    return str(_library().LLMatcher.grammar_from_json_schema(schema, overrides=options))


def choice_grammar(choices: list[str]) -> str:
    """llguidance's grammar for one of some texts."""
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return str(_library().LLMatcher.grammar_from_lark(f"start: {alternatives}"))


def grammar_of(kind: str, text: str) -> str:
    """llguidance's grammar for a "regex" or a "grammar" (Lark, GBNF)."""
    return str(_library().grammar_from(kind, text))


def readable(message: str) -> str:
    """A library's message in one line, without addresses and paths, and not too long."""
    # Excerpts of the source ("   1 | ..." and a caret below) repeat what the client knows.
    lines = [line for line in message.splitlines() if not re.match(r"\s*(\d+ \||\^+\s*$)", line)]
    message = " ".join(line.strip() for line in lines if line.strip() != "<non-verbose/>")
    message = re.sub(r"\b0x[0-9a-fA-F]{6,}", "…", message)
    message = re.sub(r"(/[\w.-]+){2,}\.(rs|py)\S*", "…", message)
    # Advice for whoever calls the library; a client cannot follow it.
    message = re.sub(
        r"\. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
        ", unless no text matches two of the alternatives; use anyOf",
        message,
    ).strip()
    if len(message) <= _MAX_REASON_CHARS:
        return message
    # The source is quoted first and the reason comes last: both ends are kept.
    half = _MAX_REASON_CHARS // 2
    return f"{message[:half]} … {message[-half:]}"
