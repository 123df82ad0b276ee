"""Draw slices of a volume with the true and the predicted labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from volumes import Array

KINDS = {"right": "#009e73", "missed": "#56b4e9", "wrong": "#e69f00"}
"""Colours that colour-blind eyes can tell apart (Okabe and Ito)."""

COLOURS = ListedColormap(list(KINDS.values()))

SLICES = 3


def draw(
    path: Path, title: str, image: Array, truth: Array, guess: Array, spacing: tuple[float, ...]
) -> None:
    """Write a PNG with slices from feet to head through the labelled part. The view is from below, with the patient's
    right on the left. Classes are not distinguished: a voxel is right when its class is."""
    shape = spacing[1] / spacing[0]  # of a pixel
    figure = Figure(
        figsize=(9, 3 * SLICES * shape * image.shape[1] / image.shape[0] + 0.8),
        layout="constrained",
    )
    panels = figure.subplots(SLICES, 3, squeeze=False)
    for row, height in zip(panels, chosen_slices(truth), strict=True):
        grey, true, guessed = (as_seen(array[:, :, height]) for array in (image, truth, guess))
        overlays = (np.zeros_like(true), np.where(true > 0, 1, 0), kinds(true, guessed))
        for panel, overlay in zip(row, overlays, strict=True):
            panel.imshow(grey, cmap="gray", vmin=0, vmax=1, aspect=shape, interpolation="nearest")
            shown = np.ma.masked_equal(overlay, 0)
            panel.imshow(
                shown,
                cmap=COLOURS,
                vmin=1,
                vmax=3,
                alpha=0.6,
                aspect=shape,
                interpolation="nearest",
            )
            panel.set_axis_off()
        row[0].text(
            0.02,
            0.97,
            f"slice {height}",
            color="white",
            fontsize=8,
            va="top",
            transform=row[0].transAxes,
        )
    for panel, word in zip(panels[0], ("image", "truth", "prediction"), strict=True):
        panel.set_title(word, fontsize=10)
    handles = [Patch(color=colour, label=word) for word, colour in KINDS.items()]
    figure.legend(handles=handles, ncols=3, loc="outside lower center", frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=100)


def chosen_slices(truth: Array) -> list[int]:
    """Return the slices at a sixth, a half and five sixths of the labelled part; of the whole volume where nothing is
    labelled."""
    heights = np.flatnonzero((truth > 0).any((0, 1)))
    heights = heights if len(heights) else np.arange(truth.shape[2])
    return [int(heights[len(heights) * (2 * part + 1) // (2 * SLICES)]) for part in range(SLICES)]


def kinds(truth: Array, guess: Array) -> Array:
    """Return 1 where both have the same label, 2 where only the truth has one, 3 where the prediction has a wrong
    one."""
    return np.select(
        [(truth == guess) & (truth > 0), (truth > 0) & (guess == 0), guess != truth], [1, 2, 3]
    )


def as_seen(plane: Array) -> Array:
    """Turn (right, front) into rows from the front to the back, with the patient's right on the left."""
    return plane.T[::-1, ::-1]
