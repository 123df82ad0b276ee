"""What `download` copies into a project is data: no later bundle of the code contains it without a word."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SCRIPT = """\
import os
place = os.environ['CLOUDTRAIN_MODEL_DIR']
os.mkdir(place + '/deep')
for name in ('weights.pt', 'deep/more.pt'):
    open(f'{place}/{name}', 'w').write('w')
"""


@pytest.fixture
def project(clean_environment: Path, cli: Cli) -> Path:
    """A project with one run, in the working directory."""
    (clean_environment / "train.py").write_text(SCRIPT)
    (clean_environment / "job.yaml").write_text("name: plain\nsource_dir: .\nentry_point: train.py\n")
    assert cli("submit", "job.yaml").code == 0
    return clean_environment


def planned(cli: Cli) -> str:
    """The hash that names the bundle of the next submit."""
    result = cli("plan", "job.yaml", "--json")
    assert result.code == 0
    (bundle,) = [upload["sha256"] for upload in json.loads(result.out)["uploads"]]
    return str(bundle)


@pytest.mark.parametrize("to", [[], ["--to", "results"], ["--to", "deep/results"]])
@pytest.mark.slow_after(1)
def test_copies_are_no_code(cli: Cli, project: Path, to: list[str]) -> None:
    """The next submit has the same bundle, before and after a second download, and is known as the same job."""
    before = planned(cli)
    for _ in range(2):
        result = cli("download", "last", "model/", *to)
        assert (result.code, "bundles" in result.err) == (0, False)
        assert sorted(Path(line).name for line in result.out.split()) == ["more.pt", "weights.pt"]
        assert planned(cli) == before
    (project / "train.py").write_text(SCRIPT + "\n")
    assert planned(cli) != before


def test_copies_among_files_of_yours_are_told(cli: Cli, project: Path) -> None:
    """A folder that held code before keeps its code; the notice has the lines that leave out the copies."""
    (project / "lib/deep").mkdir(parents=True)
    (project / "lib/deep/code.py").write_text("")
    before = planned(cli)
    result = cli("download", "last", "model/", "--to", "lib")
    said = " ".join(result.err.split())
    assert "the next submit of `plain` bundles these copies as code" in said
    assert f"`{project}/.cloudtrainignore`: `/lib/deep/more.pt`, `/lib/weights.pt`" in said
    assert planned(cli) != before
    (project / ".cloudtrainignore").write_text("/lib/deep/more.pt\n/lib/weights.pt\n")
    assert planned(cli) == before
    assert "bundles" not in cli("download", "last", "model/", "--to", "lib").err


def test_copies_into_the_project_itself_are_told(cli: Cli, project: Path) -> None:
    """The source folder never gets a rule that would leave out the code."""
    before = planned(cli)
    result = cli("download", "last", "model/", "--to", ".")
    assert "`/deep`, `/weights.pt`" in " ".join(result.err.split())
    (project / ".cloudtrainignore").write_text("/deep\n/weights.pt\n")
    assert planned(cli) == before


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 100])
def test_a_file_that_goes_meanwhile(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The copies are there and printed, also while another program removes files of the project."""
    (project / "mine.py").write_text("")
    left, reading = [project / "link"] * times, os.readlink
    (project / "link").symlink_to("train.py")

    def readlink(place: str) -> str:
        if left and str(place) == str(left[-1]):
            raise FileNotFoundError(2, "No such file or directory", str(left.pop()))
        return reading(place)

    monkeypatch.setattr(os, "readlink", readlink)
    result = cli("download", "last", "model/", "--to", ".")
    assert (result.code, len(result.out.splitlines())) == (0, 2)
    assert ("`/weights.pt`" in result.err) is (times == 1)


def test_copies_elsewhere_stay_as_they_are(cli: Cli, project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder outside of every project holds what the run wrote and nothing else."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "got"
    assert cli("download", "last", "model/", "--to", str(elsewhere)).code == 0
    assert sorted(path.name for path in elsewhere.iterdir()) == ["deep", "weights.pt"]


def test_nothing_to_copy_leaves_no_folder(cli: Cli, project: Path) -> None:
    """A download that copies nothing makes no folder with an ignore file."""
    assert cli("download", "last", "checkpoint/", "--to", "none").code != 0
    assert not (project / "none").exists()
