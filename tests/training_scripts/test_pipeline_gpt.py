"""The parts of the pipeline script that can be told without a process group: schedules, splits, blocks, pictures."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.runtime import SetupError

FOLDER = Path(__file__).parents[2] / "training_scripts" / "pipeline_gpt"
PARTS = ("schedules", "balance", "timeline", "gpt", "layouts", "pipeline")


@pytest.fixture(scope="module")
def parts() -> Iterator[dict[str, ModuleType]]:
    """The script's modules by name, imported as the script does; other scripts have modules of the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER.with_name("gpt_fsdp"))
        patch.syspath_prepend(FOLDER)
        for name in PARTS:
            patch.delitem(sys.modules, name, raising=False)
        yield {name: importlib.import_module(name) for name in PARTS[:3]}
        for name in PARTS:
            sys.modules.pop(name, None)


@pytest.fixture
def schedules(parts: dict[str, ModuleType]) -> Any:
    return parts["schedules"]


@pytest.fixture
def balance(parts: dict[str, ModuleType]) -> Any:
    return parts["balance"]


# Schedules


@pytest.mark.parametrize("name", ["simple", "1f1b"])
@pytest.mark.parametrize(
    ("processes", "microbatches"), [(1, 1), (2, 2), (4, 4), (4, 8), (3, 10), (8, 8)]
)
def test_a_simulated_schedule_has_the_bubble_of_the_formula(
    schedules: Any, name: str, processes: int, microbatches: int
) -> None:
    """(p - 1) / (m + p - 1) for GPipe and 1F1B."""
    order = schedules.order_of(name, processes, microbatches, 1)
    simulated = schedules.bubble(schedules.simulate(order, schedules.usual_seconds(1)))
    assert simulated == pytest.approx((processes - 1) / (microbatches + processes - 1))
    assert simulated == pytest.approx(schedules.SCHEDULES[name].formula(processes, microbatches, 1))


def test_1f1b_holds_activations_of_fewer_microbatches_than_gpipe(schedules: Any) -> None:
    """GPipe holds all microbatches everywhere; 1F1B as many as there are stages from here to the end."""
    assert schedules.most_held(schedules.order_of("simple", 4, 8, 1)) == {0: 8, 1: 8, 2: 8, 3: 8}
    assert schedules.most_held(schedules.order_of("1f1b", 4, 8, 1)) == {0: 4, 1: 3, 2: 2, 3: 1}


def test_a_v_brings_the_last_stage_back_to_the_first_process(schedules: Any) -> None:
    """Loops deal stages out in turn; a V comes back, so that the loss is where the data is."""
    assert [schedules.stages_of("interleaved", process, 3, 2) for process in range(3)] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]
    assert [schedules.stages_of("zero-bubble-v", process, 3, 2) for process in range(3)] == [
        [0, 5],
        [1, 4],
        [2, 3],
    ]


