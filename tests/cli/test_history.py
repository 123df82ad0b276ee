"""What was sent is shown, compared, sent again, and never a secret of it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.store.schema import read_store
from tests.cli.conftest import Cli

SECRET = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cD3f"


def submitted(cli: Cli, *arguments: str) -> str:
    """The name of a run that was just submitted."""
    result = cli("submit", *arguments, "--detach")
    assert result.code == 0, result.err
    return result.out.strip()


def request(scripted: Path, name: str) -> str:
    """What the target received."""
    return (scripted / "jobs" / name).read_text()


def stored_text(state_dir: Path) -> str:
    """Everything in the store, compressed or not."""
    found = []
    with sqlite3.connect(state_dir / "runs.db") as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for row in (row for table in tables for row in db.execute(f"SELECT * FROM {table}")):
            found += [
                zlib.decompress(cell).decode() if isinstance(cell, bytes) else str(cell)
                for cell in row
            ]
    db.close()
    assert len(found) > 20
    return "\n".join(found)


def git(*arguments: str) -> None:
    """Run git as somebody."""
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


def test_show(cli: Cli, scripted: Path, job: str) -> None:
    """The job as written, with its overrides, the request, and the hash of the code."""
    name = submitted(cli, job, "--set", "hyperparameters.epochs=3", "--set", "tags.team=vision")
    shown = cli("show", name)
    assert shown.code == 0
    assert "hyperparameters.epochs=3" in shown.out
    assert '"name": "' + name in shown.out
    data = json.loads(cli("show", name, "--json").out)
    assert data["written"]["text"] == Path(job).read_text()
    assert data["written"]["file"] == str(Path(job).absolute())
    assert data["written"]["overrides"] == ["hyperparameters.epochs=3", "tags.team=vision"]
    assert data["job"]["hyperparameters"] == {"epochs": 3}
    assert data["cloudtrain"] == ct.__version__
    assert data["plan"]["request"] == json.loads(request(scripted, name))
    assert data["bundle"]["sha256"] in data["plan"]["uploads"][0]["destination"]
    assert data["git"] is None
    run = ct.run(name)
    assert run.show().to_dict() == data
    assert "hyperparameters.epochs=3" in run.show()._repr_html_()


def test_a_job_file_of_a_run(cli: Cli, scripted: Path, job: str, tmp_path: Path) -> None:
    """Submitted from another folder it is the very same job: its run is the next one of that plan."""
    name = submitted(cli, job, "--set", "hyperparameters.epochs=7")
    (tmp_path / "again.yaml").write_text(cli("show", name, "--job").out)
    again = json.loads(cli("plan", str(tmp_path / "again.yaml"), "--json").out)
    assert again["run_name"] == name[:-1] + "2"


@pytest.mark.slow
def test_a_job_in_python(scripted: Path, job: str) -> None:
    """Its fields are kept as a job file would have them."""
    pytest.importorskip("torch")  # which the checks ask for
    written = ct.TrainingJob(
        name="py", entry_point="train.py", distribution=ct.Torch(), hyperparameters={"a": [1]}
    )
    run = ct.submit(written)
    sent = run.show()
    assert sent.kept.file is None
    assert ct.load_job(_write("py.yaml", sent.to_job_file())) == written.replace(
        source_dir=str(Path.cwd())
    )


def _write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git(cli: Cli, scripted: Path, job: str) -> None:
    """Commit and branch; whether the code differs; the same difference has the same hash."""
    git("init", ".")
    git("add", "train.py", "job.yaml")
    Path(".gitignore").write_text("state\nservice\n.*\n")
    git("commit", "-m", "first")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    clean = json.loads(cli("show", submitted(cli, job), "--json").out)["git"]
    assert clean == {"commit": head, "branch": "main", "dirty": False, "difference": None}
    found = []
    for text in ("print(2)\n", "print(3)\n", "print(2)\n"):
        Path("train.py").write_text(text)
        found.append(json.loads(cli("show", submitted(cli, job), "--json").out)["git"])
    assert [item["dirty"] for item in found] == [True, True, True]
    assert found[0]["difference"] == found[2]["difference"] != found[1]["difference"]
    git("checkout", "-b", "feature/x")
    git("pack-refs", "--all")
    assert (
        json.loads(cli("show", submitted(cli, job), "--json").out)["git"]["branch"] == "feature/x"
    )
    assert head in cli("show", "last").out


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    "settings",
    [
        ("core.fsmonitor",),
        ("filter.bad.clean", "filter.bad.process", "filter.bad.smudge"),
        ("diff.external", "diff.bad.command", "diff.bad.textconv"),
        ("core.sshCommand", "core.pager", "core.editor"),
    ],
)
def test_a_hostile_repository_runs_nothing(
    cli: Cli, scripted: Path, job: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    """Its monitor, filters, diff drivers and hooks are not started by a submit."""
    git("init", ".")
    git("add", "train.py", "job.yaml")
    git("commit", "-m", "first")
    proof = tmp_path / "proof"
    program = tmp_path / "bad.sh"
    program.write_text(f"#!/bin/sh\ntouch {proof}\ncat\n")
    program.chmod(0o755)
    for setting in settings:
        git("config", setting, str(program))
    Path(".gitattributes").write_text("*.py filter=bad diff=bad\n")
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        Path(".git/hooks", hook).write_text(program.read_text())
        Path(".git/hooks", hook).chmod(0o755)
    Path("train.py").write_text("print('changed')\n")
    submitted(cli, job)
    assert not proof.exists()


def test_no_git(cli: Cli, scripted: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the program there is the commit, read from the files, and no word on changes."""
    (Path(".git/refs/heads")).mkdir(parents=True)
    Path(".git/HEAD").write_text("ref: refs/heads/main\n")
    Path(".git/refs/heads/main").write_text("0123456789" * 4 + "\n")
    monkeypatch.setenv("PATH", "/nowhere")
    found = json.loads(cli("show", submitted(cli, job), "--json").out)["git"]
    assert found == {
        "commit": "0123456789" * 4,
        "branch": "main",
        "dirty": None,
        "difference": None,
    }


