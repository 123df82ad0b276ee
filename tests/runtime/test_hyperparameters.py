"""Hyperparameters reach a script with their types, however a target passes them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain
from cloudtrain.runtime import SetupError, arguments
from cloudtrain.runtime.hyperparameters import read_arguments


@dataclass
class Config:
    """What a script declares."""

    epochs: int = 3
    lr: float = 0.1
    name: str = "resnet50"
    flag: bool = False
    layers: list[int] = field(default_factory=lambda: [1])
    options: dict[str, float] = field(default_factory=dict)
    warmup: int | None = 5
    precision: Literal["fp32", "bf16"] = "fp32"
    data: Path = Path("data")
    k: int = 1
    tags: list[str] = field(default_factory=list)
    pair: tuple[str, int] = ("", 0)
    maybe: list[str] | None = None
    anything: list[Any] = field(default_factory=list)


SCALARS = {
    "epochs": st.integers(),
    "lr": st.floats(allow_nan=False),
    "flag": st.booleans(),
    "warmup": st.none() | st.integers(),
    "precision": st.sampled_from(["fp32", "bf16"]),
    "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
        lambda text: not text.startswith("-")
    ),
    "layers": st.lists(st.integers(), max_size=4),
    "tags": st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=4),
}


def as_sagemaker_does(values: dict[str, Any]) -> list[str]:
    """The argv that the SageMaker training toolkit makes of hyperparameters (sagemaker_training/mapping.py)."""
    argv = []
    for key, value in sorted(values.items()):
        argv += [f"--{key}" if len(key) > 1 else f"-{key}", "" if value is None else str(value)]
    return argv


@given(st.fixed_dictionaries({}, optional=SCALARS))
def test_what_the_toolkit_passes_comes_back_with_its_type(values: dict[str, Any]) -> None:
    """Numbers, booleans, texts, lists and None survive the way through argv."""
    found, ignored = read_arguments(Config, as_sagemaker_does(values))
    assert {name: getattr(found, name) for name in values} == values
    assert ignored == []


@given(st.fixed_dictionaries({}, optional=SCALARS))
def test_sm_hps_gives_the_same_values_as_argv(values: dict[str, Any]) -> None:
    """A script that runs without arguments on SageMaker reads them as JSON."""
    found, _ = read_arguments(Config, [], json.dumps(values))
    assert {name: getattr(found, name) for name in values} == values


@given(st.lists(st.text(max_size=6), max_size=8))
def test_any_command_line_is_values_or_one_error(argv: list[str]) -> None:
    """Nothing but SetupError comes out of a wrong command line."""
    try:
        found, _ = read_arguments(Config, argv)
    except SetupError:
        return
    assert isinstance(found, Config)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--lr=1e-3"], "lr", 0.001),
        (["--lr", "-1"], "lr", -1.0),
        (["--epochs", "1e2"], "epochs", 100),
        (["--flag"], "flag", True),
        (["--flag", "False"], "flag", False),
        (["--flag", "--epochs", "2"], "flag", True),
        (["--warmup", ""], "warmup", None),
        (["--warmup", "--epochs", "2"], "warmup", None),
        (["--layers", "[1,", "2]"], "layers", [1, 2]),
        (["--layers", "1,2"], "layers", [1, 2]),
        (["--layers", ""], "layers", []),
        (["--layers", "1", "2", "3"], "layers", [1, 2, 3]),
        (["--layers", "(1,", "2)"], "layers", [1, 2]),
        (["--layers", "1,", "2"], "layers", [1, 2]),
        (["--tags", "3.10,3.11"], "tags", ["3.10", "3.11"]),
        (["--tags", "1e3, 0x10"], "tags", ["1e3", "0x10"]),
        (["--tags", "a", "b c", "3.10"], "tags", ["a", "b c", "3.10"]),
        (["--tags", "['3.10',", "'b']"], "tags", ["3.10", "b"]),
        (["--tags", "a,b", "c"], "tags", ["a", "b", "c"]),
        (["--tags", "3.10"], "tags", ["3.10"]),
        (["--tags", "None"], "tags", ["None"]),
        (["--tags", ""], "tags", []),
        (["--pair", "3.10,2"], "pair", ("3.10", 2)),
        (["--pair", "3.10", "2"], "pair", ("3.10", 2)),
        (["--pair", "('3.10',", "2)"], "pair", ("3.10", 2)),
        (["--maybe", "3.10,a"], "maybe", ["3.10", "a"]),
        (["--anything", "a,1"], "anything", ["a", 1]),
        (["--options", "a=1,b=2.5"], "options", {"a": 1.0, "b": 2.5}),
        (["--options", '{"a": 1}'], "options", {"a": 1.0}),
        (["--precision", "bf16"], "precision", "bf16"),
        (["--data", "/x"], "data", Path("/x")),
        (["-k", "4"], "k", 4),
        (["--name="], "name", ""),
        (["--epochs", "1", "--epochs", "2"], "epochs", 2),
    ],
)
def test_the_spellings_of_a_command_line(argv: list[str], name: str, value: object) -> None:
    """Each way to write a value is understood."""
    found, _ = read_arguments(Config, argv)
    assert getattr(found, name) == value


def test_argv_wins_over_sm_hps_wins_over_defaults() -> None:
    """The nearest source decides."""
    found, _ = read_arguments(
        Config, ["--epochs", "9"], '{"epochs": 5, "lr": 0.5, "layers": [3, 4]}'
    )
    assert (found.epochs, found.lr, found.layers, found.name) == (9, 0.5, [3, 4], "resnet50")


def test_hyphen_and_underscore_are_the_same() -> None:
    """`--data-dir` fills `data_dir`, since a job file may write either."""
    found, _ = read_arguments({"data_dir": "x"}, ["--data-dir", "y"])
    assert found.data_dir == "y"


@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z]{2,6}\Z"),
        st.integers()
        | st.booleans()
        | st.floats(allow_nan=False)
        | st.lists(st.integers(), max_size=3),
    )
)
def test_a_mapping_of_defaults_gives_the_types(defaults: dict[str, Any]) -> None:
    """Without a dataclass, each default's own type is the type; the value passed back is the value."""
    found, _ = read_arguments(defaults, as_sagemaker_does(defaults))
    assert vars(found) == defaults
    assert [type(value) for value in vars(found).values()] == [
        type(value) for value in defaults.values()
    ]


