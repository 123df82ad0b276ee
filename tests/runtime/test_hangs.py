"""How a hang is named: stacks as two programs write them, who is guilty, and when to look."""

from __future__ import annotations

import json

import pytest

from cloudtrain.runtime.hangs.stacks import Frame, main_of_faulthandler, main_of_py_spy
from cloudtrain.runtime.hangs.verdict import Look, judge
from cloudtrain.runtime.pace import Quiet, StepPace

TORCH = "/venv/lib/python3.11/site-packages/torch"
LIB = "/usr/lib/python3.11"

ALL_REDUCE = Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2500)
BROADCAST = Frame("broadcast", f"{TORCH}/distributed/distributed_c10d.py", 2400)
WRAPPER = Frame("wrapper", f"{TORCH}/distributed/c10d_logger.py", 83)
STEP = Frame("train_step", "/code/train.py", 16)
MAIN = Frame("<module>", "/code/train.py", 40)
LOAD = Frame("load_next_batch", "/code/train.py", 11)
LOADER = Frame("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1131)
GET = Frame("get", f"{LIB}/queue.py", 180)
WAIT = Frame("wait", f"{LIB}/threading.py", 359)
BACKWARD = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 841)
ITEM = Frame("log", "/code/train.py", 20)
SAVE = Frame("_save_state_dict", f"{TORCH}/distributed/checkpoint/state_dict_saver.py", 200)
FORWARD = Frame("forward", f"{TORCH}/nn/parallel/distributed.py", 1600)
MODEL = Frame("forward", "/code/model.py", 7)

IN_ALL_REDUCE = [ALL_REDUCE, WRAPPER, STEP, MAIN]
IN_BROADCAST = [BROADCAST, WRAPPER, Frame("sync", "/code/train.py", 30), MAIN]
IN_LOAD = [LOAD, MAIN]


def look(rank: int, frames: list[Frame] | None, share: float = 0.0, **more: object) -> Look:
    return Look(rank, frames, share=share, folder="/code", **more)  # type: ignore[arg-type]


