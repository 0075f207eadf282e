# SPDX-License-Identifier: Apache-2.0
"""From a conversation to token ids: one function for every entry point, so that all agree.

The template is the server's (its own text or the tokenizer's), rendered by Transformers in
jinja2's immutable sandbox. What a client may add is the template's own variables. The template
also writes the begin token; the tokenizer adds none, and a doubled one is dropped.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from vllm.exceptions import VLLMValidationError
from vllm.tokenizers.encoding import encode_text, without_repeated_bos

# Set by the engine or by Transformers' renderer; a client cannot replace them.
_RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "chat_template",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "raise_exception",
        "strftime_now",
        "tojson",
        "return_dict",
        "return_tensors",
        "return_assistant_tokens_mask",
        "sanitize_control_tokens",
        "tokenizer_kwargs",
        "padding",
        "truncation",
        "max_length",
        "conversation",
    }
)
_GENERATION_TAG = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_MAX_KWARGS_CHARS = 4_096


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, str]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation.

    Args:
        tokenizer: a Transformers tokenizer.
        messages: with `role` and `content` (a text or a list of text parts).
        chat_template: the server's template; None takes the tokenizer's.
        add_generation_prompt: end with the head of an assistant message.
        continue_final_message: leave the last message open, to be continued.
        tools: JSON descriptions of functions.
        documents: for templates that take them.
        chat_template_kwargs: values for variables that the template itself names.

    Raises:
        VLLMValidationError: a message or variable is wrong, or the template refuses them.
    """
    if add_generation_prompt and continue_final_message:
        _refuse(
            "continue_final_message",
            "add_generation_prompt and continue_final_message exclude each other; pass one",
        )
    plain = [_plain_message(message, i) for i, message in enumerate(messages)]
    if not plain:
        _refuse("messages", "messages is empty; pass at least one")
    if continue_final_message and not isinstance(plain[-1].get("content"), str):
        _refuse("continue_final_message", "the last message has no text to be continued")
    template = chat_template or _own_template(tokenizer, tools)
    values = _checked_kwargs(template, chat_template_kwargs or {}, tokenizer)
    text = _render(
        tokenizer,
        plain,
        chat_template=template,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=[dict(tool) for tool in tools] if tools else None,
        documents=[dict(document) for document in documents] if documents else None,
        **values,
    )
    ids = encode_text(tokenizer, text, add_special_tokens=False)
    return without_repeated_bos(tokenizer, ids)


def template_variables(template: str) -> frozenset[str]:
    """Variables that a template reads and a client may set.

    Raises:
        VLLMValidationError: the template is not valid.
    """
    return _template_variables(template)


@lru_cache(maxsize=16)
def _template_variables(template: str) -> frozenset[str]:
    from jinja2 import TemplateError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        # Transformers' own tag marks assistant turns for training; it names no variable.
        tree = environment.parse(_GENERATION_TAG.sub("", template))
    except TemplateError as error:
        _refuse("chat_template", f"the chat template is not valid: {error.message}")
    return frozenset(meta.find_undeclared_variables(tree)) - _RESERVED


def _own_template(tokenizer: Any, tools: object) -> str:
    try:
        template: str = tokenizer.get_chat_template(None, tools=tools or None)
    except ValueError:
        _refuse(
            "messages",
            "this model's tokenizer has no chat template; start the engine with one "
            "(chat_template), or send a prompt instead of messages",
        )
    return template


def _checked_kwargs(template: str, values: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """`values`, if the template names every one of them."""
    if not values:
        return {}
    special = set(getattr(tokenizer, "special_tokens_map", ()))
    allowed = template_variables(template) - special
    for name in values:
        if name not in allowed:
            _refuse(
                "chat_template_kwargs",
                f"chat_template_kwargs: {name[:60]!r} is not a variable of this model's chat "
                f"template; it has {', '.join(sorted(allowed)) or 'none'}",
            )
    try:
        size = len(json.dumps(dict(values)))
    except (TypeError, ValueError, RecursionError):
        _refuse("chat_template_kwargs", "chat_template_kwargs: pass JSON values")
    if size > _MAX_KWARGS_CHARS:
        _refuse(
            "chat_template_kwargs",
            f"chat_template_kwargs has {size} characters; at most {_MAX_KWARGS_CHARS} are taken",
        )
    return dict(values)


def _plain_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A message as templates expect it: text content, tool arguments as objects."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        _refuse("messages", f"{where}: pass an object with a role and a content")
    plain = dict(message)
    content = plain.get("content")
    if content is not None and not isinstance(content, str):
        plain["content"] = _join_parts(content, where)
    if content is None and not plain.get("tool_calls"):
        _refuse("messages", f"{where}: the content is missing")
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_tool_call(call, where) for call in plain["tool_calls"]]
        plain["content"] = plain.get("content") or ""
    return plain


def _join_parts(content: Any, where: str) -> str:
    """The text of a list of content parts; only text is supported."""
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        _refuse("messages", f"{where}.content: pass a text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            _refuse(
                "messages",
                f"{where}.content[{i}]: parts of type {str(kind)[:40]!r} are not supported; this "
                "engine takes text only",
            )
        if not isinstance(part.get("text"), str):
            _refuse("messages", f"{where}.content[{i}].text: pass a string")
        if part.keys() != {"type", "text"}:
            _refuse(
                "messages",
                f"{where}.content[{i}]: pass {{'type': 'text', 'text': ...}} and nothing more",
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _plain_tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        _refuse("messages", f"{where}.tool_calls: each needs a function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            # The API carries them as text, templates print them as an object.
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            _refuse("messages", f"{where}.tool_calls: the arguments are not valid JSON")
    return {**call, "function": {**function, "arguments": arguments}}


def _render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    """Run the template; what goes wrong in it is the request's fault."""
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except TemplateError as error:
        _refuse("messages", f"the chat template refuses these messages: {error.message}")
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise VLLMValidationError(
            "the chat template cannot render these messages; check their fields",
            parameter="messages",
        ) from error
    return text


def _refuse(parameter: str, message: str) -> NoReturn:
    raise VLLMValidationError(message, parameter=parameter)
