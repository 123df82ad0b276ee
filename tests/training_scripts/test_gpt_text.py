"""gpt_fsdp on a user's text: files as nanoGPT and llm.c write them, held-out losses, and a resumption that goes on exactly."""

from __future__ import annotations

import importlib
import random
import sys
from array import array
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - tests may start slowly
import pytest

from cloudtrain.runtime import SetupError
from tests.training_scripts.runs import Run, assert_same_losses, check_out, forks, run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]

FOLDER = Path(__file__).parents[2] / "training_scripts" / "gpt_fsdp"


@pytest.fixture(scope="module")
def data() -> Iterator[Any]:
    """data.py, imported as the script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER.with_name("pipeline_gpt"))  # where gpt.py stands
        patch.syspath_prepend(FOLDER)
        for name in ("data", "gpt"):
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module("data")
        for name in ("data", "gpt"):
            sys.modules.pop(name, None)


def header(magic: int, count: int) -> bytes:
    """llm.c's: 256 numbers, of which three count."""
    return array("i", [magic, 1, count, *[0] * 253]).tobytes()


def tokens(first: int, count: int, kind: str) -> bytes:
    """Numbers that follow each other."""
    return array({"uint16": "H", "uint32": "I"}[kind], range(first, first + count)).tobytes()


def test_files_of_nanogpt_and_llm_c_are_the_same_tokens(data: Any, tmp_path: Path) -> None:
    """uint16 without a header, uint16 and uint32 behind llm.c's, and text, whose bytes are the tokens."""
    (tmp_path / "a.bin").write_bytes(tokens(0, 41, "uint16"))
    (tmp_path / "b.bin").write_bytes(header(20240520, 41) + tokens(100, 41, "uint16"))
    (tmp_path / "c.bin").write_bytes(header(20240801, 41) + tokens(70000, 41, "uint32"))
    (tmp_path / "d_val.txt").write_text("a" * 41)
    learned, held_out = data.read_corpus(tmp_path, 10, 100_000)
    assert (learned.tokens, learned.windows, held_out.windows) == (123, 13, 4)
    inputs, following, documents = learned.batch([0, 5, 11])
    assert inputs[:, 0].tolist() == [0, 109, 70028]
    assert (following - inputs).unique().tolist() == [1]
    assert documents is None
    assert held_out.batch([3])[0].unique().tolist() == [ord("a")]


def test_every_token_is_learned_once_and_never_from_another_document(
    data: Any, tmp_path: Path
) -> None:
    """Files of many lengths, some shorter than a window, one with documents of its own: each token but the first of its
    document is an expected output once, right after the token before it, and sees its own document only."""
    lengths, number = [1, 3, 41, 10, 2, 25], 0
    begins: list[int] = []
    for index, length in enumerate(lengths):
        (tmp_path / f"{index}.bin").write_bytes(tokens(number, length, "uint16"))
        begins += [number]
        if length == 41:
            np.save(tmp_path / f"{index}.starts.npy", np.array([0, 7, 8, 40]))
            begins += [number + 7, number + 8, number + 40]
        number += length
    (tmp_path / "val.bin").write_bytes(bytes(100))
    learned, _ = data.read_corpus(tmp_path, 10, 300)
    inputs, following, documents = learned.batch(range(learned.windows))
    is_learned = following >= 0
    assert sorted(following[is_learned].tolist()) == sorted(set(range(number)) - set(begins))
    assert (following - inputs)[is_learned].unique().tolist() == [1]
    of_token = np.searchsorted(begins, inputs.numpy(), side="right")
    for row in range(len(inputs) - 1):  # the last one is filled up
        same = documents[row][:, None] == documents[row][None]
        assert (same.numpy() == (of_token[row][:, None] == of_token[row][None])).all(), row


