"""Look up the values of the job's secrets. This happens inside the job, and the values are stored
nowhere else.

A request contains only a reference to each secret, in `CLOUDTRAIN_SECRETS`: `{"HF_TOKEN":
"secretsmanager:prod/hf"}`.

    env:NAME                    another variable of the job's environment
    file:PATH                   a file that only its owner may read
    secretsmanager:NAME[#KEY]   AWS Secrets Manager; KEY selects a field of a JSON secret
    ssm:NAME                    the parameter store of AWS Systems Manager
    keyvault:VAULT/NAME         Azure Key Vault, with the job's managed identity
    keyvault:NAME               the workspace's own vault; needs azureml-core in the environment

cloudtrain's launchers call `resolved` before the script starts. `python -m
cloudtrain.runtime.secret_values` prints the values as shell commands for `eval`.
"""

from __future__ import annotations

import json
import os
import sys
import time

from cloudtrain.runtime.errors import SetupError

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Variables = Mapping[str, str]

VARIABLE = "CLOUDTRAIN_SECRETS"
"""The variable that maps name to reference, as JSON."""

VAULT_ENDPOINT = "AZURE_KEY_VAULT_ENDPOINT"
"""The variable with another address of Azure Key Vault, for tests and for private clouds."""

_IDENTITY = "http://169.254.169.254/metadata/identity/oauth2/token"
"""The address at which Azure's machines issue tokens for their managed identity."""

_MASK = "***"

_SHORTEST = 4
"""Fewest letters of a value that is masked. Masking shorter values would hide too much ordinary
text."""


def resolved(variables: Variables) -> dict[str, str]:
    """Look up the job's secrets. Return the variables to set, which override `variables`; an empty
    dict without secrets.

    The result also contains a new `CLOUDTRAIN_SECRETS`, which refers to these variables
    (`env:NAME`), so that a second call returns the same values.
    """
    values = {}
    for name, place in references(variables).items():
        values[name] = _value(name, place, variables)
    if values:
        again = {name: f"env:{name}" for name in values}
        values[VARIABLE] = json.dumps(again)
    return values


def load_secrets() -> None:
    """Put the job's secrets into `os.environ`, for scripts that cloudtrain's launchers do not
    start.

    Raises:
        SetupError: a secret cannot be read.
    """
    os.environ.update(resolved(os.environ))


def references(variables: Variables) -> dict[str, str]:
    """Return a map from the name of each secret of the job to its reference."""
    secrets: dict[str, str] = json.loads(variables.get(VARIABLE) or "{}")
    return secrets


def forms_of(values: Variables) -> tuple[str, ...]:
    """Return the texts that `masked` must hide, the longest first: each secret in `values`, which
    `resolved` returned, and each line of it. Texts of less than 4 characters are left out."""
    texts = set()
    for name, value in values.items():
        if name != VARIABLE:
            texts.update([value, *value.splitlines()])
    long = [text for text in texts if len(text) >= _SHORTEST]
    return tuple(sorted(long, key=len, reverse=True))


def masked(text: str, forms: Iterable[str]) -> str:
    """Replace each of `forms`, the texts that `forms_of` returned, by `***`."""
    for form in forms:
        text = text.replace(form, _MASK)
    return text


def _value(name: str, place: str, variables: Variables) -> str:
    problem = f"the secret `{name}` cannot be read"
    scheme, _, where = place.partition(":")
    reader = _READERS.get(scheme)
    if reader is None:
        raise SetupError(f"{problem}: `{scheme}:` is not a known source of secrets")
    try:
        value = reader(where, variables)
    except SetupError as error:
        raise SetupError(f"{problem}: {error.message}", hint=error.hint) from None
    if not value:
        raise SetupError(f"{problem}: `{place}` is empty")
    return value


def _of_variable(name: str, variables: Variables) -> str:
    if name not in variables:
        raise SetupError(
            f"the variable `{name}` is not set",
            hint=f"set it before you submit: `export {name}=...`",
        )
    return variables[name]