@pytest.mark.torch
@pytest.mark.parametrize("name", ["simple", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"])
def test_every_microbatch_goes_once_forward_and_once_back_through_every_stage(
    schedules: Any, name: str
) -> None:
    """Whether the backward comes whole or in two halves."""
    chunks = schedules.chunks_of(name, 2)
    order = schedules.order_of(name, 4, 8, chunks)
    for process, actions in enumerate(order):
        stages = schedules.stages_of(name, process, 4, chunks)
        pairs = sorted(itertools.product(stages, range(8)))
        done = {
            kind: sorted((a.stage, a.microbatch) for a in actions if a.kind == kind)
            for kind in "FBIW"
        }
        assert done["F"] == pairs
        assert sorted(done["B"] + done["I"]) == pairs
        assert done["I"] == done["W"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("processes", "microbatches", "chunks"), [(2, 4, 2), (4, 4, 2), (4, 8, 2), (4, 8, 3)]
)
def test_interleaving_divides_the_bubble(
    schedules: Any, processes: int, microbatches: int, chunks: int
) -> None:
    """(p - 1) / (v m + p - 1), and both zero-bubble schedules have less with two chunks."""

    def ideal(name: str, chunks: int) -> float:
        order = schedules.order_of(name, processes, microbatches, chunks)
        return float(schedules.bubble(schedules.simulate(order, schedules.usual_seconds(chunks))))

    interleaved = ideal("interleaved", chunks)
    assert interleaved == pytest.approx((processes - 1) / (chunks * microbatches + processes - 1))
    assert ideal("zero-bubble", chunks) < interleaved
    if chunks == 2:
        assert ideal("zero-bubble-v", chunks) < interleaved


# The split


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 5), st.integers(0, 3))
def test_no_split_is_better_than_the_one_chosen(
    parts: dict[str, ModuleType], weights: list[int], stages: int, slope: int
) -> None:
    """Against all splits there are: the least worst stage, then the least sum of squares. Costs depend on the stage,
    too, as those of activations do."""
    stages = min(stages, len(weights))

    def cost(stage: int, first: int, end: int) -> float:
        return float(sum(weights[first:end]) + slope * stage * (end - first))

    def judged(cuts: tuple[int, ...]) -> tuple[float, float]:
        ends = itertools.pairwise([0, *cuts, len(weights)])
        values = [cost(stage, *pair) for stage, pair in enumerate(ends)]
        return max(values), sum(value**2 for value in values)

    chosen = parts["balance"].split(len(weights), stages, cost)
    assert [block for blocks in chosen for block in blocks] == list(range(len(weights)))
    assert all(len(blocks) for blocks in chosen)
    everything = itertools.combinations(range(1, len(weights)), stages - 1)
    assert judged(tuple(blocks.start for blocks in chosen[1:])) == min(map(judged, everything))


def test_more_stages_than_blocks_are_refused(balance: Any) -> None:
    """A stage without a block would have nothing to send."""
    with pytest.raises(ValueError, match="3 blocks cannot be cut into 4 stages"):
        balance.split(3, 4, lambda stage, first, end: 1.0)


def test_stages_that_hold_more_get_fewer_blocks(balance: Any) -> None:
    """By memory the first stage of 1F1B, which holds four microbatches, gets fewer layers than the last; by time not."""
    costs = [balance.Cost("Layer", parameters=1000, activation_bytes=50_000, seconds=1.0)] * 12
    held = {0: 4, 1: 3, 2: 2, 3: 1}
    assert [len(blocks) for blocks in balance.choose(costs, 4, held, "time")] == [3, 3, 3, 3]
    by_memory = [len(blocks) for blocks in balance.choose(costs, 4, held, "memory")]
    assert by_memory == sorted(by_memory)
    assert by_memory[0] < 3 < by_memory[3]


def test_shards_and_tensor_parallelism_divide_a_stage(balance: Any) -> None:
    """16 bytes a parameter over both, activations over `tensor`; with shards, what is gathered comes on top: in bf16 a
    parameter of 2 bytes and its gradient in fp32."""
    costs = [balance.Cost("Layer", parameters=1000, activation_bytes=50_000)] * 2

    def total(shards: int, tensor: int, precision: str = "bf16") -> float:
        cut = balance.cut_of(SimpleNamespace(shards=shards, tensor=tensor, precision=precision))
        return float(balance.stage_bytes(costs, range(2), 3, cut))

    assert total(1, 1) == 2 * (16_000 + 150_000)
    assert total(1, 2) == 2 * (8_000 + 75_000)
    assert total(4, 1) == 2 * (4_000 + 6_000 + 150_000)
    assert total(4, 2, "fp32") == 2 * (2_000 + 4_000 + 75_000)


