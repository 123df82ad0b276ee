"""`cloudtrain instances`: the table, one type, filters, and what it says when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.hints import suggested


def names(out: str) -> list[str]:
    """The first column, without its header."""
    return [line.split()[0] for line in out.splitlines()[1:]]


def words(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def test_table(cli: Cli) -> None:
    """One row a type, the cheapest first, an unknown price as a dash; the notes are on stderr."""
    result = cli("instances", "--gpu", "A100")
    assert (result.code, result.out) == (
        0,
        "NAME              GPUS  GPU        vCPU  MEMORY    NETWORK  USD/H\n"
        "ml.p4d.24xlarge   8     A100-40GB  96    1152 GiB  400 EFA  25.25\n"
        "ml.p4de.24xlarge  8     A100-80GB  96    1152 GiB  400 EFA  31.56\n",
    )
    assert words(result.err) == (
        "types of sagemaker; network in Gbit/s; list prices of 2026-09-01 to 2026-09-27; write your own into `instances.toml`, see `cloudtrain instances -h`"
    )


def test_all_types_fit_80_columns(cli: Cli) -> None:
    """All 225 rows, none wider than a terminal, priced ones first and in order."""
    out = cli("instances", "--all").out
    assert len(names(out)) == 225
    assert max(map(len, out.splitlines())) <= 80
    prices = [line.split()[-1] for line in out.splitlines()[1:]]
    known = [float(price) for price in prices if price != "-"]
    assert known == sorted(known)
    assert prices == [f"{price:.2f}" for price in known] + ["-"] * (225 - len(known))


def test_twenty_unless_asked(cli: Cli) -> None:
    """20 rows and a note that there are more; --limit and --all; JSON obeys the same, with the same note."""
    result = cli("instances")
    assert len(names(result.out)) == 20
    assert "the first 20 of 225; `--all` lists all" in result.err
    assert len(names(cli("instances", "-n", "3").out)) == 3
    as_json = cli("instances", "--json", "-n", "7")
    assert [row["name"] for row in json.loads(as_json.out)] == names(result.out)[:7]
    assert as_json.err == "the first 7 of 225; `--all` lists all\n"
    assert cli("instances", "--json", "--all").err == ""


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--gpu", "h100"], ["ml.p5.4xlarge", "ml.p5.48xlarge"]),
        (["--gpu", "H100 80GB", "--gpus", "8"], ["ml.p5.48xlarge"]),
        (["--gpu", "T4", "--interconnect", "rdma"], ["ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g4dn.16xlarge"]),
        (["--gpu", "T4", "--interconnect", "efa", "--max-price", "5"], ["ml.g4dn.8xlarge", "ml.g4dn.12xlarge"]),
        (["--gpu", "T4", "--interconnect", "ethernet"], ["ml.g4dn.xlarge", "ml.g4dn.2xlarge", "ml.g4dn.4xlarge"]),
        (["--min-gpu-memory", "180g"], ["ml.p6-b200.48xlarge", "ml.p6-b300.48xlarge", "ml.p6e-gb200.36xlarge"]),
        (["--min-gpu-memory", "24g", "--gpus", "1", "--max-price", "1.5"],
         ["ml.g6.xlarge", "ml.g6.2xlarge", "ml.g5.xlarge"]),
        (["--gpus", "1", "--max-price", "1.5", "--sort", "gpu-memory"],
         ["ml.g5.xlarge", "ml.g6.xlarge", "ml.g6.2xlarge", "ml.g4dn.xlarge", "ml.g4dn.2xlarge"]),
        (["--gpus", "8", "--sort", "network", "-n", "2"], ["ml.p6-b300.48xlarge", "ml.p5.48xlarge"]),
        (["--gpu", "A10G", "--gpus", "4", "--sort", "vcpus"], ["ml.g5.24xlarge", "ml.g5.12xlarge"]),
        (["--gpu", "A10G", "--gpus", "4", "--sort", "name"], ["ml.g5.12xlarge", "ml.g5.24xlarge"]),
    ],
)  # fmt: skip
def test_filters_and_orders(cli: Cli, flags: list[str], found: list[str]) -> None:
    """Filters add up; sizes sort the largest first."""
    result = cli("instances", *flags)
    assert (result.code, names(result.out)) == (0, found)


def test_a_price_limit_says_what_it_leaves_out(cli: Cli) -> None:
    """A type without a known price does not fit, and is counted."""
    result = cli("instances", "--gpus", "8", "--interconnect", "efa", "--max-price", "30")
    assert names(result.out) == ["ml.g6.48xlarge", "ml.g5.48xlarge", "ml.p4d.24xlarge"]
    assert "more would match, but have no known price" in words(result.err)


def test_nothing_fits(cli: Cli) -> None:
    """No error: an empty result, and which filter to leave out."""
    result = cli("instances", "--gpu", "T4", "--gpus", "8")
    assert (result.code, result.out) == (0, "")
    assert (
        result.err
        == "no instance type matches\nwithout `--gpu` 15 would match\nwithout `--gpus` 6 would match\n"
    )
    assert cli("instances", "--gpu", "T4", "--gpus", "8", "--json").out == "[]\n"
    hopeless = cli("instances", "--gpu", "T4", "--gpus", "16", "--max-price", "0.01")
    assert (
        words(hopeless.err)
        == "no instance type matches; `--gpu`, `--gpus`, `--max-price` exclude each other"
    )
    unpriced = cli("instances", "--gpu", "H200", "--max-price", "70")
    assert "2 would match, but have no known price" in unpriced.err


def test_one_type(cli: Cli) -> None:
    """Everything that is known, with sources and dates; nothing on stderr."""
    result = cli("instances", "ml.p5.48xlarge")
    assert (result.code, result.err) == (0, "")
    text = words(result.out)
    assert "GPUs 8 x H100-80GB (80 GiB each, 640 GiB in all)" in text
    assert "interconnect rdma (EFA, 32 interfaces)" in text
    assert "toolkit 5.1.4 sets FI_PROVIDER=efa and FI_EFA_USE_DEVICE_RDMA=1" in text
    assert "price 63.296 USD an hour on 2026-09-01 AWS Price List API" in text
    assert "machine only 55.04 USD an hour on 2026-11-09" in text
    assert "source EC2 DescribeInstanceTypes" in text
    assert max(map(len, result.out.splitlines())) <= 80


def test_one_type_without_gpus_and_one_with_neuron(cli: Cli) -> None:
    """What is not there is said; Neuron devices have their own line."""
    assert "GPUs none" in words(cli("instances", "ml.m5.xlarge").out)
    text = words(cli("instances", "ml.trn2.48xlarge").out)
    assert "Neuron 16 x Trainium2 (96 GiB each, 1536 GiB in all), 64 logical cores in all" in text
    assert "price not known" in text


def test_one_type_as_json(cli: Cli) -> None:
    """One object with every column."""
    row = json.loads(cli("instances", "ml.p4d.24xlarge", "--json").out)
    assert (row["gpu"], row["gpus"], row["interconnect"], row["price_date"]) == (
        "A100-40GB",
        8,
        "rdma",
        "2026-09-01",
    )


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["ml.p5.48xlrage"], "there is no instance type `ml.p5.48xlrage` on sagemaker", suggested("ml.p5.48xlarge")),
        (["p4d.24xlarge"], "there is no instance type `p4d.24xlarge` on sagemaker", suggested("ml.p4d.24xlarge")),
        (["zzz"], "there is no instance type `zzz`", "`cloudtrain instances --all` lists all types"),
        (["standard_nc6"], "there is no instance type `standard_nc6` on sagemaker", "add `--target azureml`"),
        (["--gpu", "A1000"], "no instance type has the GPU `A1000`", suggested("A100")),
        (["--gpu", "A100-64GB"], "no instance type has the GPU `A100-64GB`", "use `A100-40GB` or `A100-80GB`"),
        (["--sort", "prise"], "there is no sort key `prise`", suggested("price")),
        (["--interconnect", "rmda"], "there is no interconnect `rmda`", suggested("rdma")),
        (["--min-gpu-memory", "much"], '`"much"` is not a size', "write a number with a unit, for example `40g`"),
        (["--max-price", "-1"], "`--max-price -1` is not a price", "write for example `2.50`"),
        (["--max-price", "nan"], "`--max-price nan` is not a price", "write for example `2.50`"),
        (["--target", "sagemeker"], "`sagemeker` is not a target", suggested("sagemaker")),
        (["--target", "local"], "there is no table of instance types for `local`",
         "use `--target sagemaker` or `--target azureml`"),
        (["ml.p5.48xlarge", "--min-gpu-memory", "1g"], "`--min-gpu-memory` has no effect", "remove `--min-gpu-memory`"),
    ],
)  # fmt: skip
def test_mistakes(cli: Cli, arguments: list[str], message: str, hint: str) -> None:
    """Exit code 2, the mistake and the way out on stderr, nothing on stdout."""
    result = cli("instances", *arguments)
    assert (result.code, result.out) == (2, "")
    error, _, given = result.err.partition("\n\nhint: ")
    assert error.startswith("error: ")
    assert message in words(error)
    assert words(given) == hint


def test_own_prices_and_types(cli: Cli, clean_environment: Path) -> None:
    """`instances.toml` in the project corrects a price and adds a type."""
    (clean_environment / "instances.toml").write_text(
        '[sagemaker."ml.p5.48xlarge"]\nprice = 55.04\n'
        '[sagemaker."ml.p7.48xlarge"]\nvcpus = 256\nmemory_gib = 4096\ngpus = 8\ngpu = "R100-288GB"\nprice = 9\n'
    )
    assert "55.04\n" in cli("instances", "--gpu", "H100", "--gpus", "8").out
    assert names(cli("instances", "--gpu", "r100").out) == ["ml.p7.48xlarge"]
    assert "instances.toml" in words(cli("instances", "ml.p7.48xlarge").out)
    assert "/instances.toml, which gives no date" in words(cli("instances", "--gpu", "r100").err)


def test_a_wrong_file_of_own_prices(cli: Cli, clean_environment: Path) -> None:
    """Exit code 2, with the file's name and the nearest column."""
    (clean_environment / "instances.toml").write_text(
        '[sagemaker."ml.p5.48xlarge"]\nprise = 55.04\n'
    )
    result = cli("instances")
    assert (result.code, result.out) == (2, "")
    assert "instances.toml" in result.err
    assert f"hint: {suggested('price')}" in result.err
