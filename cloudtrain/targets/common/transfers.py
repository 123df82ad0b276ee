"""Run several transfers at the same time. The first failure or Ctrl-C ends all of them. A plain
pool of threads would first finish all transfers in progress, which takes hours for large files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from threading import Event, Lock
from typing import NamedTuple, TypeVar

from cloudtrain.code.data import DataFile, LocalData, UnreadableData, read_data
from cloudtrain.code.files import escape_path
from cloudtrain.errors import TargetError
from cloudtrain.plans.plan import Upload
from cloudtrain.targets.contract import ByteProgress

Item = TypeVar("Item")
Result = TypeVar("Result")

Check = Callable[[], None]
"""Raises an error if the work must end. Work that makes several requests calls it before each
request."""


class Ended(Exception):
    """Another transfer failed, so this one was cancelled. The caller gets the first failure instead
    of this error."""


def run_concurrently(
    count: int,
    work: Callable[[Item, Check], Result],
    items: Iterable[Item],
    check: Check = lambda: None,
) -> list[Result]:
    """Call `work(item, check)` for each item, up to `count` calls at the same time. Return the
    results in order. `check` raises an error if an enclosing operation was cancelled. Each call of
    `work` gets a function that raises this error too, and also an error if another call has
    failed."""
    stop_event = Event()

    def check_both() -> None:
        check()
        if stop_event.is_set():
            raise Ended

    with ThreadPoolExecutor(count) as pool:
        try:
            futures = [pool.submit(work, item, check_both) for item in items]
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop_event.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


# Upload data from this machine to storage: only the missing files, several at the same time.
#
# Storage never keeps a partial file, and the name of the folder contains the hash of all files. So
# an existing file of the right size is complete and correct. An interrupted upload continues where
# it stopped, and complete data is not uploaded again.

_AT_ONCE = 8

Report = Callable[[int], None]
"""Called with the number of bytes of a file that have arrived so far."""


class Storage(NamedTuple):
    """The operations on one storage folder. File names are relative paths with slashes."""

    sizes: Callable[[], Mapping[str, int]]
    """Returns the sizes of the existing files, by name."""
    send: Callable[[DataFile, Report], None]
    remove: Callable[[str], None]


def send_data(item: Upload, storage: Storage, on_bytes: ByteProgress | None) -> bool:
    """Upload the files of `item` that storage lacks. Return False if it lacks none.

    Raises:
        TargetError: the storage folder holds files of something else.
        UnreadableData: the data has changed since the plan, or cannot be read.
    """
    sizes = storage.sizes()
    if len(sizes) == item.file_count and sum(sizes.values()) == item.size:
        return False

    data = _read_again(item)
    strangers = sizes.keys() - {file.path for file in data.files}
    if strangers:
        stranger = escape_path(min(strangers))
        message = f"`{item.destination}` holds `{stranger}`, which is not part of this data"
        raise TargetError(
            message, hint="remove this file: only cloudtrain may write to that folder", code="CT986"
        )

    missing = [file for file in data.files if sizes.get(file.path) != file.size]
    sent_before = data.size - sum(file.size for file in missing)
    report = count_bytes(data.size, on_bytes, sent_before)

    def send(file: DataFile, check: Check) -> None:
        def count(amount: int) -> None:
            check()
            report(file.path, amount)

        try:
            storage.send(file, count)
            is_unchanged = file.is_as_it_was
        except OSError:  # such as a file that was removed
            is_unchanged = False
        if not is_unchanged:
            # a mixture of the old and the new content must not stay
            with suppress(TargetError):
                storage.remove(file.path)
            raise _changed(item)
        report(file.path, file.size)

    run_concurrently(_AT_ONCE, send, missing)
    return True


def _read_again(item: Upload) -> LocalData:
    """Read the data again, and check that it is the same as in the plan."""
    if item.source is None:
        message = f"`{item.destination}` does not hold all its data"
        raise UnreadableData(message, hint="submit the job again")
    data = read_data(item.source)
    if data.sha256 != item.sha256:
        raise _changed(item)
    for file in data.files:
        if not file.path.isprintable():  # nor are surrogates
            message = f"`{escape_path(file.path)}` has a name that storage cannot hold"
            raise UnreadableData(
                message, hint="rename the file: names in storage must be printable text"
            )
    return data


def _changed(item: Upload) -> UnreadableData:
    message = f"the data in `{escape_path(str(item.source))}` has changed since the job was planned"
    return UnreadableData(message, hint="submit the job again when no program writes to the data")


def count_bytes(
    total: int, on_bytes: ByteProgress | None, sent_before: int = 0
) -> Callable[[str, int], None]:
    """Return a function that takes a file's name and the bytes of it sent so far. `on_bytes` gets
    the bytes sent of all files, and `total`."""
    amounts: dict[str, int] = {}
    lock = Lock()
    sent_of_all = sent_before

    def count(name: str, amount: int) -> None:
        nonlocal sent_of_all
        if on_bytes is not None:
            with lock:
                sent_of_all += amount - amounts.get(name, 0)
                amounts[name] = amount
                on_bytes(sent_of_all, total)

    return count
