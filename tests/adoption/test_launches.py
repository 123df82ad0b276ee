"""Launch lines and batch scripts become jobs that start the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

LINES: dict[str, dict[str, Any]] = {
    "torchrun --nproc-per-node 4 train.py --lr 1": {
        "entry_point": "train.py", "hyperparameters": {"lr": 1}, "type": "torch", "processes": 4, "instances": 1,
    },
    "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint h:29500 -m pkg.train a b": {
        "command": "python -m pkg.train a b", "type": "torch", "processes": 8, "instances": 2,
    },
    "python -m torch.distributed.run --standalone --nproc-per-node gpu train.py": {
        "entry_point": "train.py", "type": "torch", "processes": None,
    },
    "A=1 torchrun train.py --b 1 --a 2": {"command": "python train.py --b 1 --a 2", "variables": {"A": "1"}},
    "accelerate launch --num_processes 16 --num_machines 2 --mixed_precision bf16 train.py --epochs 3": {
        "processes": 8, "instances": 2, "variables": {"ACCELERATE_MIXED_PRECISION": "bf16"},
    },
    "deepspeed --num_nodes 2 --num_gpus 8 --no_local_rank train.py --deepspeed ds.json": {
        "type": "deepspeed", "processes": 8, "instances": 2, "hyperparameters": {"deepspeed": "ds.json"},
    },
    "deepspeed --no_local_rank --hostfile hosts train.py --deepspeed --deepspeed_config ds.json": {
        "type": "deepspeed", "processes": 4, "instances": 2,
        "command": "python train.py --deepspeed --deepspeed_config ds.json",
    },
    "mpirun -np 8 -H a:4,b:4 -x NCCL_DEBUG=INFO --mca btl tcp python train.py": {
        "type": "mpi", "processes": 4, "instances": 2,
    },
    "horovodrun -np 4 -H a:4 python train.py": {"type": "horovod", "processes": 4},
    "mpirun -np 8 -H a:4 -H b:4 python train.py": {"processes": 4, "instances": 2},
    "mpirun -np 2 -H a,a python train.py": {"processes": 2, "instances": 1},
    "horovodrun -np 4 -H a:2,b:2 -H c:4 python train.py": {"processes": 4, "instances": 1},
    "torchrun --nnodes 1 --nproc_per_node 4 --nnodes=2 --nproc-per-node=8 train.py": {"processes": 8, "instances": 2},
    "A=(--num_gpus 4 --num_nodes 2); deepspeed ${A[@]} --num_gpus 8 --no_local_rank train.py": {
        "processes": 8, "instances": 2,
    },
    "srun -N 2 --label torchrun --nnodes 2 --nproc-per-node 4 train.py": {"instances": 2, "processes": 4},
    "python train.py --epochs 3": {"type": "none", "hyperparameters": {"epochs": 3}},
}  # fmt: skip


def shape(job: ct.TrainingJob) -> dict[str, Any]:
    return {
        "entry_point": job.entry_point,
        "command": job.command,
        "hyperparameters": job.hyperparameters,
        "type": job.distribution.type,
        "processes": getattr(job.distribution, "processes_per_instance", None),
        "instances": job.resources.instance_count,
        "variables": job.environment.variables,
    }


@pytest.mark.parametrize("line", LINES)
def test_a_launch_line_is_adopted(line: str) -> None:
    """Equal, with these fields."""
    Path("hosts").write_text("worker-1 slots=4\nworker-2 slots=4\n")
    found = ct.adopt(line)
    assert found.differences == ()
    assert {
        name: value for name, value in shape(found.job).items() if name in LINES[line]
    } == LINES[line]


LOSSES = {
    "torchrun --nnodes 1:4 --nproc-per-node 2 train.py": {"--nnodes"},
    "torchrun --max-restarts 3 train.py": {"--max-restarts"},
    "deepspeed --hostfile no --no_local_rank train.py": {"--hostfile"},
    "accelerate launch --config_file no.yaml train.py": {"--config-file"},
    "torchrun --nnodes $N train.py": {"--nnodes"},
    "torchrun --new-option 3 train.py": {"--new-option"},
    "deepspeed --include localhost:0,1 train.py": {"--include", "--local_rank"},
    "mpirun -np 2 --map-by slot python train.py": {"--map-by"},
    "torchrun train.py --lr $LR --out run_$(date +%F)": {"--lr", "--out"},
    "torchrun --nproc-per-node $N train.py": {"--nproc-per-node"},
    "torchrun train.py --mark $'\\t'": {"--mark"},
    "python -m torch.distributed.launch --nproc_per_node 4 train.py": {"--local-rank"},
    "accelerate launch --use_fsdp --gpu_ids 0,1 train.py": {"--use-fsdp", "--gpu-ids"},
    "deepspeed --bind_cores_to_rank train.py": {"--bind-cores-to-rank", "--local_rank"},
    "srun -N 1 --container-image=$IMAGE --container-mounts=/a torchrun train.py": {
        "--container-image",
        "--container-mounts",
    },
    "srun --container-image=x --container-mounts=$D:/d --container-workdir /w --container-writable torchrun t.py": {
        "--container-mounts",
        "--container-workdir",
        "--container-writable",
    },
    "srun --container-name=x --no-container-mount-home torchrun t.py": {
        "--container-name",
        "--no-container-mount-home",
    },
    "srun --ntasks-per-node 4 python train.py": {"srun"},
    "mpirun -np 6 --npernode 4 python train.py": {"-np"},
    "uv run torchrun train.py": {"uv run"},
    "make data && torchrun train.py": {"other lines"},
    "conda run -n deepspeed python train.py": {"conda run -n deepspeed"},
    "uv run --with deepspeed torchrun train.py": {"uv run --with deepspeed"},
    "pip install deepspeed accelerate && torchrun train.py": {"other lines"},
    "singularity exec x.sif pip install deepspeed y && torchrun train.py": {"other lines"},
    "docker build -t deepspeed . && torchrun train.py": {"other lines"},
    'C=$1; bash -c "torchrun train.py --config $C --out $2"': {"--config", "--out"},
    'bash -c "torchrun train.py $@" x': {"$@"},
    "bash <<E\ntorchrun train.py --lr ${1}\nE": {"--lr"},
    "bash -c 'torchrun train.py --lr $1' x 1": set(),
}


@pytest.mark.parametrize("line", LOSSES)
def test_what_a_job_cannot_say_is_a_difference(line: str) -> None:
    """Each option, wrapper and value that only a running shell knows, with a reason, never silently away."""
    found = ct.adopt(line)
    assert {item.path for item in found.differences} == LOSSES[line]
    assert all(item.reason for item in found.differences)


def test_the_settings_that_accelerate_reads_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that `accelerate config` writes decides the processes where a line names none."""
    monkeypatch.setenv("HF_HOME", "cache")
    line = "accelerate launch --num_processes $N train.py"
    assert {each.path for each in ct.adopt(line).differences} == {"--num-processes"}
    file = Path("cache", "accelerate", "default_config.yaml")
    file.parent.mkdir(parents=True)
    file.write_text("num_processes: 8\n")
    names = {each.path for each in ct.adopt(line).differences}
    assert names == {"--num-processes", "--config-file"}
    found = ct.adopt(f"{line} --lr 1".replace("launch", f"launch --config_file {file}"))
    assert shape(found.job)["processes"] is None
    assert {each.path for each in found.differences} == {"--num-processes"}


