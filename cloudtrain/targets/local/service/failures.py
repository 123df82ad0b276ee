"""Collect the failed ranks of a run, and derive the reason for its status."""

from __future__ import annotations

from cloudtrain.targets.local.service.launched import Launched
from cloudtrain.targets.local.service.output import Output
from cloudtrain.targets.local.service.ranks import Rank
from cloudtrain.targets.local.service.summaries import failed_ranks

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from cloudtrain.launch.specification import LaunchSpecification
    from cloudtrain.targets.local.service.verdict import Death, Verdict


class Deaths:
    """Collects the failures of ranks in the order in which the ranks end. Only failures of the newest attempt count."""

    def __init__(self, spec: LaunchSpecification) -> None:
        self._spec = spec
        self._ends: list[tuple[Rank | Launched, int, int | None, int]] = []
        self._starts: dict[int, int] = {}
        self._killed_launcher: Launched | None = None

    def started(self, rank: int) -> None:
        """Record that a process of this rank has started. A second start of the same rank means that
        all ranks are being restarted."""
        self._starts[rank] = self._starts.get(rank, 0) + 1

    def ended(self, process: Rank | Launched, exit_code: int | None) -> None:
        """Record that a rank ended. `exit_code` is None if only the rank's launcher knows it."""
        assert process.rank is not None
        self._ends.append((process, process.rank, exit_code, self._starts.get(process.rank, 1)))

    def launcher_was_killed(self, launcher: Launched) -> None:
        """Record that a signal from outside ended a launcher. If no rank had failed before, this signal is the
        cause of the run's failure, and ranks that end later fail because of it."""
        if not any(exit_code for _, _, exit_code, _ in self._ends):
            self._killed_launcher = launcher

    def of_newest_attempt(self, output: Output) -> list[Death]:
        """Return the failures of the newest attempt. The launchers' reports in the last lines of the output supply
        ranks and exit codes that the supervisor has missed.

        If mpirun reports a rank, this rank counts as the first to fail, because on a busy machine the supervisor may
        see all ranks end at the same time.
        """
        from cloudtrain.targets.local.service.verdict import Death

        newest = max(self._starts.values(), default=1)
        reported = self._read_reports(output)
        found: dict[int, Death] = {}
        for order, (process, rank, exit_code, attempt) in enumerate(self._ends):
            code = exit_code or (reported[rank][1] if rank in reported else 0)
            if code and attempt == newest:
                is_first = self._spec.launcher == "mpirun" and rank in reported
                found[rank] = Death(
                    rank, process.instance, self._role(process), code, -1 if is_first else order, attempt
                )
        for order, (rank, (instance, code)) in enumerate(reported.items(), start=1):
            if (
                rank not in found
            ):  # it ended before it was found, so before the others; the last such rank is the root cause
                found[rank] = Death(rank, instance, "process", code, -order, newest)
        return list(found.values())

    def verdict(self, output: Output, launched: list[Launched]) -> Verdict:
        """Return why the run failed. If an emulated host has written its own reason to a file, the verdict quotes it.
        Call `Output.drain` first.
        """
        from cloudtrain.targets.local.service.verdict import in_own_words

        return in_own_words(self._verdict(output, launched), self._spec.failure_files)

    def _verdict(self, output: Output, launched: list[Launched]) -> Verdict:
        from cloudtrain.targets.local.service import verdict

        def lines_of(death: Death) -> list[str]:
            stderr, stdout = (output.tail(death.instance, death.rank, stream) for stream in ("stderr", "stdout"))
            return stderr if any(line.strip() for line in stderr) else stdout

        death = verdict.first_failure(self.of_newest_attempt(output), lines_of)
        if death is not None and self._killed_launcher is None:
            return verdict.rank_verdict(death, lines_of(death), instances=self._spec.instances)
        for process, item in zip(self._spec.processes, launched, strict=True):
            if item.exit_code and self._killed_launcher in (None, item):
                lines = output.tail(item.instance, None, "stderr") or output.tail(item.instance, None, "stdout")
                return verdict.launcher_verdict(item.role, item.instance, process.argv, item.exit_code, lines)
        return verdict.Verdict("the run failed, but no process reported a reason", [])

    def _read_reports(self, output: Output) -> dict[int, tuple[int, int]]:
        """Map each failed rank to its instance and exit code, as the launchers report them."""
        if self._spec.launcher == "processes":
            return {}
        return {
            rank: (instance, code)
            for instance in range(self._spec.instances)
            for rank, code in failed_ranks(output.tail(instance, None, "stderr")).items()
        }

    def _role(self, process: Rank | Launched) -> str:
        return process.role if isinstance(process, Launched) else "process"
