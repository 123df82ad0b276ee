"""Batch scripts as they are published: what a shell knows is in the job, and all else is a named difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import UsageError
from tests.adoption.test_launches import shape
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

TWO = "#SBATCH --nodes=2 --gres=gpu:8\n"
ONE = "#SBATCH --nodes=1 --gres=gpu:8\n"
HEAD = "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
RUN = "torchrun --nproc-per-node 8 train.py"
AGENT = "torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 train.py"
OVER = "torchrun --nnodes 2 --nproc-per-node 8 train.py"


def adopted(script: str, *arguments: str) -> tuple[dict[str, Any], set[str]]:
    """The job with its settings, and the names of the differences."""
    Path("job.sh").write_text(f"#!/bin/bash\n{script}\n")
    found = ct.adopt("job.sh", arguments or None)
    job = shape(found.job) | {
        "settings": dict(found.settings),
        "gpus": found.job.resources.gpus_per_instance,
    }
    job["runtime"] = found.job.max_runtime
    return job, {item.path for item in found.differences}


def fits(script: str, expected: dict[str, Any], differences: set[str]) -> None:
    job, names = adopted(script)
    assert {name: job[name] for name in expected} == expected
    assert names == differences


RANKS = {"type": "torch", "instances": 2, "processes": 8}


@pytest.mark.parametrize(
    "lines",
    [
        'LAUNCHER="accelerate launch --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * 8)) '
        '--main_process_ip $head"\nsrun $LAUNCHER train.py --lr 0.1',
        'export CMD="torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_endpoint $head:29500 train.py"\n'
        'CMD="$CMD --lr 0.1"\nsrun $CMD',
        "ARGS=(--nnodes 2 --nproc_per_node=8 --node_rank $SLURM_NODEID --master_addr ${head:-x})\n"
        'srun torchrun "${ARGS[@]}" train.py --lr 0.1',
        "export L='python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 --master_addr '$head\n"
        "srun bash -c '$L --node_rank $SLURM_PROCID train.py --lr 0.1' 2>&1 | tee log",
    ],
)
def test_what_connects_processes_may_be_unknown(lines: str) -> None:
    """A launcher in a variable is found although a part of it is known only to a running shell."""
    fits(TWO + HEAD + lines, {**RANKS, "hyperparameters": {"lr": 0.1}, "variables": {}}, set())


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("A=${X:-3}\nB=${A:+$A}", 3),
        ("F=cfg/7.yaml\nB=${F##*/}\nB=${B%.yaml}", 7),
        ("F=a-5\n: ${B:=${F/a-/}}", 5),
        ("A=(1 2 3)\nB=$((${#A[@]} * ${A[2]}))", 9),
    ],
)
def test_expansions_are_those_of_bash(lines: str, value: int) -> None:
    fits(f"{ONE}{lines}\n{RUN} --bs $B", {"hyperparameters": {"bs": value}}, set())


@pytest.mark.parametrize(
    ("lines", "value", "condition"),
    [
        ('if [ -d /data ]; then B=1; echo x; fi', 2, "if [ -d /data ]; then"),
        ('if [[ -n "$MODE" ]]; then B=1; else B=2; fi', 2, 'if [[ -n "$MODE" ]]; then'),
        ('case $1 in big) B=1 ;; esac', 2, "case $1 in big)"),
        ('[ -z "$1" ] || B=$1', 2, '[ -z "$1" ]'),
        ('while read -r line; do B=$line; done < list', 2, "while read -r line; do"),
        ('if [ 2 -gt 1 ]; then B=3; else B=4; fi', 3, None),
        ('case a.txt in *.txt) B=3 ;; *) B=4 ;; esac', 3, None),
        ('for B in 1 2 3; do :; done', 3, None),
        ('if [ ! -f env ]; then echo missing; exit 1; fi', 2, None),
        ('if [ -f /env ]; then B=3; else exit 1; fi', 3, None),
        ('f() { B=$1; }\nf 3', 3, None),
    ],
)  # fmt: skip
def test_conditions(lines: str, value: int, condition: str | None) -> None:
    """A body counts as run only if the text shows it; what another one would change is a difference."""
    differences = set() if condition is None else {condition}
    fits(f"{ONE}B=2\n{lines}\n{RUN} --bs $B", {"hyperparameters": {"bs": value}}, differences)


FILES = {
    "run.sh": f"#!/bin/bash\nset -e\n{OVER} --bs $1\n",
    "env.sh": "export NCCL_DEBUG=INFO\nB=5\n",
    "tools/dist.sh": 'CONFIG=$1\nGPUS=$2\nPORT=${PORT:-29500}\npython -m torch.distributed.run --nproc_per_node=$GPUS '
    '--master_port=$PORT $(dirname "$0")/train.py $CONFIG ${@:3}\n',
}  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("srun ./run.sh 5", {**RANKS, "hyperparameters": {"bs": 5}}),
        ("srun bash -x run.sh 5", {**RANKS, "hyperparameters": {"bs": 5}}),
        (f"srun bash <<EOF\n{OVER} --bs $((2+3))\nEOF", {**RANKS, "hyperparameters": {"bs": 5}}),
        (f"cat > made.sh <<'EOF'\n{OVER} --bs $1\nEOF\nsrun bash made.sh 5", {**RANKS, "hyperparameters": {"bs": 5}}),
        (f"source env.sh\nsrun {OVER} --bs $B", {"hyperparameters": {"bs": 5}, "variables": {"NCCL_DEBUG": "INFO"}}),
        (f"read -r -d '' C <<EOF\n{OVER} \\\n --bs 5\nEOF\nsrun bash -c \"$C\"", {**RANKS, "hyperparameters": {"bs": 5}}),
        (f"C='{OVER} --bs 5'\nsrun bash -c \"$C\"", {**RANKS, "hyperparameters": {"bs": 5}}),
    ],
)  # fmt: skip
def test_scripts_are_followed(lines: str, expected: dict[str, Any]) -> None:
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    fits(TWO + lines, expected, set())


def test_a_script_of_a_toolbox_with_its_arguments(cli: Cli) -> None:
    """As a launch line, and as a file with `--args`."""
    Path("tools").mkdir()
    Path("tools/dist.sh").write_text(FILES["tools/dist.sh"])
    for source in (["bash tools/dist.sh a.py 4 --x"], ["tools/dist.sh", "--args", "a.py 4 --x"]):
        found = cli("adopt", *source)
        assert found.code == 0, found.err
        assert "command: python train.py a.py --x\n" in found.out
        assert "processes_per_instance: 4" in found.out


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("srun ./no.sh a", "line 3 starts `srun ./no.sh a`, which it cannot read: `./no.sh` is not here"),
        ("module load x\nmake train", "line 4 starts `make train`"),
        ("srun $TOOL train.py", "line 3 starts `srun $TOOL train.py`"),
        (f"exit 0\n{RUN}", "line 3 ends the script"),
        (f"for s in 1 2; do\n{RUN} --seed $s\ndone", f"line 4 (`{RUN} --seed $s`)"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_quoted(lines: str, says: str, cli: Cli) -> None:
    Path("job.sh").write_text(f"#!/bin/bash\n{ONE}{lines}\n")
    found = cli("adopt", "job.sh")
    assert (found.code, "[CT981]" in found.err) == (2, True)
    assert says in " ".join(found.err.split())


OPTIONS = [
    ("-N2 -n 16 -c4 --gpus-per-node=a100:8", {"gpu_type": "a100", "cpus_per_instance": 32}, 8, None),
    ("--node=2 --ntasks-per-n=8 --gpus-per-task=1 --time=90", {}, 8, 5400),
    ("--nodes 2 --tasks-per-node 8 --gpus=16 -t 1-2", {}, 8, 93600),
    ("--nodes=2 --ntasks=16 --gres=gpu:h100:8 -t 2:30:00 -p a -A b -q c", {
        "gpu_type": "h100", "partition": "a", "account": "b", "qos": "c"}, 8, 9000),
    ("--ntasks=16 --ntasks-per-node=8 --time=10:30 --par a", {"extra_sbatch": ["--par=a"]}, None, 630),
]  # fmt: skip


@pytest.mark.parametrize(("options", "settings", "gpus", "runtime"), OPTIONS)
def test_options_mean_what_slurm_means(
    options: str, settings: dict[str, Any], gpus: int | None, runtime: int | None
) -> None:
    """Long, short, abbreviated, as synonyms, and in every notation of time."""
    expected = {
        **RANKS,
        "gpus": gpus,
        "runtime": runtime,
        "settings": {"exclusive": False, **settings},
    }
    lines = f"#!SBATCH -N9\n##SBATCH -N 8\n#SBATCH {options}\nset -e\n#SBATCH -N 7\nsrun python train.py"
    fits(lines, expected, {"srun"})


@pytest.mark.parametrize(
    ("options", "line", "instances", "names"),
    [
        ("-N2", OVER, 2, {"srun"}),
        ("-N2", f"srun {RUN}", 2, {"--nodes"}),
        ("-N2 --ntasks-per-node=4", f"srun {OVER}", 2, {"--ntasks-per-node"}),
        ("-N4", f"srun {OVER}", 4, {"--nodes"}),
        ("-N2", "python train.py", 2, {"srun"}),
        ("--ntasks=4", "srun python train.py", 1, {"--ntasks", "srun"}),
        ("-N4", f"srun --nodes=2 {OVER}", 2, set()),
        ("-N2\n#SBATCH hetjob\n#SBATCH -N 5", f"srun {OVER}", 2, {"#SBATCH hetjob"}),
        ("-N $COUNT", f"srun {RUN}", 1, {"--nodes"}),
        ("-N2 --ntasks-per-node=4", "mpirun -np 8 python train.py", 2, set()),
        ("-N2 --ntasks-per-node=4", "mpirun python train.py", 2, set()),
        ("-N2", "mpirun -np 3 python train.py", 2, {"-np"}),
        ("-N2", "deepspeed --num_gpus 4 --no_local_rank train.py", 2, {"--nodes"}),
        ("--ntasks=2", f"srun {OVER}", 2, {"--ntasks"}),
        ("-N1", "torchrun --nproc-per-node gpu train.py", 1, {"--nproc-per-node"}),
        ("-N1 --gpus=4", "torchrun --nproc-per-node gpu train.py", 1, set()),
    ],
)
def test_what_a_line_starts_otherwise_than_the_job(
    options: str, line: str, instances: int, names: set[str]
) -> None:
    """A launcher that the script starts on one node, or several times on each, is not called equal."""
    fits(f"#SBATCH {options}\n{line}", {"instances": instances}, names)


@pytest.mark.parametrize(
    ("lines", "settings", "names"),
    [
        ("/opt/llm/bin/torchrun --nproc-per-node 8 train.py", {"python": "/opt/llm/bin/python"}, set()),
        ("srun /opt/llm/bin/python3.11 -m torch.distributed.run train.py", {"python": "/opt/llm/bin/python3.11"}, set()),
        ("python3.11 train.py", {"python": "python3.11"}, set()),
        ("mpirun -np 8 /opt/llm/bin/python train.py", {"python": "/opt/llm/bin/python"}, set()),
        ("venv/bin/python train.py", {}, {"venv/bin/python"}),
        ("$HOME/venv/bin/torchrun train.py", {}, {"$HOME/venv/bin/torchrun"}),
        (f"source venv/bin/activate\n{RUN}", {"setup": ["source venv/bin/activate"]}, {"source venv/bin/activate"}),
        (f"source activate llm\n{RUN}", {"setup": ["source activate llm"]}, set()),
        (f"E=/opt/llm\nsource $E/bin/activate\n{RUN}", {"setup": ["source /opt/llm/bin/activate"]}, set()),
        (f"module load a || module load b\n{RUN}", {"setup": ["module load a || module load b"]}, set()),
        (f"conda run -n llm {RUN}", {}, {"conda run -n llm"}),
    ],
)  # fmt: skip
def test_the_interpreter_is_kept(lines: str, settings: dict[str, Any], names: set[str]) -> None:
    fits(ONE + lines, {"settings": {"exclusive": False, **settings}}, names)


@pytest.mark.parametrize(
    ("lines", "setup", "names"),
    [
        (
            "export A=/x:$PATH B=$(date +%F)",
            ['export A="/x:$PATH"', 'export B="$(date +%F)"'],
            set(),
        ),
        (
            "H=$(hostname -s)\nexport U=$(getent hosts $H)",
            ['export U="$(getent hosts $(hostname -s))"'],
            set(),
        ),
        ('D=\'x y\'\nmkdir -p "$D" "$HOME/a b"', ["mkdir -p 'x y' \"$HOME/a b\""], set()),
        ('read -ra N <<< "$LIST"\nexport U=${N[0]}', [], {"$U"}),
        ("export U=$1", [], {"$U"}),
        ("export U=$(dirname $0)/lib", [], {"$U"}),
        ('N=$(a b)\nM="$N c"\nexport U=$(f "$M")', [], {"$U"}),
        ("export $(cat .env)", ["export $(cat .env)"], set()),
        ("export PYTHONPATH=/x\nexport -n PYTHONPATH", ["export -n PYTHONPATH"], set()),
        ("export A=1 B=2 C=3\nexport -n A\nunset B\ndeclare +x C", [], set()),
        ("unset LOCAL_RANK", ["unset LOCAL_RANK"], set()),
        ("read -r D\nunset $D", ["unset $D"], {"unset $D"}),
        ("PATH=/opt/bin:$PATH\nX=1", ['export PATH="/opt/bin:$PATH"'], set()),
        ("read -r D\nmodule load $D", ["module load $D"], {"module load $D"}),
        (": ${CONDA_PATH:=/x}\nsource $CONDA_PATH/a", ["source ${CONDA_PATH:-/x}/a"], set()),
        ("echo ${WORK=/x}\nmodule use $WORK", ["module use ${WORK-/x}"], set()),
    ],
)
def test_lines_that_prepare_the_shell(lines: str, setup: list[str], names: set[str]) -> None:
    """A line of `setup` has the values of the script's variables, which it would not know itself."""
    job, differences = adopted(f"{ONE}{lines}\n{RUN}")
    assert (job["settings"].get("setup", []), differences) == (setup, names)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"{RUN} --lr $LR --out=$DIR/x '$A' -v", {"--lr", "--out"}),
        (
            "accelerate launch --config_file /fsx/a.yaml --num_processes 8 train.py",
            {"--config-file"},
        ),
        (f'{RUN} "$@"', {"$@"}),
        ("torchrun --brand-new --nproc-per-node 8 train.py", {"--brand-new"}),
        (f'shift\n{RUN} "$@"', {"$@"}),
        (f"srun bash -c 'export ID=$SLURM_PROCID; {RUN}'", {"$ID"}),
        (f"cd /fsx/other\n{RUN}", {"cd /fsx/other"}),
        (f"srun --container-image=./x.sqsh {RUN}", {"--container-image"}),
        ("torchrun --nproc-per-node 8 $EXTRA train.py", {"$EXTRA"}),
        ("torchrun --nproc-per-node 8 $PWD/$SCRIPT", {"$SCRIPT"}),
        (f"srun bash -c 'cd /workspace && {RUN}'", {"cd /workspace"}),
        (f"env ID=$SLURM_JOB_ID {RUN}", set()),
        (f"cd $SLURM_SUBMIT_DIR\n{RUN}", set()),
        (f"cd $DIR/sub\n{RUN}", {"cd $DIR/sub"}),
        (f'cd "$(cd "$(dirname "$0")" && pwd)"\n{RUN}', set()),
        (f"cd $( cd -- $(dirname -- ${{BASH_SOURCE[0]}}) &> /dev/null; pwd -P )\n{RUN}", set()),
        (
            f'cd "$(cd "$(dirname "$0")/.." && pwd)"\n{RUN}',
            {'cd $(cd "$(dirname "$0")/.." && pwd)'},
        ),
        ('D="$(cd "$(dirname "$0")" && pwd)"\nsrun torchrun --nproc-per-node 8 $D/train.py', set()),
        (
            f"srun /fsx/profiled --out x {RUN}\nsrun echo torchrun x.py",
            {"profiled --out x", "other lines"},
        ),
        (f"A=(1 2)\nA[1]=5\n{RUN} --lr ${{A[1]}}", {"--lr"}),
        (f"command -v nvcc > /dev/null && echo x\n{RUN}", set()),
        (f"srun --ntasks-per-gpu=1 --label {RUN}", {"--ntasks-per-gpu"}),
        (f"until {RUN}; do sleep 1; done", {f"until {RUN}; do"}),
        (f"while ! {RUN}; do :; done", {f"while ! {RUN}; do"}),
        (f"while true; do {RUN} && break; done", {"while true; do"}),
        (f"{RUN} || {RUN} --resume", {"||"}),
        (f"srun bash -c 'if [ -f x ]; then {RUN}; fi'", {"if [ -f x ]; then"}),
        (f"srun bash -c '{RUN} || {RUN}'", {"||"}),
        (f"{RUN} || {{ echo failed; exit 1; }}", set()),
        (f"{RUN} || true", set()),
        (f"while :; do {RUN} && exit 0; done", {"while :; do"}),
        (f"{RUN} && {{ echo done; exit 0; }}\npython eval.py", {"||"}),
        (f"if true; then module load a && exit 0; fi\n{RUN}", {"||"}),
        (f"{RUN} || python eval.py", {"||"}),
        (f"{RUN} || {{ scontrol requeue $SLURM_JOB_ID; python eval.py; }}", {"||"}),
        (f"if ! {RUN}; then scontrol requeue $SLURM_JOB_ID; fi", {f"if ! {RUN}; then"}),
        (f"if {RUN}; then echo ok; else scontrol requeue 1; fi", {"other lines"}),
        (f"if {RUN}; then echo ok; else exit 1; fi\npython eval.py", {"other lines"}),
        (f"trap 'cp -r out /shared' EXIT\n{RUN}", {"trap"}),
        (f"save() {{ sbatch n8.sh; }}\ntrap -- save EXIT TERM\n{RUN}", {"trap"}),
        (f"trap 'echo bye; exit' EXIT\ntrap - TERM\n{RUN}", set()),
        (f"trap '' TERM\n{RUN}", {"other lines"}),
        (f"env A=1 make data\n{RUN}", {"other lines"}),
        (f"srun --time=30 -w n2 --mem=10G {RUN}", {"--time", "--nodelist", "--mem"}),
        (f"srun --gpu-bind=single:1 --accel-bind=g {RUN}", {"--gpu-bind", "--accel-bind"}),
        ("python -u -B train.py", set()),
        ("python -O -uI train.py", {"-O -uI"}),
        ("python -E -W error -m torch.distributed.run --nproc-per-node 8 t.py", {"-E -W error"}),
        ("mpirun -np 8 python -X dev train.py", {"-X dev"}),
        (f"{RUN} < in.txt", {"<"}),
        (f"{RUN} < /dev/null", set()),
        (f"{RUN} <<E\ny\nE", {"<"}),
        (f"({RUN}) <<< yes", {"<"}),
        (f"{RUN} < <(date)", {"<"}),
        (f"echo y | {{ {RUN}; }}", {"<"}),
        (f"run() {{ {RUN}; }}\nrun < in.txt", {"<"}),
        (f"srun bash -c '{RUN}' < in.txt", {"<"}),
        (f"exec < in.txt\n{RUN}", {"other lines"}),
        (f"IFS=,\nA=1,2\n{RUN} $A", {"other lines"}),
        (f'IFS=, read -r A B <<< "1,2"\n{RUN}', set()),
        (f'if [ -n "$SLURM_JOB_ID" ]; then A=1; else A=2; fi\n{RUN}', set()),
        (f"[[ -z ${{SLURM_JOB_ID:-}} ]] && A=1\n{RUN}", set()),
        ("srun bash -c 'torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 train.py'", set()),
    ],
)
def test_each_difference_has_one_row(line: str, names: set[str]) -> None:
    """With the name of the option, for a value, a file or a folder that only the cluster has."""
    assert adopted(ONE + line)[1] == names


