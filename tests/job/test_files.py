"""Job files on disk: what is read, what the errors of the file system say, and where relative places lead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import UsageError
from cloudtrain.job.file import load_job
from tests.hints import suggested

TEXT = """\
name: a
entry_point: t.py
inputs: {train: {local: data/train}, all: {local: /data}, cloud: {sagemaker: s3://b/c}}
outputs: {extra: {local: out}, plain: {}}
checkpoint: {local: ~/ckpt}
"""


def write(folder: Path, name: str, text: str = TEXT) -> Path:
    """A job file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_relative_places_start_at_the_folder_of_the_file(
    tmp_path: Path, clean_environment: Path
) -> None:
    """Not at the working directory; `~` is the home folder; cloud places stay."""
    job = load_job(write(tmp_path / "jobs", "job.yaml"), ["source_dir=../src"]).job
    assert job.source_dir == str(tmp_path / "src")
    assert job.inputs["train"].local == str(tmp_path / "jobs" / "data" / "train")
    assert job.inputs["all"].local == "/data"
    assert (job.inputs["cloud"].local, job.inputs["cloud"].sagemaker) == (None, "s3://b/c")
    assert job.outputs["extra"].local == str(tmp_path / "jobs" / "out")
    assert job.outputs["plain"].local is None
    assert job.checkpoint is not None
    assert job.checkpoint.local == str(clean_environment / "ckpt")


def test_the_default_source_is_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the file is named."""
    write(tmp_path, "job.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_job(Path("job.yaml")).job.source_dir == str(tmp_path)


def test_a_bundled_source_stays(tmp_path: Path) -> None:
    """`bundled:NAME` is no path."""
    job = load_job(
        write(tmp_path, "job.yaml", "name: a\nentry_point: t.py\nsource_dir: bundled:digits_ddp\n")
    ).job
    assert job.source_dir == "bundled:digits_ddp"


@pytest.mark.parametrize("name", ["job.yaml", "job.YML", "job.toml", "job.json"])
def test_the_suffix_says_the_format(tmp_path: Path, name: str) -> None:
    """In either case."""
    text = {
        "toml": 'name = "a"\nentry_point = "t.py"\n',
        "json": '{"name": "a", "entry_point": "t.py"}',
    }
    path = write(tmp_path, name, text.get(name[-4:], "name: a\nentry_point: t.py\n"))
    assert load_job(path).job.name == "a"


def usage(path: Path) -> tuple[str, str | None]:
    """Message and hint of the error; exit code 2."""
    with pytest.raises(UsageError) as error:
        load_job(path)
    assert error.value.exit_code == 2
    return error.value.message, error.value.hint


def test_a_missing_file_offers_its_neighbours(tmp_path: Path) -> None:
    """The job file whose name is nearest, with its folder, so that the hint can be typed."""
    write(tmp_path, "train.yaml")
    write(tmp_path, "other.txt")
    path = tmp_path / "trian.yaml"
    assert usage(path) == (
        f"there is no job file `{path}`",
        suggested(f"{tmp_path / 'train.yaml'}"),
    )


def test_a_missing_file_in_an_empty_folder(tmp_path: Path) -> None:
    """Says how to get one."""
    assert usage(tmp_path / "a.yaml")[1] == "`cloudtrain init` writes one"
    assert usage(tmp_path / "no" / "a.yaml")[1] == f"there is no folder `{tmp_path / 'no'}`"


def test_a_folder_is_no_job_file(tmp_path: Path) -> None:
    """The hint names the job file in it."""
    path = write(tmp_path, "job.yaml")
    assert usage(tmp_path) == (
        f"`{tmp_path}` is a folder, not a job file",
        suggested(path),
    )


@pytest.mark.parametrize(
    ("name", "what"), [("job.ini", "ends in `.ini`"), ("job", "has no suffix")]
)
def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path, name: str, what: str) -> None:
    """The format is never guessed from the text."""
    path = write(tmp_path, name)
    hint = "a job file ends in one of `.yaml`, `.yml`, `.toml`, `.json`"
    assert usage(path) == (f"`{path}` {what}, so its format is unknown", hint)


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    """Line and column of the byte, counted in characters."""
    path = tmp_path / "job.yaml"
    path.write_bytes("name: a\ndescription: é".encode() + b"\xff\n")
    with pytest.raises(ct.JobError) as error:
        load_job(path)
    [problem] = error.value.problems
    assert (problem.line, problem.column, problem.message) == (
        2,
        15,
        "the file is not UTF-8 text: byte 0xff",
    )
    assert problem.place == f"{path}:2:15"


def test_problems_carry_the_name_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path stays relative in messages, so that a terminal can open it."""
    write(tmp_path, "job.yaml", "name: a b\nentry_point: t.py\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ct.JobError) as error:
        load_job(Path("job.yaml"))
    assert error.value.problems[0].place == "job.yaml:1:7  name"


@pytest.mark.parametrize(
    ("suffix", "text", "unloaded"),
    [("json", '{"name": "a", "entry_point": "t"}', {"yaml", "tomllib", "tomli", "cloudtrain.job.explain"}),
     ("toml", 'name = "a"\nentry_point = "t"', {"yaml", "cloudtrain.job.explain"}),
     ("yaml", "name: a\nentry_point: t", {"tomllib", "tomli", "cloudtrain.job.explain"})],
)  # fmt: skip
@pytest.mark.slow_after(1)
def test_only_what_a_format_needs_is_loaded(
    tmp_path: Path, suffix: str, text: str, unloaded: set[str]
) -> None:
    """A right JSON job needs no YAML, no TOML and none of the words for mistakes: start-up time."""
    path = write(tmp_path, f"job.{suffix}", text)
    code = (
        "import sys; from pathlib import Path; from cloudtrain.job.file import load_job; "
        f"load_job(Path({str(path)!r})); print(*sys.modules)"
    )
    root = str(Path(ct.__file__).parent.parent)
    result = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[root, *sys.path]!r}; {code}"],
                            capture_output=True, text=True, check=True)  # fmt: skip
    assert unloaded & set(result.stdout.split()) == set()
