"""Conversion of YAML to a document with positions. PyYAML reads the structure; plain values follow
YAML 1.2."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

from cloudtrain.documents.document import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_VALUES,
    Content,
    Notes,
    Place,
    Unreadable,
    ValuePath,
    parser_hint,
    place_at,
    read_document,
    too_deep,
    too_large,
)
from cloudtrain.errors import shortened

if TYPE_CHECKING:
    import yaml


# Plain values as in YAML 1.2 (its core schema): `1e-3` is a number; `on`, `yes` and `12:30` are
# text.


def _integer_reader(base: int) -> Callable[[str], object]:
    """Return a function that reads an integer in the given base. A number with too many digits
    stays text."""
    return lambda text: int(text, base) if len(text) <= MAX_DIGITS else text


_READERS: tuple[tuple[str, re.Pattern[str], Callable[[str], object]], ...] = (
    ("null", re.compile(r"~|null|Null|NULL|"), lambda _: None),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    ("int", re.compile(r"[-+]?[0-9]+"), _integer_reader(10)),
    ("int", re.compile(r"0o[0-7]+"), _integer_reader(8)),
    ("int", re.compile(r"0x[0-9a-fA-F]+"), _integer_reader(16)),
    ("float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float),
    ("float", re.compile(r"[-+]?\.(?:inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    ("float", re.compile(r"\.(?:nan|NaN|NAN)"), lambda _: float("nan")),
)
"""The type, the pattern and the reader of each spelling; the first pattern that matches counts."""

_TYPES = ("null", "bool", "int", "float")
"""The types that an explicit tag (`!!int`) can name, except text."""


def read_scalar(text: str, type_name: str | None = None) -> object:
    """Convert a plain value to null, bool, int or float by its spelling, or only to the type that
    an explicit tag names. Other text stays text."""
    for own_type, pattern, reader in _READERS:
        if type_name in (None, own_type) and pattern.fullmatch(text):
            return reader(text)
    return text


_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_PLAIN = "plain"


@lru_cache(maxsize=1)
def _loader() -> Any:
    """Return PyYAML's loader (in C if available), changed to leave plain values as text."""
    import yaml

    # PyYAML's own resolvers follow YAML 1.1, where `on` is true and `12:30` a number.
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    anything = (_TAG + _PLAIN, re.compile(""))
    resolvers = {"<": [(_MERGE, re.compile("^<<$"))], None: [anything]}
    return type("_Loader", (base,), {"yaml_implicit_resolvers": resolvers})


def read_yaml(text: str) -> Content:
    """Read one YAML document.

    Raises:
        Unreadable: the text is not YAML, holds several documents, or contains an endless alias.
    """
    import yaml

    loader = _loader()(text)
    try:
        _check_depth(text)
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise _unreadable(error, text) from None
    finally:
        loader.dispose()

    if node is None:
        return Notes().document(None)
    reader = _Reader()
    return reader.notes.document(reader.value(node, ()))


