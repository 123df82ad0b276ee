"""What a user writes arrives in the script as it is, through a real shell: the command of the body is run with bash."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.compiling import hyperparameter_argv
from tests.examples import examples

SCRIPT = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"
ACCOUNT = AzureMLAccount("s", "r", "w")
BASE: dict[str, Any] = {
    "name": "quotes",
    "entry_point": "train.py",
    "environment": {"framework": "pytorch"},
}
REQUIRING = {"framework": "pytorch", "requirements": "my requirements.txt"}

PIECES = [
    " ", "\t", "\n", "\r", "\r\n", "'", '"', "`", "$", "$HOME", "$(id)", "${HOME}", "`id`", ";", "&&", "||", "|", "&", "<", ">",
    "(", ")", "{", "}", "{a,b}", "[a-z]", "*", "?", "~", "~root", "!", "!!", "#", "\\", "\\n", "\\'", "%", "%s", "^", "=", ",", "-",
    "--", "-n", "--help", "${{", "}}", "{{inputs.train}}", "{inputs.train}", "${inputs.train}", "$[[", "é", "ü", "日本", "😀",
    "\u2028", "\x85", "\x7f", "\x01", "\x1b[0m", "\ufeff", "a", "0", "",
]  # fmt: skip
"""What shells, and services that fill in references, take for more than text."""

REFERENCE = re.compile(r"\$\{\{\s*.*?\s*\}\}")
"""A whole reference, which the model of a job would look up."""

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
HOSTILE = (
    st.lists(st.sampled_from(PIECES) | TEXT, max_size=6)
    .map("".join)
    .filter(lambda text: not REFERENCE.search(text))
)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose scripts print their arguments; `python` beside it is the interpreter of the tests."""
    folder = tmp_path_factory.mktemp("code")
    for name in ("train.py", "my train.py", "it's; a $(script).py", "-dash.py"):
        (folder / name).write_text(SCRIPT)
    (folder / "run it.sh").write_text('exec python train.py "$@"\n')
    (folder / "my requirements.txt").write_text("# nothing\n")
    programs = folder / ".bin"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    return folder


def command_of(**fields: Any) -> str:
    """The command of a job's body."""
    job = ct.TrainingJob(**BASE | fields)
    plan = compile_azureml(
        job, ct.AzureML(), CompileContext("run-1", Bundle("5" * 64, 1, 1), ACCOUNT)
    )
    command: str = plan.request["properties"]["command"]
    return command


def arrived(code: Path, command: str, values: Mapping[str, str] | None = None) -> list[str]:
    """The arguments that the script got. `values` are what the service puts in place of references, as they are."""
    filled = re.sub(
        r"\$\{\{(\w+\.\w+)\}\}", lambda match: (values or {}).get(match[1], match[0]), command
    )
    done = ran(code, filled)
    assert done.returncode == 0, done.stderr
    argv: list[str] = json.loads(done.stdout)
    return argv


