"""The codes of errors in job files, settings, command lines, runs and targets, as opposed to the findings of rules.

A rule's code (`CT101`, `SM104`) names a check that you can ignore. A code in this table names an error that you cannot
ignore. CT0xx are errors of the job, CT9xx are all others. `cloudtrain explain` and docs/rules.md print the texts.
"""

from __future__ import annotations

from typing import NamedTuple


class ErrorCode(NamedTuple):
    """A kind of error: a one-line summary, and one or two paragraphs with the cause and what to do."""

    code: str
    summary: str
    explanation: str


_FILE = (
    ErrorCode(
        "CT001",
        "The job file cannot be read.",
        "A job file is a plain UTF-8 file of at most 4 MiB whose name ends in `.yaml`, `.yml`, `.toml` or `.json`. A "
        "folder, a pipe, a device, or a file that you may not read is refused before anything is done.",
    ),
    ErrorCode(
        "CT002",
        "The text is not valid YAML, TOML or JSON.",
        "The message names the line and the column at which reading stopped. The mistake may be a little before that "
        "place: an open quote or bracket is noticed only where the next thing does not fit.",
    ),
    ErrorCode(
        "CT003",
        "The file does not hold one mapping.",
        "A job file holds one job: a mapping from the names of fields to their values. An empty file, a list, and "
        "several documents (`---`) are refused. `cloudtrain init` writes a first job file.",
    ),
    ErrorCode(
        "CT004",
        "A key appears twice.",
        "Most readers of YAML and JSON take the last one and forget the first, so a value that you see in the file "
        "would have no effect. Remove one of the two.",
    ),
    ErrorCode(
        "CT005",
        "The text uses something that a job has no place for.",
        "Keys are text, and values are text, numbers, `true`, `false`, null, lists and mappings. Tags that name types "
        "of other programs (`!!python/...`), dates without quotes and anchors that refer to themselves are refused.",
    ),
    ErrorCode(
        "CT006",
        "The text is too large or too deep.",
        "A job has some tens of values in about five levels. cloudtrain reads 4 MiB, 100 levels and 50,000 values, "
        "where each alias (`*name`) counts as all that it stands for. Put large data into a file in `source_dir` and "
        "pass its name.",
    ),
)

_FIELDS = (
    ErrorCode(
        "CT010",
        "There is no such field.",
        "A misspelt field would otherwise have no effect, and you would notice when the job is done. The hint names "
        "the nearest field, or where the field belongs. `cloudtrain schema` prints all of them, for editors too.",
    ),
    ErrorCode("CT011", "A field is missing.", "The job cannot run without it, and cloudtrain does not guess it."),
    ErrorCode(
        "CT012",
        "A value has the wrong type.",
        'Values are not converted: `"2"` is text, and a count must be a number; `1` is a number, and an environment '
        "variable must be text. In YAML, quotes make text of a value: version 2.10 without them is the number 2.1.",
    ),
    ErrorCode(
        "CT013",
        "A value is not one of those that are allowed.",
        "The hint names the nearest value, or all of them.",
    ),
    ErrorCode(
        "CT014",
        "A number is too small or too large.",
        "Counts of instances and processes are 1 to 1024; more is a slip of the keyboard. The message says the limit "
        "of the field.",
    ),
    ErrorCode(
        "CT015",
        "A duration or a size cannot be read.",
        "A duration is a number of seconds, or numbers with the units `s`, `m`, `h`, `d` and `w`: `90s`, `1h30m`. A "
        "size is a number of bytes, or a number with `k`, `m`, `g` or `t`: `64g`; these are powers of 1024. Both are "
        "whole seconds or bytes, at least one; at most 68 years, or 8 EiB.",
    ),
    ErrorCode(
        "CT016",
        "A name has the wrong form.",
        "Names of jobs, inputs and outputs become parts of names on every target, so they hold what all targets "
        "accept. The message says which characters, and how many.",
    ),
    ErrorCode(
        "CT017",
        "A text or a number cannot be sent.",
        "A NUL character ends every argument of a program, half of a character is no UTF-8, and JSON has no NaN and no "
        'infinity. Write such numbers as text: `"nan"`.',
    ),
    ErrorCode(
        "CT018",
        "Two fields contradict each other.",
        "Both say the same thing in different ways, or one has no effect beside the other. Remove one of them.",
    ),
    ErrorCode(
        "CT019",
        "Two names differ only in case.",
        "A script finds its inputs and outputs through variables whose names are in capitals, so both would have the "
        "same variable.",
    ),
    ErrorCode(
        "CT020",
        "A reference names nothing.",
        "`${{inputs.NAME}}`, `${{outputs.NAME}}` and `${{checkpoint}}` become the path on the target. The name must be "
        "an input or output of the same job.",
    ),
    ErrorCode(
        "CT021",
        "An input cannot be what an earlier run wrote.",
        "`run:NAME/output/OUTPUT`, `run:NAME/model` and `run:NAME/checkpoint` name what a run of the same target "
        "wrote; NAME is a run, the beginning of one, a job, or `last`. The run must be known on this machine, and have "
        "succeeded or still be running.",
    ),
    ErrorCode(
        "CT022",
        "An override cannot be applied.",
        "`--set resources.instance_count=4` changes one value of the job: the way to a field, `=`, and the value as "
        "YAML would read it. `--set inputs.train=null` removes an entry, `instance_groups[0]` names one of a list, and "
        "quotes keep a dot in a name: `--set 'hyperparameters.\"a.b\"=1'`.",
    ),
    ErrorCode(
        "CT023",
        "A processing job has no such thing.",
        "A processing job runs one script on several equal instances, each with its share of the data. Distributions, "
        "checkpoints, spot capacity and heterogeneous clusters belong to training jobs.",
    ),
)

