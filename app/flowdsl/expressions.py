"""Conditions of FlowDSL: a small, safe language. This module alone knows that CEL evaluates it.

A condition speaks of ``input``, ``output``, ``payload`` (the output again) and ``meta``. It holds or it does not: an
operand that cannot be evaluated (a missing field, text compared with a number) makes its comparison false, and
nothing that a document or a packet says can raise, run without bound or reach Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel

from app.models.json_value import canonical, find_fault

ROOTS: Final = ("input", "output", "payload", "meta")
"""The names that an edge's condition may speak of."""

FILTER_ROOTS: Final = (*ROOTS, "message")
"""An entrypoint's ``filter`` may also speak of ``message.payload``, as published documents do."""

MAX_LENGTH: Final = 4_000
MAX_NESTING: Final = 32

Data = Mapping[str, Any]
_Test = Callable[[Data], bool]
_Paths = dict[str, "_Paths"]
_ERROR: Final = cel.Type.ERROR

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<string>[rRbB]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''
                     |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
      | (?P<number>\d[\w.]*|\.\d\w*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<operator>&&|\|\||[=!<>]=|.)""",
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled condition."""

    text: str
    _test: _Test

    def holds(self, input: Any, output: Any, meta: Any) -> bool:
        """Return whether it holds for the packet that entered a node, the one that left it, and the run's meta."""
        return self._test({"input": input, "output": output, "payload": output, "meta": meta})

    def admits(self, packet: Any, meta: Any) -> bool:
        """Return whether it holds, as an entrypoint's filter, for what a run was given."""
        message = {"payload": packet}
        return self._test({"input": packet, "output": packet, "payload": packet, "meta": meta, "message": message})


@dataclass(frozen=True, slots=True)
class KeyExpression:
    """A compiled expression whose value names something."""

    text: str
    _value: Callable[[Data], Any]

    def key(self, packet: Any, meta: Any) -> str | None:
        """Return the key of a packet as JSON text; ``None`` if the expression has no value for it.

        ``input`` is the packet; where that gives no value, ``input.payload`` is: published documents write it so.
        """
        data = {"input": packet, "output": packet, "payload": packet, "meta": meta}
        value = self._value(data)
        if value is None:
            value = self._value(data | {"input": {"payload": packet}})
        return value if value is None or find_fault(value) else canonical(value).decode()


def compile_expression(text: str, *, roots: Sequence[str] = ROOTS) -> Expression:
    """Compile a condition once, for any number of packets and threads.

    Raises:
        ValueError: the text is no condition, or speaks of a name that is none of ``roots``; it names the place.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"is {len(text):,} characters long and may have {MAX_LENGTH:,}")
    environment = _environment(tuple(roots))
    _check(environment, text, roots)
    return Expression(text, _Parser(environment, _sizes(_tokens(text))).condition())


def compile_key(text: str) -> KeyExpression:
    """Compile an expression that gives text, a number or any other JSON value, in the language of conditions.

    Raises:
        ValueError: as :func:`compile_expression`.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"is {len(text):,} characters long and may have {MAX_LENGTH:,}")
    environment = _environment(ROOTS)
    _check(environment, text, ROOTS)
    return KeyExpression(text, _program(environment, _sizes(_tokens(text))))


def _tokens(text: str) -> list[str]:
    return [match.group() for match in _TOKEN.finditer(text) if match.lastgroup != "space"]


@lru_cache(maxsize=4)
def _environment(roots: tuple[str, ...]) -> cel.Env:
    return cel.NewEnv(variables=dict.fromkeys(roots, cel.Type.DYN))


def _check(environment: cel.Env, text: str, roots: Sequence[str]) -> None:
    """Refuse what CEL cannot read, with the column as the author sees it, and names that nothing has."""
    try:
        environment.compile(text, disable_check=True)
    except RuntimeError as error:
        raise ValueError(_plain(str(error), text)) from None
    try:
        environment.compile(text)
    except RuntimeError as error:
        # CEL's type check also refuses 1 == 1.0; only its finding of unknown names is wanted.
        unknown = re.search(r"<input>:(\d+):(\d+): undeclared reference to '([^']*)'", str(error))
        if unknown:
            line, column, path = unknown.groups()
            name, known = path.split(".")[0], ", ".join(roots)
            raise ValueError(
                f"line {line}, column {column}: {name!r} is unknown; a condition speaks of {known}"
            ) from None


def _plain(report: str, text: str) -> str:
    if "recursion limit" in report:
        return f"is nested more than {MAX_NESTING} levels deep"
    found = re.search(r"<input>:(\d+):(\d+): (?:Syntax error: )?([^\n]*)", report)
    where = f"line {found[1]}, column {found[2]}: {found[3]}" if found else report.splitlines()[0]
    mend = "; compare with == and !=" if re.search(r"[=!]==|(?<![=!<>])=(?!=)", text) else ""
    return f"{where[:200]}{mend}"


def _sizes(tokens: list[str]) -> list[str]:
    """Write ``path.length`` so that CEL knows it: a field of that name where there is one, else the size."""
    result: list[str] = []
    index = 0
    while index < len(tokens):
        follows = tokens[index + 2] if index + 2 < len(tokens) else ""
        if tokens[index] == "." and tokens[index + 1 : index + 2] == ["length"] and follows != "(":
            start = _path_start(result)
            path, result = result[start:], result[:start]
            own = [*path, ".", "length"]
            # fmt: off
            result += ["(", "type", "(", *path, ")", "==", "map", "&&", "has", "(", *own, ")", "?", *own, ":",
                       "size", "(", *path, ")", ")"]
            # fmt: on
            if len(result) > MAX_LENGTH:
                raise ValueError("uses .length too often")
            index += 2
        else:
            result.append(tokens[index])
            index += 1
    return result


