"""Finds a service by its name in the store: the service of a target, of its tuner, or of cloudtrain's own driver."""

from __future__ import annotations

from cloudtrain.store.kinds import AFTER, SWEEP, TUNER
from cloudtrain.targets.base import Service, Tuner
from cloudtrain.targets.registry import ServiceContext, service_of, target_of


def service_named(name: str, context: ServiceContext) -> Service:
    """Return a service by its name in the store.

    The name of a target stands for the target's own service. A name that begins with `sweep:` or `tuner:` stands for
    the target's sweeps. A name that begins with `after:` stands for the runs that wait on this machine.

    Raises:
        SettingsError: the target does not exist.
    """
    if name.startswith(AFTER):
        from cloudtrain.chains.service import ChainService

        return ChainService(context.environ, context.state_dir)
    return tuner_named(name, context) if ":" in name else service_of(name, context)


def tuner_named(name: str, context: ServiceContext) -> Tuner:
    """Return the service for a target's sweeps: cloudtrain's own driver if the name begins with `sweep:`, or the
    target's tuner if it begins with `tuner:`.

    Raises:
        SettingsError: the target does not exist.
    """
    if name.startswith(SWEEP):
        from cloudtrain.sweeps.service import SweepService

        return SweepService(context.environ, context.state_dir)
    target = target_of(name.removeprefix(TUNER))
    return target.tuner(environ=context.environ, state_dir=context.state_dir)
