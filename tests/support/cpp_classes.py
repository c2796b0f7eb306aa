"""A parser of classes in C++ sources, with their methods and fields: the part of the grammar that this project's style
needs.

Comments, literals and directives of the preprocessor are blanked first, so that braces and parentheses are code. A
class is the text in the braces of `class NAME` or `struct NAME`. Its declarations end at a `;`, or at the brace that
closes a body. A declaration with parameters is a method; of the others, those whose names end with `_`, one in each
declaration, are fields. A plain struct, whose members have other names, is a record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANKED = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | ^[ \t]*\#(?:[^\n\\]|\\.)*""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_DIGITS_PARTED = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])")
_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # parentheses, with others in them
_HEAD = re.compile(
    rf"""(?<!enum\ )\b(?:class|struct)\s+
    (?:(?:alignas|[A-Z][A-Z_]+)\s*{_NESTED}\s*)*  # alignment and annotations
    (?:\w+::)*(?P<name>\w+)(?:<[^;{{}}]*>)?(?:\s+final)?\s*(?::[^:;{{}}][^;{{}}]*)?\{{""",
    re.VERBOSE,
)
_ANNOTATION = re.compile(rf"\b(?:alignas|noexcept|decltype|[A-Z][A-Z_]+)\s*{_NESTED}")
_POINTER = re.compile(r"\(\s*(?:\w+::)?\*.*", re.DOTALL)  # to a function or a member
_FIELD = re.compile(r"(?P<name>[A-Za-z]\w*_)\s*(?:\[[^\]]*\]\s*)*(?:=.*|\{.*)?$", re.DOTALL)
_NO_METHOD = re.compile(r"(?:using|friend|typedef|static_assert)\b|.*=\s*delete$", re.DOTALL)
_ACCESS = re.compile(r"^(?:(?:public|protected|private)\s*:\s*)+")
_NAME = re.compile(r"(operator\s*(?:\(\)|[^\s(]+)|~?\w+)\s*\(")


@dataclass(frozen=True)
class CppClass:
    """One class.

    Attributes:
        name: its name, without enclosing classes.
        comment: the comment directly above it.
        methods: all declared methods, including overloads and constructors, without deleted ones.
        fields: its data members.
    """

    name: str
    comment: str
    methods: tuple[str, ...]
    fields: tuple[str, ...]


def classes_in(text: str) -> list[CppClass]:
    """Return the classes that are defined in a file, including nested ones."""
    code = _without_text(text)
    found = []
    for head in _HEAD.finditer(code):
        methods, fields = _members(code[head.end() : _closing(code, head.end() - 1)])
        found.append(CppClass(head["name"], _comment_above(text, head.start()), methods, fields))
    return found


def _without_text(text: str) -> str:
    """Replace comments, literals and directives by blanks, without moving other text."""
    text = _DIGITS_PARTED.sub("0", text)
    return _BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _closing(code: str, opening: int) -> int:
    """Return the position of the brace that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        if depth == 0:
            return place
    raise ValueError("a brace is not closed")


def _declarations(body: str) -> Iterator[str]:
    """Yield the declarations of a class, without the bodies of functions and of inner classes."""
    begin = depth = 0
    for place, character in enumerate(body):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(character, 0)
        if depth:
            continue
        declared = body[begin : place + 1]
        if character == ";":
            yield declared[:-1].strip()
            begin = place + 1
        elif character == "}" and _has_parameters(declared) and not re.match(r"\s*[;,{]", body[place + 1 :]):
            yield declared.strip()  # A body, which no semicolon follows.
            begin = place + 1


def _members(body: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    methods, fields = [], []
    for declared in _declarations(body):
        plain = _ANNOTATION.sub("", _ACCESS.sub("", declared)).strip()
        if _has_parameters(plain):
            if not _NO_METHOD.match(plain):
                name = _NAME.search(plain)
                methods.append(name[1] if name else plain)
        elif field := _FIELD.search(plain):
            fields.append(field["name"])
    return tuple(methods), tuple(fields)


def _has_parameters(declared: str) -> bool:
    """Return whether a declaration has parentheses of parameters, not only of annotations, arguments or values."""
    plain = _POINTER.sub("", _ANNOTATION.sub("", declared))
    if "operator" not in plain:
        plain = re.split(r"(?<![=!<>])=(?!=)", plain, maxsplit=1)[0]
    while (shorter := re.sub(r"<[^<>]*>", "", plain)) != plain:
        plain = shorter
    return "(" in plain.partition("{")[0]


def _comment_above(text: str, place: int) -> str:
    lines = text[: text.rfind("\n", 0, place) + 1].splitlines()
    while lines and lines[-1].startswith("template"):
        lines.pop()
    comment: list[str] = []
    while lines and lines[-1].lstrip().startswith("//"):
        comment.insert(0, lines.pop().strip().removeprefix("//").strip())
    return " ".join(comment)