def test_a_default_of_none_takes_what_the_text_looks_like() -> None:
    """None says nothing of the type, so numbers are numbers and texts are texts."""
    found, _ = read_arguments(
        {"a": None, "b": None, "c": None}, ["--a", "3", "--b", "x y", "--c", ""]
    )
    assert vars(found) == {"a": 3, "b": "x y", "c": None}


def test_an_instance_of_the_dataclass_brings_its_values() -> None:
    """`arguments(Config(epochs=7))` starts from 7."""
    found, _ = read_arguments(Config(epochs=7), ["--lr", "1"])
    assert (found.epochs, found.lr) == (7, 1.0)


def test_all_mistakes_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The process ends with exit code 2, an error line and a hint, and no traceback."""
    with pytest.raises(SystemExit) as left:
        arguments(Config, ["--epochs", "three", "--flag", "maybe", "--precision", "fp8", "--lr"])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error == (
        "error: `--lr` needs a value; `--epochs`: `three` is not a whole number; "
        "`--flag`: `maybe` is neither `True` nor `False`; `--precision`: `fp8` is not one of `fp32`, `bf16`\n"
        "\nhint: `--help` lists the arguments, their types and defaults\n"
    )


def test_a_value_below_its_bound_is_one_of_the_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    """What would divide by zero later is told with the rest, before anything is computed. No number at all is below."""
    given = ["--epochs", "0", "--lr", "nan", "--k", "-1", "--layers", "2,0", "--flag", "maybe"]
    with pytest.raises(SystemExit) as left:
        arguments(Config, given, at_least={"epochs": 1, "lr": 0, "k": 0, "layers": 1})
    assert left.value.code == 2
    assert capsys.readouterr().err.partition("\n")[0] == (
        "error: `--flag`: `maybe` is neither `True` nor `False`; "
        "`--epochs`: `0` is not 1 or more; `--lr`: `nan` is not 0 or more; `--k`: `-1` is not 0 or more; "
        "`--layers`: `0` is not 1 or more"
    )


def test_the_bound_itself_and_none_are_within() -> None:
    """A bound is the smallest value that is possible; None is the type's own way to say nothing."""
    bounds = {"epochs": 0, "warmup": 1, "k": 1, "layers": 1}
    found = arguments(Config, ["--epochs", "0", "--warmup", ""], at_least=bounds)
    assert (found.epochs, found.warmup, found.k) == (0, None, 1)


FAILING = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from cloudtrain import runtime

runtime.arguments({"steps": 1})
if runtime.arguments({"steps": 2}).steps == 3:
    raise ValueError("a mistake of the script")
runtime.input_dir("train")
"""

FIRST = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def failing(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and stderr of a script whose error nobody catches."""
    command = [sys.executable, "-c", FAILING, str(Path(cloudtrain.__file__).parents[1]), *arguments]
    found = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    return found.returncode, found.stderr