_TARGETS = (
    ErrorCode(
        "CT030",
        "The target does not have this distribution.",
        "cloudtrain never falls back to another distribution in silence: the job would train something else, or on "
        "one process of many. The hint names the nearest one that the target has.",
    ),
    ErrorCode(
        "CT031",
        "The target cannot do what a field asks for.",
        "A portable job may say things that only some targets have. The hint says what this target has instead, or "
        "which value leaves the decision to it.",
    ),
    ErrorCode(
        "CT032",
        "An input or output has no place on the target.",
        "Inputs and outputs name a place for each target: `sagemaker: s3://...`, `azureml: azureml:NAME:VERSION`, "
        "`local: PATH`. Add the one of the target that you submit to.",
    ),
    ErrorCode(
        "CT033",
        "No machine can be chosen.",
        "Either `instance_type` names one for the target, or `gpu`, `gpus_per_instance` and `interconnect` describe "
        "it. `cloudtrain instances` lists the types of a target and what they have.",
    ),
    ErrorCode(
        "CT034",
        "No image or environment can be chosen.",
        "`framework` and `version` choose an image of the target; `image` names one. The message says which versions "
        "there are.",
    ),
    ErrorCode(
        "CT035",
        "An override does not fit the request.",
        "`TARGET_overrides`, for example `sagemaker_overrides`, are merged into the request last. What the target "
        "could only refuse, and what would make another job of it, is stopped here.",
    ),
    ErrorCode(
        "CT036",
        "The target has nothing to run.",
        "Only SageMaker runs an image's own program; everywhere else a job needs an `entry_point` or a `command`.",
    ),
    ErrorCode(
        "CT037",
        "The options of a launcher cannot be read.",
        "They are split as a shell splits a command line, and only options that the target can pass on are accepted.",
    ),
    ErrorCode(
        "CT038",
        "This machine lacks what the job needs.",
        "The job would stop at once here: a program is not installed, or the launcher cannot start such a job. The "
        "hint says how to install it, or which launcher can.",
    ),
    ErrorCode(
        "CT039",
        "The emulated service would stop the job at once.",
        "With `--emulate` a job meets on this machine what it would meet in the service's container. The message is "
        "the container's own.",
    ),
    ErrorCode(
        "CT040",
        "The number of processes is not known.",
        "cloudtrain starts one process for each GPU of an instance. Where the instance type is not known, as in a "
        "cluster of your workspace, the job has to say `processes_per_instance`.",
    ),
    ErrorCode(
        "CT041",
        "The job needs more than the queue of this machine has.",
        "With `--queue` a run waits for a GPU for each of its processes, or on a machine without GPUs for a CPU slot "
        "each. This one would wait for ever. The hint says which size fits; `slots` and `gpus` under `[local]` in "
        "cloudtrain.toml say what there is.",
    ),
)

