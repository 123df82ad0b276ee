"""Settings that somebody else can have written are not obeyed; those that are obeyed stand in the plan."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SOMEBODY = 54321
"""The number of a user and of a group that this machine does not know."""

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")

WORKSPACE = {"subscription_id": "s", "resource_group": "rg", "workspace_name": "theirs"}
FILES = {
    "cloudtrain.toml": '[local]\npython = "/tmp/evil.sh"\n',
    "instances.toml": "[azureml.Standard_NC24ads_A100_v4]\nprice = 0.01\n",
    "config.json": json.dumps(WORKSPACE),
}
JOB = (
    "name: digits\nentry_point: train.py\nenvironment: {framework: pytorch, version: '2.8'}\n"
    "resources: {instance_type: {azureml: Standard_NC24ads_A100_v4}}\n"
)


@pytest.fixture(params=sorted(FILES))
def found(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of the files that are looked for, in a folder above the working directory, where a job is."""
    folder = tmp_path / "above"
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "train.py").write_text("print(1)\n")
    (work / "job.yaml").write_text(JOB)
    monkeypatch.chdir(work)
    file = folder / str(request.param)
    file.write_text(FILES[file.name])
    file.chmod(0o644)
    folder.chmod(0o755)
    return file


only_config = pytest.mark.parametrize("found", ["config.json"], indirect=True)


def plan(cli: Cli, *more: str) -> tuple[int, str, str]:
    """The plan for Azure ML, which all of the files have a part in."""
    return cli("plan", "job.yaml", "--target", "azureml", *more)


def test_a_file_of_yours_counts_and_the_plan_names_it(cli: Cli, found: Path) -> None:
    """In text and in JSON; what it says is in the plan."""
    _, text, _ = plan(cli)
    _, out, _ = plan(cli, "--json")
    assert f"settings  {found}" in " ".join(text.split()).replace("settings ", "settings  ")
    assert json.loads(out)["settings"] == [str(found)]
    if found.name == "config.json":
        assert "theirs" in text


def test_a_plan_without_settings_files_names_none(cli: Cli, found: Path) -> None:
    """The row appears where there is something to say."""
    found.unlink()
    _, text, _ = plan(cli)
    assert "settings  " not in text
    assert json.loads(plan(cli, "--json")[1])["settings"] == []


def test_a_file_that_everybody_may_write_is_an_error(cli: Cli, found: Path) -> None:
    """And the hint closes it."""
    found.chmod(0o666)
    code, out, err = plan(cli)
    assert (code, out) == (2, "")
    assert "is not trusted: it may be written by everybody" in " ".join(err.split())
    assert f"`chmod go-w {found}`" in err.replace("\n", " ").replace("      ", "")
    found.chmod(stat.S_IMODE(found.stat().st_mode) & ~0o022)
    assert plan(cli, "--json")[1]


def test_a_folder_that_everybody_may_write_is_an_error(cli: Cli, found: Path) -> None:
    """Whoever may write to the folder may put another file there. In a sticky folder, as /tmp, they may not."""
    found.parent.chmod(0o777)
    code, out, err = plan(cli)
    assert (code, out) == (2, "")
    assert "its folder may be written by everybody" in " ".join(err.split())
    found.parent.chmod(0o1777)
    assert json.loads(plan(cli, "--json")[1])["settings"] == [str(found)]


@AS_ROOT
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_of_somebody_else_is_an_error(cli: Cli, found: Path, what: str) -> None:
    """Also in a sticky folder, where everybody may put files; and a file of yours in a folder of theirs."""
    os.chown(found if what == "file" else found.parent, SOMEBODY, SOMEBODY)
    found.parent.chmod(0o1777)
    code, out, err = plan(cli)
    assert (code, out) == (2, "")
    whose = "it belongs" if what == "file" else "its folder belongs"
    assert f"{found} is not trusted: {whose} to the user {SOMEBODY}" in " ".join(err.split())
    assert "export CLOUDTRAIN_TRUST=" in err


@AS_ROOT
def test_owners_whom_the_machine_knows_are_named(cli: Cli, found: Path) -> None:
    """The hint does not offer to close a file that only its owner can close."""
    user = pwd.getpwnam("nobody")
    os.chown(found, user.pw_uid, -1)
    err = " ".join(plan(cli)[2].split())
    assert f"{found} is not trusted: it belongs to the user `nobody`" in err
    assert "a settings file of your own in a folder nearer to the job takes precedence" in err
    assert "chmod" not in err
    os.chown(found, 0, user.pw_gid)
    found.chmod(0o664)
    group = grp.getgrgid(user.pw_gid).gr_name
    assert f"it may be written by the group `{group}`" in " ".join(plan(cli)[2].split())


@AS_ROOT
def test_a_file_behind_a_link_is_looked_at_where_it_is(
    cli: Cli, found: Path, tmp_path: Path
) -> None:
    """A link of yours to a file of theirs does not make it yours."""
    theirs = tmp_path / "theirs" / found.name
    theirs.parent.mkdir()
    found.replace(theirs)
    found.symlink_to(theirs)
    assert json.loads(plan(cli, "--json")[1])["settings"] == [str(found)]
    os.chown(theirs.parent, SOMEBODY, SOMEBODY)
    assert plan(cli)[0] == 2


