"""Writes each kernel as a C++ function: registers are locals, labels are labels, and instructions are the statements of
forms.py."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tools.ptx.forms import FORMS, Form
from tools.ptx.mutations import Mutation
from tools.ptx.parse import Instruction, Kernel, Label, Module, RefusedError

_TYPES = {1: "bool", 16: "u16", 32: "u32", 64: "u64"}
_SPECIAL = {"%tid.x": "ThreadX()", "%ntid.x": "ThreadsX()", "%ctaid.x": "BlockX()", "%nctaid.x": "BlocksX()"}
_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)")
_FLOAT = re.compile(r"0([fF])([0-9a-fA-F]{8})|0([dD])([0-9a-fA-F]{16})")
_ADDRESS = re.compile(r"\[([^+\]]+)(?:\+(-?\w+))?\]")


def function_name(kernel: str) -> str:
    """The mangled name without its namespaces, which hold a hash: PlayKernelINS0_2LLELi1EEEvNS0_4ArgsE."""
    rest = re.sub(r"^_ZN?", "", kernel)
    name = rest
    while match := re.match(r"\d+", rest):
        length = int(match[0])
        name = rest[match.end() :]
        rest = name[length:]
    return "Ptx_" + name


def _number(text: str) -> str:
    return f"0x{int(text, 0) & (2**64 - 1):x}u"


class _Writer:
    def __init__(self, path: str, kernel: Kernel, mutations: Sequence[Mutation]) -> None:
        self._path, self._kernel = path, kernel
        name = function_name(kernel.name)
        self._mutations = [(i, each) for i, each in enumerate(mutations) if re.match(each.kernels, name)]
        self._matched: Counter[int] = Counter()  # instructions, by mutation
        self._merged = 0  # loads that a mutation merges
        self.used: Counter[str] = Counter()
        self._labels = {item.name for item in kernel.body if isinstance(item, Label)}
        self._symbols = {param.name: f"param{i}" for i, param in enumerate(kernel.params)}
        offset = 0
        for variable in sorted(kernel.shared, key=lambda variable: variable.bytes == 0):
            offset = -(-offset // variable.align) * variable.align
            self._symbols[variable.name] = f"{offset}u"
            offset += variable.bytes
        self._shared_bytes = offset

    def write(self) -> Iterator[str]:
        yield f"// {self._path}"
        yield '#include "cuda/sim/ptx/memory.h"\n#include "cuda/sim/ptx/registers.h"\n'
        yield "namespace jaxring::cuda::ptx {\n"
        name = function_name(self._kernel.name)
        yield f"void {name}(const Param* params, u64 dynamic_bytes) {{"
        for i, param in enumerate(self._kernel.params):
            yield f"  const u64 param{i} = TakeParam(params[{i}], {param.bytes}u);"
        for bits, kind in _TYPES.items():
            names = [self._register(name) for name, width in self._kernel.registers.items() if width == bits]
            if names:
                yield f"  {kind} {', '.join(names)};"
        body = list(self._body())
        if self._merged:
            yield f"  u64 {', '.join(f'merged{i} = 0' for i in range(self._merged))};"
        yield "  static bool played = false;"
        yield f'  Enter("{name}", played, {self._shared_bytes}u + dynamic_bytes);'
        yield from body
        yield "}\n\n}  // namespace jaxring::cuda::ptx"

    def _body(self) -> Iterator[str]:
        targets = {
            operand
            for item in self._kernel.body
            if isinstance(item, Instruction) and item.opcode.startswith("bra")
            for operand in item.operands
        }
        for item in self._kernel.body:
            if isinstance(item, Instruction):
                yield "  " + self._mutable(item)
            elif item.name in targets:
                yield f"{self._label(item.name)}:;"

    def _mutable(self, instruction: Instruction) -> str:
        """The statement, and what each mutation has in its place."""
        statement = self._instruction(instruction)
        if not self._mutations:
            return statement
        counted = self.used.copy()
        for number, mutation in self._mutations:
            becomes = mutation.applied(instruction)
            if becomes is None:
                continue
            self._matched[number] += 1
            if mutation.second and self._matched[number] % 2:
                continue
            broken = " ".join(map(self._instruction, becomes))
            if mutation.merged:
                address = next(filter(None, map(self._address, instruction.operands)))
                last = f"merged{self._merged}"
                self._merged += 1
                broken = f"if ({last} != ({address})) {{ {last} = {address}; {broken} }}"
            statement = f"if (broken == {number}) {{ {broken} }} else {{ {statement} }}"
        self.used = counted
        return statement

    def _instruction(self, instruction: Instruction) -> str:
        forms = FORMS.get(instruction.opcode, [])
        for form in forms:
            values = self._match(form, instruction)
            if values is None:
                continue
            self.used[f"{instruction.opcode} {' '.join(form.shapes)}"] += 1
            statement = form.statement.format(**values)
            if instruction.guard:
                absent = instruction.guard.startswith("!")
                guard = self._value("p", instruction.guard.lstrip("!"))
                if guard is None:
                    break
                return f"if ({'!' if absent else ''}{guard}) {{ {statement} }}"
            return f"{{ {statement} }}" if statement.startswith("auto") else statement
        reason = "these operands have" if forms else "this instruction has"
        raise RefusedError(f"{self._path}:{instruction.line}: {reason} no translation (forms.py): {instruction}")

    def _match(self, form: Form, instruction: Instruction) -> dict[str, str] | None:
        if len(form.shapes) != len(instruction.operands):
            return None
        values: dict[str, str] = {}
        for letter, shape, operand in zip("abcdefgh", form.shapes, instruction.operands, strict=False):
            if shape in {"v2", "v4"}:
                parts = operand.strip("{}").split(",")
                if not operand.startswith("{") or len(parts) != int(shape[1]):
                    return None
                for i, part in enumerate(parts):
                    value = self._value("r", part)
                    if value is None:
                        return None
                    values[f"{letter}{i}"] = value
            else:
                value = self._value(shape, operand)
                if value is None:
                    return None
                values[letter] = value
        return values

    def _value(self, shape: str, operand: str) -> str | None:
        bits = self._kernel.registers.get(operand, 0)
        match shape:
            case "p":
                if operand.startswith("!") and self._kernel.registers.get(operand[1:]) == 1:
                    return "!" + self._register(operand[1:])
                if _NUMBER.fullmatch(operand):
                    return "true" if int(operand, 0) else "false"
                return self._register(operand) if bits == 1 else None
            case "r":
                if _NUMBER.fullmatch(operand):
                    return _number(operand)
                if match := _FLOAT.fullmatch(operand):
                    return f"0x{match[2] or match[4]}u"
                return self._register(operand) if bits > 1 else None
            case "s":
                return _SPECIAL.get(operand, self._symbols.get(operand))
            case "m":
                return self._address(operand)
            case "l":
                return self._label(operand) if operand in self._labels else None
        return operand if operand == shape else None

    def _address(self, operand: str) -> str | None:
        match = _ADDRESS.fullmatch(operand)
        if match is None:
            return None
        base = self._symbols.get(match[1])
        if base is None and self._kernel.registers.get(match[1], 0) >= 32:
            base = self._register(match[1])
        return base and (f"{base} + {_number(match[2])}" if match[2] else base)

    @staticmethod
    def _register(name: str) -> str:
        return "R" + name.lstrip("%").replace(".", "_").replace("$", "_")

    @staticmethod
    def _label(name: str) -> str:
        return name.replace("$", "")


def write(module: Module, mutations: Sequence[Mutation] = ()) -> tuple[dict[str, str], Counter[str]]:
    """C++ by the function's name, and how often each form occurs. Raises RefusedError.

    The variable `broken` has the code take the mutation of that index.
    """
    texts: dict[str, str] = {}
    used: Counter[str] = Counter()
    for kernel in module.kernels:
        writer = _Writer(module.path, kernel, mutations)
        texts[function_name(kernel.name)] = "\n".join(writer.write()) + "\n"
        used += writer.used
    return texts, used
