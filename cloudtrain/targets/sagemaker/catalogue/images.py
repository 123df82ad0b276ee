"""AWS's own training images: find the address for a framework and version, or the contents for an address.

Addresses equal those of the SageMaker SDK (2.257.7) for the same framework, version, Python, device and region; later
images come from the tables of SDK 3. `image_data` names the sources.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

from cloudtrain.errors import JobError, Problem, did_you_mean
from cloudtrain.targets.sagemaker.catalogue.image import SMP2_REPOSITORY, Image, describe_image, split_base
from cloudtrain.targets.sagemaker.catalogue.image_data import (
    ImageEntry,
    facts,
    newest,
    numbers,
    registry_host,
    rows,
    tables,
    whole_version,
)
from cloudtrain.targets.sagemaker.catalogue.image_uris import image_of_uri

__all__ = [
    "Image",
    "device_of",
    "frameworks",
    "image_of_uri",
    "resolve_image",
    "smp_aliases",
    "smp_versions",
    "versions",
]

_TITLES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "huggingface": "Hugging Face"}
_DEVICES = {"gpu": "GPUs", "cpu": "CPUs", "neuron": "Trainium"}
_SMP2 = "SageMaker's model parallelism library v2"
_OWN_IMAGE = "give the address of an image as `environment.image`"
_TOO_NEW_FOR_P2 = {"pytorch": (1, 13), "tensorflow": (2, 12)}
"""The versions from which SDK 2 refuses ml.p2 types."""


def frameworks() -> tuple[str, ...]:
    """Return the frameworks that have images."""
    return tuple(_TITLES)


def versions(framework: str, device: str | None = None) -> tuple[str, ...]:
    """Return the versions of a framework that have an image for `device`, or for any device, oldest first."""
    found = (row.version for row in rows(framework) if device is None or device in row.devices)
    return tuple(dict.fromkeys(found))


def smp_aliases() -> dict[str, str]:
    """Return the SDK's own table for model parallelism library v2, which maps PyTorch versions to library versions.

    SDK 2 searches both the keys and the values, so it accepts the library version `2.8.0` as a PyTorch version.
    """
    return dict(tables()["smp_aliases"])


def smp_versions() -> tuple[str, ...]:
    """Return the PyTorch versions that have an image of model parallelism library v2, oldest first."""
    return tuple(facts()["smp2"])


def device_of(instance: str) -> str:
    """Return `gpu`, `cpu` or `neuron`, which the SDK decides by the family of the instance type."""
    family = _family(instance)
    return "neuron" if family.startswith("trn") else "gpu" if family[:1] in ("g", "p") else "cpu"


def resolve_image(
    framework: str,
    version: str | None = None,
    *,
    region: str,
    device: str | None = None,
    instance: str = "",
    python: str | None = None,
    base: str | None = None,
    smp2: bool = False,
    smdistributed: bool = False,
) -> Image:
    """Return the image of a framework and version.

    Args:
        framework: `pytorch`, `tensorflow` or `huggingface`.
        version: full, `2.8.0`, or short, `2.8`, for its newest patch release. Default: the newest version.
        region: the region where the job runs; each has its own registry.
        device: `gpu`, `cpu` or `neuron`. Default: the device of `instance`.
        instance: the instance type. It selects between two variants of a few old images and of the first SMP v2 image.
        python: `3.12` or `py312`. Default: the newest Python of the version.
        base: for Hugging Face, the base framework, such as `pytorch2.8.0` or `pytorch2.8`.
        smp2: return the image of model parallelism library v2; `version` is then the PyTorch version.
        smdistributed: the job uses an smdistributed library, which matters for the old images.

    Raises:
        JobError: AWS has no image for these arguments.
    """
    if framework not in _TITLES:
        names = did_you_mean(framework, _TITLES)
        _fail("framework", f"SageMaker has no images of `{framework}`", f"{names} Or {_OWN_IMAGE}")
    wanted = _Wanted(framework, region, device or device_of(instance or "ml.g5.xlarge"), _python_tag(python), smp2)
    if smp2:
        return _smp2_image(wanted, version, instance)
    row = _row(wanted, version, base)
    if _family(instance) == "p2" and numbers(row.version) >= _TOO_NEW_FOR_P2.get(framework, (99,)):
        message = f"the image of {wanted.title} {row.version} does not run on `{instance}`, whose GPUs are too old"
        hint = "choose a newer type, for example `ml.g5.xlarge`"
        raise JobError([Problem(("resources", "instance_type"), message, hint, code="CT033")])
    chosen = _chosen_python(wanted, row)
    prefix = f"{split_base(row.base)[1]}-transformers{row.version}" if row.base else row.version
    middle = () if row.bare else ("neuronx" if row.repository.endswith("neuronx") else wanted.device, chosen)
    suffix = row.suffix.get(wanted.device) or _older_suffix(wanted, row, chosen, instance, smdistributed)
    tag = "-".join(filter(None, (prefix, *middle, suffix)))
    return describe_image(framework, row.version, chosen, wanted.device, _address(wanted, row, tag), row.base)


class _Wanted(NamedTuple):
    framework: str
    region: str
    device: str
    python: str | None
    smp2: bool

    @property
    def title(self) -> str:
        return _SMP2 if self.smp2 else _TITLES[self.framework]


def _row(wanted: _Wanted, version: str | None, base: str | None) -> ImageEntry:
    candidates = [row for row in rows(wanted.framework) if wanted.device in row.devices]
    if not candidates:
        message = f"SageMaker has no image of {wanted.title} for {_DEVICES[wanted.device]}"
        _fail("framework", message, f"choose another instance type or framework, or {_OWN_IMAGE}")
    known = [row.version for row in candidates]
    whole = _newest_fitting(wanted, candidates) if version is None else whole_version(version, known)
    if whole is None:
        _unknown_version(wanted, version or "", known)
    return _pick_base(wanted, [row for row in candidates if row.version == whole], base)


def _newest_fitting(wanted: _Wanted, candidates: Sequence[ImageEntry]) -> str:
    """Return the newest version in the region that has the wanted Python. If none has it, return the newest version."""
    here = [row for row in candidates if wanted.region in row.accounts] or candidates
    fitting = [row for row in here if wanted.python in (None, *row.pythons)] or here
    return newest(row.version for row in fitting)


def _unknown_version(wanted: _Wanted, version: str, known: Sequence[str]) -> NoReturn:
    last, near = newest(known), _nearest(version, known)
    message = f"SageMaker has no image of {wanted.title} `{version}` for {_DEVICES[wanted.device]}"
    use = f"use `{near}`" if near == last else f"use `{near}`, or the newest, `{last}`"
    _fail("version", f"{message}; the newest is `{last}`", f"{use}; or {_OWN_IMAGE}")


def _nearest(version: str, known: Sequence[str]) -> str:
    """Return the newest patch release of the same minor version; else the next newer version, else the newest."""
    line = numbers(version)[:2]
    same = [one for one in known if numbers(one)[:2] == line]
    newer = [one for one in known if line and numbers(one)[:2] > line]
    return newest(same) if same else min(newer or [newest(known)], key=numbers)


def _pick_base(wanted: _Wanted, candidates: Sequence[ImageEntry], base: str | None) -> ImageEntry:
    """Return the entry with the wanted base framework. Default: the entry with the newest PyTorch."""
    if base is None:
        return max(candidates, key=lambda row: (row.base.startswith("pytorch"), numbers(row.base)))
    if wanted.framework != "huggingface":
        _fail("base", f"`base` applies to Hugging Face images, and this is {wanted.title}", "remove `base`")
    fitting = [row for row in candidates if row.base == base or row.base.startswith(f"{base}.")]
    if not fitting:
        options = ", ".join(f"`{row.base}`" for row in candidates)
        _fail("base", f"no image of Hugging Face {candidates[0].version} is built on `{base}`", f"use {options}")
    return max(fitting, key=lambda row: numbers(row.base))


def _python_tag(python: str | None) -> str | None:
    if python is None:
        return None
    match = re.fullmatch(r"(?:py)?(\d)\.?(\d*)(?:\.\d+)?", python)
    if match is None:
        _fail("python", f"`{python}` is not a version of Python", "write for example `3.12`")
    return f"py{match[1]}{match[2]}"


def _chosen_python(wanted: _Wanted, row: ImageEntry, version: str | None = None) -> str:
    if wanted.python is None:
        return max(row.pythons, key=numbers)
    if wanted.python not in row.pythons:
        has = [_python_version(python) for python in row.pythons]
        message = f"the image of {wanted.title} {version or row.version} has Python {' and '.join(has)}"
        use = " or ".join(f"`{one}`" for one in has)
        _fail("python", f"{message}, not {_python_version(wanted.python)}", f"use {use}, or leave out `python`")
    return wanted.python


def _python_version(python: str) -> str:
    """Return `py312` as `3.12`."""
    return f"{python[2]}.{python[3:]}".rstrip(".")


def _older_suffix(wanted: _Wanted, row: ImageEntry, python: str, instance: str, smdistributed: bool) -> str:
    """Return the last part of the tag, `cu110-ubuntu18.04`, for images whose tag needs it; empty for all others.

    Called only for images without a suffix in the catalogue. Of these, Hugging Face images (with `row.base`) always
    need it. Some images of 2020 need it on p4d, or with an smdistributed library. The SDK uses the same rule.
    """
    if row.base:
        return "cu110-ubuntu18.04"
    if _family(instance) != "p4d" and not smdistributed:
        return ""
    key = f"{wanted.framework}-{row.version}-{wanted.device}-{python}"
    return str(facts()["older_gpu_tags"].get(key, ""))


def _address(wanted: _Wanted, row: ImageEntry, tag: str) -> tuple[str, str, str]:
    account = row.accounts.get(wanted.region)
    if account is None:
        message = f"`{wanted.region}` has no image of {wanted.title} {row.version} for {_DEVICES[wanted.device]}"
        near = get_close_matches(wanted.region, row.accounts, n=3)
        regions = ", ".join(f"`{one}`" for one in near) + " or another of the " if near else "one of the "
        hint = f"{_OWN_IMAGE}, or use {regions}{len(row.accounts)} regions that have it"
        raise JobError([Problem(("environment",), message, hint, code="CT034")])
    return registry_host(account, wanted.region), row.repository, tag


def _smp2_image(wanted: _Wanted, version: str | None, instance: str) -> Image:
    """Return the image of model parallelism library v2.

    Like the SDK, this function also accepts a library version in place of the PyTorch version. The image's `doubt` then
    says that AWS has no such image.
    """
    if wanted.framework != "pytorch" or wanted.device != "gpu":
        message = f"{_SMP2} is for PyTorch on GPUs, not {_TITLES[wanted.framework]} on {_DEVICES[wanted.device]}"
        _fail("framework", message, "use `framework: pytorch` and an instance type with GPUs")
    by_version, aliases, real = {row.version: row for row in rows("pytorch-smp")}, smp_aliases(), smp_versions()
    whole = (
        newest(real)
        if version is None
        else whole_version(version, real) or whole_version(version, [*by_version, *aliases])
    )
    if whole is None:
        _unknown_version(wanted, version or "", real)
    row = by_version[aliases.get(whole, whole)]
    python = _chosen_python(wanted, row, whole)
    address = _address(wanted, row, f"{whole}-gpu-{python}-{_smp2_cuda(whole, instance)}")
    assert address[1] == SMP2_REPOSITORY
    return describe_image("pytorch", whole, python, "gpu", address)


def _smp2_cuda(version: str, instance: str) -> str:
    """Return the CUDA version of an SMP v2 image: `cu124`, `cu121` or `cu118`.

    The rule is that of sagemaker 2.257.7 (image_uris.py, get_training_image_uri).
    """
    if "2.5" in version:
        return "cu124"
    return "cu121" if "p5" in instance or any(one in version for one in ("2.1", "2.2", "2.3", "2.4")) else "cu118"


def _family(instance: str) -> str:
    """Return the family of an instance type: `p4d` for `ml.p4d.24xlarge`."""
    return instance.removeprefix("ml.").partition(".")[0]


def _fail(field: str, message: str, hint: str) -> NoReturn:
    raise JobError([Problem(("environment", field), message, hint, code="CT034")])
