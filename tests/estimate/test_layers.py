"""Estimates that run a few layers of many, against those that run all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import cloudtrain as ct
from cloudtrain.errors import UsageError
from cloudtrain.estimate.scaling import stacked

SCRIPT = """
    import argparse
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--recompute", type=int, default=0)
    options = parser.parse_args()
    layer = lambda: nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    layers = nn.ModuleList(layer() for _ in range(options.layers)).cuda()
    embedding, head = nn.Embedding(8000, 1024).cuda(), nn.Linear(1024, 8000).cuda()
    modules = nn.ModuleList([embedding, layers, head])
    optimizer = torch.optim.AdamW(modules.parameters())
    for _ in range(9):
        tokens = torch.zeros(options.batch, 512, dtype=torch.long, device="cuda")
        x = embedding(tokens)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if options.recompute else layer(x)
        nn.functional.cross_entropy(head(x).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("recompute", [0, 1])
def test_two_and_four_layers_say_what_all_of_them_take(
    recompute: int, job_of: Callable[..., ct.TrainingJob], sagemaker: ct.SageMaker
) -> None:
    """Memory and time to 1% of a run with all, with the activations kept and recomputed."""
    values = {"layers": 24, "batch": 8, "recompute": recompute}
    job = job_of(SCRIPT, hyperparameters=values)
    runs: list[str] = []
    whole = ct.fit(job, sagemaker)
    from_few = ct.fit(job, sagemaker, layers="layers", on_run=runs.append)
    assert runs == ["rank 0 with layers=2", "rank 0 with layers=4"]
    assert from_few.peak == pytest.approx(whole.peak, rel=0.01)
    for kind, size in whole.kinds.items():
        assert from_few.kinds[kind] == pytest.approx(size, rel=0.01, abs=0.01 * whole.peak)
    assert whole.own is not None
    assert from_few.own is not None
    assert from_few.own.step == pytest.approx(whole.own.step, rel=0.01)
    assert "2 and 4 of 24 `layers` were run" in from_few.notes


@pytest.mark.torch
@pytest.mark.slow
def test_the_largest_batch_is_found_with_few_layers(
    job_of: Callable[..., ct.TrainingJob], sagemaker: ct.SageMaker
) -> None:
    """The same one as with all of them, and the value that it names fits."""
    job = job_of(SCRIPT, hyperparameters={"layers": 8, "batch": 2})
    whole = ct.fit(job, sagemaker, suggest="batch").suggestion
    from_few = ct.fit(job, sagemaker, suggest="batch", layers="layers").suggestion
    assert whole is not None
    assert from_few is not None
    assert from_few.value == whole.value


@pytest.mark.torch
@pytest.mark.slow
def test_a_pipeline_is_not_extrapolated(sagemaker: ct.SageMaker) -> None:
    """Its stages have other shares of few layers than of many."""
    job = ct.bundled_job("pipeline_gpt")
    values = {"layers": 16, "balance": "blocks"}
    job = job.model_copy(update={"hyperparameters": {**job.hyperparameters, **values}})
    with pytest.raises(UsageError, match="its stages divide the layers") as raised:
        ct.fit(job, sagemaker, layers="layers")
    assert raised.value.code == "CT948"


def result(layers: int) -> dict[str, object]:
    """What a rank with so many layers writes: an operation over all, and some of each. The peak is at the head, or with
    many layers at the last of them."""
    head = {"parameters": 10 * layers, "activations": 300 + layers}
    step = {"parameters": 10 * layers, "activations": 20 * layers}
    peak, place, kinds = max(
        (sum(head.values()), "head", head), (sum(step.values()), f"layer{layers - 1}", step)
    )
    peaks = [["head", sum(head.values()), head]]
    peaks += [[f"layer{number}", 30 * (number + 1), step] for number in range(layers)]
    return {
        "peak": peak,
        "kinds": kinds,
        "peaks": peaks,
        "operations": [
            ["mm", "float32", 10, 20, 3 * layers],
            ["head", "float32", 5, 5, 1],
            ["step", "float32", 0, 8 * layers, 1],
        ],
        "exchanges": [["allreduce", 64, 2, 1, layers]],
        "place": place,
    }


@pytest.mark.parametrize("layers", [4, 15, 16, 32, 126])
def test_each_layer_adds_the_same(layers: int) -> None:
    found, whole = stacked(result(2), result(4), layers), result(layers)
    for key in ("peak", "kinds", "exchanges"):
        assert found[key] == whole[key]
    # the bytes of operations, of which one is over all layers
    assert sum(row[3] * row[4] for row in found["operations"]) == pytest.approx(
        60 * layers + 5 + 8 * layers
    )


@pytest.mark.parametrize("values", [{}, {"layers": "many"}, {"depth": 3}])
def test_a_name_that_counts_nothing_is_refused(
    values: dict[str, object], job_of: Callable[..., ct.TrainingJob], sagemaker: ct.SageMaker
) -> None:
    job = job_of("raise SystemExit('it ran')", hyperparameters=values)
    with pytest.raises(UsageError, match="no hyperparameter `layers`") as raised:
        ct.fit(job, sagemaker, layers="layers")
    assert raised.value.code == "CT948"
