"""Codes of errors in job files, settings, command lines, runs and targets. Findings of rules have other codes.

A rule's code (`CT101`, `SM104`) names a check that you can ignore with `--ignore`. A code in this module names an error
that you cannot ignore: CT0xx for errors in a job, CT9xx for all others. `cloudtrain explain` and docs/rules.md show the
texts.
"""

from __future__ import annotations

from typing import NamedTuple


class ErrorCode(NamedTuple):
    """A type of error: its code, a one-line summary, and an explanation of the cause and the correction."""

    code: str
    summary: str
    explanation: str


_FILE = (
    ErrorCode(
        "CT001",
        "The job file cannot be read.",
        "A job file is a plain UTF-8 file of at most 4 MiB whose name ends in `.yaml`, `.yml`, `.toml` or `.json`. "
        "cloudtrain refuses a folder, a pipe, a device, or a file that you may not read.",
    ),
    ErrorCode(
        "CT002",
        "The text is not valid YAML, TOML or JSON.",
        "The message names the line and column where the parser stopped. The mistake may be a little earlier: an "
        "unclosed quote or bracket is noticed only later in the text.",
    ),
    ErrorCode(
        "CT003",
        "The file does not contain one mapping.",
        "A job file holds one job: a mapping from field names to values. An empty file, a list, or several documents "
        "(`---`) are refused. `cloudtrain init` writes a first job file.",
    ),
    ErrorCode(
        "CT004",
        "A key appears twice.",
        "Most YAML and JSON parsers keep the last value and ignore the first, so a value that you see in the file "
        "would have no effect. Remove one of the two.",
    ),
    ErrorCode(
        "CT005",
        "The text uses a YAML feature or value type that job files do not allow.",
        "Keys are text. Values are text, numbers, `true`, `false`, null, lists and mappings. Tags for types of other "
        "programs (`!!python/...`), dates without quotes, and anchors that refer to themselves are refused.",
    ),
    ErrorCode(
        "CT006",
        "The text is too large or nested too deeply.",
        "A job typically has a few dozen values in about five levels. cloudtrain reads at most 4 MiB, 100 levels and "
        "50,000 values; each alias (`*name`) counts as everything that it stands for. Put large data into a file in "
        "`source_dir` and pass its name.",
    ),
)

_FIELDS = (
    ErrorCode(
        "CT010",
        "The field does not exist.",
        "If cloudtrain ignored a misspelt field, you would notice only when the job is done. The hint names the "
        "nearest field, or where the field belongs. `cloudtrain schema` prints all fields, also as a schema for "
        "editors.",
    ),
    ErrorCode(
        "CT011",
        "A field is missing.",
        "The job cannot run without this field, and cloudtrain does not guess its value.",
    ),
    ErrorCode(
        "CT012",
        "A value has the wrong type.",
        'cloudtrain does not convert values: `"2"` is text, but a count must be a number; `1` is a number, but an '
        "environment variable must be text. In YAML, put text that looks like a number in quotes: `2.10` without "
        "quotes is the number 2.1.",
    ),
    ErrorCode(
        "CT013",
        "A value is not one of the allowed values.",
        "The hint names the nearest allowed value, or all of them.",
    ),
    ErrorCode(
        "CT014",
        "A number is too small or too large.",
        "Counts of instances and processes range from 1 to 1024, because a larger count is almost certainly a typing "
        "error. The message states the limit of the field.",
    ),
    ErrorCode(
        "CT015",
        "A duration or a size cannot be read.",
        "A duration is a number of seconds, or numbers with the units `s`, `m`, `h`, `d` and `w`: `90s`, `1h30m`. A "
        "size is a number of bytes, or a number with `k`, `m`, `g` or `t` (powers of 1024): `64g`. The result must be "
        "a whole number of seconds or bytes, from 1 to 68 years or 8 EiB.",
    ),
    ErrorCode(
        "CT016",
        "A name has invalid characters or the wrong length.",
        "Names of jobs, inputs and outputs become parts of names on every target, so only characters that all targets "
        "accept are allowed. The message states the allowed characters and length. A script's name must not begin with "
        "a dash.",
    ),
    ErrorCode(
        "CT017",
        "A text or number cannot be sent.",
        "Arguments of a program cannot contain NUL characters, half of a surrogate pair is not valid UTF-8, and JSON "
        'cannot express NaN or infinity. Write such numbers as text: `"nan"`.',
    ),
    ErrorCode(
        "CT018",
        "Two fields contradict each other.",
        "Both fields set the same property, or one has no effect when the other is set. Remove one of them.",
    ),
    ErrorCode(
        "CT019",
        "Two names differ only in case.",
        "The script finds its inputs and outputs through variables with upper-case names, so both names would have "
        "the same variable.",
    ),
    ErrorCode(
        "CT020",
        "A reference names no input or output of the job.",
        "`${{inputs.NAME}}`, `${{outputs.NAME}}` and `${{checkpoint}}` become paths on the target. NAME must be an "
        "input or output of the same job.",
    ),
    ErrorCode(
        "CT021",
        "An input cannot use the output of an earlier run.",
        "`run:NAME/output/OUTPUT`, `run:NAME/model` and `run:NAME/checkpoint` stand for the files that a run on the "
        "same target wrote. NAME is the name of a run, the beginning of a run's name, a job's name, or `last`. This "
        "machine's run store must contain the run, and the run must have succeeded or still be running.",
    ),
    ErrorCode(
        "CT022",
        "An override cannot be applied.",
        "`--set resources.instance_count=4` changes one value of the job: the path of a field, `=`, and the value in "
        "YAML syntax. `--set inputs.train=null` removes an entry, `instance_groups[0]` is the first entry of a list, "
        "and quotes protect a dot in a name: `--set 'hyperparameters.\"a.b\"=1'`.",
    ),
    ErrorCode(
        "CT023",
        "A processing job does not have this field.",
        "A processing job runs one script on several identical instances, each with its share of the data. "
        "Distributions, checkpoints, spot capacity and heterogeneous clusters are only for training jobs.",
    ),
)

