# SPDX-License-Identifier: Apache-2.0
"""How one engine argument is described, and how its text on the command line is read.

Knows the form of arguments, not which there are.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

from vllm.exceptions import ConfigError

_UNITS = {"": 1}
_UNITS |= {letter: 10 ** (3 * i) for i, letter in enumerate("kmgt", 1)}
_UNITS |= {letter: 2 ** (10 * i) for i, letter in enumerate("KMGT", 1)}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)(?:i?[bB])?")


@dataclasses.dataclass(frozen=True, slots=True)
class ArgSpec:
    """What an argument is.

    Attributes:
        help: one sentence for the command line.
        group: heading it stands under.
        kinds: Python types it may have besides None.
        unit: of its value, for the help.
        choices: the only values, if they are few.
        parse: reads the command line's text; None takes the first of `kinds`.
        optional: whether None is a value.
        short: a second, short flag, as upstream has it.
    """

    help: str
    group: str
    kinds: tuple[type, ...]
    unit: str | None = None
    choices: tuple[str, ...] | None = None
    parse: Callable[[str], Any] | None = None
    optional: bool = False
    short: str | None = None

    def check(self, name: str, value: Any) -> None:
        """Refuse a value of a wrong type or outside the choices.

        Raises:
            ConfigError: naming argument, value and what is allowed.
        """
        if value is None and self.optional:
            return
        allowed = self.kinds + ((int,) if float in self.kinds else ())
        is_bool_for_number = isinstance(value, bool) and bool not in self.kinds
        if is_bool_for_number or not isinstance(value, allowed):
            words = " or ".join(kind.__name__ for kind in self.kinds)
            raise ConfigError(f"{name}={value!r}: pass {words}" + (" or None" * self.optional))
        if self.choices is not None and value not in self.choices:
            raise ConfigError(f"{name}={value!r}: pass one of {', '.join(self.choices)}")


def arg(
    default: Any,
    help: str,
    group: str,
    *kinds: type,
    unit: str | None = None,
    choices: tuple[str, ...] | None = None,
    parse: Callable[[str], Any] | None = None,
    short: str | None = None,
) -> Any:
    """A dataclass field that describes an engine argument; `kinds` default to the default's."""
    spec = ArgSpec(
        help=help,
        group=group,
        kinds=kinds or (type(default),),
        unit=unit,
        choices=choices,
        parse=parse,
        optional=default is None,
        short=short,
    )
    return dataclasses.field(default=default, metadata={"spec": spec})


def human_int(text: str) -> int:
    """An integer as people write it: 4096, 4k (4,000), 4K (4,096), 1.5M.

    Raises:
        ValueError: it is none.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number such as 4096, 4k or 4K")
    value = float(match[1]) * _UNITS[match[2]]
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def length_or_auto(text: str) -> int:
    """A length as people write it; "auto" and -1 leave it to the engine, as -1."""
    return -1 if text.strip().lower() in ("auto", "-1") else human_int(text)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is none.
    """
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a JSON object")
    return value


for _function, _name in (
    (human_int, "number such as 4096, 4k or 4K"),
    (length_or_auto, "number such as 4096, 4k or 4K, or auto"),
    (json_object, "JSON object"),
):
    _function.__name__ = _name  # argparse shows it when the text is refused


def _metavar(spec: ArgSpec) -> str:
    words = {int: "N", float: "X", dict: "JSON", tuple: "NAME"}
    return next((words[kind] for kind in spec.kinds if kind in words), "TEXT")


def add_flag(group: argparse._ArgumentGroup, name: str, default: Any, spec: ArgSpec) -> None:
    """Add `--name-in-kebab-case` to a group of a parser."""
    flags = [*filter(None, [spec.short]), "--" + name.replace("_", "-")]
    unit = f" [{spec.unit}]" if spec.unit else ""
    shown = "" if default is None else f" Default: {default}."
    text = (spec.help + unit + shown).replace("%", "%%")
    if bool in spec.kinds:
        action = argparse.BooleanOptionalAction
        group.add_argument(*flags, action=action, default=default, help=text)
        return
    options: dict[str, Any] = {"default": default, "help": text}
    if tuple in spec.kinds:
        options["nargs"] = "+"
    if spec.choices is not None:
        options["choices"] = spec.choices
    else:
        options["metavar"] = _metavar(spec)
    options["type"] = spec.parse or (str if tuple in spec.kinds else spec.kinds[0])
    group.add_argument(*flags, **options)
