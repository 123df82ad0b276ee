"""Cleans CSV files, each instance its own share of them: rows that lack a value are dropped, others become JSON lines.

    cloudtrain submit ../../prepare_data.yaml --instances 4

With one process per instance and files dealt out between them there is nothing to agree on: a file that is read here
is read nowhere else, so what is written from it can carry its name.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path

from cloudtrain import runtime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--label", default="label", help="the column that stays text; all others are numbers"
    )
    options = parser.parse_args()

    here, raw, clean = (
        runtime.detect_environment(),
        runtime.input_dir("raw"),
        runtime.output_dir("clean"),
    )
    files = sorted(path for path in raw.rglob("*.csv") if path.is_file())
    kept = dropped = 0
    for path in files:
        target = (clean / path.relative_to(raw)).with_suffix(".jsonl")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", encoding="utf-8") as out:
            for row in rows(path, options.label):
                if row is None:
                    dropped += 1
                else:
                    kept += 1
                    out.write(json.dumps(row) + "\n")
        print(f"{path.relative_to(raw)} is done", flush=True)

    # One file per instance, so its name holds the instance's number: all of them end up in one
    # place.
    summary = {"instance": here.node_rank, "files": len(files), "rows": kept, "dropped": dropped}
    (runtime.output_dir("summaries") / f"instance-{here.node_rank}.json").write_text(
        json.dumps(summary) + "\n"
    )


def rows(path: Path, label: str) -> Iterator[dict[str, float | str] | None]:
    """The rows of a file; None for one that lacks a value or holds something else than a number."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                yield {
                    name: text if name == label and text else float(text)
                    for name, text in row.items()
                }
            except (TypeError, ValueError):
                yield None


if __name__ == "__main__":
    main()
