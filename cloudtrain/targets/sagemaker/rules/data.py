"""Rules about the inputs, the outputs and the network of a SageMaker job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from cloudtrain.errors import InPlace
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import (
    Fault,
    Nature,
    Subject,
    ValuePath,
    mapping_at,
    rows_at,
    rule,
    text_at,
    value_at,
)
from cloudtrain.rules.facts import read_requirements
from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL
from cloudtrain.targets.sagemaker.compile.launch import REQUIREMENTS
from cloudtrain.targets.sagemaker.compile.places import INPUT_ROOT
from cloudtrain.targets.sagemaker.reading import read
from cloudtrain.targets.sagemaker.request import SUBMIT_DIRECTORY, JsonMapping
from cloudtrain.targets.sagemaker.rules.request import is_bucket

_PIPE = "Pipe"
_PIPE_SETTINGS = {
    "CompressionType": "compression",
    "RecordWrapperType": "record_wrapper",
    "ShuffleConfig": "shuffle_seed",
}
"""Maps request fields that work only in Pipe mode to the job's names for them."""


@rule("SM501", Level.ERROR)
def s3_address(subject: Subject) -> Iterator[Fault]:
    """An S3 address contains no valid bucket name.

    An address is `s3://BUCKET/KEY`, with the bucket's name in lower case. The service accepts
    nearly any text. With a wrong address the job starts, and fails when it downloads its data or
    stores its model.
    """
    account = subject.account
    region = "" if "region" in account.missing else account.region
    bucket_of_account = account.bucket
    is_reported = "bucket" in account.missing or not is_bucket(bucket_of_account, region)
    for path, uri in _addresses(subject):
        if is_reported and uri.startswith(f"s3://{bucket_of_account}"):
            continue  # by SM101 or SM105

        scheme, _, rest = uri.partition("://")
        bucket, slash, key = rest.partition("/")
        is_one = bucket.startswith("arn:") or is_bucket(bucket, region)
        if uri.startswith("https://") or (scheme == "s3" and is_one):
            continue
        better = bucket.lower()
        hint = InPlace("write `s3://BUCKET/KEY`")
        if scheme == "s3" and is_bucket(better, region):
            hint = InPlace(f"write `s3://{better}{slash}{key}`")
        yield Fault(
            f"`{uri}` is not an address in S3, or its bucket cannot have this name", hint, path
        )


@rule("SM502", Level.ERROR)
def channels_repeat(subject: Subject) -> Iterator[Fault]:
    """Two channels have the same name.

    Each channel is a folder `/opt/ml/input/data/NAME`. The channel `code` brings the bundle if
    cloudtrain's own launcher starts the job, or if the container has no network.
    """
    for name, count in Counter(_channel_names(subject)).items():
        if count < 2 or not isinstance(name, str):
            continue
        message = f"the channel `{name}` comes {count} times"
        yield Fault(
            message,
            "call one of them something else; `code` is the channel of the job's code",
            input_path(subject, name),
        )


@rule("SM503", Level.ERROR)
def code_overridden(subject: Subject) -> Iterator[Fault]:
    """`sagemaker_overrides` remove the channel that brings the code.

    An empty list, null, or a list of channels without different names replaces the request's
    channels. Without the channel `code`, the container has no code to run.
    """
    start = read(subject).start
    directory = str(start.values.get(SUBMIT_DIRECTORY))
    from_channel = f"{INPUT_ROOT}/{CODE_CHANNEL}/" in directory
    needed = from_channel or start.by == "entrypoint"
    if needed and CODE_CHANNEL not in _channel_names(subject):
        yield Fault(
            "the overrides replace all channels, and the channel `code` with the job's code is "
            "gone",
            "remove `InputDataConfig` from `sagemaker_overrides`, and write the channels under "
            "`inputs`; `cloudtrain plan` shows what is sent",
            ("sagemaker_overrides", "InputDataConfig"),
        )


