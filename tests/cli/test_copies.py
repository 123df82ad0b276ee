"""What `download` copies into a project is data: no later bundle of the code contains it without a word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE

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
    (clean_environment / "job.yaml").write_text(
        "name: plain\nsource_dir: .\nentry_point: train.py\n"
    )
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
def test_a_file_that_goes_meanwhile(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
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


def test_copies_elsewhere_stay_as_they_are(
    cli: Cli, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A folder outside of every project holds what the run wrote and nothing else."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "got"
    assert cli("download", "last", "model/", "--to", str(elsewhere)).code == 0
    assert sorted(path.name for path in elsewhere.iterdir()) == ["deep", "weights.pt"]


def test_nothing_to_copy_leaves_no_folder(cli: Cli, project: Path) -> None:
    """A download that copies nothing makes no folder with an ignore file."""
    assert cli("download", "last", "checkpoint/", "--to", "none").code != 0
    assert not (project / "none").exists()


LINKS = """\
import os
os.chdir(os.environ["CLOUDTRAIN_MODEL_DIR"])
for folder in ("own", "../kept"):
    os.mkdir(folder)
    open(f"{folder}/weights.pt", "w").close()
for link, to in (("kept", "../kept"), ("home", "PLACE"), ("own/again", "PLACE/private")):
    os.symlink(to, link)
"""


def test_folders_of_others_are_not_copied(
    cli: Cli, clean_environment: Path, tmp_path: Path
) -> None:
    """A link to a folder of the run is followed. One to any other folder is not, and the command says so."""
    (clean_environment / "train.py").write_text(LINKS.replace("PLACE", str(tmp_path)))
    (clean_environment / "job.yaml").write_text("name: plain\nentry_point: train.py\n")
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("secret")
    assert cli("submit", "job.yaml").code == 0
    for path, of_model in (("", "model/"), ("model/", "")):
        result = cli("download", "last", path, "--to", "got", "--json")
        got = {Path(file).relative_to("got").as_posix() for file in json.loads(result.out)}
        assert {name for name in got if name.endswith(".pt")} == {
            f"{of_model}{name}/weights.pt" for name in ("own", "kept")
        }
        assert not any(name.endswith("key") for name in got)
        said = " ".join(result.err.split())
        assert f"model/home` is not copied: a link leads to the folder `{tmp_path}`" in said
        assert (
            f"model/own/again` is not copied: a link leads to the folder `{tmp_path}/private`"
            in said
        )
    for path in ("model/home", "model/home/private", "model/home/private/key", "model/own/again"):
        result = cli("download", "last", path, "--to", "other")
        assert (result.code, Path("other").exists()) == (1, False)


FILE_LINKS = """\
import os
model = os.environ["CLOUDTRAIN_MODEL_DIR"]
os.chdir(model)
os.makedirs("deep/er")
for file in ("weights.pt", "../kept.pt"):
    open(file, "w").close()
for link, to in LINKS:
    os.symlink(to, link)
