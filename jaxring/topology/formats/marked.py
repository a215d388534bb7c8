"""YAML and JSON whose values know their lines, so that an error names the place in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib

_MOST_BYTES = 64 << 20


class Table(dict[str, Any]):
    """A mapping. ``line``: where it begins; ``lines``: where the value of each key does."""

    line: int
    lines: dict[str, int]


class Row(list[Any]):
    """A sequence. ``line``: where it begins; ``lines``: where each entry does."""

    line: int
    lines: list[int]


class File:
    """A file of YAML or JSON, whose mappings are `Table` and whose sequences are `Row`.

    Raises ValueError where it cannot be read or is no such file, with the line, and where PyYAML is not installed.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            import yaml
        except ModuleNotFoundError:
            raise ValueError(f"{path} is YAML, for which PyYAML has to be installed: pip install pyyaml") from None
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) > _MOST_BYTES:
            raise ValueError(f"{path} has more than {_MOST_BYTES >> 20} MiB")
        try:
            root = yaml.compose(data.decode(), Loader=yaml.SafeLoader)
            self.root = self._value(root, set()) if root is not None else Table()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text: {error}") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.wrong(mark.line + 1 if mark else 1, error.problem or "it is no YAML") from None
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from None
        if root is None:
            self.root.line, self.root.lines = 1, {}

    def wrong(self, line: int, why: str) -> ValueError:
        """The error for a line."""
        return ValueError(f"{self.path}, line {line}: {why}")

    def _value(self, node: Any, above: set[int]) -> Any:
        import yaml

        line = node.start_mark.line + 1
        if id(node) in above:
            raise self.wrong(line, "an alias stands inside what it stands for")
        if isinstance(node, yaml.ScalarNode):
            loader = yaml.SafeLoader("")
            try:
                return loader.construct_object(node)
            except (ValueError, yaml.YAMLError):
                raise self.wrong(line, f"{node.value!r} is no value") from None
            finally:
                loader.dispose()
        inside = above | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            row = Row(self._value(each, inside) for each in node.value)
            row.line, row.lines = line, [each.start_mark.line + 1 for each in node.value]
            return row
        table = Table()
        table.line, table.lines = line, {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.wrong(key.start_mark.line + 1, "a key is no text")
            if key.value in table:
                raise self.wrong(key.start_mark.line + 1, f"{key.value} stands twice in one mapping")
            table[key.value] = self._value(value, inside)
            table.lines[key.value] = value.start_mark.line + 1
        return table

    def get(self, table: Table, key: str, kind: type | tuple[type, ...], what: str, default: Any = ...) -> Any:
        """The value of a key, of that kind; ``what`` names the kind and the kind of table in errors."""
        if key not in table:
            if default is not ...:
                return default
            raise self.wrong(table.line, f"there is no {key}: {what}")
        value = table[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(table.lines[key], f"{key} is {_short(value)}: {what}")
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
