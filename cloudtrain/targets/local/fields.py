"""What this machine does with each field of a job.

An emulation of another target reads the request that this target would get, so these rows hold
only for runs without one.
"""

from __future__ import annotations

from cloudtrain.targets.common.fields import Field, Needless, NoEffect

_IS_CHOICE = Needless("the run is on this machine, whatever machine the job describes")
_IS_STORED = Needless("the store keeps it")
_ONE_COPY = NoEffect("the script reads the files where they are")
_NO_ASSET = NoEffect("this machine has no store of assets")
_NO_IMAGE = NoEffect("the script runs with an interpreter of this machine, without a container")
_ONE_PLACE = NoEffect("all instances run on this machine")

FIELDS: tuple[Field, ...] = (
    Field("name", "name"),
    Field("description", effect=_IS_STORED),
    Field("tags", effect=_IS_STORED),
    # The program.
    Field("source_dir", "code"),
    Field("entry_point", "processes.*.argv"),
    Field("command", "processes.*.argv"),
    Field("hyperparameters", "processes.*.argv"),
    Field("arguments", "processes.*.argv"),
    Field("bare_flags", "processes.*.argv"),
    Field("distribution", "launcher"),
    # The machines.
    Field("resources.instance_count", "instances"),
    Field("resources.instance_type", effect=_IS_CHOICE),
    Field("resources.gpu", effect=_IS_CHOICE),
    Field("resources.gpus_per_instance", effect=_IS_CHOICE),
    Field("resources.interconnect", effect=_IS_CHOICE),
    Field("resources.instance_preferences", effect=_IS_CHOICE),
    Field("resources.instance_groups", effect=_ONE_PLACE),
    Field("resources.distribution_groups", effect=_ONE_PLACE),
    Field(
        "resources.volume_size",
        effect=NoEffect("the run writes to this machine's disk, whatever its size"),
    ),
    Field(
        "resources.shm_size",
        effect=NoEffect("the processes share this machine's `/dev/shm`, whatever its size"),
    ),
    # The environment.
    Field("environment.framework", effect=_IS_CHOICE),
    Field("environment.version", effect=_IS_CHOICE),
    Field("environment.base", effect=_IS_CHOICE),
    Field("environment.python", effect=_NO_IMAGE),
    Field("environment.image", effect=_IS_CHOICE),
    Field("environment.build", effect=_NO_IMAGE),
    Field("environment.dockerfile", effect=_NO_IMAGE),
    Field("environment.conda_file", effect=_NO_IMAGE),
    Field("environment.asset_name", effect=_NO_ASSET),
    Field("environment.asset_version", effect=_NO_ASSET),
    Field("environment.description", effect=_NO_ASSET),
    Field("environment.tags", effect=_NO_ASSET),
    Field("environment.requirements", "processes.*.argv"),
    Field("environment.groups", "processes.*.argv"),
    Field("environment.extras", "processes.*.argv"),
    Field("environment.variables", "processes.*.env"),
    Field("environment.secrets", "processes.*.env"),
    # Data.
    Field("inputs.*.value", "processes.*.argv"),
    Field("inputs.*.mode", effect=_ONE_COPY),
    Field("inputs.*.type", effect=_ONE_COPY),
    Field("inputs.*.channel", effect=_ONE_COPY),
    Field(
        "inputs.*.shard",
        # A processing job deals its files out here, too.
        effect=NoEffect(
            "every instance reads all files", when=lambda subject: subject.processing is None
        ),
    ),
    Field("inputs.*.content_type", effect=_ONE_COPY),
    Field("inputs.*.compression", effect=_ONE_COPY),
    Field("inputs.*.record_wrapper", effect=_ONE_COPY),
    Field("inputs.*.data_type", effect=_ONE_COPY),
    Field("inputs.*.attribute_names", effect=_ONE_COPY),
    Field("inputs.*.shuffle_seed", effect=_ONE_COPY),
    Field("inputs.*.instance_groups", effect=_ONE_PLACE),
    Field("inputs.*.access", effect=_ONE_COPY),
    Field("outputs.*.mode", effect=NoEffect("the script writes to this machine's disk")),
    Field("outputs.*.type", effect=_NO_ASSET),
    Field("outputs.*.asset_name", effect=_NO_ASSET),
    Field("outputs.*.asset_version", effect=_NO_ASSET),
    Field("checkpoint", "directories"),
    Field("checkpoint.keep", "processes.*.env"),
    # Limits and metrics.
    Field(
        "spot", effect=Needless("nobody takes this machine away; `rehearse` tests an interruption")
    ),
    Field("max_runtime", "max_runtime"),
    Field("metrics", "metrics"),
)