_SOURCE = (
    ErrorCode(
        "CT050",
        "The source folder cannot be read.",
        "`source_dir` is the folder with your code, relative to the job file. All files in it that are not ignored are "
        "read, so they must be readable for you.",
    ),
    ErrorCode(
        "CT051",
        "A line of `.cloudtrainignore` is not a pattern.",
        "The lines are those of a `.gitignore`. A line that git would not understand either is refused, because files "
        "that it should leave out would be sent.",
    ),
    ErrorCode(
        "CT052",
        "The source folder holds something that cannot be in a bundle.",
        "A bundle holds plain files, and links that stay inside it. Pipes, sockets, devices, links that lead outside "
        "or nowhere, and a package called `cloudtrain` have to be ignored or removed.",
    ),
    ErrorCode(
        "CT053",
        "The source folder is too large.",
        "A bundle holds code. Data belongs in an input, which a target reads where it lies. Add large folders to "
        "`.cloudtrainignore`.",
    ),
    ErrorCode(
        "CT054",
        "A file that the job names cannot be read.",
        "Conda and requirements files are plain UTF-8 files of at most 4 MiB. The paths of a conda file and of a "
        "folder with a Dockerfile start at `source_dir`, and may lead out of it.",
    ),
    ErrorCode(
        "CT055",
        "A line of `.cloudtraininclude` cannot be followed.",
        "`.cloudtraininclude` stands in `source_dir`. Each line is the path, from there, of a file or folder that the "
        "bundle has beside the code, under its own name. It must exist, and no two may have one name. A line that "
        "begins with `#` is a comment.",
    ),
)

_SWEEPS = (
    ErrorCode(
        "CT060",
        "A sweep cannot be searched as it is written.",
        "A range is a list of values, `{log: [1e-4, 1e-1]}`, `{uniform: [0, 1]}` or `{int: [1, 8], step: 1}`, with its "
        "lower bound first. A grid tries every combination, so all its ranges have single values. An objective names "
        "one metric, which it maximizes or minimizes.",
    ),
    ErrorCode(
        "CT061",
        "The target's own tuner cannot do the sweep.",
        "Each service has limits: SageMaker's tuner starts no container entry point and gives all trials one "
        "checkpoint place, Azure ML's Bayesian sampling knows no logarithmic range. With `driver: cloudtrain` each "
        "trial is a job of its own, which can do what a job can do. `driver: auto`, the default, chooses it where it "
        "is needed.",
    ),
    ErrorCode(
        "CT062",
        "The sweep can cost more than `max_cost`.",
        "The list price of a trial's instances for its whole `max_runtime`, times the number of trials. Where a price "
        "or `max_runtime` is missing, `max_cost` cannot be kept, and the sweep is refused too.",
    ),
    ErrorCode(
        "CT063",
        "A sweep needs a package that is not installed.",
        "`strategy: bayesian` and the picture of importance use Optuna: `pip install 'cloudtrain[sweeps]'`. Pictures "
        "need matplotlib. `grid`, `random` and `hyperband` need no package, and neither does a target's own tuner.",
    ),
    ErrorCode(
        "CT064",
        "The service's tuner cannot continue the sweep.",
        "On SageMaker `cloudtrain continue SWEEP --trials N` starts a tuning job that learns from the earlier ones: of "
        "a bayesian or random search, and up to five times. Azure ML's sweeps have nothing like it. A sweep with "
        "`driver: cloudtrain` goes on everywhere.",
    ),
    ErrorCode(
        "CT067",
        "The sweep has no trial that can run again like this.",
        "`cloudtrain rerun SWEEP` runs the trials again that failed or were cut off, as they were. Other values are "
        "another sweep, and one trial with a change is `cloudtrain rerun RUN --set ...` with the name of its run.",
    ),
    ErrorCode(
        "CT068",
        "Too few trials have a value to tell how much a hyperparameter matters.",
        "Importance compares the best trials with all others, which says nothing about a handful. Add some with "
        "`cloudtrain continue SWEEP --trials 10`; the other pictures need one trial.",
    ),
)