_TARGETS = (
    ErrorCode(
        "CT030",
        "The target does not support this distribution.",
        "cloudtrain never switches to another distribution silently, because the job would train differently or use "
        "only one of its processes. The hint names the nearest distribution that the target supports.",
    ),
    ErrorCode(
        "CT031",
        "The target does not support what a field requests.",
        "A portable job may use features that only some targets have. The hint names the alternative on this target, "
        "or the value that lets the target decide.",
    ),
    ErrorCode(
        "CT032",
        "An input or output has no location on the target.",
        "Inputs and outputs have one location per target: `sagemaker: s3://...`, `azureml: azureml:NAME:VERSION`, "
        "`local: PATH`. Add the location for the target that you submit to.",
    ),
    ErrorCode(
        "CT033",
        "No instance type can be chosen.",
        "Name one with `instance_type`, or describe it with `gpu`, `gpus_per_instance` and `interconnect`. "
        "`cloudtrain instances` lists the instance types of a target and their properties.",
    ),
    ErrorCode(
        "CT034",
        "No image or environment can be chosen.",
        "Choose an image of the target with `framework` and `version`, or name one with `image`. The message lists "
        "the available versions.",
    ),
    ErrorCode(
        "CT035",
        "An override is not valid in the request.",
        "`TARGET_overrides`, such as `sagemaker_overrides`, are merged into the finished request. cloudtrain refuses "
        "overrides that the target would certainly refuse, and overrides that would turn the request into a different "
        "job.",
    ),
    ErrorCode(
        "CT036",
        "The job has nothing to run on this target.",
        "Only SageMaker runs an image's own program. On every other target a job needs an `entry_point` or a "
        "`command`.",
    ),
    ErrorCode(
        "CT037",
        "The options of a launcher cannot be parsed.",
        "Options are split like a shell command line. Only options that the target can pass on to the launcher are "
        "accepted.",
    ),
    ErrorCode(
        "CT038",
        "This machine lacks something that the job needs.",
        "The job would fail immediately on this machine: a program is not installed, or the launcher cannot start "
        "such a job. The hint says how to install the program, or which launcher can start the job.",
    ),
    ErrorCode(
        "CT039",
        "The emulated service would end the job immediately.",
        "With `--emulate` a job runs under the same conditions as in the service's container. The message is the one "
        "that the container would print.",
    ),
    ErrorCode(
        "CT040",
        "The number of processes is unknown.",
        "cloudtrain starts one process for each GPU of an instance. If the instance type is unknown, as for a compute "
        "cluster of your workspace, the job must set `processes_per_instance`.",
    ),
    ErrorCode(
        "CT041",
        "The job needs more slots than this machine's queue has.",
        "With `--queue` a run waits until it has one GPU for each process, or one CPU slot for each process on a "
        "machine without GPUs. This job would wait forever. The hint states the largest size that fits. Set the "
        "available slots with `slots` and `gpus` under `[local]` in cloudtrain.toml.",
    ),
)

