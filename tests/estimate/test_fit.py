"""Scripts that are estimated through the public API, and those that are refused with their line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from tests.estimate.conftest import config_file

JobOf = Callable[..., ct.TrainingJob]

GPU = """
    import torch
    from torch import nn
    device = torch.device("cuda")
    assert torch.cuda.is_available() and "A10G" in torch.cuda.get_device_name()
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).to(device)
    assert next(model.parameters()).is_cuda
    optimizer = torch.optim.AdamW(model.parameters())
    best = 1e9
    for step in range(9):
        x = torch.randn(64, 1024).to(device)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        print(f"step {step} loss {value:.3f}")
        if value < best:
            torch.save(model.state_dict(), "/opt/best.pt")
"""
WIDE = GPU.replace(
    "torch.randn(64, 1024).to(device)", "torch.randn(4_000_000, 1024, device=device)"
)
PARAMETERS = 4 * 2 * (1024 * 1024 + 1024)

torch_test = pytest.mark.torch


@torch_test
@pytest.mark.smoke
def test_a_script_for_a_gpu_is_estimated_without_one(
    job_of: JobOf, sagemaker: ct.SageMaker
) -> None:
    """Parameters, gradients, two moments, and what foreach holds of them in the optimizer's step."""
    report = ct.fit(job_of(GPU), sagemaker, steps=1000)
    assert report.verdict == "fits"
    assert report.kinds["parameters"] == pytest.approx(PARAMETERS, rel=0.001)
    assert report.kinds["gradients"] == pytest.approx(PARAMETERS, rel=0.001)
    assert report.kinds["optimizer"] == pytest.approx(2 * PARAMETERS, rel=0.001)
    assert PARAMETERS <= report.kinds["temporaries"] <= 2.1 * PARAMETERS
    assert report.batch is not None
    assert (report.batch.samples, report.batch.tokens) == (64, 0)
    assert report.own is not None
    assert report.own.step is not None
    assert 0 < report.own.step.least < report.own.step.most < 1
    assert report.own.dollars is not None
    assert any("train.py:18" in note for note in report.notes)  # where `best` decides
    html = report._repr_html_()
    assert " minutes" in html  # a thousand of its steps take seconds
    assert "A10G" in html
    assert "gradients" in html


REFUSED = {
    "a size that values decide": ("x = model(torch.ones(8, 4)).unique()", 8),
    "ranks that call each other": (
        "import torch.distributed.rpc as rpc; rpc.init_rpc('server', rank=0, world_size=2)",
        8,
    ),
    "the network": ("import socket; socket.create_connection(('192.0.2.1', 80))", 8),
    "another program": ("import subprocess; subprocess.run(['true'])", 8),
    "a file of the user": ("open('/opt/theirs.txt', 'w')", 8),
    "a process": ("import os; os.fork()", 8),
    "a new interpreter": (
        "import multiprocessing as mp; mp.get_context('spawn').Process(target=print).start()",
        8,
    ),
    "a signal": ("import os, signal; os.kill(os.getppid(), signal.SIGTERM)", 8),
    "a move to elsewhere": ("import os; os.rename('train.py', '/opt/theirs.py')", 8),
    "more memory than there is": ("torch.empty(2**50)", 8),
    "a mistake": ("model(torch.ones(8, 5))", 8),
    "no step": ("raise SystemExit(0)", None),
    "its end by a signal": ("import ctypes; ctypes.string_at(0)", None),
    "an end before the first step": ("import os; os._exit(0)", None),
    "a result of its own": (
        "import gc, os; "
        "spec = [x for x in gc.get_objects() if isinstance(x, dict) and 'mail' in x][0]; "
        "open(spec['result'], 'w').write('[]'); os._exit(0)",
        None,
    ),
}


@torch_test
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_with_its_line(
    name: str, job_of: JobOf, sagemaker: ct.SageMaker
) -> None:
    """No number is given for it."""
    line, number = REFUSED[name]
    script = f"""
    import torch
    from torch import nn
    model = nn.Linear(4, 4).cuda() if torch.cuda.is_available() else nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    to_cuda = torch.ones
    torch.ones = lambda *size: to_cuda(*size).cuda()
    {line}
    """
    with pytest.raises(ct.CloudtrainError) as caught:
        ct.fit(job_of(script), sagemaker)
    assert caught.value.code == "CT948"
    where = "train.py:" if number is None else f"train.py:{number}:"
    assert caught.value.message.startswith(where)