def _check_depth(text: str) -> None:
    """Refuse deep nesting before PyYAML's composer reads the text, because the composer's recursion
    in C has no limit.

    Every level needs one of the signs `[`, `{`, `-`, `?` or `:`. Most texts contain too few of them
    to need a check.
    """
    most_levels = 0
    for sign in "[{-?:":
        most_levels += text.count(sign)
    if most_levels <= MAX_DEPTH:
        return
    import yaml

    depth = 0
    for event in yaml.parse(text, _loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise RecursionError


def _unreadable(error: yaml.YAMLError, text: str) -> Unreadable:
    """Return the error for an error of PyYAML, in plain words for the usual mistakes."""
    place = _place_of_error(error, text)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    if "nesting depth" in problem:
        return too_deep(place)
    if "but found another document" in problem:
        return Unreadable(
            "the file holds several documents (`---`)",
            "a file holds one job: remove the others",
            place,
            code="CT003",
        )
    if _is_control(error):
        return Unreadable("not valid YAML: the text holds a control character", "remove it", place)

    lines = text.splitlines()
    if place is not None and place.line <= len(lines):
        before = lines[place.line - 1][: place.column]
        if before.lstrip(" ").startswith("\t"):
            return Unreadable(
                "not valid YAML: a tab cannot indent a line", "indent with spaces", place
            )

    default = "correct the text at this position, or put text with special signs in quotes"
    return Unreadable(f"not valid YAML: {problem}", parser_hint("yaml", problem, default), place)


def _is_control(error: yaml.YAMLError) -> bool:
    """Return whether the error reports a forbidden character, such as a control character."""
    return type(error).__name__ == "ReaderError"


def _place_of_error(error: yaml.YAMLError, text: str) -> Place | None:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return Place(mark.line + 1, mark.column + 1)
    if _is_control(error):
        control = re.search(
            "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text
        )
        return place_at(text, control.start()) if control else None
    return None


class _Reader:
    """Converts the nodes of a document to its data."""

    def __init__(self) -> None:
        self.notes = Notes()
        self._count = 0
        # the mappings and lists around the current node
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: ValuePath) -> object:
        """Return the value of a node, and record its position under `path`."""
        self._enter(node, path)
        place = _place(node)
        self.notes.values[path] = place
        if _is_scalar(node):
            return self._scalar(node, path, place)
        self._report_tag(node, path, place)
        self._open.add(id(node))
        value = self._mapping(node, path) if _is_mapping(node) else self._list(node, path)
        self._open.discard(id(node))
        return value

    def _enter(self, node: yaml.Node, path: ValuePath, values: int = 1) -> None:
        """Count the values of a node, and refuse a document that is too large, too deep or
        endless."""
        self._count += values
        if id(node) in self._open:
            raise Unreadable(
                "the text holds an anchor that refers to itself",
                "write the value in the alias's place",
                _place(node),
                code="CT005",
            )
        if self._count > MAX_VALUES:
            raise too_large(_place(node))
        if len(path) > MAX_DEPTH:
            raise too_deep(_place(node))

    def _scalar(self, node: yaml.ScalarNode, path: ValuePath, place: Place) -> object:
        tag = str(node.tag).removeprefix(_TAG)
        text = str(node.value)
        self.notes.texts[path] = text
        if tag == _PLAIN and node.style:  # in quotes
            return text
        if tag in (_PLAIN, "merge"):
            return read_scalar(text)
        if tag in _TYPES:
            value = read_scalar(text, tag)
            if isinstance(value, str):
                message = f"`{shortened(text)}` does not have the type of its tag `!!{tag}`"
                self.notes.problem(path, place, message, "remove the tag")
            return value
        if tag != "str":
            self._report_tag(node, path, place)
        return text

    def _report_tag(self, node: yaml.Node, path: ValuePath, place: Place) -> None:
        """Record a problem if the node has a tag such as `!Ref`, which names a type of another
        program."""
        tag = str(node.tag)
        if tag == _TAG + ("map" if _is_mapping(node) else "seq"):
            return
        if tag.startswith(_TAG):
            tag = f"!!{tag.removeprefix(_TAG)}"
        self.notes.problem(
            path, place, f"a job file cannot have tags such as `{tag}`", "remove the tag"
        )

    def _list(self, node: Any, path: ValuePath) -> list[object]:
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: ValuePath) -> dict[str, object]:
        result: dict[str, object] = {}
        for name, value in self._entries(node, path).items():
            result[name] = self.value(value, (*path, name))
        return result

    def _entries(
        self, node: yaml.MappingNode, path: ValuePath, *, is_merged: bool = False
    ) -> dict[str, yaml.Node]:
        """Return the values of a mapping, and those that `<<: *a` or `<<: [*a, *b]` merges into it
        and it does not replace. Record their keys. Earlier mappings take precedence."""
        result: dict[str, yaml.Node] = {}
        sources: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                sources += value.value if type(value).__name__ == "SequenceNode" else [value]
                continue
            name = self._key(key, path)
            if name is None:
                continue
            inner = (*path, name)
            if name in result:
                if not is_merged:  # else it is reported where the mapping stands
                    self.notes.duplicate(inner, _place(key))
                continue
            self.notes.keys.setdefault(inner, _place(key))
            result[name] = value

        for source in sources:
            if not _is_mapping(source):
                self.notes.problem(
                    path,
                    _place(source),
                    "`<<` takes in a mapping or a list of mappings",
                    "write `<<: *name`, where `&name` is a mapping",
                )
                continue
            self._enter(source, path, 1 + len(source.value))
            self._open.add(id(source))
            for name, value in self._entries(source, path, is_merged=True).items():
                result.setdefault(name, value)
            self._open.discard(id(source))
        return result

    def _key(self, node: yaml.Node, path: ValuePath) -> str | None:
        """Return the text of a key; None for a key that is no text, which is recorded as a
        problem."""
        what = "a list or a mapping"
        hint = "write a name before the colon"
        if _is_scalar(node):
            value = self._scalar(node, (*path, "<key>"), _place(node))
            self.notes.texts.pop((*path, "<key>"), None)
            if isinstance(value, str):
                return value
            text = shortened(str(node.value))
            if text:
                what = f"`{text}`"
                hint = f'write `"{text}"`, in quotes'
            else:
                what = "empty"
        self.notes.problem(path, _place(node), f"a key must be text, not {what}", hint)
        return None


# The names of the classes are compared, because importing PyYAML costs start-up time.


def _is_scalar(node: yaml.Node) -> TypeGuard[yaml.ScalarNode]:
    return type(node).__name__ == "ScalarNode"


def _is_mapping(node: yaml.Node) -> TypeGuard[yaml.MappingNode]:
    return type(node).__name__ == "MappingNode"


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


_UNQUOTED = re.compile(r"[A-Za-z_./][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+=-]+)*")
"""Text that needs no quotes in YAML 1.1 and 1.2."""

_WORDS = frozenset("y n yes no on off true false null".split())
"""Texts that some YAML readers take for a Boolean value or null."""


def plain_scalar(value: Any) -> str:
    """Return a single value, in quotes only if a YAML reader would take its plain text for another
    value."""
    from cloudtrain.documents.toml_json import scalar_text

    if not isinstance(value, str) or not _UNQUOTED.fullmatch(value):
        return scalar_text(value)
    if value.lower() in _WORDS or read_scalar(value) != value:
        return scalar_text(value)
    return value


def write_yaml(data: dict[str, object]) -> str:
    """Return the fields as YAML that cloudtrain reads back unchanged: PyYAML's output if it is
    unchanged and printable, else JSON with invisible characters escaped."""
    import yaml

    from cloudtrain.documents.toml_json import escape_unprintable  # reading needs no TOML

    class _Dumper(yaml.SafeDumper):
        """PyYAML's writer, which would leave `1e-3` unquoted: text in YAML 1.1, but a number in
        YAML 1.2."""

    def represent_text(dumper: Any, text: str) -> Any:
        style = None if read_scalar(text) == text else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    _Dumper.add_representer(str, represent_text)
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    try:
        if text.replace("\n", "").isprintable() and read_document(text, "yaml").data == data:
            return text
    except Unreadable:
        pass
    lines = json.dumps(data, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(map(escape_unprintable, lines))
