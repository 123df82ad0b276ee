"""Find the SDK version 2 class for a request's image, and the version arguments that select this image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.errors import JobError
from cloudtrain.targets.sagemaker.catalogue.images import Image, device_of, image_of_uri, resolve_image

_SMP2 = "smdistributed-modelparallel"

_BASES = {"pytorch": "pytorch_version", "tensorflow": "tensorflow_version"}


def framework_of(uri: str) -> str | None:
    """Return `pytorch`, `tensorflow` or `huggingface` for AWS's own images; None for other images."""
    image = image_of_uri(uri)
    return image.framework if image else None


def version_in(uri: str) -> str | None:
    """Return the version of PyTorch or TensorFlow in an AWS image; None for other images."""
    image = image_of_uri(uri)
    return image.engine[1] if image else None


def version_arguments(
    uri: str, region: str, types: Sequence[str], distribution: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return the version arguments for which the SDK chooses exactly the image `uri`; None if there are none.

    `types` are the job's instance types.
    """
    image = image_of_uri(uri)
    if image is None or image.sdk != 2 or image.device == "neuron" or not image.python:
        return None
    instance = next((name for name in types if device_of(name) == "gpu"), types[0])  # the SDK chooses by the same type
    smp2 = "torch_distributed" in distribution and "modelparallel" in distribution.get("smdistributed", {})
    if smp2 != (image.repository == _SMP2) or not _is_picked(
        image, region, instance, smp2, "smdistributed" in distribution
    ):
        return None
    if image.framework != "huggingface":
        return {"framework_version": image.version, "py_version": image.python}
    base, version = image.engine
    return {"transformers_version": image.version, _BASES[base]: version, "py_version": image.python}


def _is_picked(image: Image, region: str, instance: str, smp2: bool, smdistributed: bool) -> bool:
    try:
        found = resolve_image(
            image.framework,
            image.version,
            region=region,
            instance=instance,
            python=image.python,
            base=image.base or None,
            smp2=smp2,
            smdistributed=smdistributed,
        )
    except JobError:
        return False
    return found.uri == image.uri