def test_the_table_shows_each_stage_and_what_balancing_gained(balance: Any) -> None:
    """Parameters, time and memory of each stage, and the slowest stage against the mean."""
    cheap, dear = (
        balance.Cost("Embedding", 2**16, 2**10, 0.001),
        balance.Cost("Layer", 2**18, 2**20, 0.004),
    )
    costs = [cheap, cheap, cheap, cheap, cheap, dear, dear]
    chosen = balance.choose(costs, 2, {0: 2, 1: 1}, "time")
    assert balance.table(costs, chosen, {0: 2, 1: 1}, [0, 1]) == (
        "stage process   blocks   parameters       ms  held      MiB\n"
        "    0       0      0-4      327,680     5.00     2      5.0\n"
        "    1       1      5-6      524,288     8.00     1     10.0\n"
        "the slowest stage takes 1.23 of the mean; cut by number of blocks 1.54"
    )


# The timeline


def test_the_text_timeline(parts: dict[str, ModuleType]) -> None:
    """Digits forward, letters backward, points where a process waits."""
    schedules, timeline = parts["schedules"], parts["timeline"]
    events = schedules.simulate(schedules.order_of("simple", 2, 2, 1), schedules.usual_seconds(1))
    assert timeline.as_text(events, width=9) == "0 |01...aabb|\n1 |.01aabb..|"


@pytest.mark.slow
def test_the_picture_of_the_timeline(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    """One file, a PNG, with a panel for each schedule."""
    pytest.importorskip("matplotlib")
    schedules, timeline = parts["schedules"], parts["timeline"]
    runs = {
        name: schedules.simulate(schedules.order_of(name, 2, 4, 1), schedules.usual_seconds(1))
        for name in ("simple", "1f1b")
    }
    assert timeline.draw(tmp_path / "timeline.png", runs)
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


# The model


@pytest.mark.torch
def test_slices_of_the_model_are_the_model(parts: dict[str, ModuleType]) -> None:
    """Stages made by themselves, one of them on the meta device first, have the whole model's keys, weights, output."""
    import torch

    gpt: Any = importlib.import_module("gpt")
    shape = gpt.Shape(layers=3, heads=2, width=16, context=12)
    whole = gpt.GPT(shape)
    whole.reset_parameters(seed=4)
    first = gpt.GPT(shape, range(2))
    first.reset_parameters(seed=4)
    with torch.device("meta"):
        rest = gpt.GPT(shape, range(2, 5))
    rest.to_empty(device="cpu").reset_parameters(seed=4)

    parts_together = {**first.state_dict(), **rest.state_dict()}
    assert parts_together.keys() == whole.state_dict().keys()
    assert all(
        torch.equal(parts_together[name], value) for name, value in whole.state_dict().items()
    )
    tokens = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(0))
    assert torch.equal(rest(first(tokens)), whole(tokens))


@pytest.mark.torch
def test_no_position_sees_what_comes_after_it(parts: dict[str, ModuleType]) -> None:
    """Changing the last byte changes the prediction at the last place alone."""
    import torch

    gpt: Any = importlib.import_module("gpt")
    model = gpt.GPT(gpt.Shape(layers=2, heads=2, width=16, context=8))
    model.reset_parameters(seed=1)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 7] = 200
    same = (model(tokens) == model(changed)).all(2)[0]
    assert same.tolist() == [True] * 7 + [False]


