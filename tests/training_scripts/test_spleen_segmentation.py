"""Preparation of volumes, patches, pictures and the projection; then training for real, with MONAI.

Volumes are synthetic, and written by the script's own `make_volumes.py`; one real scan comes with nibabel.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.runtime import SetupError, fork_launcher, parse_metrics
from cloudtrain.runtime.shards import link_share
from tests.deadlines import DEADLINE
from tests.ports import free_port

FOLDER = Path(__file__).parents[2] / "training_scripts" / "spleen_segmentation"
PARTS = ("volumes", "prepare", "make_volumes", "patches")
NO_NIBABEL = "nibabel is not installed: `pip install nibabel==5.4.2` (the extra `dev` has it)"
NO_MONAI = "monai is not installed: `pip install monai==1.6.1` (the extra `dev` has it)"
SAGEMAKER = ct.SageMaker(
    region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
)
AZUREML = ct.AzureML(
    subscription_id="00000000-0000-0000-0000-000000000000", resource_group="group", workspace="work"
)
MM = 8.0


def imported(*names: str) -> Iterator[SimpleNamespace]:
    """Modules of the script, imported as the script does; other scripts have modules of the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in names}
        yield SimpleNamespace(**modules)
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def parts() -> Iterator[SimpleNamespace]:
    """What needs numpy and nibabel."""
    pytest.importorskip("nibabel", reason=NO_NIBABEL)
    yield from imported(*PARTS)


@pytest.fixture(scope="module")
def scaling() -> Iterator[Any]:
    """What needs neither."""
    for found in imported("scaling"):
        yield found.scaling


@pytest.fixture(scope="module")
def task(parts: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six small synthetic volumes. Tests that change files change a copy."""
    return Path(
        parts.make_volumes.write_synthetic(tmp_path_factory.mktemp("task") / "raw", 6, MM, 1)
    )


@pytest.fixture
def raw(task: Path, tmp_path: Path) -> Path:
    """A copy of the task."""
    return Path(shutil.copytree(task, tmp_path / "raw"))


@pytest.fixture(scope="module")
def prepared(parts: Any, task: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The task's volumes, prepared. Like every other preparation here it computes in one thread: the last bit of a matrix
    product depends on the number of threads."""
    folder = tmp_path_factory.mktemp("prepared")
    assert prepare(folder, task, "--workers", "1").returncode == 0
    return list(parts.volumes.read_volumes(folder / "volumes"))


# Preparation of one volume.


def test_preparing_moves_nothing_in_the_patient(
    parts: Any, task: Path, prepared: list[Any]
) -> None:
    """Files point their axes three ways. Afterwards all point right, front, head, and in the scanner's millimetres the
    organ is where it was and as large as it was."""
    import nibabel
    import numpy as np

    def centre_and_size(label: Any, affine: Any) -> tuple[Any, float]:
        centre = nibabel.affines.apply_affine(affine, np.argwhere(label)).mean(0)
        return centre, np.count_nonzero(label) * abs(np.linalg.det(affine[:3, :3]))

    orientations = set()
    for volume in prepared:
        source = nibabel.load(task / "labelsTr" / f"{volume.name}.nii.gz")
        orientations.add(nibabel.aff2axcodes(source.affine))
        before, size_before = centre_and_size(np.asarray(source.dataobj), source.affine)
        affine = np.array(volume.facts["affine"])
        after, size_after = centre_and_size(volume.label, affine)
        assert np.allclose(affine[:3, :3], np.diag((MM, MM, MM)))
        assert np.abs(before - after).max() < MM / 4
        assert size_after == pytest.approx(size_before, rel=0.1)
        assert (volume.image.dtype, volume.label.dtype) == (np.float16, np.uint8)
        assert volume.image.shape == volume.label.shape == tuple(volume.facts["shape"])
        assert (volume.image.min(), volume.image.max()) == (0, 1)
    assert len(orientations) == 3


def test_the_box_is_that_of_the_body(prepared: list[Any]) -> None:
    """No side of a prepared volume is all black."""
    for volume in prepared:
        for axis in range(3):
            sides = volume.image.take((0, -1), axis=axis)
            assert (sides.max(axis=tuple(other for other in range(3) if other != axis)) > 0).all()


@pytest.mark.parametrize("spacing", [(0.5, 0.7, 1.0), (1.0, 1.0, 1.0), (2.5, 3.0, 4.0)])
def test_resampling_keeps_a_slope(parts: Any, spacing: tuple[float, float, float]) -> None:
    """A grey value that grows linearly still does, inside, whether voxels become smaller or larger; its affine tells
    where each voxel is; and rows of weights add up to 1, so that what is constant stays so at the border, too."""
    import numpy as np

    affine = np.diag([1.0, 1.0, 2.0, 1.0])
    x, y, z = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in (20, 24, 16)), indexing="ij")
    slope = 3 * x - y + 0.5 * (2 * z)
    matrices, moved = parts.prepare.weights(affine, slope.shape, spacing)
    made = parts.prepare.resampled(slope, matrices)
    i, j, k = np.meshgrid(*(np.arange(n) for n in made.shape), indexing="ij")
    expected = 3 * i * spacing[0] - j * spacing[1] + 0.5 * k * spacing[2]
    inner = (
        (slice(3, -4),) * 3 if min(made.shape) > 8 else (slice(2, -2), slice(2, -2), slice(2, -2))
    )
    assert np.allclose(made[inner], expected[inner], atol=1e-3)
    assert np.allclose(np.diag(moved)[:3], spacing)
    assert all(np.allclose(matrix.sum(1), 1) for matrix in matrices)
    assert np.allclose(parts.prepare.resampled(np.ones_like(slope), matrices), 1)


