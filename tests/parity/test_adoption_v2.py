"""Scripts that use version 2 of the SDK, and boto3, become jobs that send the very request of the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.adoption import BOTO3, V2, adopted

pytestmark = pytest.mark.parity(2)


@pytest.mark.parametrize("name", V2)
def test_an_estimator_script_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal, and the code is the folder beside the script."""
    found = adopted("v2", V2[name], tmp_path)
    assert found.differences == ()
    if name == "channels":
        assert {key: item.channel for key, item in found.job.inputs.items()} == {
            "train_1_x_": "train-1.x", "train_1_x": None,
        }  # fmt: skip
    if name in ("channels", "rules", "run"):
        assert "sagemaker_overrides" not in found.fields
    if name not in ("image", "one_file"):
        assert found.job.source_dir == "src"


@pytest.mark.parametrize("name", BOTO3)
def test_a_boto3_script_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal."""
    found = adopted("boto3", BOTO3[name], tmp_path)
    assert found.differences == ()
    if name == "preferences":
        assert [row.instance_count for row in found.job.resources.instance_preferences] == [2, 4]
    fields = {"ResourceConfig", "MlflowConfig", "DebugRuleConfigurations"}
    assert not fields & found.fields.get("sagemaker_overrides", {}).keys()