BATCH = """\
#!/bin/bash
#SBATCH --job-name=llama
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:8
#SBATCH --time=01:59:00
#SBATCH -p big
export NCCL_DEBUG=INFO
SCRIPT="train.py"
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
module load cuda
srun torchrun --nnodes $SLURM_NNODES \\
    --nproc_per_node 8 --rdzv_endpoint $head:29500 $SCRIPT --lr 0.1
"""


def test_a_batch_script_is_adopted() -> None:
    """Its directives, its variables, and the launch line; the rest is settings."""
    Path("job.sh").write_text(BATCH)
    found = ct.adopt("job.sh")
    assert found.equal
    assert found.target == "slurm"
    assert found.settings == {
        "partition": "big", "gpu_type": "a100", "exclusive": False, "setup": ["module load cuda"],
    }  # fmt: skip
    assert shape(found.job) == {
        "entry_point": "train.py", "command": None, "hyperparameters": {"lr": 0.1}, "type": "torch", "processes": 8,
        "instances": 4, "variables": {"NCCL_DEBUG": "INFO"},
    }  # fmt: skip
    assert (found.job.name, found.job.max_runtime, found.job.resources.gpus_per_instance) == (
        "llama",
        7140,
        8,
    )


def test_a_container_of_srun_is_the_jobs_image(cli: Cli) -> None:
    """The image, and its folders, of a script and of a line alone; the plan starts the ranks in it."""
    srun = "srun --container-image=$IMAGE --container-mounts=/data:/mnt:ro,/scratch torchrun"
    Path("job.sh").write_text(
        BATCH.replace("srun torchrun", f"IMAGE=nvcr.io#nvidia/pytorch:24.01-py3\n{srun}")
    )
    found = ct.adopt("job.sh")
    assert (found.equal, found.target) == (True, "slurm")
    assert found.settings == {
        "partition": "big", "gpu_type": "a100", "exclusive": False, "setup": ["module load cuda"],
        "container": "pyxis", "mounts": ["/data:/mnt:ro", "/scratch"],
    }  # fmt: skip
    Path("train.py").write_text("")
    assert cli("adopt", "job.sh", "--write", ".").code == 0
    with Path("cloudtrain.toml").open("a") as settings:
        settings.write('shared_dir = "/fsx"\n')
    plan = cli("plan", "job.yaml", "--target", "slurm", "--json")
    assert "--container-image=nvcr.io#nvidia/pytorch:24.01-py3" in plan.out
    assert "--container-mounts=/fsx:/fsx,/data:/mnt:ro,/scratch:/scratch" in plan.out
    alone = ct.adopt("srun -N 1 --container-image=x.sqsh torchrun train.py")
    assert (alone.equal, alone.target, alone.settings) == (True, "slurm", {"container": "pyxis"})
    assert "slurm: x.sqsh" in alone.job_text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["torchrun train.py"],
            "`torchrun train.py` starts one job, so `--job` has nothing to choose from",
        ),
        (["job.sh"], "`job.sh` starts one job"),
    ],
)
def test_a_source_with_one_job_has_no_choice(cli: Cli, arguments: list[str], says: str) -> None:
    """`--job` is an error where it would have no effect."""
    Path("job.sh").write_text(BATCH)
    Path("train.py").write_text("import boto3\n")
    found = cli("adopt", *arguments, "--job", "prepare")
    assert (found.code, found.out, says in found.err) == (2, "", True)
    assert "hint: remove `--job`" in found.err


