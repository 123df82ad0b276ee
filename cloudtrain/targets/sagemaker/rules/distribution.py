"""Rules about distributions on SageMaker: required versions, and settings that the toolkit ignores
or changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date

from cloudtrain.errors import join_names
from cloudtrain.job.distribution import SMP, TensorFlow
from cloudtrain.machines.choose import MachineGroup
from cloudtrain.machines.table import InstanceType
from cloudtrain.plans.plan import Level
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import (
    Fault,
    Subject,
    mapping_at,
    plural,
    positive_count,
    rule,
    text_at,
)
from cloudtrain.rules.named import TITLES, device_of, framework_of, missing_framework
from cloudtrain.targets.sagemaker.catalogue.images import (
    DEVICES,
    Image,
    end_of_patches,
    numbers,
    patched_instead,
    resolve_image,
    smp_versions,
    versions,
)
from cloudtrain.targets.sagemaker.compile.launch import python_too_old
from cloudtrain.targets.sagemaker.reading import TRAINING_MODULE, read

_FIRST_TORCHRUN = {"gpu": "1.13.1", "cpu": "1.13.1", "neuron": "1.11.0"}
"""The first PyTorch images whose toolkit starts torchrun: sagemaker 2.257.7, fw_utils.py."""

_FIRST_MULTI_WORKER = (2, 9)
"""The first TensorFlow images whose toolkit writes TF_CONFIG for workers: sagemaker 2.257.7,
fw_utils.py."""


def image_name(image: Image) -> str:
    """Return the image's name for messages: `PyTorch 2.8.0`."""
    return f"{TITLES[image.framework]} {image.version}"


def add_entrypoint_hint(subject: Subject, hint: str) -> str:
    """Add to `hint` how to run the job without the image's toolkit.

    Returns `hint` unchanged if the job needs the toolkit: for SMDDP, SMP, MPI on several instances,
    or an image whose Python is too old for cloudtrain's launcher.
    """
    reading = read(subject)
    has_library = reading.distribution.type in ("smddp", "smp")
    if has_library or python_too_old(reading.image) is not None:
        return hint
    if reading.launcher == "mpirun" and reading.machines.spanned_count > 1:
        return hint
    return type(hint)(
        f'{hint}; or write `launch = "entrypoint"` under `[sagemaker]`, and cloudtrain '
        "starts the script itself"
    )


def devices_of(groups: Iterable[MachineGroup]) -> set[str | None]:
    """Return the accelerators of the groups: `gpu`, `neuron` or `cpu`; None if a type is
    unknown."""
    return {group.device for group in groups}


def is_toolkits_torchrun(subject: Subject) -> bool:
    """Return whether the image's toolkit starts torchrun."""
    reading = read(subject)
    return reading.launcher == "torchrun" and reading.start.by == "toolkit"


@rule("SM321", Level.ERROR)
def torchrun_too_new(subject: Subject) -> Iterator[Fault]:
    """The image is too old for torchrun through the toolkit.

    The toolkit starts torchrun only in images with PyTorch 1.13.1 or later (on Trainium: PyTorch
    1.11 or later). In older images, the toolkit ignores the distribution and runs one process on
    each instance.
    """
    image = read(subject).image
    if image is None or not is_toolkits_torchrun(subject):
        return
    framework, version = image.engine
    first = _FIRST_TORCHRUN[image.device]
    if framework != "pytorch" or numbers(version) >= numbers(first):
        return
    message = f"the toolkit starts torchrun from PyTorch {first} on, and the image has {version}"
    hint = add_entrypoint_hint(subject, f"use version `{first}` or newer")
    yield Fault(message, hint, read(subject).image_path)


@rule("SM322", Level.ERROR)
def multi_worker_too_new(subject: Subject) -> Iterator[Fault]:
    """The image is too old for MultiWorkerMirroredStrategy through the toolkit.

    The toolkit sets TF_CONFIG for workers in images of TensorFlow 2.9 and later. In older images
    TF_CONFIG is missing, and every instance trains alone.
    """
    reading = read(subject)
    image = reading.image
    distribution = reading.distribution
    if image is None or not isinstance(distribution, TensorFlow):
        return
    if reading.start.by != "toolkit" or distribution.strategy != "multi_worker_mirrored":
        return
    framework, version = image.engine
    if framework == "tensorflow" and numbers(version) < _FIRST_MULTI_WORKER:
        yield Fault(
            (
                "the toolkit knows `multi_worker_mirrored` from TensorFlow 2.9 on, and the image "
                f"has {version}"
            ),
            add_entrypoint_hint(subject, "use version `2.9` or newer"),
            reading.image_path,
        )


