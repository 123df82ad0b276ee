"""Prepare NIfTI volumes for training: the same orientation, voxel size and grey values for all, cut to the body.

The task lies in data/raw as the Medical Segmentation Decathlon lays it out (dataset.json, imagesTr, labelsTr):
    python prepare.py
    python prepare.py --raw Task09_Spleen --workers 8

Each process its share, however processes are started:
    torchrun --nproc-per-node 8 prepare.py --workers 1
    cloudtrain submit prepare.yaml --instances 2
    cloudtrain submit prepare.yaml --target sagemaker
    cloudtrain submit prepare.yaml --target azureml

Volumes that exist already, from the same files with the same settings, are kept. So run the script again after a
failure, a stop, or new volumes. If a volume cannot be prepared, the script names it, prepares the others, and ends with
exit code 1.
"""

import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime

from volumes import Array, Volume, write_volume


@dataclass
class Config:
    # a task in the layout of the Decathlon, unless a job gives the inputs
    raw: Path = Path("data", "raw")
    # mm between voxels: right, front, head
    spacing: list[float] = field(default_factory=lambda: [1.5, 1.5, 2.0])
    # CT: Hounsfield units that become 0 and 1
    window: list[float] = field(default_factory=lambda: [-57.0, 164.0])
    workers: int = 0  # processes on this instance; 0: one for each core


AT_LEAST = {"workers": 0}


@dataclass(frozen=True)
class Settings:
    """The settings that determine a prepared volume, in addition to its two files."""

    spacing: tuple[float, float, float]
    window: tuple[float, float]
    modality: str
    labels: Mapping[str, str]
    version: int = 1  # of the code below: raise it when the same files give other volumes


@dataclass(frozen=True)
class Case:
    """A scan and its label, and the path of the prepared volume."""

    image: Path
    label: Path
    volume: Volume


# The task.


def read_task(raw: Path) -> tuple[dict[str, Any], Path, Path]:
    """Return dataset.json, and the folders of images and labels: those of the task, or the inputs of a job."""
    place = runtime.input_dir("dataset", default=raw / "dataset.json")
    images = runtime.input_dir("images", default=raw / "imagesTr")
    labels = runtime.input_dir("labels", default=raw / "labelsTr")
    return task_in(place / "dataset.json" if place.is_dir() else place), images, labels


