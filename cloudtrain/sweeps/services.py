"""Find a service by its name in the store: a target's, its tuner's, or our own driver's."""

from __future__ import annotations

from cloudtrain.store.kinds import AFTER, SWEEP, TUNER
from cloudtrain.targets.base import Service, Tuner
from cloudtrain.targets.registry import ServiceContext, service_of, target_of


def service_named(name: str, context: ServiceContext) -> Service:
    """Return the service of a target; a name with `sweep:` or `tuner:` in front is that of its sweeps, and with
    `after:` that of the runs that wait here.

    Raises:
        SettingsError: no such target.
    """
    if name.startswith(AFTER):
        from cloudtrain.chains.service import ChainService

        return ChainService(context.environ, context.state_dir)
    return tuner_named(name, context) if ":" in name else service_of(name, context)


def tuner_named(name: str, context: ServiceContext) -> Tuner:
    """Return what drives the sweeps of a target: our own driver for a name with `sweep:` in front, the target's tuner
    for `tuner:`.

    Raises:
        SettingsError: no such target.
    """
    if name.startswith(SWEEP):
        from cloudtrain.sweeps.service import SweepService

        return SweepService(context.environ, context.state_dir)
    target = target_of(name.removeprefix(TUNER))
    return target.tuner(environ=context.environ, state_dir=context.state_dir)