@rule("SM323", Level.ERROR)
def not_on_trainium(subject: Subject) -> Iterator[Fault]:
    """This distribution does not run on Trainium.

    Trainium needs torchrun and torch-neuronx. SMDDP, SMP, DeepSpeed, Horovod, MPI and TensorFlow's
    strategies only run on GPUs and CPUs. On Trainium the SageMaker SDK accepts only
    `torch_distributed`.
    """
    distribution = subject.reading.distribution.type
    if distribution in ("torch", "none"):
        return
    hint = "write `distribution: {type: torch}`"
    path = ("distribution", "type")
    if distribution != subject.job.distribution.type:
        hint = "remove `HyperParameters` from `sagemaker_overrides`"
        path = ("sagemaker_overrides", "HyperParameters")
    for group in subject.reading.machines.spanned:
        if group.device == "neuron":
            message = f"`{distribution}` does not run on `{group.instance_type}`, which is Trainium"
            yield Fault(message, hint, path)


@rule("SM324", Level.WARNING)
def server_counts_ignored(subject: Subject) -> Iterator[Fault]:
    """The toolkit ignores the job's number of parameter servers or workers.

    It runs one parameter server on every instance, a master on the first instance, and a worker on
    each other instance (sagemaker-tensorflow-training 20.5.0).
    """
    distribution = subject.reading.distribution
    start = read(subject).start
    if not isinstance(distribution, TensorFlow):
        return
    if start.by != "toolkit" or start.framework != "tensorflow":
        return
    count = subject.reading.machines.spanned_count
    for field in ("parameter_servers", "workers"):
        number = getattr(distribution, field)
        if number is not None and number != count:
            message = f"`{field}: {number}` is ignored: the toolkit uses all {count} instances"
            hint = add_entrypoint_hint(subject, f"remove `{field}`")
            yield Fault(message, hint, ("distribution", field))


@rule("SM328", Level.WARNING)
def idle_instances(subject: Subject) -> Iterator[Fault]:
    """Some instances get neither a worker nor a parameter server.

    cloudtrain's launcher assigns the workers to the instances in turn, and likewise the parameter
    servers. If both counts are smaller than the number of instances, you pay for idle instances.
    """
    distribution = subject.reading.distribution
    if not isinstance(distribution, TensorFlow):
        return
    if read(subject).start.by != "entrypoint":
        return
    count = subject.reading.machines.spanned_count
    workers = distribution.workers or count
    if distribution.strategy == "parameter_server":  # a chief, and at least one worker
        workers = max(workers, 2, distribution.parameter_servers or 1)
    if workers < count:
        idle = count - workers
        message = (
            f"the tasks are dealt out over {workers} of {count} instances: {idle} would be idle"
        )
        hint = f"set `resources.instance_count` to {workers}, or `distribution.workers` to {count}"
        yield Fault(message, hint, ("distribution", "workers"))


@rule("SM325", Level.WARNING)
def strategy_on_one_instance(subject: Subject) -> Iterator[Fault]:
    """A TensorFlow strategy for several instances runs on one instance.

    The toolkit starts parameter servers only with two or more instances. On one instance it starts
    a plain script. There, MultiWorkerMirroredStrategy does the same as MirroredStrategy.
    """
    distribution = subject.reading.distribution
    if not isinstance(distribution, TensorFlow):
        return
    if read(subject).start.by != "toolkit":
        return
    if subject.reading.machines.spanned_count == 1:
        yield Fault(
            f"`{distribution.strategy}` has no other instance to share with",
            "set `instance_count` to 2 or more; or use `distribution: {type: none}` and "
            "`MirroredStrategy`",
            ("resources", "instance_count"),
        )