@pytest.mark.parametrize("position", [0, 990, 1500])
def test_a_mixture_has_its_shares_whatever_was_drawn_before(
    data: Any, tmp_path: Path, position: int
) -> None:
    """7 of 10 windows from the smaller source, which comes again; each source's windows come once in its epoch; a position
    says what follows."""
    for name, count in (("web", 3010), ("code", 510)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.bin").write_bytes(bytes(2 * count))
        (tmp_path / name / "val.bin").write_bytes(bytes(100))
    mixture, held_out = data.read_corpus(tmp_path, 10, 256, "web=0.3,code=0.7")
    assert held_out.tokens == 100
    whole = mixture.at(0, 3000, seed=1)
    assert [source for source, _ in whole[:1000]].count(1) == 700
    of_web = [number for source, number in whole if source == 0]
    assert sorted(of_web[:301]) == list(range(301))
    pieces = [
        each for start in range(position, position + 60, 6) for each in mixture.at(start, 6, seed=1)
    ]
    assert pieces == whole[position : position + 60]
    assert mixture.batch(pieces)[0].shape == (60, 10)


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ("web", "names no weights"),
        ("web=0.5,code=-1", "names no weights"),
        ("web=1,code=0.0001", "`code` has less than a thousandth"),
        ("web=1,books=1", "has no folder `books`"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(
    data: Any, tmp_path: Path, mixture: str, message: str
) -> None:
    """With what there is."""
    for name in ("web", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a" * 300)
    with pytest.raises(SetupError, match=message) as caught:
        data.read_corpus(tmp_path, 10, 256, mixture)
    assert caught.value.hint


def test_packed_documents_learn_as_separate_ones(data: Any) -> None:
    """The same loss and the same gradients, to 1e-6, for every family."""
    torch: Any = importlib.import_module("torch")
    gpt: Any = importlib.import_module("gpt")
    lengths = [5, 17, 1, 9]
    row = torch.randint(256, (1, sum(lengths)), generator=torch.Generator().manual_seed(0))
    documents = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    following = torch.where(documents[:, 1:] == documents[:, :-1], row[:, 1:], gpt.NOT_LEARNED)
    # GPT-2's positions are learned, and go on in a packed row
    for family in ("llama", "qwen2", "qwen3"):
        model = gpt.GPT(gpt.Shape(2, 4, 32, 64, family=family, kv_heads=2))
        model.reset_parameters(1)
        found = []
        for parts in ([(row, documents)], [(part, None) for part in row.split(lengths, 1)]):
            model.zero_grad()
            packed = len(parts) == 1
            losses = [
                gpt.loss_sum(
                    model(part[:, :-1], None if those is None else those[:, :-1]),
                    following if packed else part[:, 1:],
                )
                for part, those in parts
                if part.shape[1] > 1
            ]
            total = torch.stack(losses).sum()
            total.backward()
            found.append(
                (total.item(), torch.cat([one.grad.flatten() for one in model.parameters()]))
            )
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
        assert ((found[0][1] - found[1][1]).norm() / found[1][1].norm()).item() < 1e-6


def test_an_epoch_sees_every_window_once_wherever_it_is_cut(data: Any, tmp_path: Path) -> None:
    """The position says what comes next, whatever the size of the batches before it."""
    (tmp_path / "a.bin").write_bytes(tokens(0, 301, "uint16"))
    learned, _ = data.read_corpus(tmp_path, 10, 100_000)
    whole = learned.at(0, 2 * learned.windows, seed=1)
    assert (
        sorted(whole[: learned.windows])
        == sorted(whole[learned.windows :])
        == list(range(learned.windows))
    )
    assert whole[: learned.windows] != whole[learned.windows :]
    pieces = [
        number for start in range(0, len(whole), 4) for number in learned.at(start, 4, seed=1)
    ]
    assert pieces[: len(whole)] == whole
    assert learned.at(0, 5, seed=2) != whole[:5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(20240520, 50) + tokens(0, 41, "uint16"), "should hold 50 tokens"),
        (tokens(0, 8, "uint16"), "no window of `--context` 10"),
        (tokens(400, 200, "uint16"), "holds the token 599, and `--vocabulary` is 256"),
    ],
)
def test_files_that_cannot_be_learned_from_are_refused(
    data: Any, tmp_path: Path, content: bytes, message: str
) -> None:
    """Before anything is computed, with a hint."""
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(SetupError, match=message) as caught:
        data.read_corpus(tmp_path, 10, 256)
    assert caught.value.hint


def test_a_token_further_on_is_refused_when_it_is_read(data: Any, tmp_path: Path) -> None:
    """Files are not read whole at the start; the process that meets the token reports it, whatever its rank."""
    (tmp_path / "a.bin").write_bytes(bytes(2 << 17) + tokens(600, 199, "uint16"))
    (tmp_path / "val.bin").write_bytes(bytes(400))
    learned, _ = data.read_corpus(tmp_path, 10, 256)
    with pytest.raises(
        SetupError, match="holds the token 798, and `--vocabulary` is 256"
    ) as caught:
        learned.batch([0, learned.windows - 1])
    assert not caught.value.on_every_rank


def test_an_empty_file_has_no_windows(data: Any, tmp_path: Path) -> None:
    """It is no reason to stop."""
    for name in ("a.txt", "b.bin", "c_val.txt"):
        (tmp_path / name).touch()
    (tmp_path / "d.txt").write_text("a" * 300)
    learned, held_out = data.read_corpus(tmp_path, 10, 256)
    assert (learned.tokens, held_out.tokens) == (270, 30)


@pytest.mark.parametrize(
    ("name", "is_held_out"),
    [
        *(
            ("fineweb_val_000000.bin", True),
            ("val.bin", True),
            ("TinyStories-valid.txt", True),
            ("test2.txt", True),
        ),
        *(("interval.txt", False), ("latest.txt", False), ("medieval_greatest.txt", False)),
    ],
)
def test_a_word_of_the_name_says_what_is_held_out(
    data: Any, tmp_path: Path, name: str, is_held_out: bool
) -> None:
    """A word, not a part of one."""
    (tmp_path / name).write_bytes(b"a\0" * 300 if name.endswith("bin") else b"a" * 300)
    (tmp_path / "book.txt").write_text("b" * 300)
    _, held_out = data.read_corpus(tmp_path, 10, 256)
    assert held_out.tokens == (300 if is_held_out else 60)


def test_the_held_out_loss_does_not_depend_on_the_parts(
    script: Path, text: Path, tmp_path: Path
) -> None:
    """Three windows in one part, or in two of two and one."""
    options = ["--steps", "0", "--evaluate_windows", "3", "--accumulate"]
    losses = [
        trained(script, tmp_path / parts, text, [sys.executable], *options, parts).last("test_loss")
        for parts in "12"
    ]
    assert losses[0] == pytest.approx(losses[1], abs=2e-6)


def test_an_empty_folder_is_refused(data: Any, tmp_path: Path) -> None:
    """It says what may lie there."""
    with pytest.raises(SetupError, match="there is no text in"):
        data.read_corpus(tmp_path, 10, 256)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a checkout as a user has it."""
    return check_out("gpt_fsdp", tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def text(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As much text as Shakespeare wrote, of a few words, as prepare.py writes it."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "raw").mkdir()
    words = "the king of france was a good man and he had no sword but a horse".split()
    draw = random.Random(1)
    for number in range(10):
        (folder / "raw" / f"play{number}.txt").write_text(
            " ".join(draw.choice(words) for _ in range(25_000))
        )
    made = run(
        folder,
        sys.executable,
        script.with_name("prepare.py"),
        "--raw",
        "raw",
        "--shard_tokens",
        "60000",
    )
    assert made.exit_code == 0, made.errors
    assert {path.name[:4] for path in (folder / "text").iterdir()} == {"trai", "val_", "unit"}
    return folder / "text"


SMALL = "--layers 2 --width 32 --context 32 --report_every 1 --learning_rate 0.003 --evaluate_every 10".split()


def trained(script: Path, folder: Path, text: Path, launcher: list[str], *arguments: str) -> Run:
    """A run on the text."""
    where = {"CLOUDTRAIN_INPUT_TEXT": str(text), "PYTHONPATH": str(script.parents[2])}
    found = run(folder, *launcher, script, *SMALL, *arguments, **where)
    assert found.exit_code == 0, found.errors
    return found


def test_the_held_out_loss_falls_and_another_layout_goes_on_exactly(
    script: Path, text: Path, tmp_path: Path
) -> None:
    """30 steps in one process; 10 in two shards with a batch of 16, then 20 in one process: the same windows, losses and
    gradients, and what is held out is predicted better and better."""
    whole = trained(script, tmp_path / "whole", text, [sys.executable], "--steps", "30")
    held_out = whole.reported["held_out_loss"]
    assert list(held_out) == [10, 20, 30]
    assert held_out[10] > held_out[20] > held_out[30]
    schedule = ["--steps", "30", "--checkpoint_every", "10"]
    folder = tmp_path / "parts"
    first = trained(script, folder, text, forks(2), *schedule, "--layout", "fsdp")
    # as if it had been lost after step 10
    for checkpoint in sorted((folder / "checkpoint").iterdir())[1:]:
        for path in checkpoint.iterdir():
            path.unlink()
        checkpoint.rmdir()
    second = trained(script, folder, text, [sys.executable], *schedule)
    assert second.resumed_from == [10]
    assert min(second.losses) == 11
    for part in (first, second):
        assert_same_losses(part, whole)


def test_hardware_that_is_not_there_is_named(script: Path, tmp_path: Path) -> None:
    """float8 and asynchronous tensor parallelism are flags that a CPU does not have."""
    for flag, words in (
        ("--float8", "needs a GPU with float8"),
        ("--async_tensor", "needs GPUs that reach each other's"),
    ):
        found = run(tmp_path, sys.executable, script, flag)
        assert found.exit_code == 1
        assert words in found.errors
        assert "Traceback" not in found.errors


def test_packed_documents_are_the_same_in_every_layout(
    script: Path, text: Path, tmp_path: Path
) -> None:
    """With parts, shards, tensor and context parallelism, and logits in pieces: the losses and gradients of one process.
    Windows differ in how many of their tokens are learned, because short documents begin in some of them."""
    rows = tmp_path / "short"
    rows.mkdir()
    draw = np.random.default_rng(1)
    for name, count in (("train", 4000), ("val", 500)):
        draw.integers(97, 105, count).astype(np.uint16).tofile(rows / f"{name}.bin")
        np.save(
            rows / f"{name}.starts.npy",
            np.unique(np.append(0, draw.integers(0, count, count // 30))),
        )
    llama = ["--steps", "4", "--family", "llama", "--kv_heads", "2"]
    whole = trained(script, tmp_path / "whole", rows, [sys.executable], *llama, "--layout", "ddp")
    for number, options in enumerate(
        (
            ["--layout", "fsdp", "--accumulate", "2", "--logits_at_once", "50"],
            ["--layout", "tp", "--logits_at_once", "50"],
            ["--layout", "ddp", "--context_parallel", "2"],
        )
    ):
        found = trained(script, tmp_path / str(number), rows, forks(2), *llama, *options)
        assert_same_losses(found, whole)
        assert found.last("test_loss") == pytest.approx(whole.last("test_loss"), abs=5e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("has_documents", [True, False])
def test_the_mask_of_blocks_for_gpus_says_the_same(data: Any, has_documents: bool) -> None:
    """`flex_attention` with it, whose forward a CPU can run, against a mask: documents, and positions of two processes
    that share a window."""
    from torch.nn.attention.flex_attention import flex_attention

    torch: Any = importlib.import_module("torch")
    gpt: Any = importlib.import_module("gpt")
    # one from the front and one from the back
    everywhere = torch.arange(160).view(4, 40)[[0, 3, 1, 2]].flatten()
    here = everywhere[:80]
    documents = (torch.arange(160) // 37).repeat(2, 1)[:, everywhere] if has_documents else None
    of_queries = documents[:, :80] if documents is not None else None
    queries = torch.randn(2, 4, 80, 16, generator=torch.Generator().manual_seed(0))
    keys, values = torch.randn(2, 2, 2, 160, 16, generator=torch.Generator().manual_seed(1))
    expected = gpt.attend(
        queries, keys, values, gpt.mask_of(here, everywhere, of_queries, documents)
    )
    blocks = gpt.blocks_of(here, everywhere, of_queries, documents)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(gpt, "compiled_flex", lambda: flex_attention)
        found = gpt.attend(queries, keys, values, blocks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