_SECRETS = (
    ErrorCode(
        "CT070",
        "A secret is written as something else than where its value is.",
        "`environment.secrets` holds the names of variables and where each target keeps the value: "
        "`secretsmanager:NAME`, `ssm:NAME`, `keyvault:VAULT/NAME`, `file:PATH` or `env:NAME`. The value itself never "
        "stands in a job: it would be sent, stored and shown.",
    ),
    ErrorCode(
        "CT071",
        "A secret has the name of a variable.",
        "The script would find one of the two values. `environment.secrets` and `environment.variables` share the "
        "names of the script's environment.",
    ),
    ErrorCode(
        "CT072",
        "A secret has no place that the target can read.",
        "Inside a job, SageMaker's role reads AWS Secrets Manager and the parameter store, Azure ML's managed identity "
        "reads Key Vault, and a job on Slurm or on this machine reads files and variables. A job that is emulated here "
        "takes the place for `local`, else that of the target.",
    ),
)

_USE = (
    ErrorCode(
        "CT900",
        "cloudtrain has a defect.",
        "Something happened that cloudtrain does not know how to explain: exit code 70. Run the command again with "
        "`CLOUDTRAIN_DEBUG=1` in front, and report the traceback with the output of `cloudtrain doctor`.",
    ),
    ErrorCode(
        "CT901",
        "The command line cannot be understood.",
        "There is no such command, option or value, or an argument is missing. `cloudtrain COMMAND --help` shows the "
        "options of a command with examples.",
    ),
    ErrorCode(
        "CT902",
        "Two options do not go together.",
        "One has no effect beside the other, or on this target. cloudtrain does not ignore an option in silence.",
    ),
    ErrorCode(
        "CT987",
        "There is no version to pin.",
        "`--pin` asks the target which version `NAME@latest` means now, and writes it into the plan. Only environments "
        "and data of an Azure ML workspace have such labels. The labels of registries, and with them the environments "
        "that `framework` chooses, are looked up by Azure ML itself.",
    ),
    ErrorCode(
        "CT903",
        "A file or folder cannot be written or found.",
        "cloudtrain does not write over files that it did not make, unless you say `--force`.",
    ),
    ErrorCode(
        "CT904",
        "The request cannot be printed in this form.",
        "The plan itself is right and can be submitted. Another tool has no words for a part of it, and a form that "
        "loses that part would start another job. `--format request` prints the whole request.",
    ),
    ErrorCode(
        "CT905",
        "The run cannot be rehearsed.",
        "A rehearsal runs a training job on this machine, interrupts it, resumes it and compares the losses. The job "
        "has to report a loss with `runtime.report`, and to run long enough to be interrupted.",
    ),
    ErrorCode(
        "CT906",
        "The working directory or a path cannot be used.",
        "The shell stands in a folder that has been deleted, or a path is longer than this machine allows.",
    ),
    ErrorCode(
        "CT907",
        "stdout cannot be written.",
        "The disk is full, or what the output goes to fails. Exit code 74. A run that was sent goes on, and stderr "
        "names it.",
    ),
    ErrorCode(
        "CT908",
        "There is no such bundled script.",
        "`cloudtrain scripts list` lists the training scripts that come with cloudtrain; `bundled:NAME` names one as a "
        "job or as a `source_dir`.",
    ),
)