def test_secrets_are_not_kept(cli: Cli, scripted: Path, job: str, state_dir: Path) -> None:
    """Nowhere in the store: neither in fields and overrides, nor in what an override replaced, nor in comments."""
    other = SECRET[:-4] + "Zq7x"
    Path(".cloudtrainignore").write_text("/job.yaml\n")
    Path("job.yaml").write_text(
        Path("job.yaml").read_text()
        + f"environment:\n  variables:\n    HF_TOKEN: {SECRET}\n    API_KEY: >-\n      {other}\n    DB_PASSWORD: hunter2\n  # OLD_TOKEN: {SECRET[:-3]}xY9\n"
    )
    name = submitted(
        cli, job, "--ignore", "CT305", "--set", f"environment.variables.API_KEY={SECRET[:-2]}Q1"
    )
    assert SECRET in request(scripted, name)
    text = stored_text(state_dir)
    assert SECRET[:-4] not in text
    assert "***" in text
    assert "hunter2" not in text
    assert SECRET[:-4] not in cli("show", name).out + cli("show", name, "--json").out
    shown = cli("show", name, "--job").out
    assert (
        "# fill in environment.variables.HF_TOKEN: it looked like a secret, and is not kept"
        in shown.splitlines()
    )


def test_a_run_with_secrets_is_not_sent_again_without_them(
    cli: Cli, scripted: Path, job: str
) -> None:
    """It needs them anew; with all of them the request is the same."""
    Path(".cloudtrainignore").write_text("/job.yaml\n")
    Path("job.yaml").write_text(
        Path("job.yaml").read_text() + f"environment: {{variables: {{HF_TOKEN: {SECRET}}}}}\n"
    )
    name = submitted(cli, job, "--ignore", "CT305")
    refused = cli("rerun", name, "--detach")
    assert refused.code == 2
    assert "CT973" in refused.err
    assert "--set environment.variables.HF_TOKEN=VALUE" in " ".join(refused.err.split())
    again = cli(
        "rerun",
        name,
        "-d",
        "--ignore",
        "CT305",
        "--set",
        f"environment.variables.HF_TOKEN={SECRET}",
    )
    assert again.code == 0, again.err
    new = again.out.strip()
    assert request(scripted, new).replace(new, name) == request(scripted, name)