@AS_ROOT
@pytest.mark.parametrize(
    "whose", ["the first link", "the second link", "the folder of the second link"]
)
def test_a_link_of_somebody_else_is_an_error(
    cli: Cli, found: Path, tmp_path: Path, whose: str
) -> None:
    """They may put links into a sticky folder, and would choose which of your files counts."""
    yours, between = tmp_path / "yours" / found.name, tmp_path / "between" / found.name
    for path in (yours, between):
        path.parent.mkdir()
    found.replace(yours)
    found.symlink_to(between)
    between.symlink_to(f"../yours/{found.name}")
    found.parent.chmod(0o1777)
    assert json.loads(plan(cli, "--json")[1])["settings"] == [str(found)]
    theirs = {"the first link": found, "the second link": between}.get(whose, between.parent)
    os.chown(theirs, SOMEBODY, SOMEBODY, follow_symlinks=False)
    code, out, err = plan(cli)
    assert (code, out) == (2, "")
    assert f"belongs to the user {SOMEBODY}" in " ".join(err.split())


@AS_ROOT
def test_a_group_with_other_members_is_somebody_else(cli: Cli, found: Path) -> None:
    """A group that the machine does not know may have anybody in it."""
    os.chown(found, -1, SOMEBODY)
    found.chmod(0o664)
    code, _, err = plan(cli)
    assert code == 2
    assert f"it may be written by the group {SOMEBODY}" in " ".join(err.split())


def test_your_own_group_is_you(cli: Cli, found: Path) -> None:
    """With a umask of 002, as many distributions have it, files may be written by a group that has no other member."""
    import grp
    import pwd

    you = pwd.getpwuid(os.getuid())
    others = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == you.pw_gid} | set(
        grp.getgrgid(you.pw_gid).gr_mem
    )
    if others != {you.pw_name}:
        pytest.skip("your group has other members here")
    os.chown(found, -1, you.pw_gid)
    os.chown(found.parent, -1, you.pw_gid)
    found.chmod(0o664)
    found.parent.chmod(0o775)
    assert json.loads(plan(cli, "--json")[1])["settings"] == [str(found)]


def test_a_trusted_folder(
    cli: Cli, found: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CLOUDTRAIN_TRUST makes all files below the folders that it names count; a path must be absolute."""
    found.chmod(0o666)
    found.parent.chmod(0o777)
    monkeypatch.setenv("CLOUDTRAIN_TRUST", f"/nowhere:{tmp_path}")
    assert json.loads(plan(cli, "--json")[1])["settings"] == [str(found)]
    monkeypatch.setenv("CLOUDTRAIN_TRUST", str(found.parent) + "-2")
    assert plan(cli)[0] == 2
    monkeypatch.setenv("CLOUDTRAIN_TRUST", ".")
    code, _, err = plan(cli)
    assert code == 2
    assert "CLOUDTRAIN_TRUST contains `.`, which is not an absolute path" in " ".join(err.split())


def test_the_hint_for_a_folder_with_a_space_can_be_typed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are quoted as a shell wants them."""
    folder = tmp_path / "a b; c"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "cloudtrain.toml").write_text("")
    (folder / "cloudtrain.toml").chmod(0o666)
    _, _, err = cli("plan", "bundled:digits_ddp")
    assert f"chmod go-w '{folder}/cloudtrain.toml'" in err


UNREADABLE = {
    "deep": "[" * 20_000,
    "half of a character": json.dumps(WORKSPACE | {"resource_group": "\ud800"}),
    "a long number": "9" * 5000,
    "a zero byte": "\0",
}


@only_config
@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_config_that_cannot_be_read(cli: Cli, found: Path, content: str) -> None:
    """It names no workspace."""
    found.write_text(content)
    code, _, err = plan(cli)
    assert code == 2
    assert "a defect" not in err
    assert json.loads(plan(cli, "--json")[1])["settings"] == []


@only_config
def test_a_config_of_another_program_is_nobodys_business(cli: Cli, found: Path) -> None:
    """Many programs have a `config.json`; only one that names a workspace would be obeyed. And nobody asks for it where
    the settings name the workspace."""
    found.chmod(0o666)
    assert plan(cli)[0] == 2
    found.write_text('{"port": 80}')
    assert "is not used" not in plan(cli)[2]
    found.write_text(json.dumps(WORKSPACE))
    (Path.cwd() / "cloudtrain.toml").write_text(
        '[azureml]\nsubscription_id = "00000000-0000-0000-0000-000000000000"\nresource_group = "rg"\nworkspace = "ws"\n'
    )
    result = plan(cli, "--json")
    assert json.loads(result[1])["settings"] == [str(Path.cwd() / "cloudtrain.toml")]


@pytest.mark.slow
def test_doctor_runs_nothing_that_lies_around(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `torch.py` in the working directory is not torch."""
    monkeypatch.chdir(tmp_path)
    for name in ("torch.py", "site.py", "json.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    cli("doctor")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.usefixtures("_torch_is_known")
def test_doctor_says_what_is_used_and_what_is_not(cli: Cli, found: Path) -> None:
    """Every file that is looked for stands in the report; one that does not count is an error, with its hint."""
    _, out, _ = cli("doctor", "--json")
    report = {row["subject"]: row for row in json.loads(out)}
    subject = {
        "cloudtrain.toml": "settings",
        "instances.toml": "instance types",
        "config.json": "Azure ML",
    }[found.name]
    assert str(found) in report[subject]["message"]
    found.chmod(0o666)
    code, out, _ = cli("doctor", "--json")
    report = {row["subject"]: row for row in json.loads(out)}
    assert (code, report[subject]["level"]) == (2, "error")
    assert "chmod go-w" in report[subject]["hint"]