_SOURCE = (
    ErrorCode(
        "CT050",
        "The source folder cannot be read.",
        "`source_dir` is the folder with your code, relative to the job file. cloudtrain reads all its files that are "
        "not ignored, so you need permission to read them.",
    ),
    ErrorCode(
        "CT051",
        "A line of `.cloudtrainignore` is not a pattern.",
        "The lines have the syntax of `.gitignore`. cloudtrain refuses a line that is not a valid pattern, because "
        "files that you want to leave out would be uploaded.",
    ),
    ErrorCode(
        "CT052",
        "The source folder contains something that cannot be in a bundle.",
        "A bundle contains regular files, and links that stay inside the folder. Ignore or remove pipes, sockets, "
        "devices, links that are broken or lead outside, and any package called `cloudtrain`.",
    ),
    ErrorCode(
        "CT053",
        "The source folder is too large.",
        "A bundle is for code. Put data into an input, which the target reads directly from its location. Add large "
        "folders to `.cloudtrainignore`.",
    ),
    ErrorCode(
        "CT054",
        "A file that the job names cannot be read.",
        "Conda and requirements files are plain UTF-8 files of at most 4 MiB. The paths of a conda file and of a "
        "folder with a Dockerfile are relative to `source_dir`, and may lead outside of it.",
    ),
    ErrorCode(
        "CT055",
        "A line of `.cloudtraininclude` cannot be used.",
        "`.cloudtraininclude` is a file in `source_dir`. Each line is a path, relative to `source_dir`, of a file or "
        "folder to add to the bundle under its own name. The path must exist, and all names must differ. Lines that "
        "begin with `#` are comments.",
    ),
)

_SWEEPS = (
    ErrorCode(
        "CT060",
        "A sweep's search space, strategy or objective is not valid.",
        "A range is a list of values, `{log: [1e-4, 1e-1]}`, `{uniform: [0, 1]}` or `{int: [1, 8], step: 1}`, with "
        "the lower bound first. A grid tries every combination, so all its ranges must be discrete. An objective "
        "names one metric to maximize or minimize.",
    ),
    ErrorCode(
        "CT061",
        "The target's own tuner cannot run the sweep.",
        "Each service has limits: SageMaker's tuner does not start container entry points and gives all trials the "
        "same checkpoint location; Azure ML's Bayesian sampling does not support logarithmic ranges. With `driver: "
        "cloudtrain` each trial is a separate job without these limits. `driver: auto`, the default, chooses "
        "`cloudtrain` where it is needed.",
    ),
    ErrorCode(
        "CT062",
        "The sweep could cost more than `max_cost`.",
        "The maximum cost is the list price of a trial's instances for its whole `max_runtime`, times the number of "
        "trials. If a price or `max_runtime` is missing, cloudtrain cannot enforce `max_cost`, so it refuses the "
        "sweep too.",
    ),
    ErrorCode(
        "CT063",
        "A sweep needs a package that is not installed.",
        "`strategy: bayesian` and the importance chart use Optuna: `pip install 'cloudtrain[sweeps]'`. Charts need "
        "matplotlib. `grid`, `random`, `hyperband` and a target's own tuner need no additional package.",
    ),
    ErrorCode(
        "CT064",
        "The service's tuner cannot continue the sweep.",
        "On SageMaker `cloudtrain continue SWEEP --trials N` starts a tuning job that learns from the earlier ones. "
        "This works only for bayesian and random searches, and at most five times. Azure ML cannot continue a sweep. "
        "A sweep with `driver: cloudtrain` can be continued on every target.",
    ),
    ErrorCode(
        "CT067",
        "No trial of the sweep can be run again in this way.",
        "`cloudtrain rerun SWEEP` repeats the trials that failed or were interrupted, with the same values. To use "
        "other values, submit another sweep. To repeat one trial with a change, use `cloudtrain rerun RUN --set ...` "
        "with the name of the trial's run.",
    ),
    ErrorCode(
        "CT068",
        "Too few trials have a value to compute the importance of hyperparameters.",
        "Importance compares the best trials with all others, which is meaningless for a handful of trials. Add some "
        "with `cloudtrain continue SWEEP --trials 10`. The other charts need only one trial.",
    ),
)