@pytest.mark.parametrize(
    ("lines", "lr", "names"),
    [
        ("sbatch a.sh", 1, set()),
        ("LR=7 sbatch a.sh && echo submitted", 7, set()),
        ("export LR=5\nsbatch a.sh\nsbatch b.sh", 5, {"other lines"}),
        ("export LR=5\nsbatch --export=NONE a.sh", 1, {"--export"}),
        ("for lr in 3 4; do LR=$lr sbatch a.sh; done", 3, {"other lines"}),
        (f"sbatch <<'EOF'\n#!/bin/bash\n{ONE}{RUN} --lr 1\nEOF\nsbatch b.sh", 1, {"other lines"}),
        ("python prepare.py\nsbatch a.sh", 1, {"other lines"}),
        ("if [ -d x ]; then sbatch a.sh; fi", 1, {"if [ -d x ]; then"}),
        ("cd sub\nsbatch a.sh", 1, {"cd sub"}),
        ("sbatch a.sh || sbatch b.sh", 1, {"||"}),
        ("LR=$(date) sbatch a.sh", "${LR:-1}", {"$LR", "--lr"}),
        ("export LR=5\nsbatch c.sh", 6, set()),
        ("J=$(sbatch a.sh)\necho $J", 1, set()),
        ("J=$(LR=7 sbatch --parsable a.sh | cut -d';' -f1)", 7, set()),
        ("J=`sbatch a.sh`\nsbatch --dependency=afterok:$J b.sh", 1, {"other lines"}),
        ('export LR=5\necho "as $(sbatch a.sh)"', 5, set()),
        ("send() { J=$(LR=$1 sbatch a.sh); }\nsend 3", 3, set()),
        ("[ -d x ] && J=$(sbatch a.sh)", 1, {"[ -d x ]"}),
    ],
)
def test_a_script_that_submits_another(lines: str, lr: int | str, names: set[str]) -> None:
    """`sbatch` passes its environment on; what the other lines do is named."""
    Path("a.sh").write_text(f"#!/bin/bash\n{ONE}{RUN} --lr ${{LR:-1}}\n")
    Path("c.sh").write_text(f"#!/bin/bash\n{ONE}LR=$((LR + 1))\n{RUN} --lr $LR\n")
    job, differences = adopted(lines)
    assert (job["hyperparameters"], differences) == ({"lr": lr}, names)
    environment = {} if isinstance(lr, str) or lr == 1 else {"LR": str(lr)}
    assert job["variables"] == environment


