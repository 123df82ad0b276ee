"""The metrics of a run on any target: those in its metrics files, or else those in its log.

What is found elsewhere than in a run's own files is written into a folder of this machine. A note
beside it says how far each source was read, so that the next reading goes on there. The folder's
files are cut back to their sizes in the note before anything is added, because a reader that was
killed may have written more.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import TargetError, TargetUnreachable
from cloudtrain.plans.progress import LogLine, Notice
from cloudtrain.plans.states import RunRef
from cloudtrain.runtime.metrics import PREFIX
from cloudtrain.runtime.metrics_file import MACHINE, MACHINE_LINE, MetricWriter
from cloudtrain.runtime.notices import PREFIX as NOTICE
from cloudtrain.signals.found import RecognisedMetrics, write_found, write_scalars
from cloudtrain.signals.lines import LineMetrics
from cloudtrain.signals.log import CountedLog, Log, LogBatch, batch_of
from cloudtrain.signals.notices import parse_notices, write_notices
from cloudtrain.signals.rows import LIBRARIES, SERVICE, MetricFile, read_files
from cloudtrain.system.files import FOUND, METRICS, READING
from cloudtrain.system.private import replace_private
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.contract import OwnMetrics, Service

_LATE = 120.0
"""Seconds after the end of a run within which lines of its log may still arrive."""

_STALE = 20 * 3600.0
"""Seconds after which a running run is read anew, because services forget where a reading was."""

_PATIENCE = 5.0
"""Seconds for which another command may read the same run."""

_LOCK = "found.lock"
_NOTE = "read.json"
"""Names beside and in the folder of what was found."""

_FORM = 1
"""The form of the note. One of another form counts as none."""

_BATCH = 10_000
"""Lines after which the metrics in them are written."""


def files_of(
    service: Service,
    ref: RunRef,
    state_dir: Path,
    patterns: Mapping[str, str] | None,
    others: Callable[[], Iterable[Path]] = tuple,
    *,
    needed: str | None = None,
) -> list[MetricFile]:
    """Return the metrics files of a run, and those of what is found elsewhere: in the files
    `others`, which other libraries may have written, in the service, and if there is nothing else,
    in its log. `patterns` are the job's `metrics`: None lets metrics be recognised in the log, and
    an empty mapping does not. If the metric `needed` is in no file, the log is read for it. Each
    call reads only what is new, and of a run that has ended, nothing once all was read."""
    cache = state_dir / METRICS / ref.name
    folder = service.metrics_folder(ref, cache)
    written = [] if folder is None else read_files(str(folder))
    own = [file for file in written if file.writer.source != MACHINE]
    if folder == cache and own and needed is None:
        return written

    names = {name for file in own for name in file.names}
    sources = _Sources(service, ref, patterns, others, names, needed)
    is_here = folder not in (None, cache)
    with suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        if not os.access(cache, os.W_OK):
            cache = Path(stack.enter_context(TemporaryDirectory(prefix=READING)))
        lock = ProcessLock.take(cache / _LOCK, patience=_PATIENCE)
        if lock is not None:  # otherwise, another command has found most of it
            stack.callback(lock.release)
            _read_on(cache / FOUND, sources, is_here=is_here)
        return [*written, *read_files(str(cache / FOUND))]


class _Sources(NamedTuple):
    """What is read: the arguments of `files_of`, and the names of the metrics in the run's own
    files."""

    service: Service
    ref: RunRef
    patterns: Mapping[str, str] | None
    others: Callable[[], Iterable[Path]]
    names: set[str]
    needed: str | None


def _read_on(found: Path, sources: _Sources, *, is_here: bool) -> None:
    """Write what is new into the folder `found`. `is_here`: the run writes on this machine, so that
    no line arrives after its end."""
    note = _begin(found)
    if note.get("is_complete"):
        return
    service, ref, patterns = sources[:3]
    status = service.status(ref)  # before the log, which may be complete when it is final
    is_late = is_here or time.time() - (status.ended or 0.0) > _LATE
    note["is_complete"] = status.state.is_final and is_late
    note["files"] = write_found(sources.others(), str(found), note.get("files", {}))

    own = OwnMetrics(mark=note.get("service"))
    try:
        own = service.own_metrics(ref, own.mark)
    except TargetUnreachable:
        raise
    except TargetError:  # such as a missing permission: the log has them, too
        pass
    note["service"] = own.mark
    writer = MetricWriter(str(found), SERVICE, "run0", attempt=0)
    write_scalars(own.values, writer, time.time())
    writer.close()

    names = set(sources.names)
    for file in read_files(str(found)):
        if file.writer.source in LIBRARIES:
            names.update(file.names)
    if not names or sources.needed not in (None, *names):
        if patterns is None and own.patterns:
            sources = sources._replace(patterns=own.patterns)
        _keep(found, note | {"is_complete": False})  # what follows can be cut off
        try:
            note["log"] = _read_log(found, sources, note.get("log", {}), to_end=note["is_complete"])
        except TargetUnreachable:
            raise
        except TargetError:  # such as a missing permission
            if not own.mark:
                raise
            return
    _keep(found, note)


def _begin(found: Path) -> JsonObject:
    """Return the note of the last reading, and cut the files back to it. It is empty if there was
    none, or none that can be continued."""
    note: JsonObject = {}
    try:
        read: Any = json.loads((found / _NOTE).read_bytes())
        if isinstance(read, dict):  # otherwise damaged, too
            note = read
    except FileNotFoundError:
        found.mkdir(mode=0o700, exist_ok=True)
        if any(found.iterdir()):  # an earlier version kept only what is complete
            return {"is_complete": True}
    except ValueError:  # damaged
        pass
    if note.get("is_complete"):
        return note
    if note.get("form") != _FORM or time.time() - note["time"] > _STALE:
        note = {}
    files = {file.name: file for file in found.iterdir() if file.name != _NOTE}
    sizes = note.get("sizes", {})
    for name, size in sizes.items():
        if name not in files or files[name].stat().st_size < size:  # of a power failure
            note = {}
    for name, file in files.items():
        if note and name in sizes:
            os.truncate(file, sizes[name])
        else:
            file.unlink()
    if not note:  # now the files are known to be incomplete
        _keep(found, note)
    return note


def _keep(found: Path, note: JsonObject) -> None:
    """Write the note about what was read and written so far."""
    sizes = {file.name: file.stat().st_size for file in found.iterdir() if file.name != _NOTE}
    note |= {"form": _FORM, "time": time.time(), "sizes": sizes}
    replace_private(found / _NOTE, json.dumps(note).encode("ascii"))


def _read_log(found: Path, sources: _Sources, before: JsonMapping, *, to_end: bool) -> JsonObject:
    """Write the metrics that are new in the log of a run since `before`, what the last call has
    returned. Metrics are recognised until there are others, or with `needed` until there is this
    one. With `to_end`, a last line without a newline is read, too."""
    service, ref, patterns = sources[:3]
    mark = before.get("mark")
    log: Log[Any] | None = service.log_after(ref, mark)
    if log is None:
        log = CountedLog(service.logs(ref), mark)
    metrics = LineMetrics(str(found), patterns, attempt=0)
    recognised = RecognisedMetrics(str(found), before.get("states"))
    recognises = patterns is None or len(patterns) > 0
    known = set(before.get("known", ()))
    notices = [Notice(**fields) for fields in before.get("notices", ())]

    lines = chain(log.new_lines(), log.rest() if to_end else ())
    while some := _next_lines(lines):
        for batch in some:
            text = "\n".join(batch.texts)
            if NOTICE in text:
                notices += parse_notices(batch.texts)
            # most lines have nothing, and a call takes its time
            if patterns or PREFIX in text or MACHINE_LINE in text:
                metrics.take(batch.texts, batch.rank, batch.instance, batch.time)
        metrics.flush()
        known.update(metrics.latest)
        has_others = sources.needed in known if sources.needed else known
        if recognises and not has_others:
            recognised.take(some)
            recognised.flush()
    metrics.close()
    recognised.close()
    if notices:
        write_notices(notices, str(found.parent))
    return {
        "mark": log.mark,
        "states": recognised.states,
        "known": sorted(known),
        "notices": [notice._asdict() for notice in notices],
    }


def _next_lines(lines: Iterator[LogLine | LogBatch]) -> list[LogBatch]:
    """Return the next lines in batches: `_BATCH` lines or the rest."""
    some = []
    count = 0
    while count < _BATCH and (item := next(lines, None)) is not None:
        batch = item if isinstance(item, LogBatch) else batch_of(item)
        some.append(batch)
        count += len(batch.texts)
    return some