@rule("SM504", Level.WARNING)
def pipe_is_no_folder(subject: Subject) -> Iterator[Fault]:
    """An input uses Pipe mode, but scripts expect a folder.

    In Pipe mode the folder `/opt/ml/input/data/NAME` is missing. Each epoch has a FIFO (`NAME_0`,
    `NAME_1`, ...) that can be read only once. Scripts that open files need `mode: mount`, which
    also reads on demand.
    """
    if read(subject).start.by == "image":
        return
    hint = "write `mode: mount`, or accept it with `--ignore SM504` if the script reads the FIFO"
    for name, channel in _channels(subject):
        if _mode_of(subject, channel) == _PIPE:
            message = f"the script finds no folder, but a FIFO `/opt/ml/input/data/{name}_0`"
            yield Fault(message, hint, input_path(subject, name, "mode"))


@rule("SM505", Level.WARNING)
def only_in_pipe_mode(subject: Subject) -> Iterator[Fault]:
    """A setting works in Pipe mode only.

    SageMaker decompresses, wraps in RecordIO and shuffles only in Pipe mode. In the other modes,
    the files arrive as they are in S3 (API reference, Channel).
    """
    for name, channel in _channels(subject):
        mode = _mode_of(subject, channel)
        if mode == _PIPE:
            continue
        for key, field in _PIPE_SETTINGS.items():
            if channel.get(key) not in (None, "None"):
                message = (
                    f"`{field}` has no effect in {mode} mode: the files arrive as they are in S3"
                )
                hint = f"remove `{field}`, or write `mode: pipe` if the script reads a FIFO"
                yield Fault(message, hint, input_path(subject, name, field))


@rule("SM506", Level.ERROR)
def augmented_manifest_needs_pipe(subject: Subject) -> Iterator[Fault]:
    """Augmented manifests need Pipe mode and attribute names; other inputs must not have attribute
    names.

    `AugmentedManifestFile` works only in Pipe mode, and needs the names of the attributes to read.
    Other data types have no attributes (API reference, S3DataSource).
    """
    for name, channel in _channels(subject):
        source = mapping_at(channel, "DataSource", "S3DataSource")
        augmented = source.get("S3DataType") == "AugmentedManifestFile"
        attributes = source.get("AttributeNames")
        path = input_path(subject, name, "attribute_names")

        if augmented and _mode_of(subject, channel) != _PIPE:
            message = f"the augmented manifest of `{name}` works in Pipe mode only"
            yield Fault(message, "write `mode: pipe`", input_path(subject, name, "mode"))
        if augmented and not attributes:
            message = f"the augmented manifest of `{name}` needs the attributes to read"
            yield Fault(message, "write for example `attribute_names: [source-ref, label]`", path)
        if attributes and not augmented:
            message = f"`attribute_names` of `{name}` belong to an augmented manifest"
            yield Fault(message, "write `data_type: augmented_manifest`, or remove them", path)


@rule("SM507", Level.WARNING)
def file_system_ignores(subject: Subject) -> Iterator[Fault]:
    """An input from a file system ignores settings such as `shard` and `mode`.

    FSx and EFS are mounted unchanged, so every instance sees all files. Sharding, manifests,
    compression and modes are not supported. With `shard`, each instance would train on all of the
    data instead of a part.
    """
    for name, item in subject.job.inputs.items():
        place = item.sagemaker or ""
        if not place.startswith(("fsx://", "efs://")):
            continue
        for field in _IGNORED_BY_FILE_SYSTEMS:
            if not getattr(item, field):
                continue
            message = (
                f"`{field}` has no effect on a file system: every instance sees all of `{name}`"
            )
            hint = f"remove `{field}`"
            if field == "shard":
                hint += ", and let each rank choose its files"
            yield Fault(message, hint, ("inputs", name, field))


_IGNORED_BY_FILE_SYSTEMS = (
    "shard",
    "compression",
    "record_wrapper",
    "shuffle_seed",
    "content_type",
    "instance_groups",
)


@rule("SM508", Level.ERROR)
def file_system_without_network(subject: Subject) -> Iterator[Fault]:
    """The job reads a file system, but has no network to reach it.

    FSx and EFS are inside a VPC. Only instances in subnets of this VPC reach them.
    """
    if mapping_at(subject.plan.request, "VpcConfig"):
        return
    hint = (
        'add `subnets = ["subnet-0123456789abcdef0"]` and `security_group_ids = '
        '["sg-0123456789abcdef0"]` under `[sagemaker]` in `cloudtrain.toml`'
    )
    for name, channel in _channels(subject):
        source = value_at(channel, "DataSource", "FileSystemDataSource")
        if isinstance(source, Mapping):
            file_system = source.get("FileSystemId")
            message = f"the file system `{file_system}` is in a VPC, and the job has no subnets"
            yield Fault(message, hint, input_path(subject, name, "sagemaker"))