def _path_start(tokens: list[str]) -> int:
    """Return where the path that ends ``tokens`` begins, such as ``a.b[0].c(d)`` in ``1 + a.b[0].c(d)``."""
    index = len(tokens)
    while index > 0:
        last = tokens[index - 1]
        if last in (")", "]"):
            index = _opening(tokens, index - 1)
            called = index > 0 and (_is_name(tokens[index - 1]) or tokens[index - 1] in (")", "]"))
            if called:
                continue
        else:
            index -= 1
        if index == 0 or tokens[index - 1] != ".":
            return index
        index -= 1
    return index


def _opening(tokens: list[str], closing: int) -> int:
    depth = 0
    for index in range(closing, -1, -1):
        depth += (tokens[index] in _CLOSE) - (tokens[index] in _OPEN)
        if depth == 0:
            return index
    return 0


def _is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def _program(environment: cel.Env, tokens: list[str]) -> Callable[[Data], Any]:
    """Compile tokens; return what evaluates them to a plain value, ``None`` where they have none."""
    text = " ".join(tokens)
    try:
        program = environment.compile(text, disable_check=True)
    except RuntimeError as error:
        raise ValueError(_plain(str(error), text)) from None
    needs = [(root, paths) for root, paths in _paths(tokens).items() if root in FILTER_ROOTS]

    def evaluate(data: Data) -> Any:
        # CEL copies all that it is given, which takes far longer than looking at a part of it.
        part = {root: _project(data[root], paths) for root, paths in needs if root in data}
        try:
            value = program.eval(data=part)
        except RuntimeError:
            return None  # an overrun budget
        # An error comes back as a value whose plain form is text.
        return None if value.type() == _ERROR else value.plain_value()

    return evaluate


def _paths(tokens: list[str]) -> dict[str, _Paths]:
    """Return the fields of each name that an expression speaks of: ``a.b + a.c[0].d`` is ``{a: {b: {}, c: {}}}``.

    An empty object stands for all that is there. Names that are no roots, as those of functions, do no harm.
    """
    whole: dict[str, _Paths] = {}
    seen: list[list[str]] = []
    for index, token in enumerate(tokens):
        if not _is_name(token) or (tokens[index - 1 : index] == ["."] and _ends_operand(tokens[index - 2 : index - 1])):
            continue
        path, at = [token], index + 1
        while tokens[at : at + 1] == ["."] and at + 1 < len(tokens) and _is_name(tokens[at + 1]):
            path.append(tokens[at + 1])
            at += 2
        if tokens[at : at + 1] == ["("] and len(path) > 1:
            path.pop()  # a method's name
        seen.append(path)
    # Longer ones first, so that a shorter one, which wants all below it, has the last word.
    for path in sorted(seen, key=len, reverse=True):
        level = whole
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = {}
    return whole


def _ends_operand(token: list[str]) -> bool:
    """Return whether a dot after this token leads to a field; elsewhere it begins a name, as in ``1 + .input``."""
    return bool(token) and (token[0][-1].isalnum() or token[0][-1] in "_)]}\"'")


def _project(value: Any, paths: _Paths) -> Any:
    """Return the part of a value that paths lead to; what is no object is left whole."""
    if not paths or not isinstance(value, Mapping):
        return value
    return {name: _project(value[name], below) for name, below in paths.items() if name in value}


class _Parser:
    """Splits a condition at ``||``, ``&&`` and ``!`` into parts that hold or do not, each a CEL expression.

    CEL alone would let the error of a missing field pass through ``!``, so that neither a condition nor its opposite
    held. Without a ``!`` the two readings agree and the whole condition is one part.
    """

    def __init__(self, environment: cel.Env, tokens: list[str]) -> None:
        self._environment = environment
        self._tokens = tokens

    def condition(self) -> _Test:
        end = len(self._tokens)
        return self._any(0, end) if "!" in self._tokens else self._part(0, end)

    def _any(self, start: int, end: int) -> _Test:
        if self._find("?", start, end):
            return self._part(start, end)
        tests = [self._all(*span) for span in self._split("||", start, end)]
        return tests[0] if len(tests) == 1 else lambda data: any(test(data) for test in tests)

    def _all(self, start: int, end: int) -> _Test:
        tests = [self._one(*span) for span in self._split("&&", start, end)]
        return tests[0] if len(tests) == 1 else lambda data: all(test(data) for test in tests)

    def _one(self, start: int, end: int) -> _Test:
        tokens = self._tokens
        if tokens[start] == "(" and _opening(tokens[:end], end - 1) == start:
            return self._any(start + 1, end - 1)
        operand = start
        while tokens[operand] == "!":
            operand += 1
        if operand == start or _path_start(tokens[:end]) != operand:
            return self._part(start, end)
        test = self._one(operand, end)
        return test if (operand - start) % 2 == 0 else lambda data: not test(data)

    def _part(self, start: int, end: int) -> _Test:
        program = _program(self._environment, self._tokens[start:end])
        return lambda data: program(data) is True

    def _find(self, token: str, start: int, end: int) -> list[int]:
        """Return where ``token`` stands outside of brackets."""
        found, depth = [], 0
        for index in range(start, end):
            here = self._tokens[index]
            if here == token and depth == 0:
                found.append(index)
            depth += (here in _OPEN) - (here in _CLOSE)
        return found

    def _split(self, token: str, start: int, end: int) -> list[tuple[int, int]]:
        cuts = self._find(token, start, end)
        return list(zip([start, *(cut + 1 for cut in cuts)], [*cuts, end], strict=True))