OPTIONS = """\
#!/bin/bash
#SBATCH -N2 -p long --exclusive   # two of them
#SBATCH --account proj --qos=high -C "a100&ib"
#SBATCH --reservation=maint --mail-type=END --hold --no-requeue
#SBATCH --wckey="two words" --comment=x --array=1-4 -Z 3 --export=ALL
VENV=/fsx/venv
source $VENV/bin/activate
#SBATCH --nice=5
ulimit -l unlimited
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 train.py
echo done
"""


def test_settings_of_a_batch_script(cli: Cli) -> None:
    """They are the target's table; options that no setting says are `extra_sbatch`, and what none can say is listed."""
    Path("job.sh").write_text(OPTIONS)
    found = cli("adopt", "job.sh", "--json")
    assert found.code == 1
    data = json.loads(found.out)
    assert data["settings"]["slurm"] == {
        "partition": "long", "account": "proj", "qos": "high", "constraint": "a100&ib", "reservation": "maint",
        "requeue": False, "setup": ["source /fsx/venv/bin/activate", "ulimit -l unlimited"],
        "extra_sbatch": ["--mail-type=END", "--hold", "--wckey=two words"],
    }  # fmt: skip
    assert {item["path"] for item in data["differences"]} == {
        "--array",
        "-Z",
        "--export",
        "--comment",
    }
    assert cli("adopt", "job.sh", "--write", "new").code == 1
    table = Path("new/cloudtrain.toml").read_text()
    assert table.startswith("# Also set `shared_dir`")
    Path("new/cloudtrain.toml").write_text(table + 'shared_dir = "/fsx/me"\n')
    Path("new/train.py").write_text("")
    planned = cli(
        "plan", "new/job.yaml", "--target", "slurm", "--format", "sbatch", "--set", "source_dir=."
    )
    assert planned.code == 0, planned.err
    assert "#SBATCH --partition=long\n" in planned.out
    assert '#SBATCH --wckey="two words"\n' in planned.out
    assert "source /fsx/venv/bin/activate\nulimit -l unlimited\n" in planned.out


def test_memory_of_whole_nodes() -> None:
    """sbatch takes one option about memory, and cloudtrain asks for all of it."""
    for option, expected in (("--mem=0", []), ("--mem-per-cpu=4G", ["--mem-per-cpu"])):
        Path("job.sh").write_text(f"#!/bin/bash\n#SBATCH --exclusive {option}\ntorchrun train.py\n")
        found = ct.adopt("job.sh")
        assert [item.path for item in found.differences] == expected
        assert found.settings == {}
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --mem=64G\ntorchrun train.py\n")
    assert ct.adopt("job.sh").settings == {"exclusive": False, "extra_sbatch": ["--mem=64G"]}