def ran(code: Path, command: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    path = f"{code / '.bin'}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=code,
        env={"PATH": path, "PYTHONUTF8": "1", "HOME": str(code)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.slow
def test_hostile_hyperparameters_arrive(code: Path) -> None:
    """More than 200 different values reach the script exactly, many in one command."""
    seen: set[str] = set()

    @settings(max_examples=examples(40), deadline=None, database=None)
    @given(st.lists(HOSTILE, min_size=15, max_size=30, unique=True))
    def check(values: list[str]) -> None:
        hyperparameters = {f"p{number}": value for number, value in enumerate(values)}
        assert arrived(code, command_of(hyperparameters=hyperparameters)) == hyperparameter_argv(
            hyperparameters
        )
        seen.update(values)

    check()
    assert len(seen) >= 200


def test_every_piece_arrives(code: Path) -> None:
    """Each of the hostile pieces alone, at the start, at the end and twice, whatever hypothesis draws."""
    values = [
        form
        for piece in PIECES
        for form in (piece, f"{piece}x", f"x{piece}", f"x {piece}{piece} x")
    ]
    hyperparameters = {
        f"p{number}": value for number, value in enumerate(values) if not REFERENCE.search(value)
    }
    assert arrived(code, command_of(hyperparameters=hyperparameters)) == hyperparameter_argv(
        hyperparameters
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | HOSTILE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
def test_values_of_every_type_arrive(code: Path) -> None:
    """Numbers, truth values, nothing, lists and mappings arrive as the convention writes them."""

    @settings(max_examples=examples(10), deadline=None, database=None)
    @given(st.lists(JSON, min_size=5, max_size=10))
    def check(values: list[Any]) -> None:
        hyperparameters = {f"p{number}": value for number, value in enumerate(values)}
        texts = hyperparameter_argv(hyperparameters)
        if any(REFERENCE.search(text) for text in texts):
            return
        assert arrived(code, command_of(hyperparameters=hyperparameters)) == texts

    check()


def test_hostile_names_arrive(code: Path) -> None:
    """The names of hyperparameters are quoted as their values are."""
    hyperparameters = {"a b": 1, "$HOME": 2, "it's": 3, "é": 4, "x;id": 5, "*": 6}
    assert arrived(code, command_of(hyperparameters=hyperparameters)) == hyperparameter_argv(
        hyperparameters
    )


PLACES = {
    "inputs": {"train": {"azureml": "azureml:d:1"}, "raw": {"azureml": "azureml://datastores/s/paths/x", "mode": "direct"}},
    "outputs": {"logs": {}},
    "checkpoint": {},
}  # fmt: skip
PATHS = {
    "inputs.train": "/mnt/azureml/cr/j/0/cap/data-capability/wd/INPUT_train",
    "inputs.raw": 'azureml://datastores/s/paths/a b/$(id);`x`&*?"(é)',
    "outputs.logs": "/mnt/azureml/logs",
    "outputs.model": "/mnt/azureml/model",
    "outputs.checkpoint": "/mnt/azureml/checkpoint",
}
WRITTEN = {
    "${{inputs.train}}": "inputs.train",
    "${{ inputs.train }}": "inputs.train",
    "${{inputs.raw}}": "inputs.raw",
    "${{outputs.logs}}": "outputs.logs",
    "${{outputs.model}}": "outputs.model",
    "${{checkpoint}}": "outputs.checkpoint",
}
"""How a reference is written in a job, to the name under which the service knows it."""

BESIDE = HOSTILE.filter(lambda text: "{" not in text and "}" not in text and not text.endswith("$"))
"""Text that neither begins nor ends a reference where it stands beside one."""


def test_text_beside_references_arrives(code: Path) -> None:
    """`${{inputs.train}}/a b` is the path with the very text beside it, for paths and for addresses handed through."""

    @settings(max_examples=examples(20, quick=8), deadline=None, database=None)
    @given(
        st.lists(
            st.tuples(BESIDE, st.sampled_from(sorted(WRITTEN)), BESIDE), min_size=4, max_size=10
        )
    )
    def check(parts: list[tuple[str, str, str]]) -> None:
        written = {f"p{number}": "".join(part) for number, part in enumerate(parts)}
        meant = {
            f"p{n}": f"{before}{PATHS[WRITTEN[name]]}{after}"
            for n, (before, name, after) in enumerate(parts)
        }
        command = command_of(hyperparameters=written, **PLACES)
        assert arrived(code, command, PATHS) == hyperparameter_argv(meant)

    check()


def test_two_references_in_one_value(code: Path) -> None:
    """Both are replaced, inside one argument."""
    command = command_of(
        hyperparameters={"pair": "${{inputs.train}}:${{outputs.logs}}; x"}, **PLACES
    )
    assert arrived(code, command, PATHS) == [
        "--pair",
        f"{PATHS['inputs.train']}:{PATHS['outputs.logs']}; x",
    ]


@pytest.mark.slow
def test_plain_values_as_inputs_arrive(code: Path) -> None:
    """A literal input reaches the script exactly, alone and beside text. (A single quote in it would end the quotes
    around it where the service puts it in, which a rule finds.)"""
    seen: set[str] = set()

    @settings(max_examples=examples(20, quick=8), deadline=None, database=None)
    @given(
        st.lists(HOSTILE.filter(lambda text: "'" not in text), min_size=8, max_size=16, unique=True)
    )
    def check(values: list[str]) -> None:
        inputs = {f"i{number}": {"value": value} for number, value in enumerate(values)}
        alone = {f"p{number}": f"${{{{inputs.i{number}}}}}" for number in range(len(values))}
        beside = {f"q{number}": f"a=${{{{inputs.i{number}}}}} b" for number in range(len(values))}
        texts = {f"inputs.i{number}": value for number, value in enumerate(values)}
        meant = {f"p{number}": value for number, value in enumerate(values)}
        meant |= {f"q{number}": f"a={value} b" for number, value in enumerate(values)}
        command = command_of(inputs=inputs, hyperparameters=alone | beside)
        assert arrived(code, command, texts) == hyperparameter_argv(meant)
        seen.update(values)

    check()
    assert len(seen) >= 40


def test_a_reference_is_no_word_of_its_own() -> None:
    """What the service puts in without quotes needs none: its own paths. What a user has written gets them."""
    command = command_of(
        inputs=PLACES["inputs"] | {"rate": {"value": 0.1}},
        hyperparameters={
            "data": "${{inputs.train}}/x",
            "raw": "${{inputs.raw}}",
            "rate": "${{inputs.rate}}",
        },
    )
    assert (
        command
        == "python train.py --data ${{inputs.train}}/x --rate '${{inputs.rate}}' --raw '${{inputs.raw}}'"
    )


@pytest.mark.parametrize("script", ["my train.py", "it's; a $(script).py", "run it.sh"])
def test_scripts_with_any_name_start(code: Path, script: str) -> None:
    """Python runs what ends in `.py`, and bash everything else."""
    command = command_of(entry_point=script, hyperparameters={"x": "a b"})
    assert arrived(code, command) == ["-x", "a b"]


def test_scripts_in_a_folder_find_what_lies_above(code: Path) -> None:
    """The runtime stands at the top of the code, beside the script's folder; the image's own PYTHONPATH stays."""
    (code / "above.py").write_text("WORD = 'found'\n")
    (code / "steps").mkdir(exist_ok=True)
    (code / "steps" / "train it.py").write_text(
        "import json, sys, above\nprint(json.dumps([above.WORD, *sys.argv[1:]]))\n"
    )
    command = command_of(entry_point="steps/train it.py", hyperparameters={"x": "a b"})
    assert arrived(code, command) == ["found", "-x", "a b"]


@pytest.mark.slow
def test_requirements_are_installed_first(code: Path) -> None:
    """pip finds the file, whatever its name, and the script gets its arguments all the same."""
    command = command_of(environment=REQUIRING, hyperparameters={"text": "it's"})
    assert arrived(code, command) == ["--text", "it's"]


@pytest.mark.slow
def test_no_script_without_its_requirements(code: Path) -> None:
    """When pip fails the script does not start."""
    command = command_of(environment={"framework": "pytorch", "requirements": "missing.txt"})
    with pytest.raises(AssertionError, match=re.escape("missing.txt")):
        arrived(code, command)


LINES = [
    "cd .; echo trains",
    "echo board & echo trains",
    "false || echo trains",
    "# train\necho trains",
]
"""Shell lines of several parts, each of which prints `trains` if it is run."""


@pytest.mark.parametrize("line", LINES)
@pytest.mark.slow
def test_no_part_of_a_command_without_the_requirements(code: Path, line: str) -> None:
    """A failed install ends the line, whatever its parts are joined by; a good one comes before all of them."""
    done = ran(
        code,
        command_of(
            entry_point=None, command=line, environment=REQUIRING | {"requirements": "missing.txt"}
        ),
    )
    assert (done.returncode != 0, done.stdout) == (True, "")
    done = ran(code, command_of(entry_point=None, command=line, environment=REQUIRING))
    assert (done.returncode, "trains" in done.stdout.splitlines()) == (0, True)


def test_a_command_is_left_alone() -> None:
    """A shell line of the user's own is the command, to the letter, but for references."""
    line = "set -e; for i in 1 2; do python a.py --n $i \"${HOME}\" 'x' --out ${{ outputs.model }}/$i; done\n# é"
    job = {**BASE, "entry_point": None, "command": line}
    fields = {name: value for name, value in job.items() if value is not None}
    plan = compile_azureml(
        ct.TrainingJob(**fields),
        ct.AzureML(),
        CompileContext("run-1", Bundle("5" * 64, 1, 1), ACCOUNT),
    )
    assert plan.request["properties"]["command"] == line.replace(
        "${{ outputs.model }}", "${{outputs.model}}"
    )
