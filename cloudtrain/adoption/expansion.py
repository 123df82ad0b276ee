"""Expands the words of a shell script by the variables whose values the script's text shows. What
only a running shell knows stays in a word as written."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from cloudtrain.documents.document import load_table

MOST = 1 << 20
"""Maximum length of a value. Variables that contain each other could grow without a limit."""

_MOST_SEARCHED = 300
"""Maximum length of a value that is compared with a pattern."""

_START = "\ue000"
_END = "\ue001"
"""Around the parts of a value that only a running shell knows."""
_OF_SCRIPT = "\ue002"
"""At the end of such a part that another shell would not know: it needs variables of the script."""
NOT_EMPTY = "\ue003"
"""After an unknown part that is certainly not empty."""
_BREAK = "\ue004"
"""Between the words to which one word expands."""
_PART = "\ue005"
"""Before a part of a word that makes a word also if it is empty: `""`."""

_NAMED = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])")
_UNKNOWN_ARGUMENT = re.compile(rf"{_START}[^{_END}]*\$\{{?#?[\d@*#]")
_ENDS = " \t\n;&|()<>"
"""The characters that end a word."""
_SPACES = re.compile(rf"({_START}[^{_END}]*{_END})|[ \t\n]+")
"""An unknown part, or spaces. Those inside of an unknown part do not separate words."""
_PLAIN = re.compile(r'[^"\\$`]+')
_ESCAPED = re.compile(r'\\[$`"\\\n]')
"""A backslash in double quotes, and a character after which it does not stay."""
_BRACES = re.compile(r"\{[^{}\s'\"]{0,80}(?:,|\.\.)[^{}\s'\"]{0,80}\}")
_LETTERS = re.compile(r"[^\s;&|()<>'\"\\$`{~*?]+")
_PARAMETER = re.compile(
    r"(#?)([A-Za-z_]\w*|[@*]|\d+|#)(?:\[([^]]*)\])?"
    r"(:?[-=+?]|%%?|##?|//?|:|)(.*)",
    re.DOTALL,
)
"""`NAME[INDEX]OPERATOR WORD`, perhaps after the `#` that asks for the length."""
_REFERENCE = re.compile(r"'[^']*'|\\.|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.DOTALL)
_NEEDED = re.compile(r"'[^']*'|\\.|\$\{?[#!]?([A-Za-z_]\w*|[\d@*#?$!-])", re.DOTALL)
"""A variable or an argument in a text."""
_SAFE = re.compile(r"[\w./:@%+=,-]+")

_TABLE = load_table(__file__, "launchers.toml")["variables"]
IN_ENVIRONMENT = re.compile(_TABLE["in_environment"])
"""Variables that a shell has from its environment."""
_OF_SHELL = re.compile(rf"{_TABLE['in_environment']}|{_TABLE['of_shell']}")
"""Variables that a running shell has although the script does not set them."""

Value = str | list[str]


class Open(str):
    """A text with a part that only a running shell knows, such as `$1` or `$(date)`. This part is
    kept as written."""

    marked: str
    """The text with marks around these parts."""

    @property
    def is_of_script(self) -> bool:
        """Whether only this script knows a part, because it is from variables of the script."""
        return _OF_SCRIPT in self.marked

    @property
    def has_arguments(self) -> bool:
        """Whether a part has an argument of the script, such as `$1` or `$@`."""
        return _UNKNOWN_ARGUMENT.search(self.marked) is not None


def unknown(raw: str, *, is_of_script: bool = False) -> str:
    """Return the value that stands for what only a running shell knows."""
    return f"{_START}{raw}{_OF_SCRIPT if is_of_script else ''}{_END}"


def is_unknown(text: str) -> bool:
    return _START in text


def has_known(text: str) -> bool:
    """Return whether a part of the value is known."""
    return re.sub(rf"{_START}[^{_END}]*{_END}", "", text) != ""


def result_of(text: str) -> str:
    """Return a value without the marks around its unknown parts; `Open` if it has some."""
    if not is_unknown(text):
        return text
    result = Open(without_marks(text))
    result.marked = text
    return result


def marked(text: str) -> str:
    """Return the value of a result, with the marks around its unknown parts."""
    return text.marked if isinstance(text, Open) else text


def part_of(word: str, text: str) -> str:
    """Return the text of a word's part; `Open` if the word is."""
    if not isinstance(word, Open):
        return text
    return result_of(unknown(text, is_of_script=word.is_of_script))


