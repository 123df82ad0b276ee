"""What the rules about bundles find in a folder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cloudtrain.code.tree import Tree
from cloudtrain.plans.plan import Finding
from cloudtrain.rules.engine import load_rules, registered
from cloudtrain.targets.registry import target_of


def findings(tree: Tree, *codes: str, target: str = "local") -> list[Finding]:
    """What the rules with these codes find in a bundle."""
    load_rules(target_of(target))
    reading, plan = (
        SimpleNamespace(locate=lambda path: path),
        SimpleNamespace(target=target, uploads=()),
    )
    subject: Any = SimpleNamespace(tree=tree, target=target_of(target), plan=plan, reading=reading)
    return [finding for code in codes for finding in registered[code].findings(subject)]


def secret_findings(tree: Tree) -> list[Finding]:
    """The findings about secrets, certain ones first."""
    return findings(tree, "CT301", "CT304")


def size_findings(tree: Tree) -> list[Finding]:
    """The findings about the size."""
    return findings(tree, "CT302", "CT303")
