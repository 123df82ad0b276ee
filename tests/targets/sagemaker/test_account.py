"""What is known of the account without asking anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.targets.sagemaker.settings import SageMakerAccount, credentials_in_sight
from cloudtrain.targets.sagemaker.target import SageMakerTarget
from tests.targets.sagemaker.place import ROLE

CONFIG = """
[default]
region = us-west-2
[profile research]
region = eu-central-1
sso_session = corp
[services broken
"""


def account(target: ct.SageMaker, home: Path, **environ: str) -> SageMakerAccount:
    return SageMakerTarget().account(
        target, environ={"HOME": str(home), **environ}, state_dir=home / "state", cwd=home
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with an AWS configuration."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(CONFIG.replace("[services broken\n", ""))
    return tmp_path


@pytest.mark.parametrize(
    ("target", "environ", "region"),
    [
        (ct.SageMaker(region="eu-west-1"), {"AWS_REGION": "us-east-2"}, "eu-west-1"),
        (
            ct.SageMaker(),
            {"AWS_REGION": "us-east-2", "AWS_DEFAULT_REGION": "us-west-1"},
            "us-east-2",
        ),
        (ct.SageMaker(), {"AWS_DEFAULT_REGION": "us-west-1"}, "us-west-1"),
        (ct.SageMaker(), {}, "us-west-2"),
        (ct.SageMaker(profile="research"), {}, "eu-central-1"),
        (ct.SageMaker(), {"AWS_PROFILE": "research"}, "eu-central-1"),
    ],
)
def test_region(target: ct.SageMaker, environ: dict[str, str], region: str, home: Path) -> None:
    """The target's, else the environment's, else that of the profile in the AWS configuration."""
    assert account(target, home, **environ).region == region


def test_the_section_of_a_profile_comes_before_its_name_alone(home: Path) -> None:
    """As in the AWS command line, wherever the sections stand in the file."""
    file = home / ".aws/config"
    file.write_text("[default]\nregion = eu-west-1\n[profile default]\nregion = eu-west-3\n")
    assert account(ct.SageMaker(), home).region == "eu-west-3"


def test_bucket_of_the_sdk(home: Path) -> None:
    """Unless given, the bucket is the SageMaker SDK's default one, of the role's account."""
    found = account(ct.SageMaker(role=ROLE, region="eu-west-1"), home)
    assert found.bucket == "sagemaker-eu-west-1-123456789012"
    assert found.missing == ()


def test_what_nobody_gave(tmp_path: Path) -> None:
    """Placeholders stand in for it, and its names are told."""
    found = account(ct.SageMaker(), tmp_path)
    assert found.missing == ("region", "role", "bucket")
    assert found.role == "arn:aws:iam::000000000000:role/ROLE"
    assert account(ct.SageMaker(role="train", bucket="b"), tmp_path).missing == ("region",)


@pytest.mark.parametrize("text", ["[broken", "region = nowhere", "[default]\nregion\n", "\xff"])
def test_a_broken_configuration_is_no_configuration(text: str, tmp_path: Path) -> None:
    """A file that cannot be parsed tells nothing, and stops nothing."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_bytes(text.encode("latin-1"))
    assert "region" in account(ct.SageMaker(), tmp_path).missing


def test_the_place_keeps_the_profile(home: Path) -> None:
    """A reference says as whom to ask, whatever characters the profile's name has."""
    assert account(ct.SageMaker(region="eu-west-1"), home).place == "eu-west-1"
    found = account(ct.SageMaker(region="eu-west-1", profile="my org/dev@eu"), home)
    assert found.place == "my%20org%2Fdev%40eu@eu-west-1"
    ref = ct.RunRef("sagemaker", found.place, "job-1")
    assert ct.RunRef.parse(str(ref)) == ref


@pytest.mark.parametrize(
    ("environ", "seen"),
    [({}, False), ({"AWS_ACCESS_KEY_ID": "A"}, True), ({"AWS_PROFILE": "research"}, True)],
)
def test_credentials_in_sight(environ: dict[str, str], seen: bool, tmp_path: Path) -> None:
    """Whether a check asks AWS unless told otherwise."""
    assert credentials_in_sight(ct.SageMaker(), {"HOME": str(tmp_path), **environ}) is seen