def _of_file(path: str, variables: Variables) -> str:  # noqa: ARG001 - as the other readers
    # As it was written.
    place = os.path.expanduser(path)
    try:
        with open(place, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        hint = f"write it into `{path}`, and `chmod 600 {path}`"
        raise SetupError(f"`{path}`: {reason}", hint=hint) from None
    if mode & 0o077:
        message = f"other users may read `{path}` (mode {mode:o})"
        raise SetupError(message, hint=f"`chmod 600 {path}`")
    return text.rstrip("\r\n")


def _of_secrets_manager(where: str, variables: Variables) -> str:
    name, _, key = where.partition("#")
    hint = f"allow `secretsmanager:GetSecretValue` on `{name}` to the job's role"
    answer = _ask_aws("secretsmanager", "get_secret_value", {"SecretId": name}, variables, hint)
    text = answer.get("SecretString")
    if text is None:
        text = answer["SecretBinary"].decode("utf-8", "replace")
    if not key:
        return str(text)
    try:
        value = json.loads(text)[key]
    except (ValueError, KeyError, TypeError):
        raise SetupError(f"`{name}` is not a JSON object with the key `{key}`") from None
    return value if isinstance(value, str) else json.dumps(value)


def _of_parameter_store(name: str, variables: Variables) -> str:
    hint = f"allow `ssm:GetParameter` on `{name}`, and `kms:Decrypt` on its key, to the job's role"
    words = {"Name": name, "WithDecryption": True}
    return str(_ask_aws("ssm", "get_parameter", words, variables, hint)["Parameter"]["Value"])


def _ask_aws(
    service: str, method: str, words: dict[str, Any], variables: Variables, hint: str
) -> Mapping[str, Any]:
    try:
        import boto3  # type: ignore[import-untyped]  # it has no types

        # nor has this
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
    except ImportError:
        raise SetupError(
            "boto3 is not installed here",
            hint="add `boto3` to the job's `environment.requirements`, or use an image that has it",
        ) from None
    name = str(next(iter(words.values())))
    region = name.split(":")[3] if name.startswith("arn:") else None
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_REGION"):
        region = region or variables.get(variable)
    try:
        client = boto3.client(service, region_name=region)
        answer: Mapping[str, Any] = getattr(client, method)(**words)
    except (BotoCoreError, ClientError) as error:
        raise SetupError(f"the request to AWS failed: {error}", hint=hint) from None
    return answer


def _of_key_vault(where: str, variables: Variables) -> str:
    vault, slash, name = where.partition("/")
    if not slash:
        return _of_workspace(where)
    host = vault if "." in vault else vault + ".vault.azure.net"
    endpoint = variables.get(VAULT_ENDPOINT) or "https://" + host
    token = _identity_token("https://" + host.split(".", 1)[1], variables)
    headers = {"Authorization": "Bearer " + token}
    hint = f"give the job's managed identity the role `Key Vault Secrets User` on `{vault}`"
    address = f"{endpoint}/secrets/{name}?api-version=7.4"
    return str(_get_json(address, headers, hint, "the vault")["value"])


def _of_workspace(name: str) -> str:
    hint = f"name the vault: `keyvault:VAULT/{name}`, which needs no package"
    try:
        from azureml.core import Run  # type: ignore[import-not-found]  # no extra of ours has it
    except ImportError:
        raise SetupError(
            "azureml-core, which reads the workspace's vault, is not installed here", hint=hint
        ) from None
    try:
        return str(Run.get_context().get_secret(name) or "")
    except Exception as error:  # noqa: BLE001 - the package has no base class for its errors
        raise SetupError(f"the workspace's vault refused the request: {error}", hint=hint) from None


def _identity_token(resource: str, variables: Variables) -> str:
    """Return an access token of the job's managed identity, from Azure ML's endpoint or else from
    the virtual machine's metadata service."""
    from urllib.parse import urlencode

    words = {"api-version": "2018-02-01", "resource": resource}
    headers = {"Metadata": "true"}
    client_key = "client_id"
    endpoint = variables.get("MSI_ENDPOINT")
    secret = variables.get("MSI_SECRET")
    if endpoint and secret:
        words["api-version"] = "2017-09-01"
        headers = {"secret": secret}
        client_key = "clientid"
    else:
        endpoint = _IDENTITY
    client = variables.get("DEFAULT_IDENTITY_CLIENT_ID")
    if client:
        words[client_key] = client
    address = f"{endpoint}?{urlencode(words)}"
    hint = 'give the compute a managed identity, or set `identity = "managed"` in [azureml]'
    who = "the job's managed identity"
    return str(_get_json(address, headers, hint, who, proxy=False)["access_token"])


def _get_json(
    address: str, headers: dict[str, str], hint: str, who: str, proxy: bool = True
) -> Mapping[str, Any]:
    """Return the JSON answer to a GET request. Try it three times if the service is busy or
    unreachable. `who` names the service in messages."""
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    opener = build_opener() if proxy else build_opener(ProxyHandler({}))
    request = Request(address, headers=headers)
    problem = ""
    for seconds in (0, 1, 2):
        time.sleep(seconds)
        try:
            with opener.open(request, timeout=10) as answer:
                body: Mapping[str, Any] = json.loads(answer.read().decode("utf-8"))
                return body
        except HTTPError as error:
            problem = f"{who} answers {error.code} {error.reason}"
            error.close()
            if error.code != 429 and error.code < 500:
                break
        except OSError as error:
            problem = f"{who} cannot be reached: {getattr(error, 'reason', error)}"
        except ValueError:
            problem = f"the answer of {who} is not JSON"
            break
    raise SetupError(problem, hint=hint)


_READERS = {
    "env": _of_variable,
    "file": _of_file,
    "secretsmanager": _of_secrets_manager,
    "ssm": _of_parameter_store,
    "keyvault": _of_key_vault,
}


def main() -> int:
    """Print the secrets as commands for a shell's `eval`. Return the exit code."""
    from shlex import quote

    try:
        values = resolved(os.environ)
    except SetupError as error:
        error.tell()
        return 1
    for name, value in values.items():
        sys.stdout.write(f"export {name}={quote(value)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