def test_cpus_of_a_batch_script() -> None:
    """A script that shares its nodes says how many CPUs of each it takes."""
    directives = (
        "#!/bin/bash\n#SBATCH --ntasks-per-node=4 --cpus-per-task=8 --gpus-per-node=h100:4\n"
    )
    Path("job.sh").write_text(directives + "torchrun --nproc-per-node 4 train.py\n")
    found = ct.adopt("job.sh")
    assert found.equal
    assert found.settings == {"gpu_type": "h100", "exclusive": False, "cpus_per_instance": 32}
    assert found.job.resources.gpus_per_instance == 4


def test_a_configuration_of_accelerate() -> None:
    """With its line it is adopted; alone it is refused with what to type."""
    text = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nmixed_precision: bf16\nfsdp_config: {x: 1}\n"
    Path("a.yaml").write_text(text)
    found = ct.adopt("accelerate launch --config_file a.yaml train.py")
    assert (shape(found.job)["instances"], shape(found.job)["processes"]) == (2, 8)
    assert {item.path for item in found.differences} == {"fsdp_config"}
    with pytest.raises(ct.CloudtrainError) as caught:
        ct.adopt("a.yaml")
    assert "accelerate launch --config_file a.yaml" in str(caught.value.hint)


@pytest.mark.parametrize(
    "line", ["torchrun", "torchrun --nproc-per-node 'x", "ls -l", "mpirun -np", "python -c 1", "torchx run utils.echo", "torchrun --nnodes"],
)  # fmt: skip
def test_what_is_no_launch_line(line: str, cli: Cli) -> None:
    """An error with a hint."""
    found = cli("adopt", line)
    assert found.code == 2
    assert "hint: " in found.err


def test_a_launch_line_on_the_command_line(cli: Cli) -> None:
    """A whole job file on stdout."""
    found = cli("adopt", "torchrun --nproc-per-node 4 train.py --lr 1")
    assert found.code == 0
    assert "processes_per_instance: 4" in found.out
    assert "cloudtrain.toml" not in found.out


SHELL_LINES: dict[str, dict[str, Any]] = {
    "torchrun train.py --lr 1 2>&1 | tee log  # a comment": {
        "hyperparameters": {"lr": 1},
        "command": None,
    },
    "cd src && OMP_NUM_THREADS=8 nohup torchrun train.py &": {
        "variables": {"OMP_NUM_THREADS": "8"}
    },
    "torchrun --no-python ./a.out x": {"command": "./a.out x"},
    "mpirun -np 4 ./a.out --x 1": {"command": "./a.out --x 1", "processes": 4},
    "python3 -u -m torch.distributed.run --nproc-per-node 4 train.py": {
        "type": "torch",
        "processes": 4,
    },
    "/usr/bin/srun -N2 -K bash -c 'torchrun --nnodes 2 --nproc-per-node 4 train.py'": {
        "instances": 2,
        "processes": 4,
    },
    "accelerate launch --same_network --num_processes 8 train.py": {
        "entry_point": "train.py",
        "processes": 8,
    },
    "env A=1 torchrun train.py 'a b' '$HOME'": {"command": "python train.py 'a b' '$HOME'"},
}


@pytest.mark.parametrize("line", SHELL_LINES)
def test_a_line_is_read_as_a_shell_reads_it(line: str) -> None:
    """Redirections, comments and other commands are no arguments of the script."""
    found = ct.adopt(line)
    assert found.differences == ()
    assert {
        name: value for name, value in shape(found.job).items() if name in SHELL_LINES[line]
    } == SHELL_LINES[line]


ARRAYS = """\
#!/bin/bash
#SBATCH --nodes=2-4
#SBATCH --ntasks-per-node=8 --gpus-per-task=a100:1 --gres=nvme:1
#SBATCH hetjob
export PATH=/opt/bin:$PATH MASTER_ADDR=$(hostname) MASTER_PORT=29500 HF_TOKEN=$(cat ~/.token)
export A=1 B="two words"
DISTRIBUTED=(
    --nproc_per_node 8   # the GPUs
    --nnodes $SLURM_NNODES
    --master_addr $MASTER_ADDR
)
ARGS="--lr 0.1 --epochs ${EPOCHS:-3} --world $((SLURM_NNODES * 8))"
cat > ds.json <<EOF
torchrun other.py
EOF
if [ -d data ]; then cp -r $(pwd)/data /scratch; fi
python prepare.py
cd src
OMP_NUM_THREADS=$SLURM_NTASKS_PER_NODE torchrun "${DISTRIBUTED[@]}" pretrain.py $ARGS > log
export AFTER=1
"""


