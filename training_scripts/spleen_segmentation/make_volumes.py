"""Write volumes in the layout of the Medical Segmentation Decathlon, to try the scripts with; none shows a patient.

    python make_volumes.py                        # 12 synthetic volumes in data/raw: ellipsoids for organs, and noise
    python make_volumes.py --kind epi             # a real scan of a head that comes with nibabel; no organ is labelled

The synthetic volumes differ in size, voxels, orientation and anatomy, like those of a hospital. The scan is nibabel's
`example4d.nii.gz` (MIT licence): one head, twice, by magnetic resonance. It comes without labels, so its label is
simply the head, separated from the air by Otsu's threshold.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from volumes import Array


@dataclass
class Config:
    kind: Literal["synthetic", "epi"] = "synthetic"
    folder: Path = Path("data", "raw")
    count: int = 12  # synthetic volumes
    voxel: float = 6.0  # mm, about: smaller voxels make larger volumes
    seed: int = 1


AT_LEAST = {"count": 1, "voxel": 0.1}


ORIENTATIONS = ("LPS", "RAS", "LAS")
"""Directions of a file's axes: to the left or right, back or front, feet (inferior) or head (superior)."""

# Centre and half axes in mm, from the centre of the body towards right, front, head; and Hounsfield
# units.
ORGANS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], int]] = {
    "liver": ((65, 10, 20), (65, 60, 48), 85),
    "stomach": ((-40, 45, 15), (40, 28, 34), 0),
    "right kidney": ((58, -45, -40), (22, 22, 42), 180),
    "left kidney": ((-52, -48, -45), (22, 22, 42), 180),
    "spine": ((0, -68, 0), (20, 20, 500), 300),
    "spleen": ((-88, -28, 18), (26, 44, 38), 125),
}
LABELS = {"0": "background", "1": "synthetic spleen"}


def synthetic(random: np.random.Generator, voxel: float) -> tuple[Array, Array, Array]:
    """Return Hounsfield units, label and affine of a body of muscle under fat, with organs in it, in air, under
    noise."""
    spacing = voxel * random.uniform((0.85, 0.85, 1.0), (1.15, 1.15, 2.0))
    body = np.array((155, 112, 500)) * random.uniform(0.9, 1.1, 3)
    field = np.array((2 * body[0] + 40, 2 * body[1] + 40, random.uniform(130, 190)))
    shape = (field / spacing).astype(int)
    mm = np.meshgrid(
        *((np.arange(n) - (n - 1) / 2) * s for n, s in zip(shape, spacing, strict=True)),
        indexing="ij",
    )

    def ellipsoid(centre: Any, axes: Any) -> Array:
        return sum(((place - c) / a) ** 2 for place, c, a in zip(mm, centre, axes, strict=True)) < 1

    units = np.full(shape, -1000.0)
    units[ellipsoid((0, 0, 0), body)] = -90
    units[ellipsoid((0, 0, 0), body - (18, 18, 0))] = 45
    for centre, axes, value in ORGANS.values():
        where = ellipsoid(
            centre + random.normal(0, 5, 3), np.array(axes) * random.uniform(0.85, 1.15, 3)
        )
        units[where] = value + random.normal(0, 5)
    units += random.normal(0, 18, shape)
    affine = nibabel.affines.from_matvec(
        np.diag(spacing), -(shape - 1) / 2 * spacing + random.uniform(-50, 50, 3)
    )
    return units, where, affine  # the spleen is the last of the organs


def write_synthetic(folder: Path, count: int, voxel: float, seed: int) -> Path:
    """Write a task of synthetic volumes. Return its folder."""
    names = [f"synthetic_{number:02}" for number in range(count)]
    for number, name in enumerate(names):
        units, label, affine = synthetic(np.random.default_rng([seed, number]), voxel)
        orientation = nibabel.orientations.axcodes2ornt(ORIENTATIONS[number % len(ORIENTATIONS)])
        for part, values, kind in (
            ("imagesTr", units.round(), np.int16),
            ("labelsTr", label, np.uint8),
        ):
            image = nibabel.Nifti1Image(values.astype(kind), affine).as_reoriented(orientation)
            save(image, folder / part / f"{name}.nii.gz")
    about = "Synthetic volumes, not patients: ellipsoids for organs, and noise."
    return write_task(folder, "Synthetic", about, "CT", LABELS, names)


def write_epi(folder: Path) -> Path:
    """Write a task of nibabel's scan, with each of its two points in time as a volume. Return its folder."""
    scan = nibabel.load(Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz")
    values = np.asarray(scan.dataobj)
    names = [f"epi_{time}" for time in range(values.shape[3])]
    for time, name in enumerate(names):
        volume = values[..., time]
        head = (volume > otsu(volume)).astype(np.uint8)
        save(nibabel.Nifti1Image(volume, scan.affine), folder / "imagesTr" / f"{name}.nii.gz")
        save(nibabel.Nifti1Image(head, scan.affine), folder / "labelsTr" / f"{name}.nii.gz")
    about = "nibabel's example4d.nii.gz. The label is Otsu's threshold, which tells the head from the air."
    return write_task(
        folder, "EPI", about, "MRI", {"0": "background", "1": "head by Otsu's threshold"}, names
    )


def otsu(values: Array) -> float:
    """Return the threshold that divides values into two groups with the least variance inside (Otsu, 1979)."""
    counts, edges = np.histogram(values, 256)
    centres = (edges[1:] + edges[:-1]) / 2
    below, sums = np.cumsum(counts)[:-1], np.cumsum(counts * centres)
    above, rest = counts.sum() - below, sums[-1] - sums[:-1]
    between = below * above * (sums[:-1] / below - rest / np.maximum(above, 1)) ** 2
    return float(edges[1:][between.argmax()])


def save(image: nibabel.Nifti1Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)


def write_task(
    folder: Path,
    name: str,
    description: str,
    modality: str,
    labels: dict[str, str],
    names: list[str],
) -> Path:
    """Write dataset.json in the Decathlon's format."""
    task = {
        "name": name,
        "description": description,
        "tensorImageSize": "3D",
        "modality": {"0": modality},
        "labels": labels,
        "numTraining": len(names),
        "numTest": 0,
        "training": [
            {"image": f"./imagesTr/{n}.nii.gz", "label": f"./labelsTr/{n}.nii.gz"} for n in names
        ],
        "test": [],
    }
    (folder / "dataset.json").write_text(json.dumps(task, indent=1) + "\n")
    return folder


if __name__ == "__main__":
    config = runtime.arguments(Config, at_least=AT_LEAST)
    if config.kind == "epi":
        print(write_epi(config.folder))
    else:
        print(write_synthetic(config.folder, config.count, config.voxel, config.seed))
