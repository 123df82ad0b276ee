"""Uploads that are not straight: links in a circle, Ctrl-C, many files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.common.transfers import count_bytes
from tests.fakes.azureml import FakeAzure
from tests.targets.azureml.conftest import Source, code_plan, hold_back

pytestmark = pytest.mark.lifecycle

MakeSource = Callable[[dict[str, bytes]], Source]


def test_links_that_lead_to_each_other(
    fake: FakeAzure, service: AzureMLService, source: MakeSource, tmp_path: Path
) -> None:
    """As packages of one repository name each other: each gets a copy of the other, which ends there."""
    source({"a/one.py": b"1", "b/two.py": b"2"})
    (tmp_path / "src/a/x").symlink_to("../b")
    (tmp_path / "src/b/y").symlink_to("../a")
    code = source({})
    service.upload(code_plan(code), code)
    (container,) = [found for found in fake.blobs.containers.values() if "code/a/one.py" in found]
    assert {name: blob.data for name, blob in container.items() if "cloudtrain/" not in name} == {
        "code/a/one.py": b"1", "code/a/x/two.py": b"2", "code/b/two.py": b"2", "code/b/y/one.py": b"1",
    }  # fmt: skip


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_rest_of_an_upload(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """Blocks that are on their way come to their end, and no other goes; nothing refers to them."""
    code = source({"big.bin": bytes(40 << 20)})
    hold_back(fake, "PUT", r"big\.bin", interrupt=True)
    with pytest.raises(KeyboardInterrupt):
        service.upload(code_plan(code), code)
    sent = fake.received("PUT", r"big\.bin")
    assert len(sent) <= 1 + 4
    assert {request.query["comp"] for request in sent} == {"block"}
    assert fake.assets.names("codes") == []


class Bytes(int):
    """A number of bytes that counts how often such numbers are added up or taken away."""

    sums = 0

    def __add__(self, other: int) -> int:
        type(self).sums += 1
        return Bytes(int(self) + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        type(self).sums += 1
        return Bytes(int(self) - int(other))

    def __rsub__(self, other: int) -> int:
        type(self).sums += 1
        return Bytes(int(other) - int(self))


def test_the_work_for_reports_grows_with_the_number_of_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with its square: what was sent of each file is not added up anew for each report."""
    monkeypatch.setattr(Bytes, "sums", 0)
    files = {f"{number}.txt": Bytes(number) for number in range(100)}
    reports: list[tuple[int, int]] = []
    count = count_bytes(sum(files.values()), lambda *report: reports.append(report))
    for name, size in files.items():
        count(name, size)
    assert reports[-1] == (4950, 4950)
    assert Bytes.sums <= 4 * len(files)
