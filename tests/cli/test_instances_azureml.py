"""`cloudtrain instances --target azureml`: its table, one type, names in any case, retired types, and the refresh."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.machines.overlay import Refreshed, write_refreshed
from cloudtrain.system import plugins as targets
from cloudtrain.targets.azureml.target import AzureMLTarget
from tests.cli.conftest import Cli
from tests.cli.test_completion import complete
from tests.cli.test_instances import names, words
from tests.hints import suggested

ON = ("instances", "--target", "azureml")


def test_table(cli: Cli) -> None:
    """Memory in GiB and InfiniBand in Gbit/s without units, the cheapest first, an unknown price as a dash."""
    result = cli(*ON, "--gpu", "H100")
    assert (result.code, result.out) == (
        0,
        "NAME                       GPUS  GPU            vCPU  GiB   IB    USD/H\n"
        "Standard_NC40ads_H100_v5   1     H100-NVL-94GB  40    320   -     6.98\n"
        "Standard_NCC40ads_H100_v5  1     H100-NVL-94GB  40    320   -     6.98\n"
        "Standard_NC80adis_H100_v5  2     H100-NVL-94GB  80    640   -     13.96\n"
        "Standard_ND96isr_H100_v5   8     H100-80GB      96    1900  3200  98.32\n",
    )
    assert words(result.err) == (
        "types of azureml; IB is InfiniBand in Gbit/s; list prices from skypilot-org/skypilot-catalog@098741e, which "
        "gives no date; write your own into `instances.toml`, see "
        "`cloudtrain instances -h`"
    )


@pytest.mark.parametrize("flags", [(), ("--retired",)])
def test_all_types_fit_80_columns(cli: Cli, flags: tuple[str, ...]) -> None:
    """None wider than a terminal, the retired ones among them only when asked for, and last."""
    out = cli(*ON, "--all", *flags).out
    assert max(map(len, out.splitlines())) <= 80
    last = [line.split()[-1] == "retired" for line in out.splitlines()[1:]]
    assert sum(last) == (24 if flags else 0)
    assert last == sorted(last)
    assert len(last) == (102 if flags else 78)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--gpu", "a100 40gb"], ["Standard_ND96asr_v4"]),
        (["--interconnect", "infiniband", "--gpus", "8", "--max-price", "30"],
         ["Standard_ND40rs_v2", "Standard_ND96asr_v4"]),
        (["--interconnect", "rdma", "--gpus", "8", "--max-price", "30"], ["Standard_ND40rs_v2", "Standard_ND96asr_v4"]),
        (["--interconnect", "ethernet", "--gpus", "2"],
         ["Standard_NV72ads_A10_v5", "Standard_NC48ads_A100_v4", "Standard_NC80adis_H100_v5"]),
        (["--min-gpu-memory", "180g", "--sort", "gpu-memory", "-n", "2"],
         ["Standard_ND128isr_GB300_v6", "Standard_ND128isrG5_GB300_v6"]),
        (["--gpus", "0", "--interconnect", "infiniband", "--max-price", "3.5"], ["Standard_HC44rs"]),
    ],
)  # fmt: skip
def test_filters(cli: Cli, flags: list[str], found: list[str]) -> None:
    """The same filters as for SageMaker; `infiniband` is one that NCCL can use."""
    result = cli(*ON, *flags)
    assert (result.code, sorted(names(result.out))) == (0, sorted(found))


def test_retired_types_are_counted_and_shown_on_request(cli: Cli) -> None:
    """Hidden with a note; shown they say so instead of a price, and InfiniBand without SR-IOV is no InfiniBand."""
    hidden = cli(*ON, "--gpu", "K80")
    assert (hidden.out, hidden.err.splitlines()[1]) == (
        "", "4 would match, but are no longer offered; `--retired` lists them",
    )  # fmt: skip
    some = cli(*ON, "--gpu", "V100")
    assert names(some.out) == ["Standard_ND40rs_v2"]
    assert "4 more would match, but are no longer offered; `--retired` lists them" in words(
        some.err
    )
    shown = cli(*ON, "--gpu", "K80", "--retired")
    assert {line.split()[0]: line.split()[-2:] for line in shown.out.splitlines()[1:]} == {
        "Standard_NC6": ["-", "retired"],
        "Standard_NC12": ["-", "retired"],
        "Standard_NC24": ["-", "retired"],
        "Standard_NC24r": ["(no)", "retired"],
    }
    assert "(no) InfiniBand without SR-IOV, which NCCL cannot use" in words(shown.err)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("Standard_NC24rs_v3", ["retired 2025-09-30", "interconnect rdma (InfiniBand, 1 port, 56 Gbit/s)"]),
        ("STANDARD_NC24S_V3", ["Standard_NC24s_v3", "retired 2025-09-30", "interconnect ethernet price"]),
        ("standard_nc24r", ["Standard_NC24r", "retired 2023-09-06",
                            "interconnect ethernet (InfiniBand without SR-IOV, which NCCL cannot use)"]),
        ("Standard_ND96isr_H100_v5", ["interconnect rdma (InfiniBand, 8 ports, 3200 Gbit/s in all)",
                                      "network 8x 400 Gigabit InfiniBand, 80 Gigabit Ethernet"]),
        ("Standard_NV6ads_A10_v5", ["GPUs 1 x A10-4GB (4 GiB), 1/6 of an A10"]),
        ("Standard_DS3_v2", ["retires 2028-05-01, still offered until then", "price 0.293 USD an hour, date not known"]),
        ("Standard_ND128isr_GB300_v6", ["vCPUs 128 (arm64)", "price not known"]),
    ],
)  # fmt: skip
def test_one_type(cli: Cli, name: str, lines: list[str]) -> None:
    """Everything that is known of a size, in whatever case its name is given, within 80 columns."""
    result = cli(*ON, name)
    assert (result.code, result.err) == (0, "")
    assert [line for line in lines if line not in words(result.out)] == []
    assert "local disk" not in result.out
    assert max(map(len, result.out.splitlines())) <= 80


def test_one_type_as_json(cli: Cli) -> None:
    """One object with every column, retirement included."""
    row = json.loads(cli(*ON, "standard_nc24rs_v3", "--json").out)
    assert (row["name"], row["fabric"], row["retired"], row["interfaces"]) == (
        "Standard_NC24rs_v3", "infiniband", "2025-09-30", 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["NC24ads_A100_v4"], "there is no instance type `NC24ads_A100_v4` on azureml",
         suggested("Standard_NC24ads_A100_v4")),
        (["ml.p4d.24xlarge"], "there is no instance type `ml.p4d.24xlarge` on azureml", "add `--target sagemaker`"),
        (["Standard_NC24rs_v9"], "there is no instance type `Standard_NC24rs_v9` on azureml",
         f"{suggested('Standard_NC24rs_v3')} By its name, `Standard_NC24rs_v9` has InfiniBand (`r` among the letters "
         "after its number); that is a guess"),
        (["zzz"], "there is no instance type `zzz` on azureml",
         "`cloudtrain instances --target azureml --all` lists all types"),
        (["--gpu", "A10G"], "no instance type has the GPU `A10G`", suggested("A10")),
        (["--gpu", "H100-96GB"], "no instance type has the GPU `H100-96GB`", "use `H100-80GB` or `H100-NVL-94GB`"),
        (["--interconnect", "infinband"], "there is no interconnect `infinband`", suggested("infiniband")),
    ],
)  # fmt: skip
def test_mistakes(cli: Cli, arguments: list[str], message: str, hint: str) -> None:
    """Exit code 2, the mistake and the way out on stderr, nothing on stdout."""
    result = cli(*ON, *arguments)
    assert (result.code, result.out) == (2, "")
    error, _, given = result.err.partition("\n\nhint: ")
    assert message in words(error)
    assert words(given) == hint


def test_completion_goes_by_the_target() -> None:
    """TAB offers the types and GPUs of the target on the same line, SageMaker's without one."""
    assert complete("cloudtrain instances --target azureml Standard_ND96a") == [
        "Standard_ND96asr_v4", "Standard_ND96amsr_A100_v4",
    ]  # fmt: skip
    assert complete("cloudtrain instances --target azureml --gpu MI") == ["MI300X-192GB"]
    assert complete("cloudtrain instances --gpu MI") == []


