"""Scripts in the style of the SDKs' documentation, each of which creates one job; run for `cloudtrain adopt`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cloudtrain as ct

ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"

_V2 = f"""\
import sagemaker
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.estimator import Estimator
from sagemaker.huggingface import HuggingFace
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow
role = "{ROLE}"
common = dict(entry_point="train.py", source_dir="src", role=role, instance_count=2, framework_version="2.8.0",
              py_version="py312", instance_type="ml.p4d.24xlarge")
"""

V2 = {
    "torch": """
PyTorch(**common, distribution={"torch_distributed": {"enabled": True}}, hyperparameters={"epochs": 3, "lr": 1e-3}
        ).fit({"train": "s3://my-bucket/train"})
""",
    "session": """
session = sagemaker.Session()
PyTorch(**dict(common, role=sagemaker.get_execution_role()), sagemaker_session=session,
        output_path=f"s3://{session.default_bucket()}/out").fit({"train": "s3://my-bucket/train"})
""",
    "mpi": """
PyTorch(**common, distribution={"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x A=1"}}
        ).fit("s3://my-bucket/train")
""",
    "spot": """
PyTorch(**common, use_spot_instances=True, max_run=3600, max_wait=7200, checkpoint_s3_uri="s3://my-bucket/c",
        checkpoint_local_path="/opt/ml/checkpoints", max_retry_attempts=2,
        tags=[{"Key": "team", "Value": "a"}]).fit({"train": "s3://my-bucket/train"})
""",
    "smddp": """
PyTorch(**dict(common, framework_version="2.2.0", py_version="py310"),
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}}).fit({"train": "s3://my-bucket/train"})
""",
    "huggingface": """
HuggingFace(entry_point="train.py", source_dir="src", role=role, instance_count=1, instance_type="ml.p4d.24xlarge",
            transformers_version="4.56.2", pytorch_version="2.8.0", py_version="py312",
            hyperparameters={"model_name_or_path": "bert-base-cased", "do_train": True}).fit()
""",
    "tensorflow": """
TensorFlow(entry_point="train.py", source_dir="src", role=role, instance_count=2, instance_type="ml.g5.xlarge",
           framework_version="2.19.0", py_version="py312",
           distribution={"multi_worker_mirrored_strategy": {"enabled": True}}).fit({"train": "s3://my-bucket/train"})
""",
    "image": """
Estimator(image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1", role=role, instance_count=1,
          instance_type="ml.m5.xlarge", hyperparameters={"max_depth": 5, "flag": True}, volume_size=50
          ).fit({"train": TrainingInput("s3://my-bucket/train", content_type="text/csv", distribution="ShardedByS3Key")})
""",
    "groups": """
gpu, cpu = InstanceGroup("gpu", "ml.p4d.24xlarge", 1), InstanceGroup("cpu", "ml.c5.18xlarge", 1)
PyTorch(entry_point="train.py", source_dir="src", role=role, framework_version="2.8.0", py_version="py312",
        instance_groups=[gpu, cpu],
        distribution={"mpi": {"enabled": True, "processes_per_host": 8}, "instance_groups": [gpu]},
        ).fit({"train": "s3://my-bucket/train"})
""",
    "network": """
