"""GPU names in the forms that people and drivers use: `H100`, `a100 40gb`, `A100-40GB`, `NVIDIA A100-SXM4-40GB`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from cloudtrain.catalogue.instances import InstanceType
from cloudtrain.errors import did_you_mean

_NOISE = re.compile(r"nvidia|tesla|geforce|amd|instinct|gpu|tensor|core|server|edition|blackwell|sxm\d*|pcie|hbm\d*e?")
"""Words that add nothing to the model and its memory."""

_VARIANT = "nvl"
"""A variant of a card: `H100` also means an `H100-NVL-94GB`, but `H100-NVL` means only that card."""

_UNIT = re.compile(r"(?<=\d)\s*(?:gi?b?)\b")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)g")
_BARE_MEMORY = re.compile(r"\d{2,3}")
"""A last word such as the 40 of `A100-40`. Four digits belong to the model, as in `RTX PRO 6000`."""

_GB_PER_GIB = 2**30 / 10**9

_TOLERANCE = 0.02


class Gpu(NamedTuple):
    """A parsed GPU name. The model is in lower case, without spaces and makers' names. The memory is in gigabytes, None
    if the name does not contain it."""

    model: str
    memory: float | None


@cache
def read_gpu(text: str) -> Gpu:
    """Parse a GPU name: `A100-40GB` gives `Gpu("a100", 40.0)`. Any text gives a result; an unknown model matches no
    instance type."""
    words = [
        word
        for word in re.split(r"[^a-z0-9.]+", _UNIT.sub("g", text.casefold()))
        if word and not _NOISE.fullmatch(word)
    ]
    memory = None
    for number, word in enumerate(words):
        if match := _MEMORY.fullmatch(word):
            memory = float(match[1])
            del words[number]
            break
    else:
        if len(words) > 1 and _BARE_MEMORY.fullmatch(words[-1]):
            memory = float(words.pop())
    return Gpu("".join(words), memory)


def same_model(written: str, own: str) -> bool:
    """Return whether the user's GPU name `written` and the catalogue's GPU name `own` mean the same model: `H100`
    matches `H100-80GB` and `H100-NVL-94GB`."""
    wanted, model = read_gpu(written).model, read_gpu(own).model
    return bool(own) and model in (wanted, wanted + _VARIANT)


def has_gpu(instance: InstanceType, written: str) -> bool:
    """Return whether the instance type has the GPU that `written` names. Without a memory size, every size fits: `A100`
    matches `A100-40GB` and `A100-80GB`.

    A memory size fits if it differs by at most 2% from the size in the catalogue's GPU name, or from the size that the
    driver shows. The driver's size is compared in GiB and in GB.
    """
    wanted, own = read_gpu(written), read_gpu(instance.gpu)
    if not same_model(written, instance.gpu):
        return False
    sizes = (own.memory or 0.0, instance.gpu_memory_gib, instance.gpu_memory_gib * _GB_PER_GIB)
    return wanted.memory is None or any(abs(wanted.memory - size) <= _TOLERANCE * size for size in sizes)


def named_memory(instance: InstanceType) -> float:
    """Return the memory of each GPU, for comparison with `--min-gpu-memory`: the size in the GPU's name, such as 24 for
    an `A10G-24GB`, or the size that the driver shows, whichever is larger. Return 0 if the type has no GPU."""
    return max(read_gpu(instance.gpu).memory or 0.0, instance.gpu_memory_gib)


def gpu_names(types: Iterable[InstanceType]) -> list[str]:
    """Return the names of the GPUs of these types, without duplicates, in alphabetical order."""
    return sorted({instance.gpu for instance in types if instance.gpu})


def unknown_gpu(written: str, types: Iterable[InstanceType]) -> tuple[str, str | None]:
    """Return a message and a hint for a GPU that no type has. The hint names the same GPU with other memory sizes, the
    Neuron instance types, or the most similar name."""
    types = tuple(types)
    wanted = read_gpu(written)
    neuron = [instance.name for instance in types if instance.neuron and wanted.model == instance.neuron.casefold()]
    if neuron:
        named = " or ".join(f"`{name}`" for name in neuron)
        return f"`{written}` is not a GPU", f"name the instance type: {named}"
    siblings = [name for name in gpu_names(types) if same_model(written, name)]
    if siblings:
        return f"no instance type has the GPU `{written}`", "use " + " or ".join(f"`{name}`" for name in siblings)
    models = {name.rpartition("-")[0] for name in gpu_names(types)}
    near = did_you_mean(written, {*models, *gpu_names(types)})
    if near is None or near.startswith("did you mean"):
        return f"no instance type has the GPU `{written}`", near
    return f"no instance type has the GPU `{written}`", did_you_mean(written, models)