@rule("SM326", Level.WARNING)
def torch_without_gpu(subject: Subject) -> Iterator[Fault]:
    """torchrun starts on instances without GPUs.

    Training works with the gloo backend, which `cloudtrain.runtime` chooses automatically. torchrun
    starts one process on each instance, unless `processes_per_instance` asks for more. The
    SageMaker SDK refuses such a job.
    """
    spanned = subject.reading.machines.spanned
    if subject.reading.distribution.type != "torch":
        return
    if devices_of(spanned) == {"cpu"}:
        first = spanned[0]
        yield Fault(
            f"`{first.instance_type}` has no GPU, so `torch` trains on the CPU, with gloo",
            "name a type with GPUs (`cloudtrain instances --gpu A10G`), or accept it with "
            "`--ignore SM326`",
            first.path,
        )


@rule("SM327", Level.NOTICE)
def smp_arguments(subject: Subject) -> Iterator[Fault]:
    """The script gets the parameters of SMP as an argument.

    The toolkit passes `--mp_parameters KEY=VALUE,...` to the script along with the hyperparameters.
    If the script's argument parser does not accept this option, the script ends with an error.
    """
    distribution = subject.reading.distribution
    if isinstance(distribution, SMP) and distribution.parameters:
        yield Fault(
            "the script gets `--mp_parameters` beside its own hyperparameters",
            "read the arguments with `parser.parse_known_args()`",
            ("distribution", "parameters"),
        )


# Rules about SageMaker's own libraries, SMDDP and SMP: their parameters, and the images and
# instance types that support them.


def _undivided(subject: Subject, what: str, size: int, *names: str) -> Iterator[Fault]:
    """Yield a fault for each of these parameters of SMP version 1 that does not divide `size`, the
    size of `what`."""
    smp = subject.reading.distribution
    if not isinstance(smp, SMP) or smp.version != 1:
        return
    for name in names:
        count = positive_count(smp.parameters.get(name)) or 1
        if size % count == 0:
            continue
        smaller = range(1, min(count, size + 1))
        fits = max(number for number in smaller if size % number == 0)
        path = ("distribution", "parameters", name)
        message = f"{what} cannot be divided by `{name}: {count}`"
        yield Fault(message, f"set `{'.'.join(path)}` to {fits}", path)


_OF_RANKS = (
    "partitions", "pipeline_parallel_degree", "tensor_parallel_degree",
    "sharded_data_parallel_degree",
)  # fmt: skip
"""The parameters of SMP that divide the job's processes into groups."""


@rule("SM329", Level.ERROR)
def smp_partitions(subject: Subject) -> Iterator[Fault]:
    """The job's processes cannot hold whole copies of the model.

    Version 1 of SMP splits the model into `partitions` (`pipeline_parallel_degree`) parts, and all
    processes of the job into groups of one process for each part (sagemaker SDK,
    doc/api/training/smd_model_parallel_general.rst). The same holds for `tensor_parallel_degree`
    and `sharded_data_parallel_degree`.
    """
    ranks = Processes.of(subject.plan.processes).ranks.total()
    what = f"the job has {plural(ranks, 'process')}, which"
    yield from _undivided(subject, what, ranks, *_OF_RANKS)


_BATCH = re.compile(r"(?:(?:global|train|training|mini|per_device(?:_train)?)_)*batch(?:_size)?")
"""The names of options with the size of a batch. A global batch, which the processes share, cannot
be divided if each one's part can."""


@rule("SM330", Level.WARNING)
def smp_microbatches(subject: Subject) -> Iterator[Fault]:
    """SMP cannot divide a batch into its microbatches.

    Version 1 of SMP divides each batch into `microbatches` parts of the same size. cloudtrain takes
    the size of a batch from the hyperparameter `batch_size`, `train_batch_size`,
    `per_device_train_batch_size`, `global_batch_size` or `global_batch`, also without `_size`.
    """
    for name, value in subject.reading.parameters.items():
        batch = positive_count(value)
        if batch and _BATCH.fullmatch(name.replace("-", "_")):
            what = f"`{name}` is {batch}, which"
            yield from _undivided(subject, what, batch, "microbatches")


@rule("SM301", Level.ERROR)
def image_without_smddp(subject: Subject) -> Iterator[Fault]:
    """The image does not have the SMDDP library.

    SMDDP ships in the images of PyTorch up to 2.5 and of TensorFlow up to 2.11. In a newer image
    the toolkit prints a warning, drops `smddprun` and starts plain mpirun; the script then fails at
    `init_process_group("smddp")`. The SageMaker SDK does not check images that are given by their
    address (tried with 2.257.7).
    """
    image = read(subject).image
    if image is None or image.smddp:
        return
    if subject.reading.distribution.type != "smddp":
        return
    message = (
        f"the image of {image_name(image)} does not have `smddp`; the last ones with it are those "
        "of PyTorch 2.5 and TensorFlow 2.11"
    )
    path = read(subject).image_path or ("distribution",)
    yield Fault(message, _instead_of_smddp(subject), path)


