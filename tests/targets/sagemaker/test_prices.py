"""`instances --refresh`: the prices of a region's training instances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.cli.app import run_command
from tests.fakes.sagemaker.prices import product
from tests.fakes.sagemaker.server import FakeAws

PRODUCTS = [
    product("EU-Train:ml.g5.12xlarge", "7.9100000000"),
    product("EU-Host:ml.g5.12xlarge", "8.5"),
    product("EU-Train:ml.p4d.24xlarge", "25.5"),
    product("Train:ml.m5.large", "0.115"),
    product("EU-SpotTrain:ml.p3.2xlarge", "1.0"),
    product("EU-Train:ml.p3.2xlarge", "0.0000000000"),
    product("EU-Train:ml.zz9.24xlarge", "99"),
    product("USE1-Train:ml.p5.48xlarge", "60", region="us-east-1"),
    product("EU-Train:ml.p5.48xlarge", "61", family="Other"),
]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """What a command line leaves."""
    capsys.readouterr()
    code = run_command(["instances", "--target", "sagemaker", *arguments])
    return (code, *capsys.readouterr())


def test_prices_of_the_region(
    fake: FakeAws,
    clean_environment: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every page is read; prices of training by the hour are kept, dated, and used by the next plan."""
    fake.price_list = PRODUCTS
    (clean_environment / "cloudtrain.toml").write_text('[sagemaker]\nregion = "eu-west-1"\n')
    code, _, err = shown(capsys, "--refresh")
    assert (code, "3 types of eu-west-1" in err) == (0, True)
    assert "without those that the catalogue does not know: ml.zz9.24xlarge" in " ".join(
        err.split()
    )
    requests = fake.operations("GetProducts")
    assert len(requests) > 2
    assert all("/us-east-1/pricing/" in item.headers["authorization"] for item in requests)
    fake.price_list = []
    listed = {item["name"]: item for item in json.loads(shown(capsys, "--all", "--json")[1])}
    assert [
        listed[f"ml.{name}"]["price"] for name in ("g5.12xlarge", "p4d.24xlarge", "m5.large")
    ] == [
        7.91,
        25.5,
        0.115,
    ]
    assert "eu-west-1" in listed["ml.g5.12xlarge"]["price_source"]
    assert listed["ml.g5.12xlarge"]["price_date"] > "2026"


def test_nothing_to_find(
    fake: FakeAws, clean_environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A region that the list does not have is an error, and leaves what an earlier refresh wrote."""
    (clean_environment / "cloudtrain.toml").write_text('[sagemaker]\nregion = "eu-west-1"\n')
    fake.price_list = PRODUCTS
    assert shown(capsys, "--refresh")[0] == 0
    fake.price_list = []
    code, _, err = shown(capsys, "--refresh")
    assert (code, "has no training instances in `eu-west-1`" in err) == (4, True)
    assert {
        item["name"]: item["price"] for item in json.loads(shown(capsys, "--all", "--json")[1])
    }["ml.m5.large"] == 0.115


def test_no_region(
    fake: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices are a region's: without one nothing is asked."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    code, _, err = shown(capsys, "--refresh")
    assert (code, "set `region` under `[sagemaker]`" in " ".join(err.split())) == (2, True)
    assert fake.operations("GetProducts") == []
