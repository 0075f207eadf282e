# SPDX-License-Identifier: Apache-2.0
"""Which prompts a model is checked with: the user's, or built-in ones for its windows.

Built-in prompts are cuts of one text whose lengths lie on both sides of a block of the KV cache
and of each attention window. Knows nothing of engines.
"""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vllm.exceptions import ConfigError

# Built-in prompts stay below this: the reference's attention takes memory by its square.
MAX_BUILT_IN_TOKENS = 1280
_MAX_FILE_BYTES = 16 * 2**20
_RANDOM_SEED = 17

TEXT = (
    "The harbour master kept two books. In the first she wrote what arrived: salt, rope, a crate "
    "of lemons, a letter for somebody who had moved away. In the second she wrote what she "
    "thought about it, and that book was the longer one. On 14 March she counted 27 boats; by "
    "noon 9 had left, so 18 remained, and she checked the sum twice because the wind was loud. "
    "Her apprentice asked why anyone would count boats that could be seen from the window. "
    '"Because the window only shows today," she said. '
    "def remaining(arrived, left): return arrived - left\n"
    'In her notes stood a small table, {"morning": 27, "noon": 18, "evening": null}, and beneath '
    "it a reminder to buy ink. Le vent tourna au nord, and the Norwegian captain shouted "
    "something that sounded like a question. Nobody answered. Later, over soup, they argued "
    "about whether a tide can be early: the apprentice held that the sea keeps no calendar, the "
    "captain that calendars were made for the sea. The harbour master listened, wrote one line, "
    "and closed the book. When the rain stopped, the lemons were sold at 3.50 a dozen, the rope "
    "was cut into lengths of 12 metres, and the letter was put on the shelf with the others. "
)


def read_prompts(path: Path) -> list[str | list[int]]:
    """Prompts of a file: one a line, as text or as a JSON list of token ids.

    Raises:
        ConfigError: the file cannot be read, holds no prompt, or a list in it holds no ids.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"--prompts {path}: larger than {_MAX_FILE_BYTES // 2**20} MiB")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path}: cannot be read as UTF-8 text: {error}") from error
    prompts = [
        _parse(line, f"--prompts {path}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise ConfigError(f"--prompts {path}: holds no prompt; write one a line")
    return prompts


def built_in_prompts(tokenizer: Any, vocab_size: int, *, lengths: Iterable[int]) -> list[list[int]]:
    """Token ids, one prompt per length; random ones without a tokenizer.

    Args:
        tokenizer: the model's, or None.
        vocab_size: ids are below it.
        lengths: in tokens.
    """
    prompts = []
    for number, length in enumerate(lengths):
        source = _RandomIds(vocab_size, number) if tokenizer is None else _TextIds(tokenizer)
        prompts.append(source.take(length, start=7 * number))
    return prompts


def built_in_lengths(*, block_size: int, windows: Sequence[int], max_tokens: int) -> list[int]:
    """Lengths on both sides of a block and of each window, at most `max_tokens`.

    Args:
        block_size: of the KV cache.
        windows: the distinct windows of the model's layers; empty if all see everything.
        max_tokens: the longest prompt possible.
    """
    limit = min(max_tokens, MAX_BUILT_IN_TOKENS)
    wanted = {5, block_size, block_size + 1, 4 * block_size + 3}
    for window in windows:
        wanted |= {window - 1, window + 1, window + block_size + 3}
    fitting = sorted(length for length in wanted if 2 <= length <= limit)
    return fitting or [limit]


def uncrossed_windows(windows: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[int]:
    """Windows that no prompt is longer than, so that nothing is known about them."""
    longest = max(map(len, prompts), default=0)
    return [window for window in windows if window >= longest]


class _TextIds:
    """Cuts of the built-in text, behind the tokens a tokenizer puts in front."""

    def __init__(self, tokenizer: Any) -> None:
        self._body: list[int] = tokenizer.encode(TEXT, add_special_tokens=False)
        with_front: list[int] = tokenizer.encode(TEXT)
        size = len(with_front) - len(self._body)
        is_front = size > 0 and with_front[size:] == self._body
        self._front = with_front[:size] if is_front else []

    def take(self, length: int, *, start: int) -> list[int]:
        """`length` tokens of the text, from token `start` on, again and again."""
        ids = list(self._front)
        position = start
        while len(ids) < length:
            ids.append(self._body[position % len(self._body)])
            position += 1
        return ids[:length]


class _RandomIds:
    def __init__(self, vocab_size: int, number: int) -> None:
        self._vocab_size = vocab_size
        self._draw = random.Random(_RANDOM_SEED + number)

    def take(self, length: int, *, start: int) -> list[int]:
        """`length` random ids; `start` is for texts."""
        del start
        return [self._draw.randrange(self._vocab_size) for _ in range(length)]


def _parse(line: str, where: str) -> str | list[int]:
    if not line.lstrip().startswith("["):
        return line
    try:
        value = json.loads(line)
    except ValueError:
        return line  # A text may begin with a bracket.
    if not value or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise ConfigError(f"{where}: a list must hold token ids, at least one")
    ids: list[int] = value
    return ids
