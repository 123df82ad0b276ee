"""What a machine has is compared with the lines of a requirements file."""

from __future__ import annotations

import pytest

from cloudtrain.errors import JobError
from cloudtrain.job.pip_file import PipFile
from cloudtrain.lifecycle.preparing.environment import check_lines
from cloudtrain.machines.contents import Contents

EARLY = Contents("3.14.0rc1", torch="2.13.0a0+nv26.11", is_image=True)


def check(text: str) -> None:
    """Compare a file's lines with a machine that has early versions."""
    check_lines(PipFile("r.txt", {"r.txt": text}.get), ("r.txt",), lambda path: None, EARLY)


def test_a_machine_with_versions_before_their_release() -> None:
    """Only their numbers count."""
    check("torchvision==0.28.1\ntqdm>=4\n")
    with pytest.raises(JobError, match=r"asks for `torchvision==0\.15\.2`"):
        check("torchvision==0.15.2\n")