@rule("SM509", Level.ERROR)
def one_object_sharded(subject: Subject) -> Iterator[Fault]:
    """A single file is sharded over several instances.

    `shard` distributes whole objects. The only object goes to the first instance. The other
    instances, which you also pay for, get an empty folder.
    """
    count = subject.reading.machines.spanned_count
    if count <= 1:
        return
    hint = "remove `shard`, or name a folder with at least as many files as instances"
    for name, item in subject.job.inputs.items():
        is_one_object = item.type == "uri_file" and item.data_type == "prefix"
        if item.shard and is_one_object:
            idle = count - 1
            message = f"`{name}` is one file, so {idle} of {count} instances would get nothing"
            yield Fault(message, hint, ("inputs", name, "shard"))


@rule("SM510", Level.NOTICE)
def sharded_for_one(subject: Subject) -> Iterator[Fault]:
    """An input is sharded over one instance.

    `shard` has no effect on a single instance, which gets all files. It takes effect with more
    instances.
    """
    if subject.reading.machines.count != 1:
        return
    for name, channel in _channels(subject):
        source = mapping_at(channel, "DataSource", "S3DataSource")
        if source.get("S3DataDistributionType") == "ShardedByS3Key":
            path = input_path(subject, name, "shard")
            yield Fault(
                f"the one instance gets all of `{name}`", "remove `shard`, or add instances", path
            )


def _channel_names(subject: Subject) -> list[object]:
    """Return the names of all channels of the request; None for one without a name."""
    channels = rows_at(subject.plan.request, "InputDataConfig")
    return [channel.get("ChannelName") for channel in channels]


def _channels(subject: Subject) -> Iterator[tuple[str, JsonMapping]]:
    """Yield the name and content of each channel of the request, except the code channel."""
    for channel in rows_at(subject.plan.request, "InputDataConfig"):
        name = channel.get("ChannelName")
        if not isinstance(name, str):
            continue
        is_input = read(subject).input_of(name) is not None
        if is_input or name != CODE_CHANNEL:
            yield name, channel


def _mode_of(subject: Subject, channel: JsonMapping) -> str:
    """Return `File`, `FastFile` or `Pipe`: the channel's own mode, or else the job's mode."""
    default_mode = text_at(subject.plan.request, "AlgorithmSpecification", "TrainingInputMode")
    return str(channel.get("InputMode") or default_mode or "File")


def input_path(subject: Subject, channel: object, *field: str) -> ValuePath:
    """Return the path of a field of the input for a channel, or of the overrides if they set the
    channels; empty for channels that come from elsewhere."""
    path = subject.reading.override_of("InputDataConfig")
    if path is not None:
        return path
    name = read(subject).input_of(channel)
    return ("inputs", name, *field) if name is not None else ()


def _addresses(subject: Subject) -> Iterator[tuple[ValuePath, str]]:
    """Yield the S3 addresses of inputs, checkpoint and outputs: the path of the job field, and the
    address."""
    for name, channel in _channels(subject):
        uri = value_at(channel, "DataSource", "S3DataSource", "S3Uri")
        if isinstance(uri, str):
            yield input_path(subject, name, "sagemaker"), uri

    request = subject.plan.request
    checkpoint = text_at(request, "CheckpointConfig", "S3Uri")
    if checkpoint:
        yield ("checkpoint", "sagemaker"), checkpoint

    output = text_at(request, "OutputDataConfig", "S3OutputPath")
    if output:
        path: ValuePath = ()
        model = subject.job.outputs.get("model")
        if model is not None and model.sagemaker:
            path = ("outputs", "model", "sagemaker")
        yield path, output


# Rules about the network of a SageMaker job (VPC, isolation, encryption) and about the profiler.