_SECRETS = (
    ErrorCode(
        "CT070",
        "A secret is not written as the location of its value.",
        "`environment.secrets` maps names of variables to the location of the value on each target: "
        "`secretsmanager:NAME`, `ssm:NAME`, `keyvault:VAULT/NAME`, `file:PATH` or `env:NAME`. Never write the value "
        "itself into a job, because it would be sent, stored and shown.",
    ),
    ErrorCode(
        "CT071",
        "A secret and a variable have the same name.",
        "`environment.secrets` and `environment.variables` both set environment variables of the script, which would "
        "get only one of the two values. Rename one of them.",
    ),
    ErrorCode(
        "CT072",
        "A secret has no location that the target can read.",
        "Inside a job, SageMaker's role reads AWS Secrets Manager and the parameter store, Azure ML's managed "
        "identity reads Key Vault, and a job on Slurm or on this machine reads files and variables. A job that is "
        "emulated on this machine uses the location for `local` if given, otherwise the location for the emulated "
        "target.",
    ),
)

_USE = (
    ErrorCode(
        "CT900",
        "cloudtrain has a bug.",
        "An error occurred that cloudtrain did not expect. The exit code is 70. Run the command again with "
        "`CLOUDTRAIN_DEBUG=1` in front, and report the traceback together with the output of `cloudtrain doctor`.",
    ),
    ErrorCode(
        "CT901",
        "The command line cannot be understood.",
        "The command, option or value does not exist, or an argument is missing. `cloudtrain COMMAND --help` shows "
        "the options of a command with examples.",
    ),
    ErrorCode(
        "CT902",
        "Two options cannot be combined.",
        "One has no effect together with the other, or has no effect on this target. cloudtrain never ignores an "
        "option silently.",
    ),
    ErrorCode(
        "CT987",
        "The target has no version to pin.",
        "`--pin` asks the target which version `NAME@latest` currently is, and writes that version into the plan. "
        "Only environments and data of an Azure ML workspace have such labels. Azure ML itself resolves the labels of "
        "registries, including the environments that `framework` chooses.",
    ),
    ErrorCode(
        "CT903",
        "A file or folder cannot be written or found.",
        "cloudtrain overwrites files that it did not create only with `--force`.",
    ),
    ErrorCode(
        "CT904",
        "The request cannot be printed in this format.",
        "The plan itself is correct and can be submitted. The other tool cannot express a part of it, and without "
        "that part it would start a different job. `--format request` prints the whole request.",
    ),
    ErrorCode(
        "CT905",
        "The run cannot be rehearsed.",
        "A rehearsal runs a training job on this machine, interrupts it, resumes it and compares the losses. The job "
        "must report a loss with `runtime.report`, and must run long enough to be interrupted.",
    ),
    ErrorCode(
        "CT906",
        "The working directory or a path cannot be used.",
        "The current folder of your shell was deleted, or a path is longer than this machine allows.",
    ),
    ErrorCode(
        "CT907",
        "stdout cannot be written.",
        "The disk is full, or the program or file that receives the output fails. The exit code is 74. A run that was "
        "already submitted continues, and stderr shows its name.",
    ),
    ErrorCode(
        "CT908",
        "The bundled script does not exist.",
        "`cloudtrain scripts list` lists the training scripts that come with cloudtrain. Use `bundled:NAME` as a job "
        "or as a `source_dir`.",
    ),
)