def test_a_voxel_gets_the_class_that_weighs_most(parts: Any) -> None:
    """Of three classes along a line, with voxels twice as large."""
    import numpy as np

    label = np.array([1, 1, 1, 0, 0, 2, 2, 2, 2], np.uint8).reshape(9, 1, 1)
    matrices, _ = parts.prepare.weights(np.eye(4), label.shape, (2, 1, 1))
    assert parts.prepare.resampled_classes(label, matrices, 3).ravel().tolist() == [1, 1, 0, 2, 2]


def test_the_window_and_the_percentiles(parts: Any) -> None:
    """Hounsfield units by a fixed window; magnetic resonance, which has no unit, by its own values."""
    import numpy as np

    settings = parts.prepare.settings_of(
        parts.prepare.Config(),
        {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "organ"}},
    )
    units = np.array([-1000, -57, 53.5, 164, 3000], np.float32)
    assert parts.prepare.NORMALISE["CT"](units, settings).tolist() == [0, 0, 0.5, 1, 1]
    scan = np.arange(1001, dtype=np.float32)
    for factor in (1, 7):
        grey = parts.prepare.NORMALISE["MRI"](scan * factor, settings)
        assert (grey[0], grey[500], grey[1000]) == pytest.approx((0, 0.5, 1))


def test_the_real_scan_is_prepared_with_the_label_that_it_can_have(
    parts: Any, tmp_path: Path
) -> None:
    """nibabel's scan at two points in time. Otsu's threshold takes a third of it for the head, in one piece of space,
    and says so."""
    raw = parts.make_volumes.write_epi(tmp_path / "raw")
    assert (
        json.loads((raw / "dataset.json").read_text())["labels"]["1"] == "head by Otsu's threshold"
    )
    parts.prepare.prepare_all(raw, tmp_path, (4, 4, 4))
    first, second = parts.volumes.read_volumes(tmp_path)
    both = ((first.label > 0) & (second.label > 0)).sum()
    assert 2 * both / ((first.label > 0).sum() + (second.label > 0).sum()) > 0.95
    for volume in (first, second):
        assert volume.image[volume.label > 0].mean() > 2 * volume.image[volume.label == 0].mean()


def test_a_modality_that_nobody_has_thought_of_is_refused(parts: Any) -> None:
    """With what there is."""
    with pytest.raises(
        SetupError, match=r"the modality is `PET`\nhint: one of CT, MRI is understood"
    ):
        parts.prepare.settings_of(parts.prepare.Config(), {"modality": {"0": "PET"}, "labels": {}})


@pytest.mark.parametrize(
    "window", [[0.0, 0.0], [164.0, -57.0], [5.0], [], [0.0, 1.0, 2.0], [0.0, float("nan")]]
)
def test_a_window_without_a_width_is_refused(parts: Any, window: list[float]) -> None:
    """Everything would become no number, or black what is white."""
    with pytest.raises(SetupError, match="has no width"):
        parts.prepare.settings_of(
            parts.prepare.Config(window=window), {"modality": {"0": "CT"}, "labels": {}}
        )


