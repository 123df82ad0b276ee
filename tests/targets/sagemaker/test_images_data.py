"""The tables behind the image catalogue: whole, sane, with sources, and small."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from cloudtrain.targets.sagemaker.catalogue import images as image_data
from cloudtrain.targets.sagemaker.catalogue.images import (
    facts,
    image_of_uri,
    numbers,
    registries,
    resolve_image,
    rows,
    tables,
)

FRAMEWORKS = ("pytorch", "tensorflow", "huggingface")


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "pytorch-smp"])
def test_every_row_is_whole(framework: str) -> None:
    """Each image has a version, a Python, a device, a repository and at least one region."""
    for row in rows(framework):
        assert re.fullmatch(r"\d+(\.\d+)+", row.version)
        assert row.python
        assert all(re.fullmatch(r"py3\d*", python) for python in row.python)
        assert set(row.devices) <= {"gpu", "cpu", "neuron"}
        assert set(row.suffix) <= set(row.devices)
        assert row.accounts
        # by hand
        assert row.sdk in (2, 3) or row.repository == "pytorch-training-neuronx" or row.in_test
        assert (framework == "huggingface") == bool(
            re.fullmatch(r"(pytorch|tensorflow)\d.*", row.base)
        )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_row_stands_twice(framework: str) -> None:
    """One row for each version, base and repository, oldest first."""
    keys = [(row.version, row.base, row.repository) for row in rows(framework)]
    assert len(set(keys)) == len(keys)
    assert [numbers(version) for version, _, _ in keys] == sorted(
        numbers(version) for version, _, _ in keys
    )


def test_every_account_is_an_account() -> None:
    """Twelve digits, and regions as AWS writes them."""
    for accounts in registries():
        for region, account in accounts.items():
            assert re.fullmatch(r"\d{12}", account)
            assert re.fullmatch(r"[a-z]{2,4}(-[a-z]+)+-\d", region)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_address_can_be_read_back(framework: str) -> None:
    """Each image's own address tells all that its version told, in every region of its table."""
    for row in rows(framework):
        for device in row.devices:
            for python in row.python:
                image = resolve_image(
                    framework,
                    row.version,
                    region=min(row.accounts),
                    device=device,
                    python=python,
                    base=row.base or None,
                )
                assert image_of_uri(image.uri) == image


def test_every_fact_has_its_source() -> None:
    """Each fact that the SDKs do not know says where it comes from."""
    for table in ("toolkit", "smddp", "smp1", "python"):
        assert all(fact["source"] for fact in facts()[table])
    assert all(facts()[f"{table}_source"] for table in ("smp2", "cuda", "older_gpu_tags"))
    assert tables()["source"] == {"sagemaker": "2.257.7", "sagemaker-core": "2.27.0"}


def test_every_fact_is_about_an_image() -> None:
    """A version that a fact names has an image, so that a slip of the pen is found."""
    for fact in facts()["smp1"]:
        assert set(fact["versions"]) <= {row.version for row in rows(fact["framework"])}
    for framework, lines in facts()["cuda"].items():
        assert set(lines) <= {".".join(row.version.split(".")[:2]) for row in rows(framework)}
    known = {row.version for row in rows("pytorch-smp")} | set(tables()["smp_aliases"])
    assert set(facts()["smp2"]) <= known
    for key in facts()["older_gpu_tags"]:
        framework, version, _, python = key.split("-")
        assert any(row.version == version and python in row.python for row in rows(framework))


def test_the_cuda_of_a_hugging_face_tag_is_that_of_its_base() -> None:
    """Two sources agree: the tags of Hugging Face images, and the table of CUDA versions."""
    compared = 0
    for row in rows("huggingface"):
        tag = re.match(r"cu(\d+)(\d)-", row.suffix.get("gpu", ""))
        framework, version = re.fullmatch(r"([a-z]+)(.*)", row.base).groups()  # type: ignore[union-attr]
        known = facts()["cuda"][framework].get(".".join(version.split(".")[:2]))
        if tag and known and row.base != "pytorch1.8.1":  # built twice, with CUDA 11.0 and 11.1
            assert f"{tag[1]}.{tag[2]}" == known
            compared += 1
    assert compared >= 15


def test_reading_the_tables_is_cheap() -> None:
    """They stay small, and importing the catalogue does not read them."""
    sizes = [
        (image_data.DATA / f"{name}.json").stat().st_size
        for name in ("images", "image_facts", "shapes")
    ]
    assert all(size < 40_000 for size in sizes)
    program = "import cloudtrain.targets.sagemaker.catalogue.images as i, cloudtrain.targets.sagemaker.catalogue.images as d; print(d.tables.cache_info().currsize)"
    done: Any = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0"
