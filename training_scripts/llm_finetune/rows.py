"""Examples of a file, a folder or the Hub as tokens, with a mask of those that are learned.

A row has `messages` (role and content), or `prompt` and `completion` (two texts, or two lists of messages), or `text`.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import datasets

from cloudtrain import runtime

KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}


def read_rows(place: str, split: str) -> Any:
    """Return the rows of a split of a file, of a folder (of such files, `train.jsonl` or `test-0.parquet` for a split,
    or that `save_to_disk` wrote), or of a data set of the Hub."""
    path = Path(place)
    files = (
        sorted(file for file in path.rglob("*") if file.suffix in KINDS)
        if path.is_dir()
        else [path]
    )
    named = [file for file in files if path.is_dir() and file.stem.split("-")[0] == split]
    try:
        if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
            rows = datasets.load_from_disk(place)
            rows = rows[split] if isinstance(rows, datasets.DatasetDict) else rows
        elif path.exists():
            chosen = named or (files if split == "train" else [])
            rows = datasets.load_dataset(
                KINDS[chosen[0].suffix], data_files=list(map(str, chosen)), split="train"
            )
        else:
            rows = datasets.load_dataset(place, split=split)
        if not len(rows):
            raise ValueError("no rows")
    except (LookupError, ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:
        raise runtime.SetupError(
            f"`{place}` has no split `{split}` that can be read: {type(error).__name__}: {error}",
            hint="give a .jsonl or .parquet file, a folder of one kind of them, or the name of a data set of the Hub",
        ) from None
    return rows


def encode_rows(rows: Any, tokenizer: Any, max_length: int, answers_only: bool) -> Any:
    """Return `input_ids` and `completion_mask` of each row, at most `max_length` tokens. A long text becomes several
    rows; a long conversation is cut off, and a row left without an answer is dropped."""
    columns = set(rows.column_names)
    if not (columns & {"messages", "text"} or columns >= {"prompt", "completion"}):
        message = (
            f"the examples have the columns {', '.join(f'`{name}`' for name in sorted(columns))}"
        )
        raise runtime.SetupError(
            message, hint="name them `messages`, `prompt` and `completion`, or `text`"
        )

    def encode_batch(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        result: dict[str, list[list[int]]] = {"input_ids": [], "completion_mask": []}
        for values in zip(*batch.values(), strict=True):
            ids, mask, is_text = encode(dict(zip(batch, values, strict=True)), tokenizer)
            for start in range(0, len(ids) if is_text else 1, max_length):
                piece = ids[start : start + max_length]
                learned = mask[start : start + max_length] if answers_only else [1] * len(piece)
                if any(learned[1:]):  # the first token of a row has nothing to be predicted from
                    result["input_ids"].append(piece)
                    result["completion_mask"].append(learned)
        return result

    encoded = rows.map(
        encode_batch, batched=True, remove_columns=rows.column_names, load_from_cache_file=False
    )
    if not len(encoded):
        raise runtime.SetupError(
            f"no answer starts within {max_length} tokens", hint="raise `--max_length`"
        )
    return encoded


def encode(row: dict[str, Any], tokenizer: Any) -> tuple[list[int], list[int], bool]:
    """Return the tokens of a row, a mask of its answers, and whether it is a text."""
    if "messages" in row:
        return *encode_chat(row["messages"], tokenizer), False
    if "text" in row:
        ids = [*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id]
        return ids, [1] * len(ids), True
    if not isinstance(row["prompt"], str):
        return *encode_chat(
            [*row["prompt"], *row["completion"]], tokenizer, first=len(row["prompt"])
        ), False
    prompt = tokenizer(row["prompt"])["input_ids"]
    answer = [
        *tokenizer(row["completion"], add_special_tokens=False)["input_ids"],
        tokenizer.eos_token_id,
    ]
    return prompt + answer, [0] * len(prompt) + [1] * len(answer), False


def encode_chat(
    messages: list[dict[str, str]], tokenizer: Any, first: int = 0
) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation up to its last answer, and a mask of the answers from message `first` on: of
    what the template adds to the conversation before. Where a template changes earlier answers (some drop their
    reasoning), only the last one is learned, as it would be generated."""
    if tokenizer.chat_template is None:
        raise runtime.SetupError(
            "the tokenizer has no chat template", hint="use columns `prompt`, `completion`"
        )

    def render(count: int, asks: bool) -> list[int]:
        text = tokenizer.apply_chat_template(
            messages[:count], add_generation_prompt=asks, tokenize=False
        )
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    ids: list[int] = []
    mask: list[int] = []
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and number >= first:
            asked, whole = render(number, True), render(number + 1, False)
            before = len(
                list(takewhile(lambda pair: pair[0] == pair[1], zip(asked, whole, strict=False)))
            )
            earlier = mask if asked[: len(ids)] == ids else []
            mask = earlier + [0] * (before - len(earlier)) + [1] * (len(whole) - before)
            ids = whole
    return ids, mask