TASK = {"modality": {"0": "CT"}, "labels": {"0": "background"}, "training": []}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read as a task: JSONDecodeError"),
        ("[]", "cannot be read as a task: TypeError"),
        (json.dumps({**TASK, "training": ["a.nii.gz"]}), "cannot be read as a task: TypeError"),
        (json.dumps({"training": []}), "cannot be read as a task: KeyError: 'modality'"),
        (json.dumps(TASK), "names nothing to train on"),
    ],
    ids=["torn", "a list", "no pairs", "no modality", "empty"],
)
def test_a_task_that_is_none_is_said(parts: Any, tmp_path: Path, text: str, problem: str) -> None:
    """One sentence that names the file; nothing to do is no success."""
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(SetupError, match=problem):
        parts.prepare.task_in(tmp_path / "dataset.json")


@pytest.mark.slow
@pytest.mark.lifecycle
def test_an_instance_with_other_images_than_the_task_names_fails(raw: Path, tmp_path: Path) -> None:
    """What it was dealt is told from a share that happens to be empty, which is no failure."""
    for number, path in enumerate(sorted((raw / "imagesTr").iterdir())):
        path.rename(path.with_name(f"other_{number}.nii.gz"))
    several = {"CLOUDTRAIN_INSTANCE": "0", "CLOUDTRAIN_INSTANCE_COUNT": "2"}
    strange = prepare(tmp_path, raw, "--workers", "1", **several)
    assert strange.returncode == 1
    assert strange.stderr.startswith("error: dataset.json names none of the 6 files in ")
    (tmp_path / "nothing").mkdir()
    empty = prepare(
        tmp_path,
        raw,
        "--workers",
        "1",
        **several,
        CLOUDTRAIN_INPUT_IMAGES=str(tmp_path / "nothing"),
    )
    assert (empty.returncode, empty.stdout.split(",")[0]) == (0, "0 of 0 volumes are prepared")


# Preparation of all volumes: processes.