@rule("SM302", Level.ERROR)
def type_without_smddp(subject: Subject) -> Iterator[Fault]:
    """The SMDDP library does not run on this instance type.

    AWS supports SMDDP on p4d and p4de (developer guide, data parallel library), and older versions
    on p3.16xlarge and p3dn. The SageMaker SDK has a list of types but never reads it. It accepts
    `ml.g5` and `ml.p5en`, and sometimes refuses `ml.p5.48xlarge` (2.257.7).
    """
    if subject.reading.distribution.type != "smddp":
        return
    hint = f"{_instead_of_smddp(subject)}; or use `ml.p4d.24xlarge` or `ml.p4de.24xlarge`"
    for group in subject.reading.machines.spanned:
        entry = group.known
        if entry and not entry.smddp and not entry.smddp_in_sdk:
            yield Fault(f"`smddp` does not run on `{entry.name}`", hint, group.path)


@rule("SM303", Level.ERROR)
def distribution_ignored(subject: Subject) -> Iterator[Fault]:
    """The image's toolkit does not support this distribution, and ignores it.

    The job does not fail. Instead, every instance runs the script alone in one process, and trains
    the same model on one GPU. This happens with parameter servers on PyTorch, and with torchrun on
    TensorFlow. In your own image, only MPI works, unless the variable SAGEMAKER_TRAINING_MODULE
    names a framework's toolkit. With `smddp` and `smp`, cloudtrain assumes that your own image is
    derived from an AWS image, as SM310 explains. A job without a script starts the image's own
    entry point without a distribution, and the SDK's `Estimator` silently drops the argument
    `distribution`. The toolkits in AWS's images for MXNet, scikit-learn, XGBoost, Chainer and
    reinforcement learning have launchers of their own, which this rule leaves alone.
    """
    reading = read(subject)
    job = subject.job
    has_script = job.entry_point is not None or job.command is not None
    if not has_script and job.distribution.type != "none":
        message = (
            "without a script the image's own entry point runs, and nothing starts "
            f"`{job.distribution.type}`"
        )
        yield Fault(message, "add an `entry_point`, or remove `distribution`", ("distribution",))

    start = reading.start
    if start.by != "toolkit" or reading.has_other_toolkit:
        return
    if start.starts(reading.launcher):
        return
    ignored = f"the image's training toolkit ignores `{reading.distribution.type}`"
    message = f"{ignored}: every instance would run one process, alone"
    yield Fault(message, _how_to_start(subject, start.framework), ("distribution",))


@rule("SM304", Level.ERROR)
def image_without_smp(subject: Subject) -> Iterator[Fault]:
    """The image does not have this version of SageMaker's model parallelism library.

    Version 1 is in the images of PyTorch 1.6 to 2.0.0 and TensorFlow 2.3 to 2.6. Version 2 has
    separate images, which cloudtrain selects by framework and version. In other images, `import
    smdistributed.modelparallel` or `torch.sagemaker` fails.
    """
    distribution = subject.reading.distribution
    image = read(subject).image
    if image is None or not isinstance(distribution, SMP):
        return
    version = distribution.version
    if image.smp == version:
        return
    message = f"the image of {image_name(image)} does not have version {version} of `smp`"
    path = read(subject).image_path or ("distribution",)
    versions_of_2 = smp_versions()
    hint = f"name framework and version instead of an image: PyTorch {join_names(versions_of_2)}"
    if version == 1:
        hint = (
            "use PyTorch `2.0.0` or older; or write `distribution: {type: smp, version: 2}`, and "
            f'`environment: {{framework: pytorch, version: "{versions_of_2[-1]}"}}`'
        )
    yield Fault(message, hint, path)


def _instead_of_smddp(subject: Subject) -> str:
    """Return a hint on how to train without SMDDP."""
    image = read(subject).image
    framework: str | None = subject.job.environment.framework
    if image is not None:
        framework = image.engine[0]
    if framework == "tensorflow":
        return (
            "write `distribution: {type: tensorflow}`, and use MultiWorkerMirroredStrategy "
            "in the script"
        )
    return "write `distribution: {type: torch}`, and `nccl` where the script says `smddp`"