CASES: dict[str, tuple[list[Look], tuple[int, ...], bool, str]] = {
    "a rank asleep": ([look(0, IN_ALL_REDUCE), look(1, IN_LOAD)], (1,), True, "(train.py:11)"),
    "a rank that works": (
        [look(0, IN_ALL_REDUCE), look(1, IN_LOAD, 0.39)],
        (1,),
        False,
        "at 39% CPU",
    ),
    "in a data loader": (
        [look(0, [GET, LOADER, LOAD, MAIN]), look(1, IN_ALL_REDUCE), look(2, IN_ALL_REDUCE)],
        (0,),
        True,
        "in get, called by load_next_batch (train.py:11)",
    ),
    "below the forward of DDP, in the user's model": (
        [look(0, [WAIT, MODEL, FORWARD, MAIN]), look(1, IN_ALL_REDUCE)],
        (0,),
        True,
        "(model.py:7)",
    ),
    "saving a sharded checkpoint": (
        [look(0, [SAVE, MAIN], 0.9), look(1, IN_ALL_REDUCE)],
        (0,),
        False,
        "(train.py:40)",
    ),
    "waiting in the backward pass": (
        [look(0, [BACKWARD, MAIN]), look(1, IN_LOAD)],
        (1,),
        True,
        "waits in _engine_run_backward, called by <module> (train.py:40)",
    ),
    "GPUs are waited for without a frame": (
        [look(0, [ITEM, MAIN], 1.0), look(1, [ITEM, MAIN], 1.0), look(2, IN_LOAD)],
        (2,),
        True,
        "(train.py:11)",
    ),
    "one works where the others do not": (
        [
            look(0, IN_ALL_REDUCE),
            look(1, [ITEM, MAIN], 1.0),
            look(2, [ITEM, MAIN], 1.0),
            look(3, IN_LOAD, 1.0),
        ],
        (3,),
        False,
        "(train.py:11)",
    ),
    "an asynchronous collective": (
        [look(0, [ITEM, MAIN], source="    work.wait()\n"), look(1, IN_LOAD, source="sleep(9)")],
        (1,),
        True,
        "(train.py:11)",
    ),
    "different collectives": (
        [look(0, IN_ALL_REDUCE), look(1, IN_BROADCAST)],
        (0, 1),
        True,
        "the ranks called different collectives: rank 0: waits in all_reduce, called by train_step "
        "(train.py:16); rank 1: waits in broadcast, called by sync (train.py:30)",
    ),
    "all in the same": ([look(0, IN_ALL_REDUCE), look(1, IN_ALL_REDUCE)], (0, 1), False, "train.py:16"),
    "stopped by a signal": (
        [look(0, IN_ALL_REDUCE), look(1, None, state="T")],
        (1,),
        True,
        "stopped by a signal such as SIGSTOP",
    ),
    "ended": ([look(0, IN_ALL_REDUCE), look(1, None, state="")], (1,), True, "rank 1: has ended"),
    "a dead node": (
        [look(0, IN_ALL_REDUCE), look(1, None, state=None, host="n2")],
        (1,),
        True,
        "no answer from its machine `n2`",
    ),
    "a rank that tells nothing": (
        [look(0, IN_ALL_REDUCE), look(1, None)],
        (1,),
        True,
        "its stack cannot be read",
    ),
    "alone and asleep": ([look(0, IN_LOAD)], (0,), True, "(train.py:11)"),
    "alike in another folder": (
        [
            *(Look(rank, [Frame("load", "/a/train.py", 11)], 1.0, folder="/a") for rank in (0, 1)),
            Look(2, [Frame("load", "/b/train.py", 11)], 1.0, folder="/b"),
            look(3, IN_ALL_REDUCE),
        ],
        (2,),
        False,
        "rank 2: in load (train.py:11), at 100% CPU; ranks 0, 1: in load (train.py:11), at 100% CPU; ",
    ),
    "all asleep": ([look(0, IN_LOAD), look(1, IN_LOAD)], (0, 1), True, "ranks 0, 1: in load"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_guilty_ranks_are_named(name: str) -> None:
    """Which ranks, whether they stand still, and where they are."""
    looks, ranks, is_sure, words = CASES[name]
    verdict = judge(looks)
    assert verdict is not None
    assert verdict.ranks == ranks
    assert verdict.is_sure == is_sure
    assert words in verdict.text


@pytest.mark.parametrize(
    "looks",
    [
        [],
        [look(0, IN_LOAD, 0.9), look(1, IN_LOAD, 0.7)],
        [look(0, IN_LOAD, 0.9), look(1, None, state="")],
        [look(0, None, state=""), look(1, None, state="")],
        [look(0, None, state="T"), look(1, None, state="T")],
        [look(0, IN_ALL_REDUCE)],
    ],
    ids=["none", "all work", "one works on", "over", "suspended", "the others are elsewhere"],
)
def test_nobody_is_blamed_where_nobody_waits(looks: list[Look]) -> None:
    """Ranks that work, or that somebody has suspended, hold nobody up."""
    assert judge(looks) is None


DUMPS = {
    "in C code": (
        "Stack (most recent call first):\n"
        '  File "/code/my train.py", line 11 in load_next_batch\n'
        '  File "/code/my train.py", line 40 in <module>\n'
    ),
    "between two instructions": (
        "Stack (most recent call first):\n"
        '  File "/lib/cloudtrain/runtime/ranks.py", line 288 in _cloudtrain_writes_stack\n'
        '  File "/code/my train.py", line 11 in load_next_batch\n'
        '  File "/code/my train.py", line 40 in <module>\n'
    ),
    "Python 3.14": (
        "Stack (most recent call first):\n"
        "  Garbage-collecting\n"
        '  File "/code/my train.py", line 11 in load_next_batch\n'
        '  File "/code/my train.py", line 40 in <module>\n'
        "  ...\n"
    ),
}


@pytest.mark.parametrize("dump", DUMPS)
def test_a_stack_of_faulthandler_is_read(dump: str) -> None:
    """The frames, the innermost first, without the one that has written them; of several stacks the last."""
    earlier = DUMPS[dump].replace("load_next_batch", "earlier")
    assert main_of_faulthandler(earlier + DUMPS[dump]) == [
        Frame("load_next_batch", "/code/my train.py", 11),
        Frame("<module>", "/code/my train.py", 40),
    ]
    assert main_of_faulthandler("") is None


def test_an_answer_of_py_spy_is_read() -> None:
    """The main thread's frames; something else is no answer."""
    frame = {"name": "load_next_batch", "filename": "/code/train.py", "line": 11, "locals": None}
    threads = [
        {"thread_name": "cloudtrain-metrics", "frames": []},
        {"thread_name": "MainThread", "frames": [frame]},
    ]
    assert main_of_py_spy(json.dumps(threads)) == [LOAD]
    for text in ("", "{", "[1]", "{}", "[]"):
        assert main_of_py_spy(text) is None


def pace(*moments: float, timeout: float = 0.0) -> StepPace:
    made = StepPace(timeout=timeout)
    for moment in moments:
        made.note(moment)
    return made


EVERY_SECOND = tuple(1000.0 + second for second in range(10))


@pytest.mark.parametrize(
    ("paces", "limit"),
    [
        ([pace(*EVERY_SECOND)], 30.0),
        ([pace(*EVERY_SECOND, 1049.0)], 120.0),
        ([pace(*EVERY_SECOND), pace(1000.0, 1020.0)], 60.0),
        ([pace(*EVERY_SECOND[:5])], 300.0),
        ([pace(*EVERY_SECOND[:5], timeout=90)], 45.0),
        ([pace(*EVERY_SECOND, 1049.0, timeout=90)], 45.0),
        ([pace(*EVERY_SECOND, timeout=1800)], 30.0),
        ([], 300.0),
    ],
)
def test_it_is_looked_after_three_times_the_longest_pause(
    paces: list[StepPace], limit: float
) -> None:
    """At least half a minute, and at half of the process group's timeout at the latest; before the sixth report only
    the timeout counts."""
    assert Quiet(paces, 2000.0, began=0.0).limit == limit


def test_the_newest_step_of_any_rank_counts() -> None:
    """One that went on is a sign of life of all; before the first step it is the start."""
    assert Quiet([pace(1000.0), pace(1000.0, 1030.0)], 1040.0, began=900.0).seconds == 10.0
    assert Quiet([], 1040.0, began=900.0).seconds == 140.0