@pytest.mark.parametrize(
    "wrapper",
    [
        "conda run -n llm",
        "uv run --with flash-attn",
        f"apptainer exec --nv --bind {','.join(['/data/of/a/project:/data'] * 4)} /fsx/torch.sif",
    ],
)
def test_a_wrapper_is_quoted(wrapper: str) -> None:
    """With the image or the environment, however long the line is."""
    Path("job.sh").write_text(f"#!/bin/bash\n{ONE}srun {wrapper} {RUN}\n")
    assert [f"`{wrapper}`" in item.reason for item in ct.adopt("job.sh").differences] == [True]


def test_variables_and_folders_of_a_script() -> None:
    """`set -a` exports what a file sets; a folder below the one of the submit is that of the code."""
    Path(".env").write_text("A=1\nB='x y'\n")
    script = f"set -a\nsource .env\nset +a\nC=3\nexport D\nD=4\ncd $SLURM_SUBMIT_DIR/sub\n{RUN}"
    fits(ONE + script, {"variables": {"A": "1", "B": "x y", "D": "4"}}, set())
    assert ct.adopt("job.sh").job.source_dir == "sub"


def test_a_container_file_of_the_cluster_can_be_planned(cli: Cli) -> None:
    """Its absolute path is an image, although no registry has it."""
    Path("train.py").write_text("")
    Path("job.sh").write_text(f"#!/bin/bash\n{ONE}srun --container-image=/fsx/x.sqsh {RUN}\n")
    assert cli("adopt", "job.sh", "--write", ".").code == 0
    with Path("cloudtrain.toml").open("a") as settings:
        settings.write('shared_dir = "/fsx"\n')
    plan = cli("plan", "job.yaml", "--target", "slurm", "--json")
    assert (plan.code, "--container-image=/fsx/x.sqsh" in plan.out) == (0, True)