def prepare(
    folder: Path, raw: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `prepare.py` to its end."""
    return subprocess.run(
        [
            sys.executable,
            str(FOLDER / "prepare.py"),
            "--raw",
            str(raw),
            "--spacing",
            f"{MM},{MM},{MM}",
            *arguments,
        ],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **variables},
        text=True,
        capture_output=True,
        timeout=DEADLINE,
    )


def said(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What was said of each volume."""
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    return {name: text for name, colon, text in lines if colon and "[" not in name}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.lifecycle
@pytest.mark.slow
def test_a_broken_volume_is_named_and_the_others_are_prepared(
    parts: Any, raw: Path, tmp_path: Path
) -> None:
    """Five kinds of broken, with two workers. Whole again, only those are prepared, the rest is there already."""
    import nibabel
    import numpy as np

    whole = {path: path.read_bytes() for path in raw.rglob("*.nii.gz")}
    image = [raw / "imagesTr" / f"synthetic_0{number}.nii.gz" for number in range(6)]
    label = [raw / "labelsTr" / path.name for path in image]
    image[0].write_bytes(whole[image[0]][:1000])
    image[1].write_bytes(gzip.compress(b"no volume at all" * 100))
    scan = nibabel.load(image[2])
    nibabel.save(nibabel.Nifti1Image(np.asarray(scan.dataobj)[..., None], scan.affine), image[2])
    other = nibabel.load(label[3])
    nibabel.save(
        nibabel.Nifti1Image(np.asarray(other.dataobj) * np.uint8(7), other.affine), label[3]
    )
    label[4].unlink()

    first = prepare(tmp_path, raw, "--workers", "2")
    assert first.returncode == 1, first.stderr
    outcome = said(first)
    assert outcome["synthetic_00"].startswith("EOFError: ")
    assert outcome["synthetic_01"].startswith("ImageFileError: ")
    assert outcome["synthetic_02"] == "ValueError: the image has 4 dimensions, not 3"
    assert (
        outcome["synthetic_03"] == "ValueError: the label holds 7, which dataset.json does not name"
    )
    assert outcome["synthetic_04"].startswith("FileNotFoundError: ")
    assert re.fullmatch(r"\d+ x \d+ x \d+ became \d+ x \d+ x \d+", outcome["synthetic_05"])
    assert first.stdout.splitlines()[-1].startswith("1 of 6 volumes are prepared, 5 failed")
    assert [volume.name for volume in parts.volumes.read_volumes(tmp_path / "volumes")] == [
        "synthetic_05"
    ]

    for path, data in whole.items():
        path.write_bytes(data)
    second = prepare(tmp_path, raw, "--workers", "2")
    assert second.returncode == 0, second.stderr
    assert said(second).pop("synthetic_05") == "already there"
    assert Counter("became" in text for text in said(second).values()) == {True: 5, False: 1}


def test_other_settings_and_other_files_are_prepared_anew(
    parts: Any, raw: Path, tmp_path: Path
) -> None:
    """What is there counts only if it was made from these files with these settings, and is whole."""
    import nibabel

    out, modules = tmp_path / "volumes", parts.prepare
    out.mkdir()

    def outcomes(window: float) -> list[str]:
        task = json.loads((raw / "dataset.json").read_text())
        settings = modules.settings_of(
            modules.Config(spacing=[MM] * 3, window=[-57.0, window]), task
        )
        cases = modules.cases_of(task, raw / "imagesTr", raw / "labelsTr", out)[:2]
        return [
            "there" if modules.prepare_one(case, settings) == "already there" else "made"
            for case in cases
        ]

    assert [outcomes(164), outcomes(164), outcomes(200), outcomes(200)] == [
        ["made"] * 2,
        ["there"] * 2,
    ] * 2
    (out / "synthetic_00.label.npy").unlink()
    torn = out / "synthetic_01.image.npy"
    torn.write_bytes(torn.read_bytes()[:-1])
    with pytest.raises(
        SetupError, match=r"2 of 2 volumes in .* are not whole, of which one is `synthetic_00`"
    ):
        parts.volumes.read_volumes(out)
    assert outcomes(200) == ["made", "made"]
    assert len(parts.volumes.read_volumes(out)) == 2
    label = raw / "labelsTr" / "synthetic_01.nii.gz"
    source = nibabel.load(label)
    nibabel.save(nibabel.Nifti1Image(source.get_fdata().astype("uint8") * 0, source.affine), label)
    assert outcomes(200) == ["there", "made"]


SIGNALS_ITSELF = """
import builtins, os, runpy
say = print

def then_signal(*words, **options):
    say(*words, **options)
    builtins.print = say
    os.kill(os.getpid(), {number})

builtins.print = then_signal  # all six volumes take less time than a signal from another process may take
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.lifecycle
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_killed_or_stopped_it_goes_on_where_it_was(
    raw: Path, tmp_path: Path, prepared: list[Any], number: signal.Signals
) -> None:
    """Interrupted after the first volume, and run again: what was there stays, and the result is byte for byte that of
    a preparation that was never interrupted. A stop leaves with exit code 0 and a marker."""
    script = tmp_path / "signals_itself.py"
    script.write_text(SIGNALS_ITSELF.format(script=str(FOLDER / "prepare.py"), number=int(number)))
    interrupted = subprocess.run(
        [sys.executable, script, "--raw", raw, "--workers", "1", "--spacing", f"{MM},{MM},{MM}"], cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER)}, text=True, capture_output=True, timeout=DEADLINE,
    )  # fmt: skip
    (first,) = said(interrupted)
    stopped = number == signal.SIGTERM
    assert interrupted.returncode == (0 if stopped else -number), interrupted.stderr
    assert (tmp_path / "checkpoint" / "preempted").exists() == stopped

    done = prepare(tmp_path, raw, "--workers", "1")
    assert done.returncode == 0, done.stderr
    outcome = said(done)
    assert outcome[first] == "already there"
    assert "became" in " ".join(outcome.values())
    found = {
        name: data
        for name, data in contents(tmp_path / "volumes").items()
        if not name.endswith(".writing")
    }
    assert found == contents(prepared[0].folder)


LOSES_A_WORKER_LATER = """
import os, runpy, signal
from concurrent.futures import ProcessPoolExecutor
submit, given_out = ProcessPoolExecutor.submit, []

def then_stop(pool, *call):
    given_out.append(submit(pool, *call))
    for pid in pool._processes:
        os.kill(pid, signal.SIGSTOP)  # each has a volume at most, however quick it is
    if len(given_out) == 6:
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
    return given_out[-1]

if __name__ == "__main__":
    ProcessPoolExecutor.submit = then_stop
    runpy.run_path({script!r}, run_name="__main__")
"""


def prepared_by(text: str, tmp_path: Path, raw: Path) -> subprocess.CompletedProcess[str]:
    """What the preparation in this script says, with two workers."""
    script = tmp_path / "loses_a_worker.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, script, "--raw", raw, "--workers", "2"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER)}, text=True, capture_output=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.lifecycle
def test_a_worker_that_is_killed_is_told(raw: Path, tmp_path: Path) -> None:
    """As for want of memory: the volumes that are not prepared are named, and the next run prepares them."""
    done = prepared_by(
        LOSES_A_WORKER_LATER.format(script=str(FOLDER / "prepare.py")), tmp_path, raw
    )
    assert done.returncode == 1, done.stderr
    named = re.findall(
        r"^(\S+): a worker was killed, perhaps for its memory", done.stdout, re.MULTILINE
    )
    assert 4 <= len(named) <= 6
    again = said(prepare(tmp_path, raw, "--workers", "1"))
    assert all("became" in again[name] for name in named)


LOSES_A_WORKER = r"""
import os, re, runpy, signal, time
from concurrent.futures import ProcessPoolExecutor
submit = ProcessPoolExecutor.submit

def leaves_stops(pid):
    ignored = re.search(r"SigIgn:\s*(\w+)", open(f"/proc/{{pid}}/status").read())[1]
    return int(ignored, 16) >> signal.SIGTERM - 1 & 1

def then_kill(pool, *call):
    future = submit(pool, *call)
    while {late} and not all(map(leaves_stops, pool._processes)):
        time.sleep(0.01)
    os.kill(next(iter(pool._processes)), signal.SIGKILL)
    while not pool._broken:
        time.sleep(0.01)
    return future

if __name__ == "__main__":
    ProcessPoolExecutor.submit = then_kill
    runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.lifecycle
@pytest.mark.parametrize("late", [False, True], ids=["while they start", "when all work"])
def test_a_worker_that_is_killed_before_all_is_given_out_is_told(
    raw: Path, tmp_path: Path, late: bool
) -> None:
    """The pool takes nothing more then, every volume is named, and nobody waits for the workers that are left: these
    leave SIGTERM to their parent. The first volume may have been prepared by then."""
    done = prepared_by(
        LOSES_A_WORKER.format(script=str(FOLDER / "prepare.py"), late=late), tmp_path, raw
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    named = re.findall(
        r"^\S+: a worker was killed, perhaps for its memory", done.stdout, re.MULTILINE
    )
    assert len(named) == 6 or (late and len(named) == 5)


@pytest.mark.slow
@pytest.mark.lifecycle
def test_processes_share_the_work(raw: Path, tmp_path: Path, prepared: list[Any]) -> None:
    """Two instances that were dealt their scans, and two ranks that see all: each volume is prepared once, and
    together they are all."""
    for number in range(2):
        link_share(str(tmp_path / f"share-{number}"), str(raw / "imagesTr"), number, 2)

    def variables_of(number: int) -> tuple[dict[str, str], dict[str, str]]:
        instance = {"CLOUDTRAIN_INSTANCE": str(number), "CLOUDTRAIN_INSTANCE_COUNT": "2"}
        ranks = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
        }
        return (
            {
                **instance,
                "CLOUDTRAIN_INPUT_IMAGES": str(tmp_path / f"share-{number}"),
                "CLOUDTRAIN_OUTPUT_VOLUMES": "instances",
            },
            {
                **ranks,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "CLOUDTRAIN_OUTPUT_VOLUMES": "ranks",
            },
        )

    cases = [variables for number in range(2) for variables in variables_of(number)]
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(
                lambda variables: said(prepare(tmp_path, raw, "--workers", "1", **variables)), cases
            )
        )
    by_instance, by_rank = found[::2], found[1::2]
    for first, second in (by_instance, by_rank):
        assert (len(first), len(second)) == (3, 3)
        assert not set(first) & set(second)
    assert (
        contents(tmp_path / "instances")
        == contents(tmp_path / "ranks")
        == contents(prepared[0].folder)
    )


