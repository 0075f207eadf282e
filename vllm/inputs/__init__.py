# SPDX-License-Identifier: Apache-2.0
"""The forms a prompt may take: text, `{"prompt": ...}`, `{"prompt_token_ids": ...}`."""

from typing_extensions import NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text; `cache_salt` keeps its cached prefix apart from other salts'."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is the text they came from, only reported back."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


SingletonPrompt = str | TextPrompt | TokensPrompt | list[int]
PromptType = SingletonPrompt

__all__ = ["PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]