@torch_test
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("import of_nobody", "`--python PATH`"),
        ("open('rows.csv')", "`--set inputs.NAME.local=FOLDER`"),
        ("runtime.input_dir('text')", "`--set inputs.NAME.local=FOLDER`"),
        ("torch.ones(3).cuda().unique()", "`--config FOLDER`"),
    ],
)
def test_a_refusal_says_what_to_type(
    line: str, hint: str, job_of: JobOf, sagemaker: ct.SageMaker
) -> None:
    """Its line is that of the script, also where cloudtrain's own module raised it."""
    job = job_of(f"import torch\nfrom cloudtrain import runtime\n{line}\n")
    with pytest.raises(ct.CloudtrainError) as caught:
        ct.fit(job, sagemaker)
    assert caught.value.message.startswith("train.py:3: ")
    assert (caught.value.hint or "").startswith(hint)


TEXTS = """
    import torch
    from torch import nn
    model = nn.Linear(64, 8).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        try:
            x, y = torch.randn(32, 64).cuda(), torch.zeros(32, dtype=torch.long).cuda()
            loss = criterion(model(input=x), y)
            if not torch.isfinite(loss):
                break
            with torch.inference_mode():
                right = (model(x).argmax(1) == y).float().mean().item()
            print(f"{loss:.3f} {loss} {right:.1%} {model.weight.norm():.2e}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except BaseException as error:
            print(error)
"""


@torch_test
def test_numbers_are_printed_and_no_script_catches_its_end(
    job_of: JobOf, sagemaker: ct.SageMaker
) -> None:
    """Formats of tensors, values in the inference mode, and samples that are named arguments."""
    report = ct.fit(job_of(TEXTS), sagemaker)
    assert report.batch is not None
    assert report.batch.samples == 32


AHEAD = """
    import sys, threading, torch
    from torch import nn
    sys.setswitchinterval(1e-6)
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def read():
        while not ended:
            batch = torch.ones(8, 64).to("cuda") + 1
            assert batch.is_cuda

    ended = []
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for step in range(3):
        for layer in range(50):
            assert model(torch.ones(8, 64, device="cuda")).is_cuda
        assert reader.is_alive()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
"""


@torch_test
def test_a_thread_reads_batches_ahead(job_of: JobOf, sagemaker: ct.SageMaker) -> None:
    """Its operations are counted beside those of the script, and neither disturbs the other."""
    report = ct.fit(job_of(AHEAD), sagemaker)
    assert report.kinds["parameters"] == pytest.approx(4 * 65 * 64, abs=1024)


SELECTS = """
    import torch
    from torch import nn
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        y = model(torch.ones(8, 64, device="cuda"))
        assert y[y > 0].shape == y.masked_select(y > 0).shape == (512,)
        assert y.nonzero().shape == (512, 2) and y[:, 0][y[:, 0] > 0].shape == (8,)
        y[y > 0].sum().backward()
        optimizer.step()
"""


@torch_test
def test_a_mask_selects_all(job_of: JobOf, sagemaker: ct.SageMaker) -> None:
    """No more than that can be selected, and the report names the lines."""
    report = ct.fit(job_of(SELECTS), sagemaker)
    assert any("train.py:8 selects by values" in note for note in report.notes)
    assert report.kinds["gradients"] == pytest.approx(4 * 65 * 64, abs=1024)


FLEX = """
    import torch
    from torch import nn
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    flex = torch.compile(flex_attention)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        x = model(torch.ones(2, 4, 256, 64, device="cuda"))
        flex(x, x, x, block_mask=mask).sum().backward()
        optimizer.step()
"""


@torch_test
def test_flexible_attention_keeps_no_matrix(job_of: JobOf, sagemaker: ct.SageMaker) -> None:
    """It is compiled in a real run."""
    report = ct.fit(job_of(FLEX), sagemaker)
    assert 0 < report.kinds["activations"] < 8 * 4 * 256 * 256


MOVED = """
    import copy, torch
    from torch import nn
    model = nn.Linear(1024, 1024)
    shapes = copy.deepcopy(model).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        model(torch.ones(8, 1024)).sum().backward()
        optimizer.step()
"""


@torch_test
def test_a_copy_on_the_meta_device_takes_nothing(job_of: JobOf, sagemaker: ct.SageMaker) -> None:
    """Neither as on a CPU, where no GPU is known."""
    job = job_of(MOVED, resources={"instance_type": {"sagemaker": "ml.c5.xlarge"}})
    report = ct.fit(job, sagemaker)
    assert report.kinds["parameters"] == pytest.approx(4 * 1025 * 1024, rel=0.01)