os.mkfifo("pipe")
checkpoint = os.environ["CLOUDTRAIN_CHECKPOINT_DIR"]
os.rmdir(checkpoint)
os.symlink("PLACE/private", checkpoint)
os.chdir(os.path.dirname(model) + "/code")
os.symlink("PLACE/key", "work-key")
os.symlink("../model/weights.pt", "work.pt")
"""

OUT = {
    "passwd": "/etc/passwd",
    "key": "PLACE/key",
    "deep/er/up": "../../../../../../key",
    "chain": "deep/link",
    "deep/link": "../deep/er/up",
    "through": "deep/folder/key",
    "deep/folder": "PLACE/",
    "null": "/dev/null",
    "gone": "PLACE/gone",
}
"""Links that lead out of the run, or to nothing that could be copied."""

IN = {
    "kept.pt": "../kept.pt",
    "deep/er/same.pt": "../../weights.pt",
    "chain.pt": "deep/er/same.pt",
    "round.pt": "deep/../../model/weights.pt",
}
"""Links that stay in the run, and are copied as what they lead to."""


def test_files_of_others_are_not_copied(
    cli: Cli, clean_environment: Path, tmp_path: Path, state_dir: Path
) -> None:
    """A link to a file of the run is followed, whatever its way; one to any other file is named and left."""
    (tmp_path / "key").write_text("secret")
    (tmp_path / "private").mkdir()
    (tmp_path / "private/other").write_text("secret")
    links = repr([*OUT.items(), *IN.items()])
    script = FILE_LINKS.replace("LINKS", links).replace("PLACE", str(tmp_path))
    (clean_environment / "train.py").write_text(script)
    (clean_environment / "job.yaml").write_text("name: plain\nentry_point: train.py\n")
    assert cli("submit", "job.yaml").code == 0
    (run,) = state_dir.glob("runs/*")
    (run / "model/deep/er/up").unlink()
    (run / "model/deep/er/up").symlink_to(os.path.relpath(tmp_path / "key", run / "model/deep/er"))
    for path, of_model in (("", "model/"), ("model/", "")):
        result = cli("download", "last", path, "--to", "got", "--json")
        got = {Path(file).relative_to("got").as_posix() for file in json.loads(result.out)}
        kept = {name for name in got if name.endswith(".pt")} - {"work/work.pt"}
        assert kept == {f"{of_model}{name}" for name in ("weights.pt", *IN)}
        assert not any("secret" in Path("got", name).read_text() for name in got)
        assert not {Path(name).name for name in got} & {Path(name).name for name in OUT}
        said = " ".join(result.err.split())
        for name in OUT.keys() - {"null", "gone", "deep/folder"}:
            assert f"model/{name}` is not copied: a link leads to the file" in said
    for path in ("model/passwd", "model/deep/er/up", "model/through", "model/null", "checkpoint"):
        result = cli("download", "last", path, "--to", "other")
        assert (result.code, Path("other").exists()) == (1, False)
    result = cli("download", "last", "work/", "--to", "work", "--json")
    assert json.loads(result.out) == ["work/work.pt"]
    assert "work-key` is not copied" in " ".join(result.err.split())


REPLACED = """\
import os, shutil
for place in ("scores", "above/plots", "above", "ck", "linked"):
    if os.path.islink(f"PLACE/{place}"):
        os.unlink(f"PLACE/{place}")
    else:
        shutil.rmtree(f"PLACE/{place}", ignore_errors=True)  # an emulated host may have another
    os.makedirs(os.path.dirname(f"PLACE/{place}"), exist_ok=True)
    os.symlink("PLACE/private", f"PLACE/{place}")
open("PLACE/kept/file.pt", "w").close()
open("PLACE/link/file.pt", "w").close()
"""


@pytest.mark.parametrize("emulate", ["", "sagemaker"])
def test_a_declared_folder_that_the_script_replaced(
    cli: Cli, clean_environment: Path, tmp_path: Path, emulate: str
) -> None:
    """A folder of the job's choice is copied, also behind a link of yours; a link that the script put there is not."""
    for folder in ("private/plots", "kept", "far", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("private/key", "private/plots/key"):
        (tmp_path / file).write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "far")
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere")
    (clean_environment / "train.py").write_text(REPLACED.replace("PLACE", str(tmp_path)))
    names = {
        "scores": "scores",
        "plots": "above/plots",
        "kept": "kept",
        "link": "link",
        "linked": "linked",
    }
    outputs = {name: {"local": str(tmp_path / place)} for name, place in names.items()}
    fields = {"name": "j", "entry_point": "train.py", "outputs": outputs}
    fields["checkpoint"] = {"local": str(tmp_path / "ck")}
    if emulate:
        fields["environment"] = {"framework": "pytorch", "version": "2.8"}
        fields["resources"] = {"instance_type": {"sagemaker": "ml.m5.large"}}
    (clean_environment / "job.json").write_text(json.dumps(fields))
    options = ("--emulate", emulate) if emulate else ()
    assert cli("submit", "job.json", *options).code == 0
    result = cli("download", "last", "--to", "got", "--json")
    got = {Path(file).relative_to("got").as_posix() for file in json.loads(result.out)}
    assert not {name for name in got if name.endswith("key")}
    if not emulate:
        assert {"outputs/kept/file.pt", "outputs/link/file.pt"} <= got
    for path in ("outputs/scores/", "outputs/plots/", "outputs/linked/key", "checkpoint/"):
        assert cli("download", "last", path, "--to", "other").code == 1
        assert not Path("other").exists()


@pytest.mark.slow
def test_sigterm_leaves_nothing_half_done(cli: Cli, project: Path, state_dir: Path) -> None:
    """A download that is ended removes what it had copied so far."""
    (model,) = state_dir.glob("runs/*/model")
    with (model / "weights.pt").open("wb") as file:
        file.truncate(16 << 30)  # takes seconds to copy, and no space here
    command = [sys.executable, "-m", "cloudtrain", "download", "last", "model/", "--to", "got"]
    with subprocess.Popen(command, cwd=project) as process:
        end = time.monotonic() + DEADLINE
        while not list(project.glob("got/.cloudtrain-*/new/weights.pt")):
            assert time.monotonic() < end
            time.sleep(0.002)
        process.terminate()
        assert process.wait(DEADLINE) == 130
    assert not list(project.glob("got/.cloudtrain-*"))
    assert not list(project.glob("got/*.pt"))