def test_a_secret_in_the_settings_is_not_asked_for_again(
    cli: Cli, scripted: Path, job: str, tmp_path: Path
) -> None:
    """No option can give it, so the job is to be submitted again; a field of the job is named until it is given."""
    python = tmp_path / SECRET
    python.symlink_to(sys.executable)
    Path("cloudtrain.toml").write_text(f"[local]\npython = '{python}'\n")
    Path(".cloudtrainignore").write_text("/cloudtrain.toml\n")
    word = "environment.variables.HF_TOKEN"
    name = submitted(cli, job, "--ignore", "CT305", "--set", f"{word}={SECRET}")
    assert f"--set {word}=VALUE" in " ".join(cli("rerun", name, "-d").err.split())
    refused = " ".join(cli("rerun", name, "-d", "--set", f"{word}={SECRET}").err.split())
    assert "had a secret in an address in the settings" in refused
    assert "submit the job again" in refused


def test_keys_in_addresses_are_not_kept(
    cli: Cli, scripted: Path, job: str, state_dir: Path
) -> None:
    """A signature of a storage account, and a password before a host."""
    submitted(cli, job, "--set", "inputs.a.local=.", "--set", "inputs.a.azureml=https://account.blob.core.windows.net/c/x?sp=r&sig=TOPSECRETSIG",
              "--set", "hyperparameters.proxy=http://me:TOPSECRETWORD@proxy/", "--ignore", "CT305")  # fmt: skip
    assert "TOPSECRET" not in stored_text(state_dir)


def test_rerun(cli: Cli, scripted: Path, job: str, tmp_path: Path) -> None:
    """The same bytes but for the name, from another folder, without the source folder."""
    name = submitted(cli, job, "--set", "tags.team=vision")
    for file in ("train.py", "job.yaml"):
        Path(file).unlink()
    result = cli("rerun", name, "--detach")
    assert result.code == 0, result.err
    new = result.out.strip()
    assert new == name[:-1] + "2"
    assert request(scripted, new) == request(scripted, name).replace(name, new)
    third = ct.run(new).rerun()
    assert request(scripted, third.name) == request(scripted, name).replace(name, third.name)
    assert third.show().kept.rerun_of == new
    assert [run.name for run in ct.runs(tags={"team": "vision"})] == [third.name, new, name]
    assert cli("diff", name, third.name).code == 0


def test_rerun_under_another_name(cli: Cli, scripted: Path, job: str) -> None:
    """Only the name differs."""
    name = submitted(cli, job)
    new = cli("rerun", name, "--name", "other", "-d").out.strip()
    assert new.startswith("other-")
    assert request(scripted, new).replace(new, name) == request(scripted, name)
    assert ct.run(new).job_name == "other"
    wrong = cli("rerun", name, "--name", "no good", "-d")
    assert (wrong.code, "name" in wrong.err) == (2, True)


