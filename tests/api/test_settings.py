"""Settings: files, profiles, flags, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError, SettingsError
from cloudtrain.targets.settings import load_settings
from tests.hints import suggested


@pytest.fixture
def project(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with a settings file, and the working directory two levels below it."""
    folder = clean_environment / "project"
    (folder / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(folder / "a" / "b")
    (folder / "cloudtrain.toml").write_text(
        'target = "sagemaker"\n'
        '[sagemaker]\nregion = "eu-west-1"\nrole = "arn:aws:iam::1:role/r"\n'
        '[local]\ngrace_period = "1m"\n'
        '[profiles.research.sagemaker]\nregion = "us-east-1"\n'
    )
    return folder


def test_the_nearest_file_upwards_counts(project: Path) -> None:
    """Tables become target models; the default target comes from the file."""
    target = load_settings().target()
    assert (target.type, target.region) == ("sagemaker", "eu-west-1")  # type: ignore[union-attr]
    assert load_settings().target("local").grace_period == 60  # type: ignore[union-attr]


def test_profiles_override_and_flags_override_profiles(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, profile, flag: the later wins, field by field."""
    target = load_settings().target("sagemaker", profile="research")
    assert (target.region, target.role) == ("us-east-1", "arn:aws:iam::1:role/r")  # type: ignore[union-attr]
    assert (
        load_settings().target("sagemaker", profile="research", region="eu-north-1").region
        == "eu-north-1"
    )  # type: ignore[union-attr]
    monkeypatch.setenv("CLOUDTRAIN_PROFILE", "research")
    assert load_settings().target("sagemaker").region == "us-east-1"  # type: ignore[union-attr]


def test_the_users_file_is_weaker_than_the_projects(project: Path, clean_environment: Path) -> None:
    """The user's configuration folder holds defaults for all projects."""
    user = clean_environment / ".config" / "cloudtrain" / "cloudtrain.toml"
    user.parent.mkdir(parents=True)
    user.write_text('[local]\ngrace_period = "5s"\nmax_restarts = 2\n')
    target = load_settings().target("local")
    assert (target.grace_period, target.max_restarts) == (60, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[sagemker]\n", "unknown table `sagemker`", suggested("sagemaker")),
        ("[local]\nmax_restart = 1\n", "max_restart", suggested("max_restarts")),
        ("[local\n", "not valid TOML", "correct the text"),
        ("[profiles.x.locl]\n", "unknown table `profiles.x.locl`", suggested("local")),
        ("local = 3\n", "`local` must be a table", "write `[local]`"),
        ("sagemaker = [1]\n", "`sagemaker` must be a table", "write `[sagemaker]`"),
        ("[[local]]\n", "`local` must be a table", "write `[local]`"),
        ("profiles = 3\n", "`profiles` must be a table", "write `[profiles]`"),
        ("[profiles]\nx = 3\n", "`profiles.x` must be a table", "write `[profiles.x]`"),
        (
            "[profiles.x]\nlocal = 3\n",
            "`profiles.x.local` must be a table",
            "write `[profiles.x.local]`",
        ),
    ],
)
def test_mistakes_in_the_file_are_explained(
    clean_environment: Path, text: str, message: str, hint: str
) -> None:
    """The error names the file and the nearest right word."""
    (clean_environment / "cloudtrain.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings().target("local")
    assert message in caught.value.message
    assert "cloudtrain.toml" in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_file_may_begin_with_a_mark_of_its_encoding(clean_environment: Path) -> None:
    """As editors on Windows write it, and as job files may."""
    (clean_environment / "cloudtrain.toml").write_text(
        "\ufeff[local]\nmax_restarts = 2\n", encoding="utf-8"
    )
    assert load_settings().target("local").max_restarts == 2  # type: ignore[union-attr]


def test_an_unknown_profile_names_the_known_ones(project: Path) -> None:
    """With did-you-mean."""
    with pytest.raises(SettingsError) as caught:
        load_settings().target("sagemaker", profile="reserch")
    assert caught.value.hint == suggested("research")


def test_a_wrong_flag_is_an_error_of_the_flag(project: Path) -> None:
    """Flags are validated like fields."""
    with pytest.raises(JobError, match="max_restarts"):
        load_settings().target("local", max_restarts=-1)


def test_a_hint_about_settings_is_toml(clean_environment: Path) -> None:
    """What it says to write can be written into the file, and is then read."""
    file = clean_environment / "cloudtrain.toml"
    file.write_text('[azureml]\nlocations = "westeurope"\n')
    with pytest.raises(SettingsError) as caught:
        load_settings().target("azureml")
    assert caught.value.hint == 'write `locations = ["westeurope"]`'
    file.write_text('[azureml]\nlocations = ["westeurope"]\n')
    assert load_settings().target("azureml").locations == ("westeurope",)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("sagemaker", "`region`"),
        ("azureml", "`subscription_id`, `resource_group`, `workspace`"),
        ("slurm", "`shared_dir`"),
    ],
)
@pytest.mark.usefixtures("clean_environment")
def test_runs_without_the_settings_that_locate_them(target: str, fields: str) -> None:
    """An error that names them. Without it, a placeholder's empty list would say that there are no runs."""
    with pytest.raises(SettingsError) as caught:
        ct.runs(target=target)
    assert (caught.value.code, caught.value.hint) == (
        "CT915",
        f"set {fields} in [{target}] of cloudtrain.toml",
    )
