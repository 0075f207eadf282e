# SPDX-License-Identifier: Apache-2.0
"""Token ids to text, one token at a time, and the search for stop strings in it.

What is emitted never changes afterwards: the joined pieces are the decoded whole, for any cut.
Text that may still change (the bytes of an unfinished character, the beginning of a stop string)
is held back; everything held is given out at the end.
"""

import codecs
from collections.abc import Sequence

from vllm.sampling_params import SamplingParams
from vllm.v1.engine.token_text import REPLACEMENT, TokenText

_PROMPT_CONTEXT = 8
_MAX_WINDOW = 24
_KEPT_TOKENS = range(12, 8, -1)  # of a window that is shortened; the first that fits
_MAX_HELD_MARKS = 3  # a character has at most four bytes, and the last one completes it


class IncrementalDecoder:
    """Settled text of a growing list of token ids.

    Decoders look at neighbours (leading spaces, word pieces, bytes of a character), so the
    latest tokens are decoded together, as a window that begins at least one settled token before
    the text still to come:

        ids    | prompt tail ... | settled ... | new |
                 ^ window                        ^ not settled while a character is unfinished

    Args:
        token_text: the tokenizer's side.
        prompt_token_ids: the prompt; its last tokens are context, never output.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(
        self, token_text: TokenText, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._text = token_text
        self._skipped = token_text.special_ids if skip_special_tokens else frozenset()
        start = max(0, len(prompt_token_ids) - _PROMPT_CONTEXT)
        # A run of byte tokens is judged as a whole: do not cut into one.
        while start > 0 and prompt_token_ids[start] in token_text.byte_ids:
            start -= 1
        self._window = [i for i in prompt_token_ids[start:] if i not in self._skipped]
        self._run = codecs.getincrementaldecoder("utf-8")()
        self._is_bad_run = False
        self._begin_run()
        text = self._decode()
        is_open_run = bool(self._window) and self._window[-1] in token_text.byte_ids
        if is_open_run and not self._is_bad_run:
            self._num_settled_chars = len(text.rstrip(REPLACEMENT))
        else:
            self._num_settled_chars = len(text) if is_open_run else _settled_length(text)

    def step(self, token_id: int) -> str:
        """Add one token; the text that is now settled, often one word, sometimes nothing."""
        if token_id in self._skipped:
            return ""
        byte = self._text.byte_ids.get(token_id)
        if byte is not None:
            return self._step_byte(token_id, byte)
        self._run.reset()
        self._is_bad_run = False
        self._window.append(token_id)
        text = self._decode()
        end = max(self._num_settled_chars, _settled_length(text))
        new = text[self._num_settled_chars : end]
        self._num_settled_chars = end
        if len(self._window) > _MAX_WINDOW:
            self._shorten(text)
        return new

    def flush(self) -> str:
        """The rest at the end: characters that were never completed show as marks."""
        text = self._decode()
        new = text[self._num_settled_chars :]
        self._num_settled_chars = len(text)
        return new

    def _decode(self) -> str:
        return self._text.decode(self._window) if self._window else ""

    def _begin_run(self) -> None:
        """Take up the run of bytes that the prompt ends with, if it does."""
        byte_ids = self._text.byte_ids
        start = len(self._window)
        while start > 0 and self._window[start - 1] in byte_ids:
            start -= 1
        for token_id in self._window[start:]:
            self._add_byte(byte_ids[token_id])

    def _step_byte(self, token_id: int, byte: int) -> str:
        """A byte of a run: nothing is settled while the run is UTF-8, all once it is not."""
        if self._is_bad_run:
            # The run in the window is already bad, and each further byte is one more mark.
            return REPLACEMENT
        self._window.append(token_id)
        self._add_byte(byte)
        return self.flush() if self._is_bad_run else ""

    def _add_byte(self, byte: int) -> None:
        try:
            self._run.decode(bytes([byte]))
        except UnicodeDecodeError:
            self._is_bad_run = True

    def _shorten(self, text: str) -> None:
        """Forget the older tokens of a window that decodes to `text`."""
        for num_kept in _KEPT_TOKENS:
            shorter = self._window[-num_kept:]
            kept = self._text.decode(shorter)
            num_settled = self._num_settled_chars - (len(text) - len(kept))
            # The cut must not fall into a character, and some text must remain as context.
            is_cut_inside = shorter[0] in self._text.byte_ids or not text.endswith(kept)
            if num_settled > 0 and not is_cut_inside:
                self._window, self._num_settled_chars = shorter, num_settled
                return


def _settled_length(text: str) -> int:
    """Chars of `text` without the marks at its end that may still become a character."""
    end = len(text)
    while end and len(text) - end < _MAX_HELD_MARKS and text[end - 1] == REPLACEMENT:
        end -= 1
    return end


class StopStrings:
    """Finds stop strings in text that arrives in pieces.

    The match that ends first wins; of those that end together, the one that begins first. So the
    result does not depend on how the text is cut.

    Args:
        stop: the strings.
        include_in_output: keep the match in the text.
    """

    def __init__(self, stop: Sequence[str], *, include_in_output: bool) -> None:
        self._stop = stop
        self._include = include_in_output
        self._longest = max(map(len, stop), default=0)
        self._tail = ""  # the last chars, enough to hold a match that is still incomplete
        self._num_held = 0  # chars at the end of `_tail` not given out yet

    def feed(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Add text.

        Args:
            may_stop: False while too few tokens are out; a match that ends here is then text.

        Returns:
            What may be given out, and the stop string that matched, if any.
        """
        if not self._stop or not text:
            return text, None
        held_from = len(self._tail) - self._num_held
        whole = self._tail + text
        match = self._first_match(whole, len(self._tail)) if may_stop else None
        if match is not None:
            start, end, string = match
            out = whole[held_from : end if self._include else max(start, held_from)]
            self._tail, self._num_held = "", 0
            return out, string
        held = self._num_possible(whole)
        out = whole[held_from : len(whole) - held]
        self._num_held = held
        self._tail = whole[-max(self._longest - 1, 1) :]
        return out, None

    def flush(self) -> str:
        """What is still held back; no match can come any more."""
        held, self._num_held = self._tail[len(self._tail) - self._num_held :], 0
        return held

    def _first_match(self, whole: str, old_len: int) -> tuple[int, int, str] | None:
        """(start, end, string) of the match that ends first, beyond the first `old_len` chars."""
        best: tuple[int, int, str] | None = None
        for string in self._stop:
            start = whole.find(string, max(0, old_len - len(string) + 1))
            if start < 0:
                continue
            end = start + len(string)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end, string)
        return best

    def _num_possible(self, whole: str) -> int:
        """Chars at the end that are the beginning of some stop string; the most there are."""
        for length in range(min(self._longest - 1, len(whole)), 0, -1):
            end = whole[-length:]
            if any(len(s) > length and s.startswith(end) for s in self._stop):
                return length
        return 0