def test_rerun_with_a_change(cli: Cli, scripted: Path, job: str) -> None:
    """The job is compiled again for the same code; what was submitted with flags keeps them."""
    pytest.importorskip("torch")  # which the checks ask for
    name = submitted(cli, job, "--instances", "2", "--set", "distribution.type=torch")
    Path("train.py").write_text("print('another')\n")
    result = cli("rerun", name, "--set", "hyperparameters.epochs=9", "-d")
    assert result.code == 0, result.err
    old, new = (json.loads(request(scripted, run)) for run in (name, result.out.strip()))
    assert new["code"]["sha256"] == old["code"]["sha256"]
    assert new["instances"] == old["instances"] == 2
    found = json.loads(cli("diff", name, result.out.strip(), "--json").out)
    assert found["job"] == [{"field": "hyperparameters.epochs", "before": 2, "after": 9}]
    assert found["code"] == []
    wrong = cli("rerun", name, "--set", "hyperparametres.epochs=9", "-d")
    assert (wrong.code, "hyperparameters" in wrong.err) == (2, True)
    assert cli("show", result.out.strip(), "--json").out.count("hyperparameters.epochs=9") == 1


def test_code_that_is_gone(
    cli: Cli, scripted: Path, job: str, state_dir: Path, tmp_path: Path
) -> None:
    """A clear error, and no run."""
    name = submitted(cli, job)
    shutil.rmtree(state_dir / "bundles")
    for arguments in (("rerun", name, "-d"), ("code", name, str(tmp_path / "out"))):
        result = cli(*arguments)
        assert (result.code, "CT972" in result.err) == (4, True)
    assert [run.name for run in ct.runs()] == [name]
    assert not (tmp_path / "out").exists()


def test_code(cli: Cli, scripted: Path, job: str, tmp_path: Path) -> None:
    """The user's files, with links and modes; a folder that is not empty is refused."""
    Path("lib").mkdir()
    Path("lib/a.sh").write_text("echo\n")
    Path("lib/a.sh").chmod(0o755)
    Path("link.py").symlink_to("train.py")
    name = submitted(cli, job)
    Path("train.py").unlink()
    result = cli("code", name, str(tmp_path / "out"))
    assert result.code == 0, result.err
    found = {
        str(path.relative_to(tmp_path / "out"))
        for path in (tmp_path / "out").rglob("*")
        if not path.is_dir()
    }
    assert found == {"job.yaml", "lib/a.sh", "link.py", "train.py"}
    assert (tmp_path / "out/link.py").readlink() == Path("train.py")
    assert (tmp_path / "out/lib/a.sh").stat().st_mode & 0o100
    assert set(result.out.split()) == {str(tmp_path / "out" / path) for path in found}
    again = cli("code", name, str(tmp_path / "out"))
    assert (again.code, "not an empty folder" in again.err) == (2, True)


def test_diff_of_two_runs(cli: Cli, scripted: Path, job: str) -> None:
    """A changed hyperparameter, a changed line of code and a changed image, by name; exit code 1."""
    Path("job.yaml").write_text(
        Path("job.yaml").read_text() + "environment: {image: {sagemaker: 'repo/image:1'}}\n"
    )
    Path("data.bin").write_bytes(b"\0\1")
    first = submitted(cli, job)
    Path("train.py").write_text("print(2)\nprint(3)\n")
    Path("data.bin").write_bytes(b"\0\2")
    Path("new.py").write_text("")
    second = submitted(
        cli,
        job,
        "--set",
        "hyperparameters.epochs=5",
        "--set",
        "environment.image.sagemaker=repo/image:2",
    )
    result = cli("diff", first, second)
    assert result.code == 1
    for line in ("-print(1)", "+print(2)", "+print(3)"):
        assert line in [item.strip() for item in result.out.splitlines()]
    data = json.loads(cli("diff", first, second, "--json").out)
    assert data["equal"] is False
    assert data["job"] == [
        {"field": "hyperparameters.epochs", "before": 2, "after": 5},
        {"field": "environment.image.sagemaker", "before": "repo/image:1", "after": "repo/image:2"},
    ]
    assert [(item["path"], item["change"], item.get("added")) for item in data["code"]] == [
        ("data.bin", "changed", None), ("new.py", "added", None), ("train.py", "changed", 2),
    ]  # fmt: skip
    assert any(item["after"] == "5" for item in data["request"])
    assert cli("diff", first, first).code == 0
    assert cli("diff", first, first).out == ""
    assert ct.diff(ct.run(first), second).to_dict()["job"] == data["job"]


