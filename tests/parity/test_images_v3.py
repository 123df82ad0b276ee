"""The images that came after SDK 2 have the address that SDK 3 gives them."""

from __future__ import annotations

import pytest

from cloudtrain.errors import JobError
from cloudtrain.targets.sagemaker.catalogue.images import resolve_image, versions

pytestmark = pytest.mark.parity(3)

LATER = {
    "pytorch": ("2.9.0", "2.10.0", "2.11", "2.12", "2.13", "2.14"),
    "tensorflow": ("2.21.0",),
    "huggingface": ("5.3.0",),
}
REGIONS = (
    "us-west-2",
    "eu-west-1",
    "cn-north-1",
    "us-gov-west-1",
    "eusc-de-east-1",
    "us-isof-south-1",
)


@pytest.mark.parametrize(
    ("framework", "version"), [(name, version) for name in LATER for version in LATER[name]]
)
@pytest.mark.parametrize("instance", ["ml.g5.xlarge", "ml.m5.xlarge"])
@pytest.mark.parametrize("region", REGIONS)
def test_the_address_is_the_sdks(framework: str, version: str, instance: str, region: str) -> None:
    """Version, device and region give the SDK's address; what it refuses, the catalogue refuses."""
    from sagemaker.core import image_uris

    try:
        image = resolve_image(framework, version, region=region, instance=instance)
    except JobError:
        image = None
    amzn = framework == "pytorch" and version.count(".") == 1
    try:
        found = image_uris.retrieve(
            "pytorch-amzn2023" if amzn else framework, region, version=version, instance_type=instance,
            py_version=None if amzn else image.python if image else "py312", image_scope="training",
            base_framework_version="pytorch2.9.0" if framework == "huggingface" else None,
        )  # fmt: skip
    except ValueError:
        found = None
    assert (image.uri if image else None) == found


def test_every_later_version_is_compared() -> None:
    """No version that only SDK 3 knows is left out above."""
    for framework, later in LATER.items():
        known = {
            v: resolve_image(framework, v, region="us-west-2").sdk
            for v in versions(framework, "gpu")
        }
        assert tuple(version for version, sdk in known.items() if sdk == 3) == later