_SETTINGS = (
    ErrorCode(
        "CT911",
        "The settings file cannot be read.",
        "`cloudtrain.toml` is a plain UTF-8 file with TOML, of at most 4 MiB, in the project (the nearest one upwards "
        "from the job file, else from the working directory) or in your configuration folder. `cloudtrain doctor` "
        "lists the files in use.",
    ),
    ErrorCode(
        "CT912",
        "A table of the settings is wrong.",
        "There is one table for each target (`[local]`, `[sagemaker]`, `[azureml]`), `target` for the one that is used "
        "when none is named, and profiles that override them: `[profiles.NAME.sagemaker]`.",
    ),
    ErrorCode(
        "CT913",
        "There is no such target.",
        "A target is where a job runs: `local`, `sagemaker`, `azureml`, or one that another package brings.",
    ),
    ErrorCode(
        "CT914",
        "There is no such profile.",
        "A profile is a set of tables in `cloudtrain.toml` that override the others: `[profiles.NAME.sagemaker]`. "
        "`--profile NAME` or `CLOUDTRAIN_PROFILE` chooses one.",
    ),
    ErrorCode(
        "CT915",
        "An account setting is missing or wrong.",
        "The target cannot be asked without it. Write it into the target's table of `cloudtrain.toml`.",
    ),
    ErrorCode(
        "CT916",
        "The credentials cannot be used.",
        "cloudtrain uses the credentials of the cloud's own tools and stores none. The hint says how to log in.",
    ),
    ErrorCode(
        "CT917",
        "There is no such Azure cloud.",
        "`AzureCloud`, `AzureUSGovernment` and `AzureChinaCloud` are known; others are read from the address in "
        "`ARM_CLOUD_METADATA_URL`.",
    ),
    ErrorCode(
        "CT918",
        "`instances.toml` is wrong.",
        'The file holds your own prices and instance types, one table for each: `[sagemaker."ml.p5.48xlarge"]`. A '
        "type that the catalogue lacks needs `vcpus` and `memory_gib` at least.",
    ),
    ErrorCode(
        "CT919",
        "The refreshed catalogue cannot be used.",
        "`cloudtrain instances --refresh` asks the target for its types and prices and keeps the answer in your "
        "configuration folder. Run it again to replace the file.",
    ),
    ErrorCode(
        "CT921",
        "An optional package is not installed.",
        "cloudtrain installs without the SDKs of the clouds and without PyTorch. The hint is the exact line that "
        "installs what is missing.",
    ),
)

_RUNS = (
    ErrorCode(
        "CT931",
        "There is no such run.",
        "A run is named by its name, a unique beginning of it, a reference (`sagemaker://eu-west-1/NAME`), or `last`. "
        "`cloudtrain ps` lists the runs that were submitted from this machine, `cloudtrain ps --target TARGET` those "
        "that the target has. Exit code 3.",
    ),
    ErrorCode(
        "CT932",
        "The name means several runs.",
        "Write more of the name; the hint lists some of the runs.",
    ),
    ErrorCode(
        "CT933",
        "The text is not a reference to a run.",
        "A reference names the target, the place and the run: `local://HOST/NAME`, `sagemaker://REGION/NAME`, "
        "`azureml://SUBSCRIPTION:GROUP:WORKSPACE/NAME`. `cloudtrain ps --json` prints those of your runs.",
    ),
    ErrorCode(
        "CT934",
        "The run belongs to another machine.",
        "A local run lives on the machine that started it. Log in there to see it.",
    ),
    ErrorCode(
        "CT935",
        "The run has no such part, or has written nothing there.",
        "A run has a model, outputs, a checkpoint and logs: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`. A run on "
        "this machine also has `work/`: what the script wrote into its working folder.",
    ),
    ErrorCode(
        "CT936",
        "What the run wrote cannot be copied.",
        "The destination cannot be written, the files change while they are copied, or a name would lead outside of "
        "the destination. What was copied before stays.",
    ),
    ErrorCode(
        "CT937",
        "The log does not have these lines.",
        "`--rank` and `--instance` choose lines where the target's log tells them apart.",
    ),
    ErrorCode(
        "CT938",
        "The run has not ended.",
        "The run goes on. `cloudtrain wait NAME` waits for its end, `cloudtrain stop NAME` stops it.",
    ),
    ErrorCode(
        "CT939",
        "The run is not one to be stopped or removed like this.",
        "Only runs that have ended and that this machine submitted are removed. `last` stops or removes a run from "
        "another folder only when you say so: name it.",
    ),
    ErrorCode(
        "CT940",
        "The run does not wait in the queue.",
        "Only a run whose state is `queued` can be moved or dropped. It may have got its place a moment before: "
        "`cloudtrain ps` says, and `cloudtrain stop` ends it.",
    ),
)