def test_diff_of_two_runs_shows_what_came_out(cli: Cli, scripted: Path, job: str) -> None:
    """The state and the last and best values of the metrics; an equal job stays equal."""
    first, second = submitted(cli, job), submitted(cli, job)
    lines = {
        first: ["loss=0.5 acc=0.7", "loss=0.25 acc=0.9", "loss=0.3 acc=0.8"],
        second: ["loss=nan acc=0.8"],
    }
    texts = {
        name: [[0, f"[metrics] step={step} {text}"] for step, text in enumerate(lines[name])]
        for name in lines
    }
    fate = {"lines_of": texts, "states": {second: "failed"}}
    (scripted / "fate.json").write_text(json.dumps(fate))
    result = cli("diff", first, second)
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()[2:]] == [
        ["state", "succeeded", "failed"],
        ["last", "loss", "0.3", "nan"],
        ["lowest", "loss", "0.25", "(not", "set)"],
        ["highest", "acc", "0.9", "0.8"],
    ]
    data = json.loads(cli("diff", first, second, "--json").out)
    assert data["equal"] is True
    assert data["results"][0] == {"field": "state", "before": "succeeded", "after": "failed"}


def test_diff_of_files_and_plans(cli: Cli, scripted: Path, job: str, tmp_path: Path) -> None:
    """A job file is compared as it would be sent; a plan by its request."""
    name = submitted(cli, job)
    assert cli("diff", name, job).code == 0
    (tmp_path / "plan.json").write_text(cli("plan", job, "--json").out)
    assert cli("diff", str(tmp_path / "plan.json"), name).code == 0
    Path("other.yaml").write_text(Path(job).read_text().replace("2}", "4}"))
    result = cli("diff", job, "other.yaml")
    assert (result.code, "hyperparameters.epochs" in result.out) == (1, True)
    assert cli("diff", str(tmp_path / "plan.json"), "other.yaml").code == 1
    missing = cli("diff", name, "missing.yaml")
    assert (missing.code, "missing.yaml" in missing.err) == (2, True)
    assert cli("diff", name, "nothing").code == 3


def test_a_run_of_which_nothing_is_kept(
    cli: Cli, scripted: Path, job: str, state_dir: Path
) -> None:
    """As of an earlier version: an error that says so."""
    name = submitted(cli, job)
    with sqlite3.connect(state_dir / "runs.db") as db:
        db.execute("DELETE FROM sent")
    db.close()
    for arguments in (("show", name), ("rerun", name), ("diff", name, job), ("code", name, "x")):
        result = cli(*arguments)
        assert (result.code, "CT971" in result.err) == (3, True)


def test_a_removed_run_is_forgotten(cli: Cli, scripted: Path, job: str, state_dir: Path) -> None:
    """What was kept of it goes with it, the list of its files too where no other run has the same."""
    name = submitted(cli, job)
    cli("wait", name)
    assert cli("rm", name, "--yes").code == 0 or cli("rm", name).code == 0
    with read_store(state_dir) as store:
        assert store.kept(name) is None
        assert [count for (count,) in store._db.execute("SELECT COUNT(*) FROM bundles")] == [0]


def test_completion(cli: Cli, scripted: Path, job: str) -> None:
    """Runs are offered, and for `diff` files too."""
    from tests.cli.test_completion import complete

    name = submitted(cli, job)
    for command in ("show", "rerun", "code"):
        assert complete(f"cloudtrain {command} dig") == [name]
    assert complete("cloudtrain diff dig") == [name]
    assert complete("cloudtrain diff last jo") == ["job.yaml"]