_SETTINGS = (
    ErrorCode(
        "CT911",
        "The settings file cannot be read.",
        "`cloudtrain.toml` is a plain UTF-8 file with TOML, of at most 4 MiB. It is in your configuration folder or "
        "in the project: the nearest one in the folder of the job file or its parents, or without a job file in the "
        "working directory or its parents. `cloudtrain doctor` lists the files in use.",
    ),
    ErrorCode(
        "CT912",
        "A table of the settings is wrong.",
        "The file has one table for each target (`[local]`, `[sagemaker]`, `[azureml]`), `target` for the default "
        "target, and profiles that override the tables: `[profiles.NAME.sagemaker]`.",
    ),
    ErrorCode(
        "CT913",
        "The target does not exist.",
        "A target is a service or machine that runs jobs: `local`, `sagemaker`, `azureml`, or one that another "
        "package adds.",
    ),
    ErrorCode(
        "CT914",
        "The profile does not exist.",
        "A profile is a set of tables in `cloudtrain.toml` that override the other tables: "
        "`[profiles.NAME.sagemaker]`. Choose one with `--profile NAME` or `CLOUDTRAIN_PROFILE`.",
    ),
    ErrorCode(
        "CT915",
        "An account setting is missing or wrong.",
        "cloudtrain cannot use the target without this setting. Write it into the target's table of `cloudtrain.toml`.",
    ),
    ErrorCode(
        "CT916",
        "The credentials cannot be used.",
        "cloudtrain uses the credentials of the cloud's own tools and stores none. The hint says how to log in.",
    ),
    ErrorCode(
        "CT917",
        "The Azure cloud does not exist.",
        "cloudtrain knows `AzureCloud`, `AzureUSGovernment` and `AzureChinaCloud`. It reads others from the address "
        "in `ARM_CLOUD_METADATA_URL`.",
    ),
    ErrorCode(
        "CT918",
        "`instances.toml` is not valid.",
        "The file holds your own prices and instance types, with one table for each type: "
        '`[sagemaker."ml.p5.48xlarge"]`. A type that the catalogue lacks needs at least `vcpus` and `memory_gib`.',
    ),
    ErrorCode(
        "CT919",
        "The refreshed catalogue cannot be used.",
        "`cloudtrain instances --refresh` asks the target for its instance types and prices, and saves the answer in "
        "your configuration folder. Run it again to replace the file.",
    ),
    ErrorCode(
        "CT921",
        "An optional package is not installed.",
        "cloudtrain is installed without the cloud SDKs and without PyTorch. The hint is the exact command that "
        "installs the missing package.",
    ),
)

_RUNS = (
    ErrorCode(
        "CT931",
        "The run does not exist.",
        "Identify a run by its name, a unique beginning of its name, a reference (`sagemaker://eu-west-1/NAME`), or "
        "`last`. `cloudtrain ps` lists the runs that were submitted from this machine, and `cloudtrain ps --target "
        "TARGET` lists the runs on a target. The exit code is 3.",
    ),
    ErrorCode(
        "CT932",
        "The name matches several runs.",
        "Write more of the name; the hint lists some of the runs.",
    ),
    ErrorCode(
        "CT933",
        "The text is not a reference to a run.",
        "A reference consists of the target, the location and the run: `local://HOST/NAME`, "
        "`sagemaker://REGION/NAME`, `azureml://SUBSCRIPTION:GROUP:WORKSPACE/NAME`. `cloudtrain ps --json` prints the "
        "references of your runs.",
    ),
    ErrorCode(
        "CT934",
        "The run belongs to another machine.",
        "A local run exists only on the machine that started it. Log in to that machine to see it.",
    ),
    ErrorCode(
        "CT935",
        "The run has no such folder, or has written nothing to it.",
        "A run has a model, outputs, a checkpoint and logs: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`. A run "
        "on this machine also has `work/`: the files that the script wrote into its working folder.",
    ),
    ErrorCode(
        "CT936",
        "The files of the run cannot be copied.",
        "The destination cannot be written, the files change while they are copied, or a file name would lead outside "
        "of the destination. Files that were already copied are kept.",
    ),
    ErrorCode(
        "CT937",
        "The log does not have these lines.",
        "`--rank` and `--instance` select lines, but only if the target's log shows which rank or instance wrote each "
        "line.",
    ),
    ErrorCode(
        "CT938",
        "The run has not ended.",
        "The run is still active. `cloudtrain wait NAME` waits for its end, `cloudtrain stop NAME` stops it.",
    ),
    ErrorCode(
        "CT939",
        "The run cannot be stopped or removed in this way.",
        "cloudtrain removes only runs that have ended and were submitted from this machine. If `last` is a run of "
        "another folder, give its name to stop or remove it.",
    ),
    ErrorCode(
        "CT940",
        "The run is not waiting in the queue.",
        "Only a run in the state `queued` can be moved within the queue or dropped from it. The run may have started "
        "a moment ago: `cloudtrain ps` shows its state, and `cloudtrain stop` ends it.",
    ),
)