@pytest.mark.parametrize(
    "variables", [{}, FIRST, FIRST | {"RANK": "2"}], ids=["alone", "first", "first_of_second"]
)
def test_a_setup_error_ends_a_script_with_its_words(
    variables: dict[str, str], tmp_path: Path
) -> None:
    """No traceback: what is wrong and what to type, once for each instance."""
    assert failing(tmp_path, **variables) == (
        1,
        "error: the input `train` was not found: `data/train` does not exist\n\n"
        "hint: put the data into `data/train`, or set `CLOUDTRAIN_INPUT_TRAIN` to its folder\n",
    )


def test_the_other_processes_of_an_instance_say_nothing_more(tmp_path: Path) -> None:
    """They find the same."""
    assert failing(tmp_path, **FIRST | {"RANK": "1", "LOCAL_RANK": "1"}) == (1, "")


def test_a_process_that_cannot_tell_who_it_is_says_that(tmp_path: Path) -> None:
    """The error about the environment needs no environment."""
    code, error = failing(tmp_path, "--unknown", **FIRST | {"RANK": "first"})
    assert (code, error.partition("\n")[0]) == (
        1,
        "error: `RANK` is `first`, which is not a whole number",
    )


def test_other_errors_keep_their_traceback(tmp_path: Path) -> None:
    """Only what is meant for a user is told without."""
    code, error = failing(tmp_path, "--steps", "3")
    assert (code, error.splitlines()[-1]) == (1, "ValueError: a mistake of the script")
    assert "Traceback" in error


def test_a_value_that_a_shell_took_apart_is_an_error() -> None:
    """`--name two words` would silently lose a word."""
    with pytest.raises(SetupError, match="needs one value, not 2: `two words`"):
        read_arguments(Config, ["--name", "two", "words"])


@pytest.mark.parametrize("text", ["[1e999]", "1e999", "[1,"])
def test_what_is_no_list_of_whole_numbers_is_an_error(text: str) -> None:
    """Infinity, which Python reads as a number, is none of them."""
    with pytest.raises(SetupError, match="is not a whole number"):
        read_arguments(Config, ["--layers", text])


def test_a_required_value_must_be_given() -> None:
    """A dataclass field without a default is required."""

    @dataclass
    class Needs:
        data: str

    with pytest.raises(SetupError, match="`--data` is required"):
        read_arguments(Needs, [])


def test_what_a_platform_adds_is_ignored_with_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    """SageMaker adds `--mp_parameters` and `--model_dir`, DeepSpeed's launcher `--local_rank=0`."""
    found = arguments(
        Config,
        ["--local_rank=0", "--mp_parameters", "ddp=True,partitions=2", "--model_dir", "s3://b"],
    )
    assert found == Config()
    told = "cloudtrain: ignored `--{}`, which the platform adds and the script does not use\n"
    names = ("local_rank", "mp_parameters", "model_dir")
    assert capsys.readouterr().err == "".join(told.format(name) for name in names)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--epohcs", "9"], "`--epohcs` is not an option of the script (did you mean `--epochs`?)"),
        (["--epoch", "9"], "`--epoch` is not an option of the script (did you mean `--epochs`?)"),
        (["-h", "3", "--lr", "0.2"], "`-h` is not an option of the script"),
        (
            ["epochs=9", "--zzz"],
            "`epochs=9` is not an option of the script (did you mean `--epochs`?); `--zzz` is not an option of the script",
        ),
    ],
)
def test_an_unknown_option_ends_the_script(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with a misspelt option would train with the default. All mistakes are told together."""
    with pytest.raises(SystemExit) as left:
        arguments(Config, argv)
    told = capsys.readouterr().err
    assert (left.value.code, told.splitlines()[0]) == (2, f"error: {message}")


def test_help_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` shows names, types and defaults, and ends well."""
    with pytest.raises(SystemExit) as left:
        arguments(Config, ["--help"])
    assert left.value.code == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["--epochs", "int", "default", "3"]
    assert len(lines) == len(fields(Config))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-h", "48", "--lr", "0.2"], {"h": 48, "help": False, "lr": 0.2}),
        (["--lr", "0.2", "--help"], {"h": 24, "help": True, "lr": 0.2}),
        (["--help", "True", "-h", "1"], {"h": 1, "help": True, "lr": 0.1}),
    ],
)
def test_a_hyperparameter_may_be_called_like_the_help(
    argv: list[str], expected: dict[str, object]
) -> None:
    """`h` is a name like any other: the script trains with it instead of ending well, untrained."""
    assert vars(arguments({"h": 24, "help": False, "lr": 0.1}, argv)) == expected
