"""What a Slurm cluster does with each field of a job. A field without an effect here changes the
options of sbatch, the batch script, the uploads, or what the run store keeps."""

from __future__ import annotations

from cloudtrain.targets.common.fields import (
    ADDED_PROPERTY,
    Effect,
    Field,
    Needless,
    NoEffect,
    Refused,
)

_IS_STORED = Needless("the store keeps it")
_ENVIRONMENT_NAME = NoEffect(
    "a Slurm cluster has no registry of environments",
    "set `python` or `setup` in `[slurm]` to select an environment of the cluster",
)
_IMAGE_BUILD = NoEffect(
    "a Slurm cluster builds no images",
    "build the image yourself, and add `image: {slurm: IMAGE}` to `environment`",
)
_ASSET = NoEffect(
    "a Slurm cluster has no registry of data",
    "copy the run's outputs from the cluster with `cloudtrain download RUN`",
)
_DATA_KIND = NoEffect(
    "a path of the cluster is a plain file or folder",
    "remove `type`, or read the format in the script",
)
_CONTAINER_PATH = NoEffect(
    "the script uses the data at its path on the cluster",
    "write `${{inputs.NAME}}` or `${{outputs.NAME}}` into the script's arguments",
)

_EFFECTS: dict[str, Effect] = {
    "name": None,
    "source_dir": None,
    "entry_point": None,
    "command": None,
    "hyperparameters": None,
    "arguments": None,
    "bare_flags": None,
    "distribution": None,
    "distribution.added_property": ADDED_PROPERTY,
    "resources.instance_count": None,
    "resources.instance_type": None,
    "resources.gpu": Refused("SL105"),
    "resources.gpus_per_instance": None,
    "resources.interconnect": NoEffect(
        "a Slurm cluster selects nodes by their features",
        "set `constraint` in `[slurm]` to a feature of the right nodes, such as `ib`",
    ),
    "resources.instance_groups": Refused("CT031"),
    "resources.distribution_groups": Refused("CT031"),
    "resources.instance_preferences": NoEffect(
        "the instance types of SageMaker are not on a Slurm cluster",
        "set `constraint` in `[slurm]` to the features of the right nodes, such as `a100|h100`",
    ),
    "resources.volume_size": NoEffect(
        "the nodes of a Slurm cluster have fixed disks",
        "ask for nodes with enough temporary disk: `slurm_overrides: {tmp: 100G}`",
    ),
    "resources.shm_size": NoEffect(
        "the node's operating system decides the size of `/dev/shm`",
        "run `df -h /dev/shm` on a node to see its size",
    ),
    "environment.framework": Refused("SL208"),
    "environment.version": Refused("SL208"),
    "environment.base": NoEffect(
        "a Slurm cluster has no images of Hugging Face",
        "set `python` or `setup` in `[slurm]` to an environment that has the framework",
    ),
    # it also decides which packages of a lock are installed
    "environment.python": Refused("SL208"),
    "environment.image": None,
    "environment.conda_file": NoEffect(
        "cloudtrain creates no conda environments on a Slurm cluster",
        "create it with `conda env create -f FILE`, and activate it in `setup` of `[slurm]`",
    ),
    "environment.build": _IMAGE_BUILD,
    "environment.dockerfile": _IMAGE_BUILD,
    "environment.asset_name": _ENVIRONMENT_NAME,
    "environment.asset_version": _ENVIRONMENT_NAME,
    "environment.description": _ENVIRONMENT_NAME,
    "environment.tags": _ENVIRONMENT_NAME,
    "environment.requirements": None,
    "environment.groups": None,
    "environment.extras": None,
    "environment.variables": None,
    "environment.secrets": None,
    "environment.slurm": _ENVIRONMENT_NAME,
    "inputs.*.slurm": None,
    "inputs.*.value": None,
    "inputs.*.mode": NoEffect(
        "every node reads an input from its path on the cluster",
        "if the script needs a copy on the node's disk, let it copy the data to `/tmp`",
    ),
    "inputs.*.type": _DATA_KIND,
    "inputs.*.channel": NoEffect(
        "a Slurm job has no channels",
        "write `${{inputs.NAME}}`, with the input's own name, into the script's arguments",
    ),
    "inputs.*.shard": Refused("CT031"),
    "inputs.*.content_type": NoEffect(
        "files on a cluster have no content type",
        "if the script needs it, add it to the `hyperparameters`",
    ),
    "inputs.*.compression": NoEffect(
        "a Slurm cluster does not decompress data",
        "decompress the files once with `gunzip`, or read them with Python's `gzip`",
    ),
    "inputs.*.record_wrapper": NoEffect(
        "a Slurm cluster does not convert data",
        "convert the files to RecordIO once, and write their folder as `slurm: /PATH`",
    ),
    "inputs.*.data_type": NoEffect(
        "a Slurm cluster does not read manifests",
        "write the folder that holds the data itself as `slurm: /PATH`",
    ),
    "inputs.*.attribute_names": NoEffect(
        "a Slurm cluster does not read manifests",
        "let the script select the attributes of each line of `${{inputs.NAME}}`",
    ),
    "inputs.*.shuffle_seed": NoEffect(
        "a Slurm cluster does not shuffle data",
        "shuffle in the script, for example with PyTorch's `DistributedSampler`",
    ),
    "inputs.*.instance_groups": NoEffect(
        "every node of a Slurm job sees every input",
        "remove `instance_groups`, and let the script choose its data by its rank",
    ),
    "inputs.*.access": NoEffect(
        "the permissions of the files decide who may write",
        "change them with `chmod` on the cluster",
    ),
    "inputs.*.path": _CONTAINER_PATH,
    "outputs.*.slurm": None,
    "outputs.*.mode": NoEffect(
        "the script writes to the output's path on the cluster",
        "to copy the files at the end, let the script write to `/tmp` first",
    ),
    "outputs.*.type": _DATA_KIND,
    "outputs.*.asset_name": _ASSET,
    "outputs.*.asset_version": _ASSET,
    "outputs.*.path": _CONTAINER_PATH,
    "checkpoint.slurm": None,
    "checkpoint.keep": None,
    "capacity.alternatives": None,
    "capacity.wait": None,
    "capacity.give_up_after": None,
    "spot.max_wait": None,
    "max_runtime": None,
    "stop_when_idle": None,
    "stop_when_stalled": None,
    "metrics": NoEffect(
        "Slurm reads no metrics from the log",
        "report them in the script: `runtime.report(loss=loss)`",
    ),
    "tracking.mlflow": None,
    "tracking.wandb": None,
    "tracking.tensorboard": None,
    "tags": _IS_STORED,
    "description": _IS_STORED,
    "slurm_overrides": None,
}
"""For each field, what Slurm does with it; None for a field that is sent."""

FIELDS = tuple(Field(path, effect=effect) for path, effect in _EFFECTS.items())