@rule("SM701", Level.ERROR, Nature.FACT)
def half_a_network(subject: Subject) -> Iterator[Fault]:
    """The target's settings have subnets but no security groups, or security groups but no subnets.

    `VpcConfig` needs at least one of each. The service creates a network interface of every
    instance in a subnet, and applies the rules of the security groups.
    """
    config = mapping_at(subject.plan.request, "VpcConfig")
    if not config:
        return
    for key, field, example in _NETWORK:
        if not config.get(key):
            hint = f'add `{field} = ["{example}"]` under `[sagemaker]` in `cloudtrain.toml`'
            yield Fault(f"the job's VPC has no `{field}`", hint)


_NETWORK = (
    ("Subnets", "subnets", "subnet-0123456789abcdef0"),
    ("SecurityGroupIds", "security_group_ids", "sg-0123456789abcdef0"),
)
"""The keys of a request's network, each with its setting and an example."""


@rule("SM702", Level.ERROR)
def install_without_network(subject: Subject) -> Iterator[Fault]:
    """The job would install packages in a container without network.

    With network isolation the container has no network access, so `pip install -r` and the job
    fail. Put the packages into the image. Or put them into the bundle as wheels, and name only
    these, or write `--no-index` into the file.
    """
    starter = read(subject).start.by
    if starter == "image":
        return
    if not subject.plan.request.get("EnableNetworkIsolation"):
        return
    # the toolkit installs this file wherever it finds it
    default = REQUIREMENTS if starter == "toolkit" else None
    file = subject.job.environment.requirements or default
    if file is None:
        return
    wanted = read_requirements(subject.tree, file)
    has_wheels = all(line.path.endswith(".whl") for line in wanted.asked)
    if "--no-index" not in wanted.flags and not has_wheels:
        yield Fault(
            f"the container has no network, so `{file}` cannot be installed",
            (
                "put the packages into the image; or wheels into the bundle, with `--no-index "
                "--find-links .` in the file"
            ),
            ("environment", "requirements"),
        )


@rule("SM703", Level.WARNING)
def address_without_network(subject: Subject) -> Iterator[Fault]:
    """The script gets an address that it cannot reach without network.

    With network isolation the container cannot call S3 or any other service. Read inputs through
    channels, and write models and checkpoints to their folders.
    """
    if not subject.plan.request.get("EnableNetworkIsolation"):
        return
    for name, value in subject.reading.parameters.items():
        if isinstance(value, str) and value.startswith(("s3://", "http://", "https://")):
            message = f"the container has no network, and cannot reach `{value}`"
            hint = f"make it an input, and write `{name}: ${{{{inputs.NAME}}}}`"
            yield Fault(message, hint, ("hyperparameters", name))
    tracking = subject.job.tracking
    if tracking is None:
        return
    message = "the container has no network, and cannot reach the tracking server"
    if tracking.mlflow is not None and tracking.mlflow.of("sagemaker"):
        hint = "remove `mlflow`, or write `tensorboard: true` or `wandb: offline`"
        yield Fault(message, hint, ("tracking", "mlflow"))
    if tracking.wandb == "online":
        yield Fault(message, "write `wandb: offline`", ("tracking", "wandb"))


@rule("SM704", Level.WARNING)
def profiler_on_trainium(subject: Subject) -> Iterator[Fault]:
    """SageMaker's profiler does not support Trainium.

    The SageMaker SDK switches the profiler off on `ml.trn` types. Use Neuron's own profiling tools.
    """
    config = mapping_at(subject.plan.request, "ProfilerConfig")
    if config.get("DisableProfiler") is not False:
        return
    hint = "remove `profiler = true` from the target's settings for this job"
    for group in subject.reading.machines.groups:
        if group.device == "neuron":
            yield Fault(
                f"the profiler has nothing to show on `{group.instance_type}`", hint, group.path
            )


@rule("SM705", Level.NOTICE)
def nothing_to_encrypt(subject: Subject) -> Iterator[Fault]:
    """Traffic between instances is encrypted, but the job has only one instance.

    The setting takes effect with two or more instances. It then slows training down, depending on
    the amount of traffic.
    """
    encrypts = subject.plan.request.get("EnableInterContainerTrafficEncryption")
    if encrypts and subject.reading.machines.count == 1:
        yield Fault(
            "one instance has no traffic to others that could be encrypted",
            "remove `encrypt_inter_container_traffic` from the target's settings for this job",
        )
