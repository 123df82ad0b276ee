"""The reader of shell scripts beside bash itself: the same words, for whatever it claims to know."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudtrain.adoption.expansion import Open
from cloudtrain.adoption.shell import commands_of
from tests.examples import examples

PLAIN = st.text("ab1./=-:,%@+", min_size=1, max_size=4)
KNOWN = st.sampled_from(
    [
        "$A",
        "${A}",
        "${A:-x}",
        "${C:-x y}",
        "${C-$A}",
        "${B[@]}",
        "${B[*]}",
        "${B[1]}",
        "${B[7]}",
        "$((2*3))",
        "$((7/N))",
        "${A:+x}",
        "${C:+x}$C",
        "${C+x}",
        "${A-x}",
        "${C:-${A:-z}}",
        "${C:='y z'}$C",
        "${A%1*}",
        "${A%%a*}",
        "${A#*a}",
        "${A##*.}",
        "${A/a/b}",
        "${A//./}",
        "${A:1:2}",
        "${#A}",
        "${#B[@]}",
        "${B[@]:1}",
        "${A^^}",
        "$#",
        "$1",
        "${2:-x}",
        "$*",
        "${@:2}",
        "${B[N]}",
    ]
)
QUOTED = st.lists(
    st.one_of(
        st.text("a #;|&'()<>*", max_size=4), KNOWN, st.sampled_from(['\\"', "\\\\", "\\$", "\\a"])
    )
).map(lambda parts: '"' + "".join(parts) + '"')
LITERAL = st.text('a $"\\#;|`', max_size=4).map(lambda text: f"'{text}'")
ESCAPED = st.sampled_from(["\\ ", "\\$", "\\a", "\\'", '\\"', "\\\\", "\\#", "\\;"])
WORD = st.lists(st.one_of(PLAIN, KNOWN, QUOTED, LITERAL, ESCAPED), min_size=1, max_size=4).map(
    "".join
)
SPACE = st.sampled_from([" ", "  ", "\t", " \\\n "])
ENDS = st.sampled_from(
    ["", " # $A", " > /dev/null", " 2>&1", "; true", " && true", " | cat", " &", " <<X\n$A ' \"\nX"]
)


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Assignments of every kind, then one command with words of every kind."""
    first = f"A={draw(st.one_of(PLAIN, QUOTED, LITERAL))}"
    array = f"B=({' '.join(draw(st.lists(WORD, max_size=3)))})"
    more = draw(
        st.sampled_from(
            [
                "",
                "A+=c\n",
                "B+=(d)\n",
                "export A\n",
                "unset C\n",
                "readonly D=$A\n",
                "export A=e F=g\n",
            ]
        )
    )
    words = "".join(draw(SPACE) + word for word in draw(st.lists(WORD, max_size=4)))
    return f"N=2\n{first}\n{array}\n{more}prog{words}{draw(ENDS)}"


def words_in_bash(script: str) -> list[str]:
    """The arguments that bash gives to `prog`, which are written to descriptor 7."""
    before = "set -f; unset C; set -- p 'q r'; prog() { printf '%s\\0' prog \"$@\" >&7; }\n"
    line = [
        "bash",
        "--norc",
        "-c",
        'exec 7>&1 >/dev/null; eval "$1"; wait',
        "bash",
        before + script,
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stdout.split("\0")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@settings(max_examples=examples(300), deadline=None)
@example(script="A=1c\nprog ${A^^}")
@given(script=scripts())
@example(script='N=2\nA=1\nB=()\nprog a\\\nb "c\\\nd"')
@example(script='N=2\nA="; $A"\nB=($A:)\nprog ${B[1]}')
@example(script="N=2\nA='x  y'\nB=()\nprog $A\"$A\" \"${B[@]}\" ''")
def test_words_are_those_of_bash(script: str) -> None:
    """With variables, arrays, quotes, escapes, comments, redirections and here-documents."""
    read = commands_of(script, {"C": [], "@": ["p", "q r"]})
    found = [command.words for command in read if command.words[0] == "prog"]
    assert len(found) == 1
    if not any(isinstance(word, Open) for word in found[0]):
        assert found[0] == words_in_bash(script)


@pytest.mark.parametrize("end", ["", "\n", "\nX", "\nX\n"])
def test_a_document_may_end_with_its_script(end: str) -> None:
    """Its last line is the same, whether or not the mark follows."""
    (command,) = commands_of(f"cat <<X\n a\n\n b{end}")
    assert command.document == " a\n\n b"


TRUE = [
    "true",
    "[ 1 -lt 2 ]",
    "[[ $A == a* ]]",
    "test -n x",
    "! false",
    "[ a = a ] && true",
    "[[ -z '' || $A == z ]]",
]
FALSE = [
    "false",
    '[ "$A" != ab ]',
    "[[ -n '' ]]",
    "[ 2 -gt 10 ] || false",
    "[[ $A == b? && 1 == 1 ]]",
]
SIMPLE = st.sampled_from(
    [
        "prog $A",
        "A+=c",
        "A=d; prog $A",
        "f $A x",
        "prog $1",
        "eval 'prog $A  q'",
        "prog a | cat",
        ": '}'",
        "(A=z; prog $A)",
    ]
)


def blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Every compound command, with conditions that the text decides."""
    test = st.sampled_from(TRUE + FALSE)
    two = st.tuples(test, inner, inner)
    return st.one_of(
        two.map(lambda of: f"if {of[0]}; then\n{of[1]}\nelse {of[2]}\nfi"),
        two.map(lambda of: f"if {of[0]} ; then {of[1]} ; elif true; then {of[2]} ; fi >&2"),
        two.map(lambda of: f"{of[0]} && {{ {of[1]} ; }} || {{ {of[2]} ; }}"),
        two.map(lambda of: f"for A in a 'b c' $A; do {of[1]}\ndone; {of[2]}"),
        two.map(lambda of: f"case $A in a*|'q') {of[1]} ;;\n (*) {of[2]} ;; esac"),
        two.map(
            lambda of: (
                f"g() {{ {of[1]} ; }}; g 1; set -- s t; while [ $# -gt 0 ]; do shift; {of[2]} ; done"
            )
        ),
        st.lists(inner, min_size=2, max_size=3).map("\n".join),
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@settings(max_examples=examples(300, 12), deadline=None)
@given(script=st.recursive(SIMPLE, blocks, max_leaves=6))
def test_commands_are_those_that_bash_runs(script: str) -> None:
    """With conditions, loops, functions, groups and `eval`."""
    script = f"A=ab\nf() {{ prog f $2; }}\n{script}\nprog end $A"
    read = commands_of(script, {"@": ["p", "q r"]})
    # those with a condition run if a command fails, and `prog` does not
    found = [
        word
        for command in read
        if command.words[:1] == ["prog"] and not command.condition
        for word in command.words
    ]
    assert found == words_in_bash(script)
