"""boto3 clients for one region and profile, with retries, and with new credentials when the old
ones expire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import methodcaller
from threading import Lock
from typing import Any

from cloudtrain.errors import RunNotFound, SettingsError, TargetError
from cloudtrain.system.plugins import require
from cloudtrain.targets.common.services import Expired
from cloudtrain.targets.sagemaker.aws_errors import FailedCall, errors_of_boto3, translate_error
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject
from cloudtrain.targets.sagemaker.settings import AwsPlace
from cloudtrain.version import __version__


def not_found(name: str, region: str | None) -> RunNotFound:
    """Return the error for a run that does not exist in the account."""
    where = f" in `{region}`" if region else ""
    return RunNotFound(
        f"SageMaker has no run `{name}`{where}",
        hint="`cloudtrain ps --target sagemaker` lists the runs",
    )


def was_repeated(error: TargetError) -> bool:
    """Return whether botocore sent the request more than once before AWS returned this error."""
    response = getattr(error.__cause__, "response", None) or {}
    return bool(response.get("ResponseMetadata", {}).get("RetryAttempts", 0))


_ATTEMPTS = 8
"""Tries of one request, with growing pauses in between (about a minute in all).

AWS_MAX_ATTEMPTS overrides the number.
"""

_CONNECT_TIMEOUT = 10
_READ_TIMEOUT = 60
"""Timeouts in seconds."""

_ABOUT = (
    "TrainingJobName", "ProcessingJobName", "ResourceArn", "logGroupName", "RoleName", "Bucket",
    "ServiceCode",
)  # fmt: skip
"""Arguments that name the object of a request, for messages."""


class Clients:
    """boto3 clients for one region and profile. Clients are made on first use; `renew` discards
    them."""

    def __init__(self, place: AwsPlace, environ: Mapping[str, str]) -> None:
        self.place = place
        self._environ = environ
        self._session: Any = None
        self._made: JsonObject = {}
        self._lock = Lock()

    def call(self, service: str, operation: str, **arguments: Any) -> JsonObject:
        """Call a boto3 operation, such as `describe_training_job`, and return its response.

        If the credentials have expired, they are read again, and the request is repeated once.
        """
        use = methodcaller(operation, **arguments)
        answer: JsonObject = self.attempt(service, operation, arguments, use)
        return answer

    def attempt(
        self,
        service: str,
        operation: str,
        arguments: JsonMapping,
        use: Any,
        *,
        is_repeated: bool = False,
    ) -> Any:
        """Call `use` with the client of `service`; if the credentials have expired, call it again
        with new credentials.

        botocore's errors become cloudtrain's errors. `operation` and `arguments` are only for their
        messages.
        """
        try:
            return use(self._client(service))
        except errors_of_boto3() as error:
            name = operation.title().replace("_", "")  # `CreateTrainingJob`
            about = next((str(arguments[key]) for key in _ABOUT if key in arguments), "")
            failed = FailedCall(service, name, self.region(), self.place.profile, about)
            failure = translate_error(error, failed)
            if is_repeated or not isinstance(failure, Expired):
                raise failure from error
        self.renew()
        return self.attempt(service, operation, arguments, use, is_repeated=True)

    def pages(
        self,
        service: str,
        operation: str,
        *,
        token: str = "NextToken",
        next_token: str | None = None,
        **arguments: Any,
    ) -> Iterator[JsonObject]:
        """Yield every page of an operation's response.

        `token` is the field of the request that selects a page. `next_token` is the field of the
        response that contains the value for the next page; by default, it has the same name.
        """
        more: JsonObject = {}
        while True:
            page = self.call(service, operation, **arguments, **more)
            yield page
            following = page.get(next_token or token)
            if not following:
                return
            more = {token: following}

    def objects(self, **arguments: Any) -> Iterator[JsonObject]:
        """Yield the objects of an S3 bucket, with key and size."""
        tokens = {"token": "ContinuationToken", "next_token": "NextContinuationToken"}
        for page in self.pages("s3", "list_objects_v2", **tokens, **arguments):
            yield from page.get("Contents", ())

    def renew(self) -> None:
        """Discard the session and its clients, so that the next request reads the credentials
        again."""
        with self._lock:
            self._session = None
            self._made.clear()

    def region(self) -> str | None:
        """Return the region of the requests; None if it is not set, or not known before the first
        request."""
        if self.place.region or self._session is None:
            return self.place.region
        region: str | None = self._session.region_name
        return region

    def _client(self, service: str) -> Any:
        with self._lock:  # threads may share clients, but not the session that makes them
            if service not in self._made:
                if self._session is None:
                    boto3 = require("boto3", extra="sagemaker")
                    # boto3 itself reads only AWS_DEFAULT_REGION
                    region = self.place.region or self._environ.get("AWS_REGION")
                    self._session = boto3.Session(
                        profile_name=self.place.profile, region_name=region
                    )
                self._made[service] = self._new_client(service)
            return self._made[service]

    def _new_client(self, service: str) -> Any:
        """Make a client, and translate the ValueError that boto3 raises for an invalid endpoint
        URL."""
        try:
            return self._session.client(service, config=self._config())
        except errors_of_boto3():
            raise
        except ValueError as error:
            raise SettingsError(
                f"boto3 cannot create a client for {service}: {error}",
                hint=(
                    "begin `AWS_ENDPOINT_URL`, or `endpoint_url` in `~/.aws/config`, with "
                    "`http://` or `https://`"
                ),
            ) from error

    def _config(self) -> Any:
        """Return botocore's configuration: retries and timeouts."""
        config = require("botocore.config", extra="sagemaker")
        wanted = self._environ.get("AWS_MAX_ATTEMPTS", "")
        attempts = int(wanted) if wanted.isdigit() else 0
        mode = self._environ.get("AWS_RETRY_MODE") or "standard"
        return config.Config(
            retries={"mode": mode, "total_max_attempts": attempts or _ATTEMPTS},
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=_READ_TIMEOUT,
            user_agent_extra=f"cloudtrain/{__version__}",
        )