def _how_to_start(subject: Subject, toolkit: str) -> str:
    """Return a hint on how to start the job's distribution, which the toolkit of the framework
    `toolkit` ignores."""
    distribution = subject.reading.distribution.type
    if toolkit == "pytorch":
        return add_entrypoint_hint(subject, "write `environment: {framework: tensorflow}`")
    if toolkit == "tensorflow":
        return (
            f"write `environment: {{framework: pytorch}}`, or `tensorflow` or `horovod` "
            f"instead of `{distribution}`"
        )
    framework = "tensorflow" if distribution == "tensorflow" else "pytorch"
    module = f"`{TRAINING_MODULE}: sagemaker_{framework}_container.training:main`"
    return add_entrypoint_hint(
        subject, f"write {module} under `environment.variables`, if the image has that package"
    )


# Rules about the container image of a SageMaker job.

_HOROVOD_ENDS = {"pytorch": (2, 0), "tensorflow": (2, 12)}
"""The first images without Horovod: their Dockerfile.gpu comments out its installation, or lacks
it."""

_BLIND = {("gpu", "cpu"), ("neuron", "cpu"), ("neuron", "gpu")}
"""Pairs of an instance's device and an image that cannot use it."""


@rule("SM305", Level.ERROR)
def image_in_doubt(subject: Subject) -> Iterator[Fault]:
    """The image probably does not exist, or cannot train.

    The address follows the naming rules, but AWS has published no such image. For example, the
    SageMaker SDK mistakes versions of the SMP library for versions of PyTorch, and builds an
    address from them. The job would wait for its instances and then fail to pull the image.
    """
    image = read(subject).image
    if image is not None and image.doubt is not None:
        yield Fault(
            image.doubt, "name a version that exists, or another image", read(subject).image_path
        )


@rule("SM306", Level.ERROR)
def image_for_other_device(subject: Subject) -> Iterator[Fault]:
    """The image cannot use the accelerators of the instance type.

    A CPU image cannot use GPUs, so the job would train on the CPU of an expensive machine. A GPU
    image does not support Trainium, and an image for Trainium supports nothing else. For an unknown
    instance type, the SageMaker SDK silently chooses a CPU image.
    """
    reading = read(subject)
    image = reading.image
    if image is None:
        return
    made_for = DEVICES[image.device]
    groups = reading.machines.groups
    alone = image.device == "neuron" and "neuron" not in devices_of(groups)
    for group in groups:
        if not group.known:
            continue
        if alone or (group.device, image.device) in _BLIND:
            has = f"`{group.known.name}` has {_has(group.known)}"
            hint = _by_framework(subject, image.framework)
            hint += f", or name an image for {DEVICES[group.device or 'cpu']}"
            yield Fault(f"the image is for {made_for}, and {has}", hint, reading.image_path)


@rule("SM307", Level.WARNING)
def gpu_image_without_gpu(subject: Subject) -> Iterator[Fault]:
    """The image is for GPUs, but no instance has a GPU.

    The job works, but every start downloads several gigabytes of unused CUDA libraries.
    """
    image = read(subject).image
    groups = subject.reading.machines.groups
    if image is None or image.device != "gpu":
        return
    if devices_of(groups) == {"cpu"}:
        message = f"the image is for GPUs, and `{groups[0].instance_type}` has none"
        hint = _by_framework(subject, image.framework)
        hint += ", or name an instance type with a GPU"
        yield Fault(message, hint, read(subject).image_path)


@rule("SM308", Level.ERROR)
def image_for_other_processor(subject: Subject) -> Iterator[Fault]:
    """The image and the instance type are for different processors.

    Grace-Blackwell machines (p6e-gb200) have ARM processors. AWS's training images are for x86-64,
    except those whose address contains `arm64`. On ARM, an x86-64 image fails at once with "exec
    format error".
    """
    image = read(subject).image
    if image is None:
        return
    built_for = "x86_64"
    if "arm64" in image.repository or "arm64" in image.tag:
        built_for = "arm64"
    for group in subject.reading.machines.groups:
        if not group.known:
            continue
        processor = group.known.architecture
        if processor not in ("", built_for):
            has = f"`{group.known.name}` has an {processor} processor"
            yield Fault(
                f"{has}, and the image is for {built_for}",
                "use an image that is built for it, or another instance type",
                group.path,
            )