_PLACES = (
    ErrorCode(
        "CT941",
        "The target refused or failed.",
        "The message is the target's own. Exit code 4: nothing is wrong with the command line, and what was sent "
        "before is kept.",
    ),
    ErrorCode(
        "CT942",
        "The target does not answer.",
        "There is no network, or the target is overloaded. Exit code 4; trying again later may help. A run that was "
        "being sent is found again by the next command.",
    ),
    ErrorCode(
        "CT943",
        "The credentials may not do this.",
        "They are valid, but lack a permission. The hint names it; ask your account's administrator for it.",
    ),
    ErrorCode("CT944", "The credentials have expired.", "They were good once. The hint says how to log in again."),
    ErrorCode(
        "CT945",
        "The target has another run of that name.",
        "Names count upwards from those that this machine knows, so an earlier run from another machine can have one "
        "already. Give the job another name.",
    ),
    ErrorCode(
        "CT946",
        "The target cannot be used from here.",
        "It is not a part of this installation, or needs a program that this machine does not have.",
    ),
    ErrorCode(
        "CT947",
        "What was asked for does not exist on the target.",
        "A job, a bucket, a compute cluster, an asset or a file has another name, or is gone.",
    ),
    ErrorCode(
        "CT951",
        "The run cannot be started on this machine.",
        "The folder of the run cannot be written, or the process that watches over it did not start. The folder is "
        "below the state folder, which `cloudtrain doctor` names.",
    ),
    ErrorCode(
        "CT952",
        "The launch specification of a run cannot be read.",
        "`launch.json` in the folder of a local run is gone, was torn by a power cut, or was changed. The run's status "
        "and log can still be read, and what it wrote lies in its folder.",
    ),
    ErrorCode(
        "CT953",
        "The environment of a job cannot be built.",
        "With `build_environment`, the job's `environment.requirements` are installed on this machine before the run "
        "starts. The installer, uv or pip, refused one of them; its log lies in `environments` of the state folder.",
    ),
    ErrorCode(
        "CT991",
        "The run is not a sweep.",
        "`trials`, `continue` and `logs --trial` are for sweeps: runs of a file with `kind: sweep`. `cloudtrain ps` "
        "lists the runs.",
    ),
    ErrorCode(
        "CT992",
        "The sweep has no such trial.",
        "Trials are numbered from 1 in the order in which they were started. `cloudtrain trials SWEEP` lists them.",
    ),
    ErrorCode(
        "CT993",
        "The sweep cannot go on.",
        "A grid ends when every combination was tried: submit another sweep with more values then. A sweep that goes "
        "on needs no `continue`.",
    ),
    ErrorCode(
        "CT994",
        "The files of a sweep cannot be read or written.",
        "A sweep that cloudtrain drives has a folder `sweeps/NAME` in the state folder, which `cloudtrain doctor` "
        "names. Make room there, then `cloudtrain continue SWEEP`.",
    ),
    ErrorCode(
        "CT995",
        "The run needs no `continue`.",
        "A job that reads from a run that goes on waits for it in a process of this machine. `continue` starts that "
        "process again when it is gone, for example after a reboot. Here it is at work, or the run has ended.",
    ),
    ErrorCode(
        "CT996",
        "The run was not sent to its target.",
        "It waits for a run that it reads from, or ended while it waited: then submit the job again. "
        "`cloudtrain status NAME` says which of the two.",
    ),
    ErrorCode(
        "CT961",
        "The run store cannot be used.",
        "The store is a database in the state folder, which `cloudtrain doctor` names and `CLOUDTRAIN_STATE_DIR` "
        "moves. It needs a disk with free space on which you may write.",
    ),
    ErrorCode(
        "CT962",
        "The run store was made by a newer cloudtrain.",
        "An older version could damage it. Upgrade cloudtrain, or name another folder with `CLOUDTRAIN_STATE_DIR`.",
    ),
    ErrorCode(
        "CT963",
        "The source folder changed while it was sent.",
        "The plan names the code by the hash of its content, so a file that changes in between would make another job "
        "of it. Submit again.",
    ),
    ErrorCode(
        "CT964",
        "An archive cannot be unpacked.",
        "It is damaged, or holds something that would be written outside of its folder. Nothing of it was unpacked.",
    ),
    ErrorCode(
        "CT971",
        "Nothing is kept of what was sent for a run.",
        "The store of the machine that submits a run keeps its job, its plan and the list of its files. A run that was "
        "submitted from elsewhere, or by a cloudtrain that did not keep them yet, can be followed and stopped, but not "
        "shown, compared or sent again.",
    ),
    ErrorCode(
        "CT972",
        "The code of a run is gone.",
        "cloudtrain looks for it where it was uploaded to, and for a local run in the run's own folder. `rm` and "
        "`prune` remove that folder, and a bucket may have rules that remove old uploads. `cloudtrain show` names the "
        "commit of the code.",
    ),
    ErrorCode(
        "CT973",
        "A run cannot be sent again without its secrets.",
        "The store keeps no value that looks like a secret, so the request is not whole. Give the values again with "
        "`--set`, for example `cloudtrain rerun last --set environment.variables.API_KEY=...`, or let the script read "
        "them at run time, with the job's own identity.",
    ),
)

