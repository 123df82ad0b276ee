"""Save and restore the states of all random number generators in a checkpoint. Without these
states, a resumed run draws other random numbers, for example for dropout.

    checkpoints.save({"model": ..., "random": runtime.random_states()}, step)
    ...
    runtime.restore_random_states(state.get("random"))

The states of all processes form one JSON text. Loading this text runs no code, and a sharded
checkpoint can store it as one value.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

from .environment import detect_environment, notice
from .errors import SetupError
from .process_group import from_every


def random_states(gather: Callable[[Any], list[Any]] = from_every) -> str:
    """Return the random states of every rank: Python's, numpy's if numpy is imported, and torch's
    for the CPU and for the rank's GPU. Every rank must call it; all get the same text. `gather`
    returns the values of all ranks, in rank order; default: `from_every`, which uses the process
    group."""
    return json.dumps(gather(_mine()))


def restore_random_states(text: str | None) -> None:
    """Restore the random states of this rank from `text`, which `random_states` returned. If more
    processes resume than had saved, the additional processes keep their own random states and print
    a notice.

    Raises:
        SetupError: `text` is None, as for a checkpoint that an earlier version of the script saved
            without random states.
    """
    if text is None:
        raise SetupError(
            "the checkpoint was saved by an earlier version of this script, without random states",
            hint=(
                "remove the checkpoints to start from the beginning, or resume with the "
                "earlier version"
            ),
        )
    rank = detect_environment().rank
    states = json.loads(text)
    if rank >= len(states):
        notice(
            f"the checkpoint has random states of {len(states)} processes: this one keeps its own",
            every_rank=True,
        )
        return
    state = states[rank]
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state and "numpy.random" in sys.modules:
        name, keys, *rest = state["numpy"]
        array = sys.modules["numpy"].array(keys, dtype="uint32")
        sys.modules["numpy.random"].set_state((name, array, *rest))
    for key, source in _torch_sources().items():
        if key in state:
            numbers = list(bytes.fromhex(state[key]))
            source.set_rng_state(source.get_rng_state().new_tensor(numbers))


def _mine() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate()}
    if "numpy.random" in sys.modules:
        name, keys, *rest = sys.modules["numpy.random"].get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    for key, source in _torch_sources().items():
        state[key] = bytes(source.get_rng_state().tolist()).hex()
    return state


def _torch_sources() -> dict[str, Any]:
    """Return torch's modules that have a random state: of the CPU, and of the current GPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    sources = {"torch": torch}
    if torch.cuda.is_available():
        sources["cuda"] = torch.cuda
    return sources