def test_a_step_does_not_change_what_the_script_asks_for() -> None:
    """A shorter time of a step is named; all of the memory, and a partition, say nothing new."""
    lines = f"#SBATCH -N1 --mem=64G -p a -t 60\nsrun --mem=0 -p b -t 30 {RUN}"
    settings = {"exclusive": False, "partition": "a", "extra_sbatch": ["--mem=64G"]}
    fits(lines, {"settings": settings, "runtime": 3600}, {"--time"})


def test_a_line_of_srun_asks_for_its_own_machines() -> None:
    """Without a batch script, the options of `srun` are those of the job."""
    found = ct.adopt(
        "srun -p big -N2 --gres=gpu:4 --ntasks-per-node=4 -c5 --exclusive python -u train.py --lr 1"
    )
    assert found.settings == {"partition": "big"}
    job = shape(found.job)
    assert (job["type"], job["instances"], job["processes"]) == ("torch", 2, 4)
    assert found.job.resources.gpus_per_instance == 4


@pytest.mark.parametrize(
    "text",
    ["f() { f; }\nf", "if true; then\n" * 3000, "B=1\nwhile [ $B = 1 ]; do :; done", "f() { g; g; }\n" * 3 + "g() { f; f; }\nf",
     "A=" + "ab" * 900 + "\nB=${A//a*b*a*b/}\n" * 50, "case x in\n" * 500, "for a in 1 2 3 4 5 6 7 8; do " * 9],
)  # fmt: skip
def test_a_script_without_an_end_is_refused(text: str, cli: Cli) -> None:
    """An error with a hint, at once."""
    Path("job.sh").write_text(f"#!/bin/bash\n{ONE}{text}\n")
    found = cli("adopt", "job.sh")
    assert (found.code, "hint: " in found.err) == (2, True)