_ADOPTION = (
    ErrorCode(
        "CT974",
        "The target has no such job.",
        "`cloudtrain adopt TARGET://PLACE/NAME` asks the target for the job of that name. The place is the region of "
        "SageMaker, with a profile before an `@` where your configuration has several; of Azure ML it is "
        "`SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE`, or the workspace alone.",
    ),
    ErrorCode(
        "CT975",
        "Jobs of this target cannot be fetched.",
        "cloudtrain cannot read enough of a job out of this target to adopt it. Adopt its description, its request or "
        "the script that makes it; docs/adopting.md lists what can be adopted.",
    ),
    ErrorCode(
        "CT976",
        "The text of the script makes no job.",
        "`cloudtrain adopt SCRIPT --static` looks for the calls that make a job in the text alone. Calls inside of "
        "functions, classes or loops count too, but not those of other files. Without `--static` the script is "
        "executed, and its request is taken.",
    ),
    ErrorCode(
        "CT977",
        "No other tool can start the job.",
        "`cloudtrain submit --upload-only` puts code and data in place for a tool of the target that starts the job. "
        "cloudtrain alone starts runs on this machine and sweeps that it drives itself; a submit uploads what they "
        "need.",
    ),
    ErrorCode(
        "CT981",
        "There is nothing here that can be adopted.",
        "`cloudtrain adopt` reads requests, events and descriptions of training jobs, job files and launch lines of "
        "other tools, and scripts that use an SDK. Other kinds of jobs, endpoints and pipelines without command jobs "
        "have no counterpart. Where a source has several jobs, `--job NAME` chooses one.",
    ),
    ErrorCode(
        "CT982",
        "No job says what the source says.",
        "cloudtrain tried every form of a job that it knows, and left out the fields that the target refuses; what was "
        "left did not compile. The message names what was refused last.",
    ),
    ErrorCode(
        "CT983",
        "The adopted job cannot be written.",
        "One of the files exists already, or the folder cannot be written. `--write DIR` names another folder, "
        "`--force` replaces the files.",
    ),
    ErrorCode(
        "CT984",
        "The script has created no job.",
        "`cloudtrain adopt` runs a script until it creates its first job. It failed before, ended without one, or took "
        "longer than `--time-limit`. It runs with the interpreter that `--python` names, in a copy of its folder, "
        "without the network and without credentials: what it downloads first, it cannot have here.",
    ),
    ErrorCode(
        "CT985",
        "A script is executed only when you say so.",
        "To adopt a script is to run it. In a terminal cloudtrain asks; elsewhere `--yes` allows it, and in Python "
        "`execute=True`.",
    ),
    ErrorCode(
        "CT986",
        "Data of this machine cannot be uploaded.",
        "An input whose place is a path (`azureml: ./data`) is uploaded before the job is sent, to a place that is "
        "named by the hash of its content. The path must lead to a folder with files or to a file, which nobody writes "
        "meanwhile. A single file needs `type: uri_file`.",
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
