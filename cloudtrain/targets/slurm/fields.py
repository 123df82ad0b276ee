"""What a Slurm cluster does with each field of a job. A field without an effect here changes the
options of sbatch, the batch script, the uploads, or what the run store keeps."""

from __future__ import annotations

from cloudtrain.targets.common.fields import Field, Needless, NoEffect, Refused

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

FIELDS: tuple[Field, ...] = (
    Field("name"),
    Field("source_dir"),
    Field("entry_point"),
    Field("command"),
    Field("hyperparameters"),
    Field("arguments"),
    Field("bare_flags"),
    Field("distribution"),
    Field("resources.instance_count"),
    Field("resources.instance_type"),
    Field("resources.gpu", effect=Refused("SL105")),
    Field("resources.gpus_per_instance"),
    Field(
        "resources.interconnect",
        effect=NoEffect(
            "a Slurm cluster selects nodes by their features",
            "set `constraint` in `[slurm]` to a feature of the right nodes, such as `ib`",
        ),
    ),
    Field("resources.instance_groups", effect=Refused("CT031")),
    Field("resources.distribution_groups", effect=Refused("CT031")),
    Field(
        "resources.instance_preferences",
        effect=NoEffect(
            "the instance types of SageMaker are not on a Slurm cluster",
            "set `constraint` in `[slurm]` to the features of the right nodes, such as `a100|h100`",
        ),
    ),
    Field(
        "resources.volume_size",
        effect=NoEffect(
            "the nodes of a Slurm cluster have fixed disks",
            "ask for nodes with enough temporary disk: `slurm_overrides: {tmp: 100G}`",
        ),
    ),
    Field(
        "resources.shm_size",
        effect=NoEffect(
            "the node's operating system decides the size of `/dev/shm`",
            "run `df -h /dev/shm` on a node to see its size",
        ),
    ),
    Field("environment.framework", effect=Refused("SL208")),
    Field("environment.version", effect=Refused("SL208")),
    Field(
        "environment.base",
        effect=NoEffect(
            "a Slurm cluster has no images of Hugging Face",
            "set `python` or `setup` in `[slurm]` to an environment that has the framework",
        ),
    ),
    # it also decides which packages of a lock are installed
    Field("environment.python", effect=Refused("SL208")),
    Field("environment.image"),
    Field(
        "environment.conda_file",
        effect=NoEffect(
            "cloudtrain creates no conda environments on a Slurm cluster",
            "create it with `conda env create -f FILE`, and activate it in `setup` of `[slurm]`",
        ),
    ),
    Field("environment.build", effect=_IMAGE_BUILD),
    Field("environment.dockerfile", effect=_IMAGE_BUILD),
    Field("environment.asset_name", effect=_ENVIRONMENT_NAME),
    Field("environment.asset_version", effect=_ENVIRONMENT_NAME),
    Field("environment.description", effect=_ENVIRONMENT_NAME),
    Field("environment.tags", effect=_ENVIRONMENT_NAME),
    Field("environment.requirements"),
    Field("environment.groups"),
    Field("environment.extras"),
    Field("environment.variables"),
    Field("environment.secrets"),
    Field("environment.slurm", effect=_ENVIRONMENT_NAME),
    Field("inputs.*.slurm"),
    Field("inputs.*.value"),
    Field(
        "inputs.*.mode",
        effect=NoEffect(
            "every node reads an input from its path on the cluster",
            "if the script needs a copy on the node's disk, let it copy the data to `/tmp`",
        ),
    ),
    Field("inputs.*.type", effect=_DATA_KIND),
    Field(
        "inputs.*.channel",
        effect=NoEffect(
            "a Slurm job has no channels",
            "write `${{inputs.NAME}}`, with the input's own name, into the script's arguments",
        ),
    ),
    Field("inputs.*.shard", effect=Refused("CT031")),
    Field(
        "inputs.*.content_type",
        effect=NoEffect(
            "files on a cluster have no content type",
            "if the script needs it, add it to the `hyperparameters`",
        ),
    ),
    Field(
        "inputs.*.compression",
        effect=NoEffect(
            "a Slurm cluster does not decompress data",
            "decompress the files once with `gunzip`, or read them with Python's `gzip`",
        ),
    ),
    Field(
        "inputs.*.record_wrapper",
        effect=NoEffect(
            "a Slurm cluster does not convert data",
            "convert the files to RecordIO once, and write their folder as `slurm: /PATH`",
        ),
    ),
    Field(
        "inputs.*.data_type",
        effect=NoEffect(
            "a Slurm cluster does not read manifests",
            "write the folder that holds the data itself as `slurm: /PATH`",
        ),
    ),
    Field(
        "inputs.*.attribute_names",
        effect=NoEffect(
            "a Slurm cluster does not read manifests",
            "let the script select the attributes of each line of `${{inputs.NAME}}`",
        ),
    ),
    Field(
        "inputs.*.shuffle_seed",
        effect=NoEffect(
            "a Slurm cluster does not shuffle data",
            "shuffle in the script, for example with PyTorch's `DistributedSampler`",
        ),
    ),
    Field(
        "inputs.*.instance_groups",
        effect=NoEffect(
            "every node of a Slurm job sees every input",
            "remove `instance_groups`, and let the script choose its data by its rank",
        ),
    ),
    Field(
        "inputs.*.access",
        effect=NoEffect(
            "the permissions of the files decide who may write",
            "change them with `chmod` on the cluster",
        ),
    ),
    Field("inputs.*.path", effect=_CONTAINER_PATH),
    Field("outputs.*.slurm"),
    Field(
        "outputs.*.mode",
        effect=NoEffect(
            "the script writes to the output's path on the cluster",
            "to copy the files at the end, let the script write to `/tmp` first",
        ),
    ),
    Field("outputs.*.type", effect=_DATA_KIND),
    Field("outputs.*.asset_name", effect=_ASSET),
    Field("outputs.*.asset_version", effect=_ASSET),
    Field("outputs.*.path", effect=_CONTAINER_PATH),
    Field("checkpoint.slurm"),
    Field("checkpoint.keep"),
    Field("spot.max_wait"),
    Field("max_runtime"),
    Field(
        "metrics",
        effect=NoEffect(
            "Slurm reads no metrics from the log",
            "report them in the script: `runtime.report(loss=loss)`",
        ),
    ),
    Field("tags", effect=_IS_STORED),
    Field("description", effect=_IS_STORED),
    Field("slurm_overrides"),
)
