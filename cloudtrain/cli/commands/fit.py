from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import cloudtrain as ct
from cloudtrain.cli import inputs, options
from cloudtrain.cli.options import SubmitOptions, flag, option, with_submit_options
from cloudtrain.cli.terminal import print_json, say, show


@with_submit_options(
    options.OF_THE_JOB, ("instances", "processes_per_instance", "python", "gpu", "save_job")
)
def fit_command(
    submission: SubmitOptions,
    steps: Annotated[
        int | None,
        option("--steps", "N", "Also say how long N steps take, and what they cost.", min=1),
    ] = None,
    samples: Annotated[
        int | None,
        option("--samples", "N", "The same for N samples, over all ranks.", min=1),
    ] = None,
    every: Annotated[
        bool, flag("--all", "Compare every instance type of the target that has enough GPUs.")
    ] = False,
    suggest: Annotated[
        str | None,
        option(
            "--suggest",
            "HYPERPARAMETER",
            "Also find the largest value of this hyperparameter, such as batch_size, that fits.",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        option(
            "--layers",
            "HYPERPARAMETER",
            "Run two and four of the layers that it counts, and extrapolate to the job's number.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "--config",
            "PATH",
            "Estimate by closed formulas from the `config.json` of a model, and run nothing.",
        ),
    ] = None,
    training: Annotated[
        list[str] | None,
        option(
            "--training",
            "NAME=VALUE",
            "With --config: batch, context, zero, tensor or recompute. Repeatable.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Estimate the memory, time and cost of a job.

    Runs two steps of the script on this machine, as one rank of the job, with tensors that have a
    shape and no memory. It needs no GPU, no network and no account. The exit code is 1 when the job
    does not fit.

    \b
    Examples:
      cloudtrain fit job.yaml --target sagemaker
      cloudtrain fit job.yaml --target azureml --steps 10000 --all
      cloudtrain fit job.yaml --target slurm --suggest batch_size
      cloudtrain fit train.py --gpu A100-80GB:8 --target slurm
      cloudtrain fit job.yaml --config Llama-3.1-8B --training context=8192
      cloudtrain fit job.yaml --json | jq .verdict
    """
    file = inputs.job_of(submission)
    # the interpreter runs the script here, whatever the target
    target = inputs.target_of(submission._replace(python=None))
    numbers: dict[str, str] = {}
    for item in training or ():
        name, _, number = item.partition("=")
        numbers[name] = number
    with inputs.worded(submission):
        report = ct.fit(
            file.work,
            target,
            steps=steps,
            samples=samples,
            every=every,
            suggest=suggest,
            layers=layers,
            config=config,
            training=numbers,
            python=submission.python,
            on_run=lambda words: say(f"running two steps of the script as {words}"),
            **inputs.choices(file, submission),
        )
    if json:
        print_json(report.to_dict())
    else:
        show(report.document(), sys.stdout)
    if not report.fits:
        raise typer.Exit(1)
