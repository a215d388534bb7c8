"""Classes of ffi/ stay small: a line in one of many members and methods may touch everything."""

from __future__ import annotations

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
MOST = 20
_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',
    re.S | re.M,
)
_CLASS = re.compile(
    r"\b(class|struct)\s+(?:\[\[[^\]]*\]\]\s*|alignas\([^)]*\)\s*|\w+\([^()]*\)\s*)*([A-Za-z_]\w*)\s*(?:final\s*)?(?::[^;{}()]*)?\{"
)
_ATTRIBUTE = re.compile(r"\[\[[^\]]*\]\]|\s*\bJAXRING_[A-Z_]+\b(\([^()]*\))?")  # those of base/mutex.h, too
# What a statement of a class body may be besides a method or a member.
_OTHER = re.compile(
    r"^\s*(using|typedef|friend|static_assert|enum|union|(template\s*<[^;{]*>\s*)?(class|struct)\b(?![^;{(]*\s\w+\s*[;={]?\s*$))"
)


def bodies(text: str):
    """(keyword, name, body) of every class that is defined in C++ source."""
    text = _NOISE.sub(lambda match: '""' if match[0][0] in '"R' else " ", text)
    for match in _CLASS.finditer(text):
        if text[: match.start()].rstrip().endswith("enum"):
            continue
        yield match[1], match[2], text[match.end() : _closing(text, match.end())]


def _closing(text: str, at: int) -> int:
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at - 1


def counted(keyword: str, name: str, body: str) -> tuple[int, int]:
    """(public methods, members). Constructors, destructors, operators and what is deleted count as no methods."""
    methods = members = 0
    public = keyword == "struct"
    for statement in statements(body):
        if statement in ("public", "private", "protected"):
            public = statement == "public"
            continue
        if _OTHER.match(statement):
            continue
        statement = re.sub(r"\(\s*\*\s*(\w+)\s*\)\s*\([^()]*\)", r"* \1", statement)  # a pointer to a function
        head = re.split(r"[={]|\)\s*:", statement, maxsplit=1)[0] if "operator" not in statement else statement
        if "(" in _without_templates(head):
            called = re.search(r"([~\w]+)\s*\(", _without_templates(head))
            own = called and called[1].lstrip("~") == name
            methods += public and not own and "operator" not in statement and "delete" not in statement
        elif not re.match(r"\s*(static\s+)?(constexpr|inline\s+constexpr)|\s*static\b", statement):
            members += re.sub(r"\{[^{}]*\}|\([^()]*\)", "", _without_templates(statement)).count(",") + 1
    return methods, members


def _without_templates(text: str) -> str:
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def statements(body: str):
    """The statements of a class body, and the names of the access that they have."""
    start = at = 0
    while at < len(body):
        if body[at] == "{":
            end = _closing(body, at + 1)
            rest = body[end + 1 :].lstrip()
            if rest[:1] in (";", ",") or rest[:1] == ":":
                at = end + 1
                continue
            yield from _labelled(body[start:at] + "{}")
            start = at = end + 1
        elif body[at] == ";":
            yield from _labelled(body[start:at])
            start = at = at + 1
        else:
            at += 1


def _labelled(statement: str):
    while label := re.match(r"\s*(public|private|protected)\s*:(?!:)", statement):
        yield label[1]
        statement = statement[label.end() :]
    statement = _ATTRIBUTE.sub("", statement).strip()
    if statement:
        yield statement


MADE = """
class Made final : public Other {
 public:
  Made(int a = f());  // one(two)
  ~Made() { end(); }
  int size() const JAXRING_REQUIRES(mutex_) { return size_; }
  std::map<int, std::function<void()>> all(int x);
  Made(const Made&) = delete;

 private:
  void Own();
  struct In {
    int a;
  };
  int size_ JAXRING_GUARDED_BY(mutex_) = 0, more_{1};
  std::map<int, std::function<void()>> all_;
  std::vector<int> some_{1, 2};
  int (*called_)(int, char*) = nullptr;
};
"""


def test_the_counts():
    (keyword, name, body), (_, inner, _) = bodies(MADE)
    assert (keyword, name, inner) == ("class", "Made", "In")
    assert counted(keyword, name, body) == (2, 5)


def large(root: pathlib.Path = ROOT) -> dict[str, tuple[int, int]]:
    """The classes with more than MOST public methods or members, by file and name."""
    found = {}
    for path in sorted((root / "ffi").rglob("*")):
        if path.suffix in (".h", ".cc") and "tests" not in path.relative_to(root).parts:
            for keyword, name, body in bodies(path.read_text()):
                if max(counts := counted(keyword, name, body)) > MOST:
                    found[f"{path.relative_to(root / 'ffi')}: {name}"] = counts
    return found


def test_classes_are_small_or_say_why():
    said = tomllib.loads((pathlib.Path(__file__).parent / "layers.toml").read_text())["classes"]
    found = large()
    wrong = [f"{name} has {found[name]} public methods and members: split it" for name in found.keys() - said.keys()]
    wrong += [f"{name} is small, or gone: remove it from layers.toml" for name in said.keys() - found.keys()]
    for name in found.keys() & said.keys():
        most, why = said[name]["most"], said[name]["why"]
        assert len(why.split()) > 3, name
        if max(found[name]) > most:
            wrong.append(f"{name} has grown to {max(found[name])} from {most}: split it")
    assert not wrong


def test_a_class_that_grows_is_found(tmp_path):
    (tmp_path / "ffi").mkdir()
    members = "".join(f"  int a{i}_ = {i};\n" for i in range(MOST + 1))
    (tmp_path / "ffi" / "grown.h").write_text(f"class Grown {{\n private:\n{members}}};\n")
    assert large(tmp_path) == {"grown.h: Grown": (0, MOST + 1)}
