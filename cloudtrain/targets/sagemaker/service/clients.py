"""boto3 clients for one region and profile, with retries, and with new credentials when the old ones expire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

import cloudtrain
from cloudtrain.errors import SettingsError
from cloudtrain.system.extras import require
from cloudtrain.targets.common.provider_errors import Expired
from cloudtrain.targets.sagemaker.account_ref import AccountRef
from cloudtrain.targets.sagemaker.service.provider_errors import Call, translate_error

_ATTEMPTS = 8
"""Tries of one request, with growing pauses in between (about a minute in all).

AWS_MAX_ATTEMPTS overrides the number.
"""

_CONNECT_TIMEOUT, _READ_TIMEOUT = 10, 60
"""Timeouts in seconds."""

_ABOUT = (
    "TrainingJobName", "ProcessingJobName", "ResourceArn", "logGroupName", "RoleName", "Bucket", "ServiceCode",
)  # fmt: skip
"""Arguments that name the object of a request, for messages."""


class Clients:
    """boto3 clients for one region and profile. Clients are made on first use; `renew` discards them."""

    def __init__(self, place: AccountRef, environ: Mapping[str, str]) -> None:
        self.place = place
        self._environ = environ
        self._session: Any = None
        self._made: dict[str, Any] = {}
        self._lock = Lock()

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call a boto3 operation, such as `describe_training_job`, and return its response.

        If the credentials have expired, they are read again, and the request is repeated once.

        Raises:
            TargetError: see `provider_errors`.
            SettingsError: the profile does not exist, the region is missing, or the endpoint is not a URL.
        """
        answer: dict[str, Any] = self.attempt(
            service, operation, arguments, lambda client: getattr(client, operation)(**arguments)
        )
        return answer

    def attempt(self, service: str, operation: str, arguments: Mapping[str, Any], use: Any) -> Any:
        """Call `use` with the client of `service`; if the credentials have expired, call it again with new credentials.

        botocore's errors become cloudtrain's errors. `operation` and `arguments` are only for their messages.
        """
        try:
            return self._attempt(service, operation, arguments, use)
        except Expired:
            self.renew()
            return self._attempt(service, operation, arguments, use)

    def pages(
        self, service: str, operation: str, *, token: str = "NextToken", next_token: str | None = None, **arguments: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield every page of an operation's response.

        `token` is the field of the request that selects a page. `next_token` is the field of the response that contains
        the value for the next page; by default, it has the same name.
        """
        more: dict[str, Any] = {}
        while True:
            page = self.call(service, operation, **arguments, **more)
            yield page
            following = page.get(next_token or token)
            if not following:
                return
            more = {token: following}

    def renew(self) -> None:
        """Discard the session and its clients, so that the next request reads the credentials again."""
        with self._lock:
            self._session = None
            self._made.clear()

    def region(self) -> str | None:
        """Return the region of the requests; None if it is not set, or not known before the first request."""
        return self.place.region or (self._session.region_name if self._session is not None else None)

    def _attempt(self, service: str, operation: str, arguments: Mapping[str, Any], use: Any) -> Any:
        try:
            return use(self._client(service))
        except _errors() as error:
            call = Call(service, _camel(operation), self.region(), self.place.profile, _about(arguments))
            raise translate_error(error, call) from error

    def _client(self, service: str) -> Any:
        with self._lock:  # threads may share clients, but not the session that makes them
            if service not in self._made:
                if self._session is None:
                    boto3 = require("boto3", extra="sagemaker")
                    self._session = boto3.Session(profile_name=self.place.profile, region_name=self._region_name())
                self._made[service] = self._new_client(service)
            return self._made[service]

    def _new_client(self, service: str) -> Any:
        """Make a client, and translate the ValueError that boto3 raises for an invalid endpoint URL."""
        try:
            return self._session.client(service, config=self._config())
        except _errors():
            raise
        except ValueError as error:
            hint = "begin `AWS_ENDPOINT_URL`, or `endpoint_url` in `~/.aws/config`, with `http://` or `https://`"
            raise SettingsError(
                f"boto3 cannot create a client for {service}: {error}", hint=hint, code="CT915"
            ) from error

    def _region_name(self) -> str | None:
        """Return the run's region, or else AWS_REGION, which boto3 does not read itself; None if both are missing."""
        return self.place.region or self._environ.get("AWS_REGION")

    def _config(self) -> Any:
        config = require("botocore.config", extra="sagemaker")
        attempts = self._environ.get("AWS_MAX_ATTEMPTS", "")
        return config.Config(
            retries={
                "mode": self._environ.get("AWS_RETRY_MODE") or "standard",
                "total_max_attempts": int(attempts) if attempts.isdigit() and int(attempts) else _ATTEMPTS,
            },
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=_READ_TIMEOUT,
            user_agent_extra=f"cloudtrain/{cloudtrain.__version__}",
        )


def _errors() -> tuple[type[Exception], ...]:
    """Return the base classes of all exceptions that boto3 raises."""
    exceptions = require("botocore.exceptions", extra="sagemaker")
    parsers = require("botocore.parsers", extra="sagemaker")
    transfer = require("s3transfer.exceptions", extra="sagemaker")
    return (
        exceptions.BotoCoreError,
        exceptions.ClientError,
        parsers.ResponseParserError,
        transfer.RetriesExceededError,
    )


def _camel(operation: str) -> str:
    """Return an operation's API name: `CreateTrainingJob` for `create_training_job`."""
    return "".join(word.capitalize() for word in operation.split("_"))


def _about(arguments: Mapping[str, Any]) -> str:
    return next((str(arguments[name]) for name in _ABOUT if name in arguments), "")