_PLACES = (
    ErrorCode(
        "CT941",
        "The target refused the request or failed.",
        "The message comes from the target. The exit code is 4: the command line is correct, and anything sent before "
        "is kept.",
    ),
    ErrorCode(
        "CT942",
        "The target does not answer.",
        "The network is down, or the target is overloaded. Try again later. The exit code is 4. If a run was being "
        "submitted, the next command finds it again.",
    ),
    ErrorCode(
        "CT943",
        "The credentials lack a permission.",
        "The credentials are valid, but do not allow this operation. The hint names the missing permission; ask your "
        "account's administrator for it.",
    ),
    ErrorCode(
        "CT944",
        "The credentials have expired.",
        "The credentials were valid earlier. The hint says how to log in again.",
    ),
    ErrorCode(
        "CT945",
        "The target already has another run with this name.",
        "cloudtrain numbers runs upwards from those in this machine's run store, so a run from another machine can "
        "already have the next name. Give the job another name.",
    ),
    ErrorCode(
        "CT946",
        "The target cannot be used on this machine.",
        "The package that adds the target is not installed or is broken, or the target needs a program that this "
        "machine does not have. `cloudtrain doctor` lists broken packages.",
    ),
    ErrorCode(
        "CT947",
        "A requested resource does not exist on the target.",
        "A job, a bucket, a compute cluster, an asset or a file has another name, or was deleted.",
    ),
    ErrorCode(
        "CT951",
        "The run cannot be started on this machine.",
        "The folder of the run cannot be written, or the process that supervises the run did not start. The folder is "
        "inside the state folder; `cloudtrain doctor` prints its path.",
    ),
    ErrorCode(
        "CT952",
        "The launch specification of a run cannot be read.",
        "`launch.json` in the folder of a local run was deleted, changed, or cut off by a power failure. You can "
        "still read the run's status and log, and the files that it wrote are in its folder.",
    ),
    ErrorCode(
        "CT953",
        "The environment of a job cannot be built.",
        "With `build_environment`, the job's `environment.requirements` are installed on this machine before the run "
        "starts. The installer, uv or pip, could not install one of them. Its log is in the folder `environments` of "
        "the state folder.",
    ),
    ErrorCode(
        "CT991",
        "The run is not a sweep.",
        "`trials`, `continue` and `logs --trial` are for sweeps, which are submitted from a file with `kind: sweep`. "
        "`cloudtrain ps` lists the runs.",
    ),
    ErrorCode(
        "CT992",
        "The sweep has no such trial.",
        "Trials are numbered from 1 in the order in which they started. `cloudtrain trials SWEEP` lists them.",
    ),
    ErrorCode(
        "CT993",
        "The sweep cannot be continued.",
        "A grid ends when every combination was tried: submit another sweep with more values. A sweep has at most "
        "10,000 trials. A sweep that is still active does not need `continue`.",
    ),
    ErrorCode(
        "CT994",
        "The files of a sweep cannot be read or written.",
        "A sweep that cloudtrain drives keeps its files in `sweeps/NAME` in the state folder; `cloudtrain doctor` "
        "prints the path. Free disk space, then run `cloudtrain continue SWEEP`.",
    ),
    ErrorCode(
        "CT995",
        "The run does not need `continue`.",
        "If a job reads from an unfinished run, a process on this machine waits for that run. `continue` restarts the "
        "process if it no longer exists, for example after a reboot. Here the process is still running, or the run "
        "has ended.",
    ),
    ErrorCode(
        "CT996",
        "The run was not sent to its target.",
        "The run is waiting for another run that it reads from, or ended while it waited. `cloudtrain status NAME` "
        "shows which. If it ended, submit the job again.",
    ),
    ErrorCode(
        "CT961",
        "The run store cannot be used.",
        "The store is a database in the state folder. `cloudtrain doctor` prints the path of that folder, and "
        "`CLOUDTRAIN_STATE_DIR` changes it. The disk needs free space, and you need permission to write to it.",
    ),
    ErrorCode(
        "CT962",
        "The run store was made by a newer cloudtrain.",
        "An older version could damage the store. Upgrade cloudtrain, or set `CLOUDTRAIN_STATE_DIR` to another folder.",
    ),
    ErrorCode(
        "CT963",
        "The source folder changed while it was being read or sent.",
        "The plan identifies the code by the hash of its content, so a file that changes during the upload would make "
        "it a different job. cloudtrain reads the folder several times before it gives up. Submit again when no "
        "program writes to the folder, or leave out the files that the program writes: `.cloudtrainignore` lists them.",
    ),
    ErrorCode(
        "CT964",
        "An archive cannot be unpacked.",
        "The archive is damaged, or contains a file that would be written outside of its folder. Nothing was unpacked.",
    ),
    ErrorCode(
        "CT971",
        "The run store has no record of what was sent for a run.",
        "The machine that submits a run stores the job, the plan and the list of code files. A run that was submitted "
        "from another machine, or by an old version of cloudtrain, can be followed and stopped, but not shown, "
        "compared or sent again.",
    ),
    ErrorCode(
        "CT972",
        "The code of a run no longer exists.",
        "cloudtrain looks for the code where it was uploaded to, and for a local run in the run's folder. `rm` and "
        "`prune` delete that folder, and a bucket may have rules that delete old uploads. `cloudtrain show` prints "
        "the commit of the code.",
    ),
    ErrorCode(
        "CT973",
        "A run cannot be sent again without its secrets.",
        "The store does not keep values that look like secrets, so the stored request is incomplete. Supply the "
        "values again with `--set`, for example `cloudtrain rerun last --set environment.variables.API_KEY=...`, or "
        "let the script read them at run time with the job's own identity.",
    ),
)