def test_arrays_and_conditions_of_a_batch_script() -> None:
    """What the shell makes of the script is the job; every line that the job does not run is listed."""
    Path("job.sh").write_bytes(ARRAYS.replace("\n", "\r\n").encode())
    found = ct.adopt("job.sh")
    assert shape(found.job) == {
        "entry_point": None, "command": "python pretrain.py --lr 0.1 --epochs 3 --world 32", "hyperparameters": {},
        "type": "torch", "processes": 8, "instances": 4,
        "variables": {"A": "1", "B": "two words", "OMP_NUM_THREADS": "8"},
    }  # fmt: skip
    assert (found.job.source_dir, found.job.resources.gpus_per_instance) == ("src", 8)
    assert found.settings["gpu_type"] == "a100"
    assert found.settings["setup"] == [
        'export PATH="/opt/bin:$PATH"',
        'export HF_TOKEN="$(cat ~/.token)"',
    ]
    lost = {item.path: item.reason for item in found.differences}
    assert lost.keys() == {
        "--nodes",
        "--gres",
        "#SBATCH hetjob",
        "other lines",
        "srun",
        "if [ -d data ]; then",
    }
    assert lost["other lines"].endswith(": cat > ds.json <<EOF; python prepare.py")
    assert lost["if [ -d data ]; then"].endswith(": cp -r $(pwd)/data /scratch")


def test_processes_that_srun_starts() -> None:
    """A rank for each task, and a word about the launcher."""
    Path("job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=4 --ntasks-per-node=4 --gres=gpu:4\nsrun python -u train.py\n"
    )
    found = ct.adopt("job.sh")
    assert [item.path for item in found.differences] == ["srun"]
    assert (
        shape(found.job)["type"],
        shape(found.job)["processes"],
        shape(found.job)["instances"],
    ) == ("torch", 4, 4)


@pytest.mark.parametrize(
    "text", ["A=x\n" + "A=$A$A\n" * 60 + "torchrun $A", "torchrun $(", "echo '" + "a" * (1 << 20), 'echo "' + "a" * (1 << 20), 'torchrun "', "${" * 5000, "A=(" * 5000, "((((" * 9000]
)  # fmt: skip
def test_a_hostile_batch_script(text: str, cli: Cli) -> None:
    """An error with a hint, at once."""
    Path("job.sh").write_text(f"#!/bin/bash\n#SBATCH -N 1\n{text}\n")
    found = cli("adopt", "job.sh")
    assert found.code == 2
    assert "hint: " in found.err


def test_comments_of_a_launch_line_are_no_options() -> None:
    """Only in a script, a line `#SBATCH` is more than a comment."""
    line = "#SBATCH --nodes=7\ntorchrun --nproc-per-node 8 train.py"
    found = ct.adopt(line)
    assert (found.target, found.job.resources.instance_count) == ("local", 1)
    Path("job.sh").write_text(f"#!/bin/bash\n{line}\n")
    assert ct.adopt("job.sh").target == "slurm"


def test_a_written_job_finds_its_code(cli: Cli) -> None:
    """`source_dir` is the folder of the code, seen from the job file."""
    Path("jobs").mkdir()
    Path("train.py").write_text("")
    Path("jobs/job.sh").write_text("#!/bin/bash\n#SBATCH -N 1\ntorchrun train.py\n")
    for source in ("torchrun train.py", "jobs/job.sh"):
        assert cli("adopt", source, "--write", "new", "--force").code == 0
        planned = cli("plan", "new/job.yaml", "--python", sys.executable)  # PyTorch may be missing
        assert planned.code == 0, planned.err


def test_a_secret_is_not_copied(cli: Cli) -> None:
    """It is named without its value."""
    secret = "0123456789abcdef0123456789abcdef01234567"
    script = f"#!/bin/bash\n#SBATCH -N 1\nexport WANDB_API_KEY={secret} B=1\ntorchrun train.py --api_key {secret} --x\n"
    Path("job.sh").write_text(script)
    found = cli("adopt", "job.sh", "--write", "new")
    assert found.code == 1
    assert "environment.variables.WANDB_API_KEY" in found.err
    written = Path("new/job.yaml").read_text()
    assert secret not in found.out + found.err + written
    assert "--api_key FILL-IN" in written