# Patches and pictures.


def test_patches_do_not_depend_on_the_number_of_processes(parts: Any, prepared: list[Any]) -> None:
    """The shares of three processes are together what one has; another seed gives others; each step gives others."""
    import numpy as np

    def patches(**changes: Any) -> Any:
        settings = {
            "volumes": prepared,
            "size": (16, 8, 8),
            "global_batch": 5,
            "seed": 1,
            **changes,
        }
        return parts.patches.Patches(**settings)

    alone = patches()
    for step in (0, 1, 7):
        images, labels = alone[step]
        assert (images.shape, images.dtype) == ((5, 1, 16, 8, 8), np.float32)
        assert (labels.shape, labels.dtype) == ((5, 16, 8, 8), np.int64)
        for rank in range(3):
            share = patches(rank=rank, world_size=3)[step]
            assert np.array_equal(share[0], images[rank::3])
            assert np.array_equal(share[1], labels[rank::3])
    assert not np.array_equal(alone[0][0], alone[1][0])
    assert not np.array_equal(alone[0][0], patches(seed=2)[0][0])


def test_an_epoch_has_a_patch_of_every_volume(parts: Any, prepared: list[Any]) -> None:
    """Each volume once in every six patches, and most patches have the organ in them."""
    patches = parts.patches.Patches(prepared, (8, 8, 8), 6, seed=3, labelled=1.0, mirror=True)
    assert len(patches) == 1
    for step in range(4):
        assert len({patches.volume_of(step, number).name for number in range(6)}) == 6
        images, labels = patches[step]
        assert images.min() >= -0.06
        assert labels.any(axis=(1, 2, 3)).all()