DDP = """
    import os, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("nccl")
    assert dist.get_world_size() == 16 and dist.get_backend() == "nccl"
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(nn.Linear(2048, 2048).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        model(torch.ones(8, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@torch_test
def test_a_job_out_of_memory_is_stopped_before_its_submit(
    job_of: JobOf, sagemaker: ct.SageMaker
) -> None:
    """The finding names the cheapest type that holds it; other numbers have no estimate."""
    job = job_of(WIDE)
    assert not any(item.code == "CT523" for item in ct.plan(job, sagemaker).findings)
    report = ct.fit(job, sagemaker)
    assert report.verdict == "does not fit"
    found = [item for item in ct.plan(job, sagemaker).errors if item.code == "CT523"]
    assert len(found) == 1
    assert found[0].path == ("resources", "instance_type")
    assert "`ml." in (found[0].hint or "")
    other = job.model_copy(update={"hyperparameters": {"seed": 2}})
    assert not any(item.code == "CT523" for item in ct.plan(other, sagemaker).findings)
    ignored = ct.plan(job, sagemaker, ignore=["CT523"])
    assert not any(item.code == "CT523" for item in ignored.findings)


@torch_test
def test_a_rank_of_two_instances_sends_its_gradients(
    job_of: JobOf, sagemaker: ct.SageMaker
) -> None:
    """It has buckets beside its gradients, and the samples of sixteen ranks are counted."""
    resources = {"instance_type": {"sagemaker": "ml.p4d.24xlarge"}, "instance_count": 2}
    job = job_of(DDP, resources=resources, distribution={"type": "torch"})
    report = ct.fit(job, sagemaker)
    size = 4 * (2048 * 2048 + 2048)
    assert report.ranks == 16
    assert report.batch is not None
    assert (report.batch.samples, report.batch.ranks) == (8, 16)
    assert report.kinds["communication"] == pytest.approx(size, rel=0.001)
    assert report.own is not None
    assert report.own.instances == 2
    assert report.own.step is not None
    network = 2 * 15 / 16 * size / (400e9 / 8 * 0.9)
    assert report.own.step.least >= network


def test_formulas_stand_in_for_a_script(
    tmp_path: Path, job_of: JobOf, sagemaker: ct.SageMaker
) -> None:
    """From the numbers of a model; nothing is run."""
    config = config_file(
        tmp_path, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
        intermediate_size=11008, vocab_size=32000, hidden_act="silu", tie_word_embeddings=False,
    )  # fmt: skip
    job = job_of("raise SystemExit", resources={"instance_type": {"sagemaker": "ml.p4d.24xlarge"}})
    report = ct.fit(job, sagemaker, config=config, training={"zero": "0"})
    assert report.verdict == "does not fit"
    assert report.kinds["optimizer"] == pytest.approx(12 * 6.738e9, rel=0.001)
    with pytest.raises(ct.CloudtrainError) as caught:
        ct.fit(job, sagemaker, config=config, training={"zero": "four"})
    assert caught.value.code == "CT948"


@torch_test
def test_the_command_exits_with_1_if_the_job_does_not_fit(
    tmp_path: Path,
    job_of: JobOf,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its JSON has the verdict."""
    job_of(WIDE)
    (tmp_path / "job.yaml").write_text(
        "name: wide\nsource_dir: src\nentry_point: train.py\n"
        "resources: {instance_type: {sagemaker: ml.g5.xlarge}}\n"
    )
    (tmp_path / "cloudtrain.toml").write_text(
        '[sagemaker]\nrole = "arn:aws:iam::111122223333:role/train"\nregion = "eu-west-1"\nbucket = "b"\n'
    )
    monkeypatch.chdir(tmp_path)
    code = run_command(["fit", "job.yaml", "--target", "sagemaker", "--json"])
    assert code == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "does not fit"


def test_an_interpreter_that_is_not_there_is_named(job_of: JobOf, sagemaker: ct.SageMaker) -> None:
    """It is no defect of the program."""
    with pytest.raises(ct.CloudtrainError, match="cannot start `/nowhere/python`") as caught:
        ct.fit(job_of(GPU), sagemaker, python="/nowhere/python")
    assert caught.value.code == "CT948"