@pytest.mark.parametrize(
    "loop",
    [
        "for seed in 1 2; do LINE --seed $seed; done",
        "i=0\nwhile [ $i -lt 2 ]; do i=$((i + 1)); LINE --seed $i; done",
        "run() { LINE --seed $1; }\nfor seed in 1 2; do run $seed; done",
    ],
)
def test_a_loop_of_trainings(loop: str) -> None:
    """The line is named once; the hint adopts its first round, and says how a job runs the others."""
    Path("job.sh").write_text(f"#!/bin/bash\n{loop.replace('LINE', 'python train.py')}\n")
    with pytest.raises(UsageError) as caught:
        ct.adopt("job.sh")
    assert caught.value.message.count("--seed") == 1
    assert "`cloudtrain adopt 'python train.py --seed 1'`" in str(caught.value.hint)
    assert "--each" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("word", "options", "size", "is_equal"),
    [
        ("$1", [], None, False),
        ("4 $1", ["--args", ""], 4, True),
        ("${1:-4}", ["--args", ""], 4, True),
        ("${1:-4}", ["--args", "8"], 8, True),
        ("4 $@", [], 4, False),
        ("4 $@", ["--args", ""], 4, True),
        ("4 ${2+--x} $1", ["--args", "  "], 4, True),
    ],
)
@pytest.mark.parametrize("first", ["#!/bin/bash\n", "#!/bin/bash\n#SBATCH --gres=gpu:2\n"])
def test_empty_arguments_are_none(
    cli: Cli, first: str, word: str, options: list[str], size: int | None, is_equal: bool
) -> None:
    """A script without `--args` has unknown arguments; an empty text says that it has none."""
    Path("job.sh").write_text(f"{first}torchrun --nproc-per-node 2 train.py --bs {word}\n")
    found = cli("adopt", "job.sh", "--json", *options)
    data = json.loads(found.out)
    assert data["equal"] is is_equal
    assert (found.code == 0) is is_equal
    if size is not None:
        assert data["job"]["hyperparameters"] == {"bs": size}