def test_a_patch_holds_its_centre_and_is_black_outside(parts: Any) -> None:
    """In the middle where there is room, shifted at a side; a volume smaller than the patch lies inside of it."""
    import numpy as np

    volume = np.arange(1, 10 * 6 * 4 + 1).reshape(10, 6, 4)
    for centre in np.ndindex(volume.shape):
        for size in ((4, 4, 4), (2, 6, 8), (12, 8, 2)):
            corner = parts.patches.corner_of(centre, size, volume.shape)
            patch = parts.patches.cut(volume, corner, size)
            assert patch.shape == size
            inside = tuple(c - at for c, at in zip(centre, corner, strict=True))
            assert patch[inside] == volume[centre]
            expected = np.prod(
                [min(have, want) for have, want in zip(volume.shape, size, strict=True)]
            )
            assert np.count_nonzero(patch) == expected


@pytest.mark.slow
def test_the_picture_tells_right_missed_and_wrong_apart(
    tmp_path: Path, parts: Any, prepared: list[Any]
) -> None:
    """By voxel, for two classes; and the file is a PNG with all three colours in it."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.image import imread

    for found in imported("pictures"):
        pictures = found.pictures
        truth, guess = np.array([0, 1, 1, 0, 2, 2]), np.array([0, 1, 0, 1, 2, 1])
        assert pictures.kinds(truth, guess).tolist() == [0, 1, 2, 3, 1, 3]
        volume = prepared[0]
        shifted = np.roll(volume.label, 2, axis=0)
        pictures.draw(
            tmp_path / "a.png", "a", volume.image, volume.label, shifted, volume.facts["spacing"]
        )
    pixels = imread(tmp_path / "a.png")[..., :3]
    assert pixels.shape[1] == 900
    for colour in pictures.KINDS.values():
        wanted = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        # the legend alone has some
        assert (np.abs(pixels - wanted).max(-1) < 0.01).sum() > 100, colour


# The projection.


def test_the_projection_is_its_model(scaling: Any) -> None:
    """One process takes what was given; more take starts, the largest share, and an exchange, as the model says."""
    config = scaling.Config(
        volumes=10, prepare_efficiency=0.9, train_efficiency=0.8, global_batch=4
    )
    assert scaling.hours(1, config) == 90
    assert scaling.hours_of_preparation(4, config) == pytest.approx(45 * 3 / 10 / 0.9)
    assert scaling.hours_of_preparation(10, config) == scaling.hours_of_preparation(64, config)
    exchange = 20_000 * 2 * 3 / 4 * 4.8e6 * 4 * 8 / 10e9 / 3600
    assert scaling.hours_of_training(4, config) == pytest.approx(45 / 4 / 0.8 + exchange)
    assert scaling.hours_of_training(8, config) == scaling.hours_of_training(4, config)
    assert scaling.hours(2, config) == pytest.approx(
        0.2 + scaling.hours_of_preparation(2, config) + scaling.hours_of_training(2, config)
    )
    assert scaling.efficiency({1: 10.0, 2: 5.0}) == 1
    assert scaling.enough(4.0, config) is None


def test_a_time_that_no_number_reaches_is_said(
    scaling: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the exchange takes longer than that."""
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--rounds", "0", "--train_hours", "200"])
    scaling.main()
    assert capsys.readouterr().out.splitlines()[-1] == "245 hours never become 4"


def test_ninety_hours_become_four(scaling: Any) -> None:
    """With perfect efficiency 90 / 4 = 22.5 processes would do; starts and exchanges cost another one or two."""
    found = scaling.enough(4.0, scaling.Config())
    assert 23 < found < 27
    assert scaling.hours(found, scaling.Config()) <= 4 < scaling.hours(found - 1, scaling.Config())