class Detokenizer:
    """Text of one output.

    Args:
        token_text: the tokenizer's side, or None to give no text.
        params: the request's; complete.
        prompt_token_ids: for context.

    Attributes:
        token_ids: every token of the output, the one that stopped it included.
        text: what has been given out so far.
    """

    def __init__(
        self, token_text: TokenText | None, params: SamplingParams, prompt_token_ids: Sequence[int]
    ) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._decoder: IncrementalDecoder | None = None
        self._stops = StopStrings(params.stop_strings, include_in_output=self._include_stop)
        if token_text is not None and params.detokenize:
            self._decoder = IncrementalDecoder(
                token_text, prompt_token_ids, skip_special_tokens=params.skip_special_tokens
            )

    @property
    def gives_text(self) -> bool:
        """Whether tokens are turned into text at all."""
        return self._decoder is not None

    def update(self, new_token_ids: Sequence[int], *, ended_by_token: bool) -> str | None:
        """Add tokens.

        Args:
            ended_by_token: the last one is a stop token; its text is left out unless the
                request asks for it.

        Returns:
            The stop string that matched; tokens after the match are dropped.
        """
        last = len(new_token_ids) - 1
        for i, token_id in enumerate(new_token_ids):
            self.token_ids.append(token_id)
            if self._decoder is None or (ended_by_token and i == last and not self._include_stop):
                continue
            stop = self._give_out(self._decoder.step(token_id))
            if stop is not None:
                return stop
        return None

    def finish(self) -> str | None:
        """Give out what is held back; a stop string may still match in it."""
        if self._decoder is None:
            return None
        stop = self._give_out(self._decoder.flush())
        if stop is None:
            self.text += self._stops.flush()
        return stop

    def _give_out(self, text: str) -> str | None:
        may_stop = len(self.token_ids) > self._min_tokens
        out, stop = self._stops.feed(text, may_stop=may_stop)
        self.text += out
        return stop
