# SPDX-License-Identifier: Apache-2.0
"""What the grammar library lets pass in a regular expression although it is a mistake."""

_QUANTIFIERS = "*+?"


def repeated_quantifier(pattern: str) -> int | None:
    """Index of a quantifier that follows another one (`a**`, `a{2}*`), or None.

    One `?` after a quantifier makes it lazy and is fine. Escapes and character classes are passed
    over; what else is wrong with the pattern is left to the library.
    """
    i, after_quantifier, may_be_lazy = 0, False, False
    while i < len(pattern):
        end = _quantifier_end(pattern, i)
        if end is None:
            after_quantifier = may_be_lazy = False
            i = _atom_end(pattern, i)
            continue
        if pattern[i] == "?" and may_be_lazy:
            may_be_lazy = False
        elif after_quantifier:
            return i
        else:
            after_quantifier = may_be_lazy = True
        i = end
    return None


def _quantifier_end(pattern: str, i: int) -> int | None:
    """Where the quantifier at `i` ends, None if there is none."""
    if pattern[i] in _QUANTIFIERS:
        # In "(?:" and the like the sign belongs to the group.
        return None if i > 0 and _opens_group(pattern, i - 1) else i + 1
    if pattern[i] != "{":
        return None
    end = pattern.find("}", i)
    counts = pattern[i + 1 : end] if end > 0 else ""
    is_count = counts.replace(",", "", 1).isdigit() and counts[:1] != ","
    return end + 1 if is_count else None


def _opens_group(pattern: str, i: int) -> bool:
    num_backslashes = len(pattern[:i]) - len(pattern[:i].rstrip("\\"))
    return pattern[i] == "(" and num_backslashes % 2 == 0


def _atom_end(pattern: str, i: int) -> int:
    """Where the escape, character class or single character at `i` ends."""
    if pattern[i] == "\\":
        is_named = pattern[i + 1 : i + 3] in ("p{", "P{", "x{", "u{", "U{")
        closing = pattern.find("}", i) if is_named else -1
        return closing + 1 if closing > 0 else i + 2
    if pattern[i] != "[":
        return i + 1
    i += 2 if pattern[i + 1 : i + 2] == "^" else 1
    i += pattern[i : i + 1] == "]"  # a bracket right at the start is a member
    while i < len(pattern) and pattern[i] != "]":
        i = _atom_end(pattern, i) if pattern[i] in "\\[" else i + 1
    return i + 1