@pytest.mark.torch
def test_what_a_block_keeps_grows_with_the_microbatch(parts: dict[str, ModuleType]) -> None:
    """Activations are measured, without parameters: twice the windows, twice the bytes."""
    import torch

    gpt: Any = importlib.import_module("gpt")
    shape = gpt.Shape(layers=1, heads=2, width=16, context=8)
    blocks = gpt.slices_of(shape)
    one, two = (
        parts["balance"].profile(
            blocks, torch.zeros(count, 8, dtype=torch.long), gpt.loss_of, repeat=1
        )
        for count in (1, 2)
    )
    assert [cost.name for cost in one] == ["Embedding", "Layer", "Head"]
    assert sum(cost.parameters for cost in one) == gpt.parameters_of([gpt.GPT(shape)])
    assert two[1].activation_bytes == 2 * one[1].activation_bytes
    assert all(cost.seconds > 0 for cost in one)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "world_size", "message"),
    [
        ({"heads": 3}, 4, "`width` 128 is no multiple of `heads` 3"),
        ({"replicas": 3}, 4, "4 processes cannot hold 3 replicas"),
        ({"shards": 2, "tensor": 2}, 2, "2 processes cannot hold 1 replicas x 2 shards x 2 tensor"),
        ({"tensor": 3, "layers": 1}, 6, "`heads` 4 cannot be cut into 3 equal parts"),
        ({"global_batch": 12}, 2, "12 windows cannot be cut into 1 x 8 equal parts"),
        (
            {"global_batch": 24, "shards": 2, "replicas": 2},
            4,
            "24 windows cannot be cut into 4 x 8 equal parts",
        ),
        ({"layers": 5, "schedule": "interleaved"}, 4, "7 blocks are too few for 8 stages"),
        ({"microbatches": 2}, 4, "`1f1b` needs at least 4 microbatches"),
        (
            {"recompute": "full", "schedule": "zero-bubble-v"},
            2,
            "`--recompute` does not go with `zero-bubble-v`",
        ),
        (
            {"compile": True, "schedule": "zero-bubble"},
            2,
            "`--compile` does not go with `zero-bubble`",
        ),
        (
            {"microbatches": 9, "global_batch": 18, "schedule": "interleaved"},
            2,
            "`interleaved` cannot run: .*rounds",
        ),
    ],
)
def test_what_cannot_run_is_said_before_anything_is_computed(
    parts: dict[str, ModuleType], changes: dict[str, Any], world_size: int, message: str
) -> None:
    """Each with a hint."""
    pipeline: Any = importlib.import_module("pipeline")
    usual: dict[str, Any] = {
        "layers": 8,
        "width": 128,
        "heads": 4,
        "context": 128,
        "vocabulary": 256,
        "replicas": 1,
        "shards": 1,
        "tensor": 1,
        "global_batch": 16,
        "microbatches": 8,
        "schedule": "1f1b",
        "chunks": 2,
    }
    pipeline.check(SimpleNamespace(**usual), world_size)
    with pytest.raises(pipeline.SetupError, match=message) as caught:
        pipeline.check(SimpleNamespace(**{**usual, **changes}), world_size)
    assert caught.value.hint


# The text


@pytest.mark.torch
def test_a_text_that_is_not_there_is_an_error(
    parts: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A path with a typing error is named; only where nobody gave a text is the demonstration's used, and that said."""
    data: Any = importlib.import_module("data")
    monkeypatch.chdir(tmp_path)
    assert data.text_folder() is None
    assert (
        capsys.readouterr().err
        == "cloudtrain: no input `text`: training on the English of Python's own help\n"
    )
    (tmp_path / "data" / "text").mkdir(parents=True)
    assert data.text_folder() == Path("data", "text")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("CLOUDTRAIN_INPUT_TEXT", "/data/typo")
    with pytest.raises(
        SetupError, match="the input `text` was not found: `/data/typo` does not exist"
    ):
        data.text_folder()


@pytest.mark.torch
def test_a_text_that_is_too_short_is_said_at_the_start(
    parts: dict[str, ModuleType], tmp_path: Path
) -> None:
    """Its last tenth must hold a window, or the test after the training would fail; and there must be a text."""
    gpt: Any = importlib.import_module("gpt")
    with pytest.raises(SetupError, match="there is no text in"):
        gpt.read_text(tmp_path)
    (tmp_path / "a.txt").write_text("a" * 900)
    with pytest.raises(
        SetupError, match="the text has 900 bytes, and its last tenth no window of `--context` 128"
    ):
        gpt.divided(gpt.read_text(tmp_path), 128)
    train, test = gpt.divided(gpt.read_text(tmp_path), 89)
    assert (len(train), len(test)) == (810, 90)