def task_in(path: Path) -> dict[str, Any]:
    """Read dataset.json and check its format.

    Raises:
        SetupError: the file does not have the Decathlon's format, or names nothing to train on.
    """
    try:
        task: dict[str, Any] = json.loads(path.read_text("utf-8"))
        pairs = [(pair["image"], pair["label"]) for pair in task["training"]]
        task["modality"]["0"], task["labels"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise runtime.SetupError(
            f"`{path}` cannot be read as a task: {type(error).__name__}: {error}",
            hint="it should hold `modality`, `labels` and `training`, as in the Medical Segmentation Decathlon",
        ) from None
    if not pairs:
        raise runtime.SetupError(
            f"`{path}` names nothing to train on", hint="list images and labels in its `training`"
        )
    return task


def cases_of(task: Mapping[str, Any], images: Path, labels: Path, out: Path) -> list[Case]:
    """Return the scans that dataset.json names for training, by name."""
    pairs = sorted(
        (Path(pair["image"]).name, Path(pair["label"]).name) for pair in task["training"]
    )
    return [
        Case(images / image, labels / label, Volume(out, name_of(image))) for image, label in pairs
    ]


def dealt_out(cases: list[Case], images: Path) -> list[Case]:
    """Return the cases whose scan is on this machine.

    Raises:
        SetupError: the folder has files, but none that dataset.json names.
    """
    found = [case for case in cases if case.image.exists()]
    strangers = sorted(path.name for path in images.iterdir() if not path.name.startswith("."))
    if strangers and not found:
        raise runtime.SetupError(
            f"dataset.json names none of the {len(strangers)} files in `{images}`, of which one is `{strangers[0]}`",
            hint=f"it names `{cases[0].image.name}`: give the images that belong to it",
        )
    return found


def name_of(file: str) -> str:
    return file.removesuffix(".gz").removesuffix(".nii")


# One volume.


def prepare_one(case: Case, settings: Settings) -> str:
    """Prepare one volume, unless it already exists. Return a description of the result.

    Raises:
        ValueError: image and label do not match dataset.json.
        Exception: any error from reading a broken file.
    """
    made_from = {"image": digest(case.image), "label": digest(case.label)}
    made_with = json.loads(json.dumps(asdict(settings)))
    if is_there(case.volume, made_from, made_with):
        return "already there"
    image, affine = read_nifti(case.image)
    label, label_affine = read_nifti(case.label)
    check(image, affine, label, label_affine, settings)
    grey = NORMALISE[settings.modality](image, settings)
    box, affine = body(grey, affine)
    lost = np.count_nonzero(label) - np.count_nonzero(label[box])
    if lost:
        raise ValueError(f"{lost} labelled voxels lie outside of the body, as the window shows it")
    matrices, affine = weights(affine, grey[box].shape, settings.spacing)
    made = resampled(grey[box], matrices).astype(np.float16)
    classes = resampled_classes(label[box].astype(np.uint8), matrices, len(settings.labels))
    facts = {
        "shape": made.shape,
        "spacing": settings.spacing,
        "affine": affine.tolist(),
        "labels": settings.labels,
        "made_from": made_from,
        "made_with": made_with,
    }
    write_volume(case.volume, made, classes, facts)
    return f"{words(image.shape)} became {words(made.shape)}"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_there(volume: Volume, made_from: Any, made_with: Any) -> bool:
    try:
        return volume.is_whole and (volume.facts["made_from"], volume.facts["made_with"]) == (
            made_from,
            made_with,
        )
    except (OSError, ValueError, KeyError):
        return False


def read_nifti(path: Path) -> tuple[Array, Array]:
    """Return values as float32, with axes turned to right, front, head, and the matrix from voxels to the scanner's
    mm."""
    image = nibabel.as_closest_canonical(nibabel.load(path))
    return image.get_fdata(dtype=np.float32, caching="unchanged"), image.affine


def check(
    image: Array, affine: Array, label: Array, label_affine: Array, settings: Settings
) -> None:
    """Raise an error for faulty data that training would not detect."""
    if image.ndim != 3:
        raise ValueError(f"the image has {image.ndim} dimensions, not 3")
    if image.shape != label.shape or not np.allclose(affine, label_affine, atol=0.1):
        raise ValueError("image and label are not on the same grid")
    if not np.isfinite(image).all():
        raise ValueError("the image holds NaN or infinite values")
    if not (nibabel.affines.voxel_sizes(affine) > 0).all():
        raise ValueError("the voxel size in the header is zero")
    unknown = sorted(set(np.unique(label).tolist()) - set(range(len(settings.labels))))
    if unknown:
        raise ValueError(f"the label holds {unknown[0]:g}, which dataset.json does not name")


def by_window(image: Array, settings: Settings) -> Array:
    """Normalise CT by a fixed window, because Hounsfield units mean the same in every scanner."""
    low, high = settings.window
    return np.clip((image - low) / (high - low), 0, 1)


def by_percentiles(image: Array, _settings: Settings) -> Array:
    """Normalise magnetic resonance by percentiles, because its grey values have no unit."""
    low, high = np.percentile(image, (0.5, 99.5))
    return np.clip((image - low) / max(high - low, 1e-6), 0, 1)


NORMALISE = {"CT": by_window, "MRI": by_percentiles}
"""The normalisation by dataset.json's modality. All give values from 0 to 1."""


def body(grey: Array, affine: Array) -> tuple[tuple[slice, ...], Array]:
    """Return the smallest box with everything that is not black, and the affine of a volume that begins there."""
    box = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        (inside,) = np.nonzero(grey.max(axis=others) > 0)
        if not len(inside):
            raise ValueError("the whole image is black")
        box.append(slice(int(inside[0]), int(inside[-1]) + 1))
    moved = affine.copy()
    moved[:3, 3] = nibabel.affines.apply_affine(affine, [part.start for part in box])
    return tuple(box), moved


def weights(
    affine: Array, shape: tuple[int, ...], spacing: tuple[float, float, float]
) -> tuple[list[Array], Array]:
    """Return for each axis a matrix (new voxels, old voxels), and the new affine.

    A new voxel is the mean of the old ones around it, weighted by a triangle as wide as the larger of the two voxels:
    linear interpolation where voxels get smaller, and no aliasing where they get larger.
    """
    steps = np.asarray(spacing) / nibabel.affines.voxel_sizes(affine)
    matrices = []
    for size, step in zip(shape, steps, strict=True):
        places = np.arange(int((size - 1) / step + 1e-6) + 1) * step
        near = np.clip(1 - np.abs(places[:, None] - np.arange(size)) / max(step, 1), 0, None)
        matrices.append((near / near.sum(1, keepdims=True)).astype(np.float32))
    scaled = affine.copy()
    scaled[:3, :3] *= steps
    return matrices, scaled


def resampled(volume: Array, matrices: list[Array]) -> Array:
    """Resample one axis after the other, each by a matrix product."""
    first, second, third = matrices
    volume = np.tensordot(first, volume, 1)
    return np.matmul(second, volume) @ third.T


def resampled_classes(label: Array, matrices: list[Array], classes: int) -> Array:
    """Resample labels: each voxel gets the class that weighs most in it."""
    best = resampled((label == 0).astype(np.float32), matrices)
    found = np.zeros(best.shape, np.uint8)
    for number in range(1, classes):
        weight = resampled((label == number).astype(np.float32), matrices)
        found[weight > best] = number
        best = np.maximum(best, weight)
    return found


def words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


# All volumes.


def outcome(case: Case, settings: Settings) -> tuple[str, str | None]:
    """Prepare one volume. Return a description of the result, or the reason of the failure."""
    try:
        return prepare_one(case, settings), None
    # whatever is wrong with one file, the others are prepared
    except Exception as error:  # noqa: BLE001
        return "", f"{type(error).__name__}: {' '.join(str(error).split())}"


def outcomes(
    cases: list[Case], settings: Settings, workers: int
) -> Iterator[tuple[Case, str, str | None]]:
    """Yield outcomes as they come. The largest volumes start first, so that all workers stay busy to the end. Ends
    early when asked to stop."""
    ordered = sorted(
        cases,
        key=lambda case: case.image.stat().st_size if case.image.exists() else 0,
        reverse=True,
    )
    if workers == 1:
        for case in ordered:
            yield case, *outcome(case, settings)
        return
    # Numerics in one thread each: the cores are shared out by volumes. Workers are new processes,
    # which read this.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, context, initializer=runtime.leave_stops_to_the_parent
    ) as pool:
        running = {submitted(pool, case, settings): case for case in ordered}
        try:
            for future in as_completed(running):
                try:
                    yield running[future], *future.result()
                except BrokenProcessPool:
                    for worker in multiprocessing.active_children():
                        # the pool sends SIGTERM, which they leave to their parent, and waits for
                        # them
                        worker.kill()
                    yield (
                        running[future],
                        "",
                        "a worker was killed, perhaps for its memory: try fewer `--workers`",
                    )
        finally:
            pool.shutdown(cancel_futures=True)