def test_the_projection_alone_needs_no_measurement(tmp_path: Path) -> None:
    """`--rounds 0` prints model and table at once."""
    done = subprocess.run(
        [sys.executable, FOLDER / "scaling.py", "--rounds", "0", "--train_efficiency", "0.5"],
        cwd=tmp_path, text=True, capture_output=True, timeout=DEADLINE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "efficiency (0.50)" in done.stdout
    assert "\n        1            45.0         45.0     90.0       1.0\n" in done.stdout


# The jobs.


def test_both_jobs_have_a_plan_on_both_clouds() -> None:
    """Without an error; scans are dealt out, labels go to all; what is prepared is uploaded meanwhile."""
    train, prepare = ct.load_job(FOLDER / "job.yaml"), ct.load_job(FOLDER / "prepare.yaml")
    for job in (train, prepare):
        for target in (SAGEMAKER, AZUREML):
            plan = ct.plan(job, target)
            assert plan.errors == ()
            assert not {"CT521", "CT522"} & {finding.code for finding in plan.findings}
    request = ct.plan(prepare, SAGEMAKER).request
    dealt = {
        item["InputName"]: item["S3Input"]["S3DataDistributionType"] == "ShardedByS3Key"
        for item in request["ProcessingInputs"]
    }
    assert dealt == {"images": True, "labels": False, "dataset": False, "code": False}
    assert (
        request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3UploadMode"] == "Continuous"
    )


@pytest.mark.slow
@pytest.mark.lifecycle
def test_the_prepared_volumes_of_a_run_are_the_input_of_the_next(
    parts: Any, raw: Path, tmp_path: Path
) -> None:
    """`prepare.yaml` on two instances of this machine; then `run:spleen-prepare/output/volumes` is where they are."""
    places = {
        "images": raw / "imagesTr",
        "labels": raw / "labelsTr",
        "dataset": raw / "dataset.json",
    }
    changes = [f"inputs.{name}.local={place}" for name, place in places.items()]
    run = ct.submit(
        ct.load_job(
            FOLDER / "prepare.yaml", [*changes, f"hyperparameters.spacing=[{MM},{MM},{MM}]"]
        ),
        "local",
    )
    assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED, run.last_status.reason
    job = ct.load_job(
        FOLDER / "job.yaml", ["inputs.volumes.local=run:spleen-prepare/output/volumes"]
    )
    place = Path(ct.plan(job, "local").processes[0].env["CLOUDTRAIN_INPUT_VOLUMES"])
    assert [volume.name for volume in parts.volumes.read_volumes(place)] == [
        f"synthetic_0{n}" for n in range(6)
    ]


# Training. MONAI imports everything that it has, which takes longer than all runs here together. So
# a server imports it once, and most runs are forks of it, by the project's own launcher.

SMALL = [
    *(
        "--precision",
        "fp64",
        "--steps",
        "16",
        "--patch",
        "16,16,8",
        "--channels",
        "4,8",
        "--residual_units",
        "0",
    ),
    *("--report_every", "1", "--evaluate_every", "8", "--checkpoint_every", "6", "--pictures", "1"),
]
EQUAL = 2e-6
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def become(
    folder: str, processes: int, port: int, arguments: list[str], variables: dict[str, str]
) -> None:
    """In a fork of the server: run the script with so many ranks."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for descriptor, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), descriptor)
    options = ["--processes-per-instance", str(processes), "--master-port", str(port)]
    fork_launcher.main([*options, str(FOLDER / "train.py"), *arguments])


@pytest.fixture(scope="module")
def server() -> Any:
    """Forks of a process that has imported MONAI."""
    if importlib.util.find_spec("monai") is None:
        pytest.skip(NO_MONAI)
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["monai.networks.nets.unet", "monai.inferers.utils", "torch._dynamo"]
    )
    return context


class Result:
    """What a run has printed."""

    def __init__(self, stdout: str, stderr: str) -> None:
        rows = [values for line in stdout.splitlines() if (values := parse_metrics(line))]
        self.losses = {int(row["step"]): row["loss"] for row in rows if "loss" in row}
        self.dice = {int(row["step"]): row["dice"] for row in rows if "dice" in row}
        self.table = re.findall(r"^  (\S+) +([0-9.]+)$", stdout, re.MULTILINE)
        self.stdout, self.stderr = stdout, stderr


def variables(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


def run(
    server: Any, folder: Path, *arguments: str, processes: int = 1, exit_code: int = 0, **more: str
) -> Result:
    """Run the script to its end in a fork of the server."""
    folder.mkdir(exist_ok=True)
    process: BaseProcess = server.Process(
        target=become,
        args=(str(folder), processes, free_port(), list(arguments), variables(**more)),
    )
    process.start()
    process.join(DEADLINE)
    result = Result(*((folder / name).read_text() for name in ("stdout.txt", "stderr.txt")))
    assert process.exitcode == exit_code, result.stderr
    return result


def stopped_by_sigterm(folder: Path, step: int, *arguments: str, **more: str) -> Result:
    """Run the script with torchrun and two processes, and stop it when a step is reported."""
    folder.mkdir()
    with (folder / "errors.txt").open("w") as errors:
        process = subprocess.Popen(
            [*TORCHRUN, str(FOLDER / "train.py"), *arguments],
            # it waits for the signal
            cwd=folder, env=variables(**more, CLOUDTRAIN_HOLD_AT_STEP=str(step)),
            text=True, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    lines = []
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.append(line)
            if (parse_metrics(line) or {}).get("step") == step:
                process.terminate()
    process.wait(DEADLINE)
    return Result("".join(lines), (folder / "errors.txt").read_text())


@pytest.mark.torch
def test_stopped_with_two_processes_and_resumed_with_three_it_learns_what_one_does(
    server: Any, prepared: list[Any], tmp_path: Path
) -> None:
    """Every loss and every Dice of one process that was never stopped. The two processes are torchrun's and get SIGTERM;
    the three have two, one and one patches of a batch. Their pictures are the same file by file."""
    place = {"CLOUDTRAIN_INPUT_VOLUMES": str(prepared[0].folder)}
    folder = tmp_path / "stopped"
    with ThreadPoolExecutor(1) as pool:  # while two processes import MONAI, one trains
        stopped = pool.submit(stopped_by_sigterm, folder, 5, *SMALL, "--step_delay", "0.1", **place)
        alone = run(server, tmp_path / "alone", *SMALL, **place)
        first = stopped.result()
    assert sorted(alone.losses) == list(range(1, 17))
    assert sorted(alone.dice) == [8, 16]
    marker = json.loads((folder / "checkpoint" / "preempted").read_text())
    assert 5 <= marker["step"] < 16, first.stderr

    second = run(server, folder, *SMALL, processes=3, **place)
    assert f"resumed from step {marker['step']}\n" in second.stderr
    assert {**first.losses, **second.losses} == pytest.approx(alone.losses, abs=EQUAL)
    assert (min(first.losses), min(second.losses)) == (1, marker["step"] + 1)
    assert {**first.dice, **second.dice} == pytest.approx(alone.dice, abs=1e-6)
    assert second.table == alone.table
    assert [name for name, _ in alone.table] == ["synthetic_00", "synthetic_05"]
    assert contents(folder / "pictures") == contents(tmp_path / "alone" / "pictures")


@pytest.mark.torch
def test_without_volumes_it_learns_from_synthetic_ones_and_says_so(
    server: Any, tmp_path: Path
) -> None:
    """A shortened demonstration: the notice, a loss that falls, pictures, a model; and nothing of the volumes stays."""
    found = run(server, tmp_path, "--steps", "30", "--pictures", "2", TMPDIR=str(tmp_path))
    assert "no input `volumes`: training on synthetic ones, ellipsoids and noise" in found.stderr
    assert "train=9 held_out=3 classes=2" in found.stdout
    assert found.losses[30] < 0.75 * found.losses[1]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "synthetic_00.png",
        "synthetic_05.png",
    ]
    assert (tmp_path / "model" / "model.pt").is_file()
    assert not [
        path for path in tmp_path.rglob("*.npy") if path.parent.parent != tmp_path / "pictures"
    ]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--patch", "16,16,6"], "`--patch [16, 16, 6]` does not fit 3 levels"),
        (["--global_batch", "0"], "`--global_batch`: `0` is not 1 or more"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    server: Any, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    """One sentence and a hint, before any work."""
    refused = run(server, tmp_path, *arguments, exit_code=1)
    assert f"error: {problem}\n\nhint: " in refused.stderr


@pytest.mark.torch
def test_without_monai_it_says_what_to_install(tmp_path: Path) -> None:
    """One line and a hint, no traceback."""
    (tmp_path / "monai.py").write_text("raise ModuleNotFoundError(name='monai')\n")
    code = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path({str(FOLDER / 'train.py')!r})"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert (
        found.stderr == "error: `monai` is not installed\n\nhint: pip install -r requirements.txt\n"
    )
