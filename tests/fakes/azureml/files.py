"""What a job writes: logs and artifacts in the workspace's artifact store, outputs in its blob store."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fakes.azureml.blobs import Blobs

ARTIFACTS = "azureml"
OUTPUTS = "azureml-blobstore-1"
"""The containers behind `workspaceartifactstore` and `workspaceblobstore`."""

_LOG_FOLDERS = ("user_logs/", "system_logs/", "azureml-logs/", "logs/")


def artifact(job: str, path: str = "") -> str:
    """The name of a blob that a job writes."""
    return f"ExperimentRun/dcid.{job}/{path}"


class Logs:
    """`fake.logs`: what stands under `logFiles` of a run, which lists a file once it has been written."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def write(self, job: str, file: str, *lines: str) -> None:
        """Append whole lines to `user_logs/std_log_process_0.txt` or another file."""
        self.write_bytes(job, file, "".join(f"{line}\n" for line in lines).encode())

    def write_bytes(self, job: str, file: str, data: bytes) -> None:
        """Append any bytes: half a line, half a character."""
        self._blobs.append(ARTIFACTS, artifact(job, file), data)

    def files(self, job: str) -> Iterator[str]:
        """The files that there are by now."""
        start = artifact(job)
        for name in sorted(self._blobs.containers.get(ARTIFACTS, ())):
            if name.startswith(start) and name[len(start) :].startswith(_LOG_FOLDERS):
                yield name[len(start) :]


class Outputs:
    """`fake.outputs`: files of named outputs, under `azureml/{job}/{output}/`."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def write(self, job: str, output: str, path: str, data: bytes) -> None:
        self._blobs.put(OUTPUTS, f"azureml/{job}/{output}/{path}", data)

    def write_artifact(self, job: str, path: str, data: bytes) -> None:
        """What a script left in `./outputs`, such as `outputs/metrics.json`."""
        self._blobs.put(ARTIFACTS, artifact(job, path), data)
