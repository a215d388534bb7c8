"""Reads PTX text: kernels, their parameters, shared memory and registers, and their instructions with line numbers."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

_TOKEN = re.compile(
    r"//[^\n]*|\"[^\"]*\"|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|-?0[xX][0-9a-fA-F]+|-?\d+(?![\w.])"
    r"|[\w$%.]+(?:::[\w.]+)*|[{}()\[\],;:+|!@<>=-]"
)
_WIDTHS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64, "u64": 64, "f32": 32, "f64": 64}
_SIZES = {"u8": 1, "b8": 1, "u32": 4, "b32": 4, "u64": 8, "b64": 8}


class RefusedError(Exception):
    """What the translator does not know, with the file and the line."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`operands` are texts without spaces: a register, a number, `{a,b}`, `[base+offset]`, a name or a label."""

    opcode: str
    operands: tuple[str, ...]
    line: int
    guard: str = ""  # the predicate register, after "!" where its absence is asked for

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)};"


@dataclasses.dataclass(frozen=True)
class Label:
    name: str


@dataclasses.dataclass
class Variable:
    name: str
    align: int
    bytes: int  # 0: the dynamic shared memory, of the launch's size


@dataclasses.dataclass
class Kernel:
    name: str
    params: list[Variable]
    registers: dict[str, int] = dataclasses.field(default_factory=dict)  # bits by name
    shared: list[Variable] = dataclasses.field(default_factory=list)
    body: list[Instruction | Label] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Module:
    path: str
    kernels: list[Kernel]


class _Tokens:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._all: list[tuple[str, int]] = []
        line, at = 1, 0
        for match in _TOKEN.finditer(text):
            between = text[at : match.start()]
            if between.strip():
                raise RefusedError(f"{path}:{line}: no token of PTX: {between.strip()!r}")
            line += between.count("\n")
            if not match[0].startswith("//"):
                self._all.append((match[0], line))
            at = match.end()
        self._next = 0

    def __bool__(self) -> bool:
        return self._next < len(self._all)

    @property
    def line(self) -> int:
        return self._all[min(self._next, len(self._all) - 1)][1]

    def peek(self, ahead: int = 0) -> str:
        at = self._next + ahead
        return self._all[at][0] if at < len(self._all) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise RefusedError(f"{self.path}:{self.line}: expected {expected or 'more'}, found {token or 'the end'!r}")
        self._next += 1
        return token

    def until(self, *ends: str) -> list[str]:
        found = []
        while self.peek() not in ends:
            found.append(self.take())
        return found


def _variable(tokens: list[str], where: str) -> Variable:
    """.align 8 .b8 name[312], or .u64 name."""
    align = int(tokens[tokens.index(".align") + 1]) if ".align" in tokens else 0
    size = next((_SIZES[token[1:]] for token in tokens if token[1:] in _SIZES), None)
    names = [i for i, token in enumerate(tokens) if not token.startswith(".") and not token.isdigit()]
    if size is None or not names:
        raise RefusedError(f"{where}: no known variable: {' '.join(tokens)}")
    count = 1
    if tokens[names[0] + 1 :]:
        count = int(tokens[names[0] + 2]) if tokens[names[0] + 2] != "]" else 0
    return Variable(tokens[names[0]], align or size, size * count)


class _Body:
    """Reads what stands between a kernel's braces. Registers of inner scopes get names of their own."""

    def __init__(self, tokens: _Tokens, kernel: Kernel) -> None:
        self._tokens, self._kernel = tokens, kernel
        self._scopes: list[dict[str, str]] = [{}]
        self._opened = 0

    def read(self) -> None:
        tokens = self._tokens
        tokens.take("{")
        while self._scopes:
            token = tokens.peek()
            if token == "{":
                tokens.take()
                self._opened += 1
                self._scopes.append({})
            elif token == "}":
                tokens.take()
                self._scopes.pop()
            elif tokens.peek(1) == ":":
                self._kernel.body.append(Label(tokens.take()))
                tokens.take(":")
            elif token in {".reg", ".shared", ".pragma"}:
                self._directive()
            else:
                self.instruction()

    def _directive(self) -> None:
        tokens, where = self._tokens, f"{self._tokens.path}:{self._tokens.line}"
        kind, *rest = tokens.until(";")
        tokens.take(";")
        if kind == ".shared":
            self._kernel.shared.append(_variable(rest, where))
        elif kind == ".reg":
            bits = _WIDTHS.get(rest[0].lstrip("."))
            if bits is None:
                raise RefusedError(f"{where}: no known register: {' '.join(rest)}")
            if "<" in rest:
                for i in range(int(rest[3])):
                    self._register(f"{rest[1]}{i}", bits)
            else:
                for name in (token for token in rest[1:] if token != ","):
                    self._register(name, bits)

    def _register(self, name: str, bits: int) -> None:
        inner = len(self._scopes) > 1
        unique = f"%scope{self._opened}_{name.lstrip('%')}" if inner else name
        self._scopes[-1][name] = unique
        self._kernel.registers[unique] = bits

    def _name(self, token: str) -> str:
        for scope in reversed(self._scopes):
            if token in scope:
                return scope[token]
        return token

    def instruction(self) -> None:
        tokens = self._tokens
        line, guard = tokens.line, ""
        if tokens.peek() == "@":
            tokens.take()
            if tokens.peek() == "!":
                guard = tokens.take()
            guard += self._name(tokens.take())
        opcode = tokens.take()
        self._kernel.body.append(Instruction(opcode, tuple(self._operands(tokens.until(";"))), line, guard))
        tokens.take(";")

    def _operands(self, tokens: list[str]) -> Iterator[str]:
        text, depth = "", 0
        for token in tokens:
            depth += (token in "{[") - (token in "}]")
            if token == "," and depth == 0:
                yield text
                text = ""
            else:
                text += self._name(token)
        if text:
            yield text


def parse_instructions(text: str, line: int) -> list[Instruction]:
    """What stands at one line of a kernel, with names as `parse` has made them."""
    tokens, kernel = _Tokens("", text), Kernel("", [])
    body = _Body(tokens, kernel)
    while tokens:
        body.instruction()
    return [dataclasses.replace(each, line=line) for each in kernel.body if isinstance(each, Instruction)]


def parse(path: Path, text: str) -> Module:
    """Raises RefusedError at what is no part of the PTX that is expected here: functions, constants, textures."""
    tokens = _Tokens(path.name, text)
    module = Module(path.name, [])
    dynamic: list[Variable] = []
    while tokens:
        where = f"{path.name}:{tokens.line}"
        token = tokens.take()
        if token in {".version", ".target", ".address_size"}:
            tokens.take()
        elif token in {".visible", ".weak"}:
            pass
        elif token == ".extern" and tokens.peek() == ".shared":
            tokens.take()
            dynamic.append(_variable(tokens.until(";"), where))
            tokens.take(";")
        elif token == ".entry":
            kernel = Kernel(tokens.take(), [])
            tokens.take("(")
            while tokens.peek() != ")":
                tokens.take(".param")
                kernel.params.append(_variable(tokens.until(",", ")"), where))
                if tokens.peek() == ",":
                    tokens.take()
            tokens.take(")")
            tokens.until("{")  # limits for ptxas
            _Body(tokens, kernel).read()
            kernel.shared += dynamic
            module.kernels.append(kernel)
        else:
            raise RefusedError(f"{where}: not translated: {token} {tokens.peek()}")
    return module
