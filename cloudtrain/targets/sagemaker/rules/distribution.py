"""Rules about distributions on SageMaker: required versions, and settings that the toolkit ignores or changes."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.distribution import SMP, TensorFlow
from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.sagemaker.catalogue.image_data import numbers
from cloudtrain.targets.sagemaker.rules.view import (
    add_entrypoint_hint,
    cluster,
    image,
    image_path,
    launcher,
    mode,
    toolkit,
)

_FIRST_TORCHRUN = {"gpu": "1.13.1", "cpu": "1.13.1", "neuron": "1.11.0"}
"""The first PyTorch images whose toolkit starts torchrun: sagemaker 2.257.7, fw_utils.py."""

_FIRST_MULTI_WORKER = "2.9"
"""The first TensorFlow images whose toolkit writes TF_CONFIG for workers: sagemaker 2.257.7, fw_utils.py."""


@rule("SM321", Level.ERROR)
def torchrun_too_new(subject: Subject) -> Iterator[Fault]:
    """The image is too old for torchrun through the toolkit.

    The toolkit starts torchrun only in images with PyTorch 1.13.1 or later (on Trainium: PyTorch 1.11 or later). In
    older images, the toolkit ignores the distribution and runs one process on each instance.
    """
    found = image(subject)
    if mode(subject) != "toolkit" or launcher(subject) != "torchrun" or found is None:
        return
    framework, version = found.engine
    first = _FIRST_TORCHRUN[found.device]
    if framework == "pytorch" and numbers(version) < numbers(first):
        yield Fault(
            f"the toolkit starts torchrun from PyTorch {first} on, and the image has {version}",
            add_entrypoint_hint(subject, f"use version `{first}` or newer"),
            image_path(subject),
        )


@rule("SM322", Level.ERROR)
def multi_worker_too_new(subject: Subject) -> Iterator[Fault]:
    """The image is too old for MultiWorkerMirroredStrategy through the toolkit.

    The toolkit sets TF_CONFIG for workers in images of TensorFlow 2.9 and later. In older images TF_CONFIG is missing,
    and every instance trains alone.
    """
    found, distribution = image(subject), subject.effective.distribution
    if mode(subject) != "toolkit" or not isinstance(distribution, TensorFlow) or found is None:
        return
    framework, version = found.engine
    multi_worker = distribution.strategy == "multi_worker_mirrored"
    if multi_worker and framework == "tensorflow" and numbers(version) < numbers(_FIRST_MULTI_WORKER):
        yield Fault(
            f"the toolkit knows `multi_worker_mirrored` from TensorFlow 2.9 on, and the image has {version}",
            add_entrypoint_hint(subject, "use version `2.9` or newer"),
            image_path(subject),
        )


@rule("SM323", Level.ERROR)
def not_on_trainium(subject: Subject) -> Iterator[Fault]:
    """This distribution does not run on Trainium.

    Trainium needs torchrun and torch-neuronx. SMDDP, SMP, DeepSpeed, Horovod, MPI and TensorFlow's strategies only run
    on GPUs and CPUs. On Trainium the SageMaker SDK accepts only `torch_distributed`.
    """
    distribution = subject.effective.distribution.type
    if distribution in ("torch", "none"):
        return
    hint, path = "write `distribution: {type: torch}`", ("distribution", "type")
    if distribution != subject.job.distribution.type:
        hint, path = "remove `HyperParameters` from `sagemaker_overrides`", ("sagemaker_overrides", "HyperParameters")
    for group in cluster(subject).spanned:
        if group.device == "neuron":
            message = f"`{distribution}` does not run on `{group.instance_type}`, which is Trainium"
            yield Fault(message, hint, path)


@rule("SM324", Level.WARNING)
def server_counts_ignored(subject: Subject) -> Iterator[Fault]:
    """The toolkit ignores the job's number of parameter servers or workers.

    It runs one parameter server on every instance, a master on the first instance, and a worker on each other instance
    (sagemaker-tensorflow-training 20.5.0).
    """
    distribution, count = subject.effective.distribution, cluster(subject).spanned_count
    if mode(subject) != "toolkit" or not isinstance(distribution, TensorFlow) or toolkit(subject) != "tensorflow":
        return
    what = "servers" if distribution.strategy == "parameter_server" else "workers"
    for field in ("parameter_servers", "workers"):
        asked = getattr(distribution, field)
        if asked is not None and asked != count:
            yield Fault(
                f"`{field}: {asked}` is ignored: the toolkit runs {what} on all {count} instances",
                add_entrypoint_hint(subject, f"remove `{field}`"),
                ("distribution", field),
            )


@rule("SM328", Level.WARNING)
def idle_instances(subject: Subject) -> Iterator[Fault]:
    """Some instances get neither a worker nor a parameter server.

    cloudtrain's launcher assigns the workers to the instances in turn, and likewise the parameter servers. If both
    counts are smaller than the number of instances, you pay for idle instances.
    """
    distribution, count = subject.effective.distribution, cluster(subject).spanned_count
    if mode(subject) != "entrypoint" or not isinstance(distribution, TensorFlow):
        return
    workers = distribution.workers or count
    if distribution.strategy == "parameter_server":  # a chief, and at least one worker
        workers = max(workers, 2, distribution.parameter_servers or 1)
    if workers < count:
        yield Fault(
            f"the tasks are dealt out over {workers} of {count} instances: {count - workers} would be idle",
            f"set `resources.instance_count` to {workers}, or `distribution.workers` to {count}",
            ("distribution", "workers"),
        )


@rule("SM325", Level.WARNING)
def strategy_on_one_instance(subject: Subject) -> Iterator[Fault]:
    """A TensorFlow strategy for several instances runs on one instance.

    The toolkit starts parameter servers only with two or more instances. On one instance it starts a plain script.
    There, MultiWorkerMirroredStrategy does the same as MirroredStrategy.
    """
    distribution = subject.effective.distribution
    if isinstance(distribution, TensorFlow) and mode(subject) == "toolkit" and cluster(subject).spanned_count == 1:
        yield Fault(
            f"`{distribution.strategy}` has no other instance to share with",
            "set `instance_count` to 2 or more; or use `distribution: {type: none}` and `MirroredStrategy`",
            ("resources", "instance_count"),
        )


@rule("SM326", Level.WARNING)
def torch_without_gpu(subject: Subject) -> Iterator[Fault]:
    """torchrun starts on instances without GPUs.

    Training works with the gloo backend, which `cloudtrain.runtime` chooses automatically. torchrun starts one process
    on each instance, unless `processes_per_instance` asks for more. The SageMaker SDK refuses such a job.
    """
    machines = cluster(subject)
    if subject.effective.distribution.type == "torch" and {group.device for group in machines.spanned} == {"cpu"}:
        name = machines.spanned[0].instance_type
        yield Fault(
            f"`{name}` has no GPU, so `torch` trains on the CPU, with gloo",
            "name a type with GPUs (`cloudtrain instances --gpu A10G`), or accept it with `--ignore SM326`",
            machines.spanned[0].path,
        )


@rule("SM327", Level.NOTICE)
def smp_arguments(subject: Subject) -> Iterator[Fault]:
    """The script gets the parameters of SMP as an argument.

    The toolkit passes `--mp_parameters KEY=VALUE,...` to the script along with the hyperparameters. If the script's
    argument parser does not accept this option, the script ends with an error.
    """
    distribution = subject.effective.distribution
    if isinstance(distribution, SMP) and distribution.parameters:
        yield Fault(
            "the script gets `--mp_parameters` beside its own hyperparameters",
            "read the arguments with `parser.parse_known_args()`",
            ("distribution", "parameters"),
        )
