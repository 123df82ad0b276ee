"""Guess the properties of an Azure VM size that the catalogue lacks, from its name; suggest a size for a misspelt name.

`Standard_ND96isr_H100_v5` is family ND, 96 vCPUs, features `isr`, accelerator H100, version 5. An `r` among the
features means RDMA, which is InfiniBand. The rule holds for all sizes of the catalogue's table, but Azure does not
promise it. No name tells whether the InfiniBand has SR-IOV, which NCCL needs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(
    r"standard_(?P<family>[a-z]+)(?P<vcpus>\d+)(?:-(?P<enabled>\d+))?(?P<features>[a-z]*)(?P<rest>\w*)", re.IGNORECASE
)

_VERSION = re.compile(r"_v(\d+)$", re.IGNORECASE)

_NUMBERED = ("a", "d", "ds", "g", "gs")
"""Families whose number counted sizes, not vCPUs, before version 3: `Standard_DS3_v2` has 4."""

_MODEL = re.compile(r"[a-z]+\d+[a-z]*", re.IGNORECASE)
"""An accelerator, between the features and the version: the A100 of `_A100_v4`, the GB200 of `_NDR_GB200_v6`."""


class Guess(NamedTuple):
    """The properties that a size's name suggests. `text` is a sentence that marks them as a guess."""

    has_infiniband: bool
    vcpus: int | None
    """The number of vCPUs; None if the name's number counts something else."""
    gpu: str
    """The accelerator's model, such as `H100`; empty if the name has none."""
    text: str


def guess(name: str) -> Guess | None:
    """Return the properties that a size's name (in upper or lower case) suggests; None for a name of another form."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    version = _VERSION.search(name)
    numbered = match["family"].casefold() in _NUMBERED and (version is None or int(version[1]) < 3)
    has_infiniband = "r" in match["features"].casefold()
    models = [word.upper() for word in name.split("_")[2:-1] if _MODEL.fullmatch(word)]
    reason = "`r` among the letters after its number" if has_infiniband else "no `r` among the letters after its number"
    text = f"by its name, `{name}` has {'' if has_infiniband else 'no '}InfiniBand ({reason}); that is a guess"
    vcpus = None if numbered else int(match["enabled"] or match["vcpus"])
    return Guess(has_infiniband, vcpus, models[-1] if models else "", text)


def nearest_size(name: str) -> str | None:
    """Return the catalogue's most similar name of the same series (`NC`, `ND`); None if no name is similar enough."""
    from difflib import get_close_matches  # importing it costs start-up time

    from cloudtrain.catalogue.instances import instance_types

    bare = name.casefold()
    wanted = bare if "_" in bare and bare.startswith("sta") else f"standard_{bare}"
    rows = [row.name for row in instance_types("azureml") if not row.retired]
    names = {row.casefold(): row for row in rows if _series(row) in (_series(wanted), None)}
    return next((names[match] for match in get_close_matches(wanted, names, n=1, cutoff=0.8)), None)


def _series(name: str) -> str | None:
    """Return the series of a size: the letters before its number, such as `nc`; None for a name of another form."""
    match = re.match(r"[a-z]+_([a-z]+)", name.casefold())
    return match[1] if match else None