@rule("SM309", Level.NOTICE)
def image_unpatched(subject: Subject) -> Iterator[Fault]:
    """The image no longer gets security patches.

    AWS patches the images of a framework version for about a year after its release, and publishes
    the last day (aws/deep-learning-containers, framework support policy). Older images stay
    available. An image of Hugging Face is as old as the PyTorch in it. Nothing is said if AWS has
    no newer image to ask for.
    """
    image = read(subject).image
    # these images have their own end dates
    if image is None or image.device == "neuron" or image.smp == 2:
        return
    framework, version = image.engine
    today = str(date.today())
    end = end_of_patches(framework, version)
    if not end or end >= today:
        return
    patched = patched_instead(image, today)
    if patched:
        of = ""
        if image.framework == "huggingface":
            of = f" of its {TITLES[framework]} {version}"
        message = (
            f"the image of {image_name(image)} is no longer patched: AWS's support{of} "
            f"ended on {end}"
        )
        yield Fault(message, _how_to_be_patched(subject, image, patched), read(subject).image_path)


def _how_to_be_patched(subject: Subject, image: Image, patched: Mapping[str, str]) -> str:
    """Return a hint to use an image that AWS still patches. `patched` maps the versions, oldest
    first, to the end of their patches."""
    steps: list[str] = []
    kind = subject.reading.distribution.type
    needs_horovod = kind == "horovod" and not subject.job.environment.requirements
    if needs_horovod or kind in ("smddp", "smp"):  # newer images lack these
        steps.append(f"write `distribution: {{type: {_own_distribution(image)}}}`")
    if read(subject).image_path[-1:] != ("version",):
        steps.append(_by_framework(subject, image.framework, next(iter(patched))))
        return ", and ".join(steps)

    if subject.job.environment.python:
        steps.append("remove `python`")
    ways: list[str] = []
    for version, end in patched.items():
        until = f" (until {end})" if end else ""
        ways.append(f'`version: "{version}"`{until}')
    wanted = f"use {ways[0]}"
    if not steps and len(ways) > 1:
        wanted += f" or {ways[-1]}"
    steps.append(wanted)
    return ", and ".join(steps)


def _own_distribution(image: Image) -> str:
    """Return the type of the distribution of the image's own framework."""
    return "tensorflow" if image.engine[0] == "tensorflow" else "torch"


@rule("SM314", Level.WARNING)
def image_in_test(subject: Subject) -> Iterator[Fault]:
    """AWS may not have released the image yet.

    The image was still in AWS's own tests on the day on which cloudtrain's catalogue was made. If
    it is not released, the job fails when it pulls the image.
    """
    image = read(subject).image
    if image is None or not image.in_test:
        return
    newest = resolve_image(image.framework, region="us-east-1", device=image.device)
    message = f"AWS was still testing the image of {image_name(image)} on {image.in_test}"
    hint = (
        f'use `version: "{newest.version}"`, or add `--ignore SM314` if your registry of AWS has '
        "it by now"
    )
    yield Fault(message, hint, read(subject).image_path)


@rule("SM310", Level.WARNING)
def toolkit_not_known(subject: Subject) -> Iterator[Fault]:
    """The image may lack the training toolkit, which must start the script.

    With `launch = "toolkit"`, sagemaker-training inside the image fetches the code and runs the
    script. An image without it runs its own entry point instead, with the argument `train`. `smddp`
    and `smp` need an image derived from an AWS image: its Dockerfile begins with `FROM` and the
    address of the AWS image.
    """
    reading = read(subject)
    image = reading.image
    if reading.start.by != "toolkit":
        return
    if image is not None and image.toolkit is not None:
        return
    is_named = TRAINING_MODULE in mapping_at(subject.plan.request, "Environment")
    if is_named or reading.has_other_toolkit:
        return
    library = reading.distribution.type
    hint = add_entrypoint_hint(subject, "install sagemaker-training in the image")
    if library in ("smddp", "smp"):
        hint = (
            "begin its Dockerfile with `FROM` and the address of an image of AWS that "
            f"has `{library}`"
        )
    message = "cloudtrain knows no training toolkit in this image"
    yield Fault(message, hint, reading.image_path)


