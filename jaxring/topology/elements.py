"""XML whose elements know their lines, so that an error in a file says where it is."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
import xml.parsers.expat

MAX_BYTES = 16 << 20
_MAX_DEPTH = 64
_MOST = 1 << 63


class Element(ET.Element):
    """An element and the number of the line on which it begins."""

    line = 0

    def error(self, text: str) -> ValueError:
        """An error of this element. What a file says may hold characters that no terminal should get."""
        return ValueError(f"line {self.line}: {text if text.isprintable() else ascii(text)}")

    def number(self, attribute: str, default: int) -> int:
        """A whole number, decimal or, as NCCL writes some of them, hexadecimal; the default where there is none."""
        text = self.get(attribute, "")
        try:
            value = int(text, 16 if text.lower().startswith("0x") else 10) if text else default
        except ValueError:
            value = _MOST
        if abs(value) >= _MOST:
            raise self.error(f"<{self.tag} {attribute}={text[:40]!r}> is no whole number of 64 bits")
        return value

    def real(self, attribute: str, default: float) -> float:
        """A finite number; the default where there is none."""
        text = self.get(attribute, "")
        try:
            value = float(text or default)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"<{self.tag} {attribute}={text[:40]!r}> is no number")
        return value

    def children(self) -> list[Element]:
        """What stands directly within."""
        return [child for child in self if isinstance(child, Element)]


def parse(data: bytes, outermost: str) -> Element:
    """The outermost element of a file, which has to have that name. Raises ValueError with the line."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes, which no topology needs")
    parser = xml.parsers.expat.ParserCreate()
    top: list[Element] = []
    open_elements: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes)
        element.line = parser.CurrentLineNumber
        if len(open_elements) > _MAX_DEPTH:
            raise element.error(f"elements are more than {_MAX_DEPTH} deep")
        (open_elements[-1] if open_elements else top).append(element)
        open_elements.append(element)

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    try:
        parser.Parse(data, True)
    except xml.parsers.expat.ExpatError as error:
        reason = xml.parsers.expat.ErrorString(error.code)
        raise ValueError(f"line {error.lineno}: {reason}") from None
    except (LookupError, UnicodeError) as error:  # an encoding that there is not
        raise ValueError(f"line 1: {error}") from None
    if top[0].tag != outermost:
        raise top[0].error(f"the outermost element is <{top[0].tag}> and not <{outermost}>")
    return top[0]