def submitted(
    pool: ProcessPoolExecutor, case: Case, settings: Settings
) -> Future[tuple[str, str | None]]:
    """Submit a case. A pool that has lost a worker refuses new work at once; here that becomes the case's outcome,
    too."""
    try:
        return pool.submit(outcome, case, settings)
    except BrokenProcessPool as error:
        broken: Future[tuple[str, str | None]] = Future()
        broken.set_exception(error)
        return broken


def settings_of(config: Config, task: Mapping[str, Any]) -> Settings:
    modality = task["modality"]["0"]
    if modality not in NORMALISE:
        raise runtime.SetupError(
            f"the modality is `{modality}`", hint=f"one of {', '.join(NORMALISE)} is understood"
        )
    if len(config.spacing) != 3 or min(config.spacing) <= 0:
        raise runtime.SetupError(
            f"`--spacing {config.spacing}` is no size of a voxel",
            hint="three numbers of mm, such as 1.5,1.5,2",
        )
    if len(config.window) != 2 or not config.window[0] < config.window[1]:
        raise runtime.SetupError(
            f"`--window {config.window}` has no width",
            hint="two numbers, the smaller one first, such as -57,164",
        )
    spacing, window = tuple(config.spacing), tuple(config.window)
    # lengths are checked
    return Settings(spacing, window, modality, task["labels"])  # type: ignore[arg-type]


def prepare_all(raw: Path, out: Path, spacing: tuple[float, float, float]) -> None:
    """Prepare a whole task in this process, for code that imports this file.

    Raises:
        Exception: a volume cannot be prepared.
    """
    task = task_in(raw / "dataset.json")
    settings = settings_of(Config(spacing=list(spacing)), task)
    for case in cases_of(task, raw / "imagesTr", raw / "labelsTr", out):
        prepare_one(case, settings)


def cores() -> int:
    """Return the cores that this process may use: fewer than the machine has, in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    config = runtime.arguments(Config, at_least=AT_LEAST)
    runtime.watch_for_stop()
    here, out = runtime.detect_environment(), runtime.output_dir("volumes")
    task, images, labels = read_task(config.raw)
    settings, cases = settings_of(config, task), cases_of(task, images, labels, out)
    # the service has dealt out the images: what is not here is somewhere else
    if here.node_count > 1:
        cases = dealt_out(cases, images)
    mine = cases[here.rank :: here.world_size]
    workers = max(1, min(config.workers or cores(), len(mine)))
    started, failed, done = time.perf_counter(), 0, 0
    for case, text, problem in outcomes(mine, settings, workers):
        done += 1
        failed += problem is not None
        print(f"{case.volume.name}: {problem or text}", flush=True)
        if runtime.should_stop() and done < len(mine):
            runtime.exit_preempted(done)
    seconds = time.perf_counter() - started
    print(
        f"{done - failed} of {len(mine)} volumes are prepared, {failed} failed, {seconds:.1f} s",
        flush=True,
    )
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