class Refreshing:
    """A service that finds one price and seven new types, and writes which workspace it was asked about."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.folder = Path(environ["HOME"]) / ".config" / "cloudtrain"

    def refresh_catalogue(self, settings: Any) -> Refreshed:
        added = tuple(f"Standard_Q{number}s_v9" for number in range(2, 9))
        table: dict[str, Any] = {name: {"vcpus": 2, "memory_gib": 8} for name in added}
        table["Standard_NC24ads_A100_v4"] = {
            "price": 4.25,
            "price_date": "2026-11-22",
            "quota_vcpus": 48,
        }
        file = write_refreshed(self.folder, "azureml", table, about="a test")
        return Refreshed(
            file,
            f"the region of {settings.workspace}",
            len(table),
            added,
            ("without the quota: no",),
        )


class RefreshingTarget(AzureMLTarget):
    """Azure ML with that service."""

    def service(self, *, environ: Mapping[str, str], state_dir: Path, pace: Any = None) -> Any:
        return Refreshing(environ)


@pytest.fixture
def refreshing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure ML has the service above."""
    monkeypatch.setitem(targets.LOADED, "azureml", RefreshingTarget())


@pytest.mark.usefixtures("refreshing")
def test_refresh(cli: Cli, clean_environment: Path) -> None:
    """The account is asked first, with its settings; what it said is in the list at once, and from then on."""
    (clean_environment / "cloudtrain.toml").write_text(
        '[profiles.lab.azureml]\nworkspace = "mine"\n'
    )
    result = cli(*ON, "--refresh", "--profile", "lab", "--gpu", "A100-80GB", "--gpus", "1")
    assert (result.code, names(result.out)) == (0, ["Standard_NC24ads_A100_v4"])
    assert result.out.endswith("4.25\n")
    said = words(result.err)
    assert "8 types of the region of mine written to" in said
    assert "new in the catalogue: `Standard_Q2s_v9`" in said
    assert "and 2 more without the quota: no" in said
    assert "list prices of 2026-11-22" in said
    later = words(cli(*ON, "standard_nc24ads_a100_v4").out)
    assert "price 4.25 USD an hour on 2026-11-22" in later
    assert "quota 48 vCPUs of its family: 2 at once" in later


@pytest.mark.usefixtures("refreshing")
def test_a_target_that_cannot_be_asked_names_those_that_can(cli: Cli) -> None:
    """This machine has no such list; nothing is asked and nothing is listed."""
    result = cli("instances", "--refresh", "--target", "local")
    assert (result.code, result.out) == (2, "")
    assert "the types of `local` cannot be refreshed" in words(result.err)
    assert "hint: use `--target sagemaker` or `--target azureml`" in result.err


def test_own_prices_and_types(cli: Cli, clean_environment: Path) -> None:
    """`instances.toml` corrects a price under any spelling of the name, and adds a size."""
    (clean_environment / "instances.toml").write_text(
        "[azureml.standard_nd96asr_v4]\nprice = 20.5\n"
        '[azureml.Standard_NX9rs_v9]\nvcpus = 9\nmemory_gib = 5\ninterconnect = "rdma"\nprice = 0.01\n'
    )
    assert cli(*ON, "--gpu", "A100-40GB").out.endswith("20.50\n")
    found = cli(*ON, "--interconnect", "infiniband", "-n", "1").out
    assert found.splitlines()[1].split() == ["Standard_NX9rs_v9", "-", "-", "9", "5", "yes", "0.01"]