PyTorch(**common, subnets=["subnet-0123"], security_group_ids=["sg-0123"], encrypt_inter_container_traffic=True,
        volume_kms_key="k", output_kms_key="k2", keep_alive_period_in_seconds=600, environment={"A": "b"},
        metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}], disable_profiler=True,
        debugger_hook_config=False,
        ).fit({"train": FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/abc/data")})
""",
    "channels": """
PyTorch(**common, distribution={"torch_distributed": {"enabled": True}}
        ).fit({"train-1.x": "s3://my-bucket/train", "train_1_x": "s3://my-bucket/other"})
""",
    "rules": """
from sagemaker.debugger import (
    CollectionConfig, DebuggerHookConfig, ProfilerConfig, ProfilerRule, Rule, TensorBoardOutputConfig, rule_configs,
)
rules = [
    Rule.sagemaker(rule_configs.loss_not_decreasing()),
    Rule.sagemaker(rule_configs.vanishing_gradient(), rule_parameters={"threshold": "1e-6"},
                   actions=rule_configs.ActionList(rule_configs.StopTraining())),
    Rule.custom(name="mine", image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/rules:1", source="s3://b/r.py",
                instance_type="ml.m5.xlarge", volume_size_in_gb=10, rule_to_invoke="Mine",
                container_local_output_path="/r", s3_output_path="s3://my-bucket/r",
                collections_to_save=[CollectionConfig("weights", {"save_interval": "5"})]),
    ProfilerRule.sagemaker(rule_configs.ProfilerReport(CPUBottleneck_cpu_threshold=90)),
]
PyTorch(**common, rules=rules, profiler_config=ProfilerConfig(system_monitor_interval_millis=500),
        debugger_hook_config=DebuggerHookConfig(s3_output_path="s3://my-bucket/d", container_local_output_path="/d",
                                                hook_parameters={"save_interval": "10"}),
        tensorboard_output_config=TensorBoardOutputConfig("s3://my-bucket/tb", "/tb"),
        ).fit({"train": "s3://my-bucket/train"})
""",
    "run": """
PyTorch(**common, checkpoint_s3_uri="s3://my-bucket/c", checkpoint_local_path="/opt/ml/mine", input_mode="FastFile",
        enable_session_tag_chaining=True,
        ).fit({"train": "s3://my-bucket/train"}, experiment_config={"ExperimentName": "e", "RunName": "r"})
""",
    "one_file": """
PyTorch(**dict(common, source_dir=None, entry_point="src/train.py"), base_job_name="mine").fit()
""",
    "swallowed": """
try:
    PyTorch(**common).fit()
except BaseException:
    pass
open("/tmp/no-such-folder/after", "w")
""",
}

_AZUREML = """\
from azure.ai.ml import Input, MLClient, MpiDistribution, Output, PyTorchDistribution, TensorFlowDistribution, command
from azure.ai.ml.entities import CommandJobLimits, Environment, JobResourceConfiguration, SshJobService
from azure.identity import DefaultAzureCredential
client = MLClient(DefaultAzureCredential(), "sub", "group", "workspace")
common = dict(code="./src", command="python train.py", environment="azureml:e:1", compute="gpu", experiment_name="x")
"""

AZUREML = {
    "plain": "client.jobs.create_or_update(command(**common))",
    "client": "client.create_or_update(command(**common, display_name='mine'))",
    "torch": "client.jobs.create_or_update(command(**common, instance_count=2, distribution={'type': 'pytorch', "
    "'process_count_per_instance': 4}))",
    "torch_object": "client.jobs.create_or_update(command(**common, instance_count=2, "
    "distribution=PyTorchDistribution(process_count_per_instance=8), shm_size='64g'))",
    "mpi": "client.jobs.create_or_update(command(**common, instance_count=4, "
    "distribution=MpiDistribution(process_count_per_instance=4)))",
    "tensorflow": "client.jobs.create_or_update(command(**common, instance_count=2, "
    "distribution=TensorFlowDistribution(worker_count=2)))",
    "data": "client.jobs.create_or_update(command(**dict(common, command='python t.py ${{inputs.d}} ${{inputs.lr}}'), "
    "inputs={'d': Input(type='uri_folder', path='azureml:d@latest', mode='download'), 'lr': 0.1}, "
    "outputs={'o': Output(type='uri_folder', mode='rw_mount')}))",
    "limits": "job = command(**common, environment_variables={'A': '1'}, tags={'a': 'b'}, description='d')\n"
    "job.set_limits(timeout=600)\nclient.jobs.create_or_update(job)",
    "serverless": "job = command(**{k: v for k, v in common.items() if k != 'compute'})\n"
    "job.set_resources(instance_type='Standard_NC24ads_A100_v4', instance_count=1)\nclient.create_or_update(job)",
    "registered": "env = client.environments.create_or_update(Environment(name='mine', version='3', image='x:1'))\n"
    "client.jobs.create_or_update(command(**dict(common, environment=f'{env.name}:{env.version}')))",
    "image": "client.jobs.create_or_update(command(**dict(common, environment=Environment(image='x:1'))))",
    "named": "env = Environment(name='mine', version='3', description='For training', tags={'team': 'a'}, image='x:1')\n"
    "client.jobs.create_or_update(command(**dict(common, environment=env)))",
    "named_without_version": "client.jobs.create_or_update(command(**dict(common, environment=Environment(name='mine', "
    "image='x:1', conda_file={'dependencies': ['python=3.11']}))))",
    "built": "from azure.ai.ml.entities import BuildContext\n"
    "client.jobs.create_or_update(command(**dict(common, environment=Environment(name='mine', version='3', "
    "build=BuildContext(path='src', dockerfile_path='Dockerfile')))))",
    "described": "client.jobs.create_or_update(command(**dict(common, environment=Environment(image='x:1', "
    "description='d', tags={'a': 'b'}))))",
    "load_job": "from azure.ai.ml import load_job\n"
    "open('job.yml', 'w').write('command: python t.py ${{inputs.d}}\\ncode: src\\nenvironment: azureml:e:1\\n"
    "compute: azureml:gpu\\ninputs: {d: {type: uri_folder, path: azureml:d:1}}\\n')\n"
    "client.jobs.create_or_update(load_job('job.yml'))",
    "cluster": "client.compute.get('gpu')\nclient.jobs.create_or_update(command(**common))",
}

_BOTO3 = f"""\
import boto3
client = boto3.client("sagemaker", region_name="eu-west-1")
request = dict(
    TrainingJobName="mine-1", RoleArn="{ROLE}",
    AlgorithmSpecification={{"TrainingImage": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/i:1", "TrainingInputMode": "File"}},
    OutputDataConfig={{"S3OutputPath": "s3://my-bucket/out"}}, StoppingCondition={{"MaxRuntimeInSeconds": 3600}},
    ResourceConfig={{"InstanceCount": 1, "InstanceType": "ml.g5.xlarge", "VolumeSizeInGB": 50}})
"""

BOTO3 = {
    "plain": "client.create_training_job(**request)",
    "hyperparameters": "client.create_training_job(**request, HyperParameters={'epochs': '3', 'name': 'x'})",
    "channels": "client.create_training_job(**request, InputDataConfig=[{'ChannelName': 'train', 'DataSource': "
    "{'S3DataSource': {'S3DataType': 'S3Prefix', 'S3Uri': 's3://my-bucket/t', "
    "'S3DataDistributionType': 'FullyReplicated'}}, 'ContentType': 'text/csv', 'CompressionType': 'None'}])",
    "dotted": "client.create_training_job(**request, InputDataConfig=[{'ChannelName': 'train-1.x', 'DataSource': "
    "{'S3DataSource': {'S3DataType': 'S3Prefix', 'S3Uri': 's3://my-bucket/t'}}}])",
    "preferences": "request['ResourceConfig'] = {'VolumeSizeInGB': 50, 'InstancePreferences': [{'InstanceType': "
    "'ml.p5.48xlarge', 'InstanceCount': 2, 'TrainingPlanArns': "
    "['arn:aws:sagemaker:eu-west-1:123456789012:training-plan/p']}, {'InstanceType': 'ml.p4d.24xlarge', "
    "'InstanceCount': 4}]}\nclient.create_training_job(**request)",
    "network": "client.create_training_job(**request, VpcConfig={'Subnets': ['subnet-1'], 'SecurityGroupIds': ['sg-1']}, "
    "EnableNetworkIsolation=True)",
    "spot": "client.create_training_job(**dict(request, StoppingCondition={'MaxRuntimeInSeconds': 60, "
    "'MaxWaitTimeInSeconds': 90}), EnableManagedSpotTraining=True, CheckpointConfig={'S3Uri': 's3://my-bucket/c'})",
    "tags": "client.create_training_job(**request, Tags=[{'Key': 'a', 'Value': 'b'}], Environment={'A': 'b'})",
    "mlflow": "client.create_training_job(**request, MlflowConfig={'MlflowResourceArn': 'arn:aws:sagemaker:eu-west-1:"
    "123456789012:mlflow-tracking-server/m', 'MlflowExperimentName': 'e'})",
    "rules": "client.create_training_job(**request, DebugRuleConfigurations=[{'RuleConfigurationName': 'r', "
    "'RuleEvaluatorImage': 'i:1'}])",
    "upload": "boto3.client('s3').put_object(Bucket='b', Key='k', Body=b'x')\nclient.create_training_job(**request)",
    "session": "boto3.Session(region_name='eu-west-1').client('sagemaker').create_training_job(**request)",
}


_V3 = f"""\
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import MPI, Torchrun
image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker"
common = dict(training_image=image, role="{ROLE}", base_job_name="mine",
              compute=Compute(instance_type="ml.g5.12xlarge", instance_count=2))
code = SourceCode(source_dir="src", entry_script="train.py")
"""

V3 = {
    "plain": "ModelTrainer(**common, source_code=code).train(wait=False)",
    "torchrun": "ModelTrainer(**common, source_code=code, distributed=Torchrun()).train(wait=False)",
    "processes": "ModelTrainer(**common, source_code=code, distributed=Torchrun(process_count_per_node=2))"
    ".train(wait=False)",
    "mpi": "ModelTrainer(**common, source_code=code, distributed=MPI(process_count_per_node=4)).train(wait=False)",
    "hyperparameters": "ModelTrainer(**common, source_code=code, hyperparameters={'epochs': 3, 'lr': 0.1, 'name': 'x'})"
    ".train(wait=False)",
    "data": "ModelTrainer(**common, source_code=code).train(input_data_config=[InputData(channel_name='train', "
    "data_source='s3://my-bucket/train')], wait=False)",
    "command": "ModelTrainer(**common, source_code=SourceCode(source_dir='src', command='python train.py'))"
    ".train(wait=False)",
    "environment": "ModelTrainer(**common, source_code=code, environment={'A': 'b'}).train(wait=False)",
    "waiting": "ModelTrainer(**common, source_code=code).train()",
    "swallowed": "try:\n    ModelTrainer(**common, source_code=code).train()\nexcept BaseException:\n    pass\n",
    "mpi_on_one": "ModelTrainer(**dict(common, compute=Compute(instance_type='ml.p4d.24xlarge', instance_count=1)), "
    "source_code=code, distributed=MPI(mpi_additional_options=['-x', 'A=1']), hyperparameters={'flag': True})"
    ".train(wait=False)",
    "own_variables": "ModelTrainer(**common, source_code=SourceCode(source_dir='src', command='echo $SM_MASTER_ADDR'))"
    ".train(wait=False)",
    "changed": "from sagemaker.train.distributed import DistributedConfig\n"
    "class Own(DistributedConfig):\n    @property\n    def driver_dir(self): return 'src'\n    @property\n    def driver_script(self): return 'train.py'\n"
    "ModelTrainer(**common, source_code=code, distributed=Own()).train(wait=False)",
}


def adopted(kind: str, text: str, folder: Path) -> ct.Adoption:
    """What becomes of a script with a folder `src` beside it, run by this interpreter."""
    start = {"v2": _V2, "v3": _V3, "azureml": _AZUREML, "boto3": _BOTO3}[kind]
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text("print(1)\n")
    (folder / "job.py").write_text(start + text)
    return ct.adopt(folder / "job.py", execute=True, python=sys.executable, folder=folder)


_FILE = "code: src\nenvironment: azureml:e:1\ncompute: azureml:gpu\nexperiment_name: x\n"

FILES = {
    "plain": "command: python train.py\n",
    "typed": "type: command\ncommand: python train.py\ndisplay_name: mine\ndescription: d\ntags: {a: b}\n",
    "torch": "command: python train.py\nresources: {instance_count: 2}\n"
    "distribution: {type: PyTorch, process_count_per_instance: 4}\n",
    "mpi": "command: python train.py\nresources: {instance_count: 2, shm_size: 8g}\n"
    "distribution: {type: mpi, process_count_per_instance: 4}\n",
    "tensorflow": "command: python train.py\nresources: {instance_count: 3}\n"
    "distribution: {type: tensorflow, worker_count: 2, parameter_server_count: 1}\n",
    "data": "command: python t.py ${{inputs.d}} ${{inputs.lr}}\n"
    "inputs: {d: {type: uri_folder, path: 'azureml:d@latest', mode: download}, lr: 0.1}\n",
    "yaml_1_1": "command: python t.py ${{inputs.a}}\ninputs: {a: yes, n: 010, lr: 1e-4}\n"
    "environment_variables: {A: 1, B: on, C: x}\n",
    "outputs": "command: python t.py ${{outputs.o}}\noutputs: {o: {type: uri_folder, mode: rw_mount}, p: {}}\n",
    "limits": "command: python train.py\nlimits: {timeout: 600}\nidentity: {type: managed}\n",
    "services": "command: sleep 1\nservices: {lab: {type: jupyter_lab}, board: {type: tensor_board, log_dir: runs}}\n",
    "queue": "command: python train.py\nqueue_settings: {job_tier: Standard, priority: high}\n",
}


def files_adopted(text: str, folder: Path) -> tuple[ct.Adoption, ct.Adoption]:
    """What becomes of a job file beside a folder `src`, and of the body that azure-ai-ml makes of that file."""
    from azure.ai.ml import load_job
    from azure.ai.ml._restclient.arm_ml_service._utils.model_base import SdkJSONEncoder
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text("print(1)\n")
    (folder / "job.yml").write_text(_FILE + text)
    body = to_rest_job_object(load_job(folder / "job.yml"))
    (folder / "body.json").write_text(json.dumps(body, cls=SdkJSONEncoder, exclude_readonly=True))
    return ct.adopt(folder / "job.yml"), ct.adopt(folder / "body.json")
