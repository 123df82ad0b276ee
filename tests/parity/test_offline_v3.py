"""Version 3 asks IAM when a trainer is made; without an answer the error is one of ours, with what to type."""

from __future__ import annotations

import pytest

import cloudtrain as ct
from tests.parity.jobs import CASES, plan_of

pytestmark = pytest.mark.parity(3)

NOBODY = "http://127.0.0.1:9"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("variables", "kind", "hint"),
    [
        ({}, ct.TargetError, "aws sso login"),
        ({**KEYS, "HTTPS_PROXY": NOBODY}, ct.TargetError, "check the network"),
        ({**KEYS, "AWS_ENDPOINT_URL": NOBODY}, ct.TargetError, "check the network"),
        ({**KEYS, "AWS_PROFILE": "missing"}, ct.SettingsError, "list-profiles"),
    ],
)
@pytest.mark.parametrize("name", ["torch", "smddp"])
def test_offline_is_an_error_of_ours(
    name: str,
    variables: dict[str, str],
    kind: type[ct.CloudtrainError],
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the drivers and without them."""
    more = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1", **variables}
    for variable, value in more.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(kind) as caught:
        plan_of(CASES[name]).to_model_trainer()
    assert hint in str(caught.value.hint)