def without_marks(text: str) -> str:
    """Return a text without the characters that mark unknown parts."""
    return re.sub(f"[{_START}-{_PART}]", "", text)


class WordReader:
    """Reads words of a text. A method reads what begins at `at`, and moves `at` behind it."""

    def __init__(self, text: str, variables: dict[str, Value]) -> None:
        self.text = text
        self.at = 0
        self.variables: dict[str, Value] = variables
        """The script's variables; `@` has its arguments, if they are known."""

    def word(self, *, split: bool = True, ends: str = _ENDS) -> list[str]:
        """Read a word. Return the words that it expands to; with `split=False`, at least one."""
        text = ""
        while self.at < len(self.text) and self.text[self.at] not in ends:
            letter = self.text[self.at]
            braces = _BRACES.match(self.text, self.at)
            letters = _LETTERS.match(self.text, self.at)
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif letter in "'\\":
                text += _PART + self._literal()
            elif letter == '"':
                self.at += 1
                text += _joined(self.quoted('"'))
            elif letter in "$`":
                text += _joined(self._expanded(), split=split)
            elif braces:
                self.at = braces.end()
                text += unknown(braces[0])
            elif letters:
                self.at = letters.end()
                text += letters[0]
            else:
                self.at += 1
                is_home = letter == "~" and text[-1:] in ("", _BREAK)
                text += unknown(letter) if is_home or letter in "*?" else letter
            check_length(text)
        words = _words_in(text)
        return words if split else words or [""]

    def text_word(self, ends: str = _ENDS) -> str:
        """Read a word. Return the text to which it expands, also if that is several words."""
        return " ".join(self.word(split=False, ends=ends))

    def quoted(self, closing: str) -> list[str]:
        """Read a text in double quotes, which `closing` ends; all of the text if it is empty.
        Return several words, or none, if it contains all words of an array."""
        text = ""
        has_empty_array = False
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == closing:
                self.at += 1
                break
            if _ESCAPED.match(self.text, self.at):
                values = [self._literal()]
            elif letter in "$`":
                values = self._expanded(quoted=True)
                has_empty_array = has_empty_array or not values
            else:
                plain = _PLAIN.match(self.text, self.at)
                values = [plain[0] if plain else letter]
                self.at += len(values[0])
            text += _joined(values)
            check_length(text)
        else:
            if closing:
                raise ValueError("a quote is not closed")
        words = _words_in(text) or [""]
        return [] if has_empty_array and words == [""] else words

    def computed(self, text: str) -> int | None:
        """Return the value of an arithmetic expression of known whole numbers; None for other
        expressions."""

        def named(match: re.Match[str]) -> str:
            value = self.variables.get(match[1])
            if isinstance(value, str) and value.isdecimal():
                return value
            return "?"  # not known: the pattern below refuses it

        text = " ".join(WordReader(text, self.variables).quoted(""))
        numbers = re.sub(r"([A-Za-z_]\w*)", named, text)
        if not re.fullmatch(r"[\d\s()+*/%-]{1,80}", numbers):
            return None
        try:
            return _number(ast.parse(numbers.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None

    def _literal(self) -> str:
        """Read a text in single quotes, or a backslash with the character after it."""
        if self.text[self.at] == "\\":
            self.at += 2
            # a backslash at the end of a line joins it with the next one
            return self.text[self.at - 1 : self.at].replace("\n", "")
        end = self._find("'", self.at + 1)
        text = self.text[self.at + 1 : end]
        self.at = end + 1
        return text

    def _expanded(self, *, quoted: bool = False) -> list[str]:
        """Read what begins with `$` or a backtick. Return its value, or the values of an array."""
        start = self.at
        name = _NAMED.match(self.text, start)
        parameter = ""
        if self.text[start] == "`":
            self.at = self._find("`", start + 1) + 1
        elif self.text.startswith("$'", start) and not quoted:
            self.at = self._find("'", start + 2) + 1
        elif self.text.startswith("$(", start):
            self.at = self._closing(start + 1, "(", ")")
        elif self.text.startswith("${", start):
            self.at = self._closing(start + 1, "{", "}")
            parameter = self.text[start + 2 : self.at - 1]
        elif name:
            self.at = name.end()
            parameter = name[1]
        else:
            self.at += 1
            return ["$"]

        raw = self.text[start : self.at]
        match = _PARAMETER.fullmatch(parameter)
        if match:
            values = self._parameter(match, quoted=quoted)
            if values is not None:
                return values
        if raw.startswith("$((") and raw.endswith("))"):
            number = self.computed(raw[3:-2])
            if number is not None:
                return [str(number)]
        if not match:
            raw = _REFERENCE.sub(self._known_reference, raw)
        needed = [each[1] for each in _NEEDED.finditer(raw) if each[1]]
        is_of_script = any(map(self._is_of_script, needed))
        return [unknown(raw, is_of_script=is_of_script)]

    def _is_of_script(self, name: str) -> bool:
        """Return whether the shell of a job would not have a variable that the script has."""
        if name.startswith("SLURM_"):
            return False
        return not name.isidentifier() or name.startswith("BASH_") or name in self.variables

    def _known_reference(self, match: re.Match[str]) -> str:
        """Return the value of a variable inside of `$(...)`, or the command whose output it has;
        the text as written if the value needs quotes."""
        value = self.variables.get(match[1] or match[2])
        if isinstance(value, str) and value:
            is_output = is_unknown(value) and not has_known(value)
            if is_output or _SAFE.fullmatch(value):
                return without_marks(value)
        return match[0]

    def _parameter(self, match: re.Match[str], *, quoted: bool) -> list[str] | None:
        """Return the value of a parameter, or the values of an array; None if only a running shell
        knows it."""
        length, name, index, symbol, word = match.groups()
        if word and not symbol:  # another operator, such as `^^`
            return None
        has_all = not {"@", "*"}.isdisjoint((name, index))
        values = self._values(name, index or "")
        if symbol and symbol[-1] in "-=+?":
            values = self._with_default(name, values, symbol, word, quoted=quoted)
        elif values is None:
            return None
        elif symbol or length:
            if any(map(is_unknown, values)):
                return None
            if length:
                size = len(values) if has_all else len("".join(values))
                values = [str(size)]
            elif symbol == ":":
                # the arguments of a script begin at 1
                first = 1 if name in ("@", "*") else 0
                start = self.computed(word)
                if not has_all or start is None or start < first:
                    return None
                values = values[start - first :]
            else:
                pattern = WordReader(word, self.variables).text_word("")
                results = []
                for value in values:
                    result = _changed(value, symbol, pattern)
                    if result is None:
                        return None
                    results.append(result)
                values = results
        if values is None:
            return None
        if quoted and "*" in (name, index):
            values = [" ".join(values)]
        return values if values or has_all else [""]

    def _values(self, name: str, index: str) -> list[str] | None:
        """Return the values that `NAME[INDEX]` has, none if it is not set; None if the script does
        not show them."""
        if name == "#":
            values = self._values("@", "@")
            # `$@` stands for a number of words that is not known
            is_open = values is None or any(_UNKNOWN_ARGUMENT.search(value) for value in values)
            return None if is_open or values is None else [str(len(values))]
        if name in ("@", "*"):
            name, index = "@", "@"
        elif name.isdecimal():
            name, index = "@", str(int(name) - 1)
        value = self.variables.get(name)
        if value is None:
            # the environment holds no arrays
            return [] if index in ("@", "*") and name != "@" else None
        values = [value] if isinstance(value, str) else value
        if index in ("@", "*"):
            return values
        number = self.computed(index or "0")
        if number is None or number < 0:
            return None
        # an unknown text may be several words of an array, or none
        before = values[: number + 1] if number or isinstance(value, list) else []
        if any(not has_known(item) for item in before if item):
            return None
        return values[number : number + 1]

    def _with_default(
        self, name: str, values: list[str] | None, symbol: str, word: str, *, quoted: bool
    ) -> list[str] | None:
        """Return the value of `${NAME:-WORD}` and the like."""
        if values is None and _OF_SHELL.fullmatch(name):
            text = "".join(self._default(word, quoted=quoted))
            if symbol[-1] == "=" and _SAFE.fullmatch(text):
                self.variables[name] = unknown(f"${{{name}{symbol[:-1]}-{text}}}")
            return None
        has_colon = symbol[0] == ":"
        if values and has_colon and not any(value and has_known(value) for value in values):
            if any(values):
                return None
            values = []
        if symbol[-1] == "+":
            return self._default(word, quoted=quoted) if values else [""]
        if values:
            return values
        if symbol[-1] == "?":
            return None
        default = self._default(word, quoted=quoted)
        if symbol[-1] == "=":
            self.variables[name] = "".join(default)
        return default

    def _default(self, word: str, *, quoted: bool) -> list[str]:
        if quoted:
            return WordReader(re.sub(r'(?<!\\)"', "", word), self.variables).quoted("")
        return WordReader(word, self.variables).word(split=False, ends="")

    def _find(self, mark: str, start: int) -> int:
        """Return the place of the next `mark`, which closes a quote."""
        end = self.text.find(mark, start)
        if end < 0:
            raise ValueError("a quote is not closed")
        return end

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """Return the place after the bracket that closes the one at `start`."""
        depth = 0
        at = start
        while at < len(self.text):
            letter = self.text[at]
            if letter == "\\":
                at += 1
            elif letter == "'":
                at = self._find(letter, at + 1)
            elif letter == '"':
                at = self._end_of_quote(at + 1)
            depth += (letter == opening) - (letter == closing)
            at += 1
            if not depth:
                return at
        raise ValueError(f"a `{opening}` is not closed")

    def _end_of_quote(self, start: int) -> int:
        """Return the place of the double quote that closes the one before `start`. Quotes inside of
        `$(...)` and `${...}` do not close it."""
        at = start
        while at < len(self.text) and self.text[at] != '"':
            if self.text.startswith("$(", at):
                at = self._closing(at + 1, "(", ")")
            elif self.text.startswith("${", at):
                at = self._closing(at + 1, "{", "}")
            else:
                at += 2 if self.text[at] == "\\" else 1
        return self._find('"', at)


def _joined(values: Sequence[str], *, split: bool = False) -> str:
    """Return values as a text of words, each of which makes one; with `split`, as outside of
    quotes, the spaces of the values separate words."""
    if split:
        return _SPACES.sub(lambda found: found[1] or _BREAK, _BREAK.join(values))
    return _BREAK.join(_PART + value for value in values)


def check_length(text: str) -> None:
    if len(text) > MOST:
        raise ValueError("a variable is too long")


def _words_in(text: str) -> list[str]:
    """Return the words in a text in which `_BREAK` separates them."""
    return [word.replace(_PART, "") for word in text.split(_BREAK) if word]


def matches(pattern: str, text: str) -> bool | None:
    """Return whether a text has a shell's pattern; None if that is not known, or takes too long to
    find out."""
    pattern = pattern.replace(unknown("*"), "*").replace(unknown("?"), "?")
    is_long = len(text) > _MOST_SEARCHED or pattern.count("*") > 2
    if is_long or is_unknown(pattern) or is_unknown(text) or "[" in pattern:
        return None
    return fnmatchcase(text, pattern)


def _changed(value: str, symbol: str, pattern: str) -> str | None:
    """Return a value changed as `${NAME%PATTERN}` and the like do; None if that is not known."""
    if symbol[0] == "/":
        old, _, new = pattern.partition("/")
        if is_unknown(pattern) or "[" in old or old[:1] in ("", "#", "%"):
            return None
        return value.replace(old, new, 1 if symbol == "/" else -1)

    places = list(range(len(value) + 1))
    if symbol in ("%", "##"):
        places.reverse()
    for place in places:
        part, rest = value[:place], value[place:]
        if symbol[0] == "%":
            part, rest = rest, part
        found = matches(pattern, part)
        if found is not False:
            return rest if found else None
    return value


def _number(node: ast.expr) -> int:
    """Return the value of an arithmetic expression. Raises ValueError for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError("not arithmetic")


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b), ast.Mod: operator.mod,
}  # fmt: skip


def truth(words: list[str]) -> bool | None:
    """Return whether a test such as `-n WORD` or `A = B` holds; None if that is not known."""
    for symbols, decisive in ((("||", "-o"), True), (("&&", "-a"), False)):
        for place, word in enumerate(words):
            if word in symbols and place:
                both = (truth(words[:place]), truth(words[place + 1 :]))
                if decisive in both:
                    return decisive
                return None if None in both else not decisive
    if words[:1] == ["!"]:
        holds = truth(words[1:])
        return None if holds is None else not holds
    if len(words) == 3:
        left, symbol, right = words
        if symbol in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge"):
            if not (left.isdecimal() and right.isdecimal()):
                return None
            # Python's operators have the names of the shell's
            return bool(getattr(operator, symbol[1:])(int(left), int(right)))
        found = left == right or matches(right, left)
        if symbol not in ("=", "==", "!=") or is_unknown(left) or found is None:
            return None
        return found is (symbol != "!=")
    if len(words) == 2 and words[0] == "-z":
        return truth(["!", words[1]])
    word = words[-1] if words else ""
    if words[:-1] not in ([], ["-n"]) or (is_unknown(word) and not has_known(word)):
        return None
    return word != ""
