"""One launch specification becomes another run's: names and places move, everything else stays."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.lifecycle.rehearse import Original
from cloudtrain.plans.states import RunRef
from cloudtrain.targets.common.specification import CodePlace, Link, StartedProcess
from tests.specifications import specification

OLD = "/state/runs/toy-12ab-1"
SPEC = specification(
    directories=("/kept", "/plots", f"{OLD}/model"),
    processes=(
        StartedProcess(
            instance=0,
            role="process",
            rank=0,
            argv=(
                *("python", "train.py", "--out", "/plots/x.png"),
                *("--data", "/a/kept/b", "--old", "/runs/toy-12ab-12/m"),
            ),
            env={
                "CLOUDTRAIN_MODEL_DIR": f"{OLD}/model",
                "CLOUDTRAIN_CHECKPOINT_DIR": "/kept",
                "CLOUDTRAIN_OUTPUT_PLOTS": "/plots",
                "CLOUDTRAIN_RUN_NAME": "toy-12ab-1",
                "PYTHONPATH": f"{OLD}/code:/kept-library",
            },
            signal="leader",
        ),
    ),
)
ORIGINAL = Original(SPEC, "toy-rehearsal", RunRef("local", "here", "toy-12ab-1"))


def test_the_interrupted_run_has_everything_in_its_own_folder() -> None:
    """Its own name, checkpoints and outputs; what only looks like one of these places or names stays."""
    spec = ORIGINAL.repeat("toy-cd-1", hold_at=7)
    new = "/state/runs/toy-cd-1"
    assert (spec.name, spec.run_dir, spec.max_runtime, spec.grace_period) == (
        "toy-cd-1",
        new,
        None,
        30,
    )
    assert spec.code == CodePlace("/state/bundles/ab/sourcedir.tar.gz", "ab", f"{new}/code")
    assert spec.directories == (f"{new}/checkpoint", f"{new}/outputs/plots", f"{new}/model")
    (process,) = spec.processes
    assert process.argv[3:] == (
        f"{new}/outputs/plots/x.png",
        "--data",
        "/a/kept/b",
        "--old",
        "/runs/toy-12ab-12/m",
    )
    assert process.env == {
        "CLOUDTRAIN_CHECKPOINT_DIR": f"{new}/checkpoint",
        "CLOUDTRAIN_HOLD_AT_STEP": "7",
        "CLOUDTRAIN_MODEL_DIR": f"{new}/model",
        "CLOUDTRAIN_OUTPUT_PLOTS": f"{new}/outputs/plots",
        "CLOUDTRAIN_RUN_NAME": "toy-cd-1",
        "PYTHONPATH": f"{new}/code:/kept-library",
    }


def test_the_resumed_run_finds_the_other_one_s_checkpoints_and_nothing_else() -> None:
    """One place differs from the interrupted run's, beside the name."""
    spec = ORIGINAL.repeat("toy-ef-1", checkpoint_of="toy-cd-1")
    env = dict(spec.processes[0].env)
    assert env.pop("CLOUDTRAIN_CHECKPOINT_DIR") == "/state/runs/toy-cd-1/checkpoint"
    assert "toy-cd-1" not in str(env)
    assert "CLOUDTRAIN_HOLD_AT_STEP" not in env
    assert "toy-12ab-1'" not in str(spec)


def test_a_link_s_target_is_the_place() -> None:
    """Emulated services show a folder of theirs, which leads to where the job really keeps things."""
    shown = f"{OLD}/hosts/algo-1/opt/ml/checkpoints"
    linked = replace(
        SPEC,
        links=(Link(shown, "/kept", None),),
        places={"checkpoint": (shown,), "model": (f"{OLD}/hosts/algo-1/opt/ml/model",)},
    )
    spec = Original(linked, "toy", ORIGINAL.ref).repeat("toy-ef-1", checkpoint_of="toy-cd-1")
    assert spec.links == (
        Link(
            "/state/runs/toy-ef-1/hosts/algo-1/opt/ml/checkpoints",
            "/state/runs/toy-cd-1/checkpoint",
            None,
        ),
    )