_ADOPTION = (
    ErrorCode(
        "CT974",
        "The target has no such job.",
        "`cloudtrain adopt TARGET://PLACE/NAME` asks the target for the job with that name. On SageMaker, PLACE is "
        "the region, or `PROFILE@REGION` if your configuration has several profiles. On Azure ML it is "
        "`SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE`, or the workspace alone.",
    ),
    ErrorCode(
        "CT975",
        "Jobs of this target cannot be fetched.",
        "This target does not return enough about a job to adopt it. Adopt the job's description, its request or the "
        "script that creates it. docs/adopting.md lists what you can adopt.",
    ),
    ErrorCode(
        "CT976",
        "The text of the script does not create a job.",
        "`cloudtrain adopt SCRIPT --static` reads the text of one script and looks for calls that create a job, also "
        "inside functions, classes and loops. Calls in other files are not found. Without `--static`, cloudtrain "
        "executes the script and adopts the request that it sends.",
    ),
    ErrorCode(
        "CT977",
        "Only cloudtrain can start the job.",
        "`cloudtrain submit --upload-only` uploads code and data for another tool that starts the job. No other tool "
        "can start runs on this machine, or sweeps that cloudtrain drives itself. Use `cloudtrain submit` without the "
        "option.",
    ),
    ErrorCode(
        "CT981",
        "The source contains nothing that can be adopted.",
        "`cloudtrain adopt` reads requests, events and descriptions of training jobs, job files and launch commands "
        "of other tools, and scripts that use an SDK. Other kinds of jobs, endpoints, and pipelines without command "
        "jobs cannot be adopted. If a source has several jobs, choose one with `--job NAME`.",
    ),
    ErrorCode(
        "CT982",
        "No job can express the source.",
        "cloudtrain tried every form of job, and left out the fields that the target refuses, but none of these jobs "
        "could be compiled. The message states the last error.",
    ),
    ErrorCode(
        "CT983",
        "The adopted job cannot be written.",
        "One of the files exists already, or the folder cannot be written. `--write DIR` names another folder, "
        "`--force` replaces the files.",
    ),
    ErrorCode(
        "CT984",
        "The script did not create a job.",
        "`cloudtrain adopt` runs a script until it creates its first job. The script failed before that, ended "
        "without one, or took longer than `--time-limit`. It runs with the interpreter that `--python` names, in a "
        "copy of its folder, without the network and without credentials, so it cannot download anything.",
    ),
    ErrorCode(
        "CT985",
        "A script is executed only with your permission.",
        "Adopting a script executes it. In a terminal cloudtrain asks first; otherwise use `--yes`, or `execute=True` "
        "in Python.",
    ),
    ErrorCode(
        "CT986",
        "Data on this machine cannot be uploaded.",
        "An input whose location is a path (`azureml: ./data`) is uploaded before the job is sent, to a location that "
        "contains the hash of the data. The path must lead to a file or to a folder with files, and nothing may "
        "change them during the upload. A single file needs `type: uri_file`.",
    ),
)

ERROR_CODES: dict[str, ErrorCode] = {
    entry.code: entry
    for entry in (
        *_FILE,
        *_FIELDS,
        *_TARGETS,
        *_SOURCE,
        *_SWEEPS,
        *_SECRETS,
        *_USE,
        *_SETTINGS,
        *_RUNS,
        *_PLACES,
        *_ADOPTION,
    )
}
"""Every code that an error of cloudtrain can have."""