@rule("SM311", Level.WARNING)
def image_without_horovod(subject: Subject) -> Iterator[Fault]:
    """The image does not have Horovod.

    AWS's images of PyTorch 2.0 and later and of TensorFlow 2.12 and later lack Horovod (Dockerfiles
    in aws/deep-learning-containers), so `import horovod` fails on every rank.
    """
    image = read(subject).image
    if image is None or subject.job.environment.requirements:
        return
    if subject.reading.distribution.type != "horovod":
        return
    framework, version = image.engine
    end = _HOROVOD_ENDS.get(framework)
    if end is not None and numbers(version) >= end:
        message = f"the image of {image_name(image)} does not have Horovod"
        hint = (
            "add it to a requirements file as the script `mnist_horovod` does, or use "
            f"`distribution: {{type: {_own_distribution(image)}}}`"
        )
        yield Fault(message, hint, ("distribution", "type"))


@rule("SM312", Level.ERROR)
def image_of_another_framework(subject: Subject) -> Iterator[Fault]:
    """The image and the job have different frameworks.

    AWS's TensorFlow images lack PyTorch, and PyTorch images lack TensorFlow. torchrun is missing,
    or the script ends at its first import. If the job names an image, `framework` does not choose
    one, so both must agree.
    """
    image = read(subject).image
    if image is None:
        return
    needed = missing_framework(subject, image.engine[0])
    if needed is not None and not any(distribution_ignored(subject)):
        message = f"the image is for {image_name(image)}, and the job needs {TITLES[needed]}"
        yield Fault(message, _instead(subject, needed), read(subject).image_path)


@rule("SM313", Level.WARNING)
def image_name_contradicts(subject: Subject) -> Iterator[Fault]:
    """The name of the image suggests another framework or device than the job needs.

    cloudtrain cannot look into your own image, and judges it by its name. An image called
    `tensorflow` probably lacks torchrun, and one called `cpu` probably cannot use a GPU.
    """
    name = text_at(subject.plan.request, "AlgorithmSpecification", "TrainingImage")
    if read(subject).image is not None or not name:
        return
    path = read(subject).image_path
    framework = framework_of(name)
    needed = missing_framework(subject, framework)
    if framework is not None and needed is not None:
        own = TITLES[framework]
        message = f"`{name}` says that it is made for {own}, and the job needs {TITLES[needed]}"
        yield Fault(message, _instead(subject, needed), path)

    device = device_of(name)
    if device is None:
        return
    for group in subject.reading.machines.groups:
        is_blind = (group.device, device) in (*_BLIND, ("gpu", "neuron"))
        if group.known and is_blind:
            has = f"`{group.known.name}` has {_has(group.known)}"
            wanted = DEVICES[group.device or "cpu"]
            message = f"`{name}` says that it is made for {DEVICES[device]}, and {has}"
            yield Fault(
                message,
                f"use an image for {wanted}, or accept this one with `--ignore SM313`",
                path,
            )
            return


def _instead(subject: Subject, framework: str) -> str:
    """Return a hint on how to get an image with the needed framework, or how to correct the field
    `framework`."""
    environment = subject.job.environment
    if environment.image is not None and environment.framework is not None:
        return (
            f"remove `image`, so that `framework: {environment.framework}` chooses one, or "
            "remove `framework`"
        )
    return f"{_by_framework(subject, framework)}, or name an image that has it"


def _by_framework(subject: Subject, framework: str, version: str = "") -> str:
    """Return a hint to set `framework`, and perhaps `version`, so that cloudtrain chooses the
    image."""
    path = read(subject).image_path
    if path[-1:] == ("version",):  # the version belongs to another framework
        device = subject.reading.machines.groups[0].device or "cpu"
        known = versions(framework, device) or versions(framework)
        version = known[-1]
    words = f'{framework}, version: "{version}"' if version else framework
    hint = f"write `environment: {{framework: {words}}}`"
    if path[:1] == ("sagemaker_overrides",):
        keys = ".".join(map(str, path[1:]))
        return f"remove `{keys}` from `sagemaker_overrides`, and {hint}"
    if path[-1:] == ("image",):
        hint += " instead of `image`"
    return hint


def _has(entry: InstanceType) -> str:
    return entry.hardware if entry.gpus or entry.neuron_cores else "neither GPUs nor Trainium"
