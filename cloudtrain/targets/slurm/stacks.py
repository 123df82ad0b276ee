"""Where the ranks of a run on a cluster are in their code: each node asks its own ranks, in a
further step of the job."""

from __future__ import annotations

import json

from cloudtrain.runtime.hangs.stacks import main_of_faulthandler
from cloudtrain.runtime.hangs.verdict import Look
from cloudtrain.runtime.ranks import RegisteredRank
from cloudtrain.targets.slurm.runner import Runner, rows_of
from cloudtrain.targets.slurm.shell import shell_script


def look_at(runner: Runner, folder: str) -> list[Look]:
    """Look at the ranks of the run in a folder. Without a rank that answers, the list is empty."""
    output = runner.run("stacks", folder, shell_script("node_stacks"))
    ranks: dict[int, RegisteredRank] = {}
    answers: dict[int, list[str]] = {}
    lines: list[str] = []
    for word, rest in rows_of(output):
        if word == "@rank":
            rank = RegisteredRank(**json.loads(rest))
            ranks[rank.rank] = rank
        elif word == "@answer":
            number, _, facts = rest.partition(" ")
            lines = [facts]
            answers[int(number)] = lines
        else:
            lines.append(rest)
    if not answers:
        return []
    return [_look(ranks[number], answers.get(number)) for number in sorted(ranks)]


def _look(rank: RegisteredRank, answer: list[str] | None) -> Look:
    """`answer` holds the state and the thousandths of a processor, and then the dump; it is None if
    the node does not answer."""
    if answer is None:
        return Look(rank.rank, None, state=None, host=rank.host)
    state, _, share = answer[0].partition(" ")
    return Look(
        rank.rank,
        main_of_faulthandler("\n".join(answer[1:])),
        share=int(share) / 1000,
        state="" if state == "-" else state,
        host=rank.host,
        folder=rank.cwd,
    )
