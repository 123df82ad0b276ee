"""Files and values that hold credentials, made from random letters: none is, or ever was, a real one.

Values are put together here, when tests run, so that this repository holds nothing that a scanner would take for a
secret.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from typing import NamedTuple

HEX = "0123456789abcdef"
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
WORD = string.ascii_letters + string.digits
BASE64 = WORD + "+/"
URL64 = WORD + "-_"
BASE32 = string.ascii_uppercase + "234567"


class Kind(NamedTuple):
    """One kind of credential file: a name for the report, the path, the content and the values in it."""

    name: str
    path: str
    content: str
    values: tuple[str, ...]


class Maker:
    """Random values of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.values: list[str] = []

    def of(self, alphabet: str, length: int, *, before: str = "", after: str = "") -> str:
        """A value, at least one digit and one letter in it."""
        while True:
            middle = "".join(self._random.choices(alphabet, k=length))
            if any(letter.isdigit() for letter in middle) and any(
                letter.isalpha() for letter in middle
            ):
                value = f"{before}{middle}{after}"
                self.values.append(value)
                return value

    def letters(self, length: int, *, before: str = "") -> str:
        """A value without a digit."""
        self.values.append(before + "".join(self._random.choices(string.ascii_letters, k=length)))
        return self.values[-1]

    def uuid(self) -> str:
        """A random UUID."""
        text = self.of(HEX, 32)
        self.values[-1] = f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"
        return self.values[-1]

    def pem(self, kind: str, *, lines: int = 12) -> str:
        """A private key in PEM form."""
        body = "\n".join(self.of(BASE64, 64) for _ in range(lines))
        return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----\n"

    def jwt(self) -> str:
        """A JSON web token, whose parts begin as those of every token do."""
        head = (
            base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"1","typ":"JWT"}').decode().rstrip("=")
        )
        body = base64.urlsafe_b64encode(
            json.dumps({"sub": self.of(WORD, 12), "exp": 1999999999}).encode()
        ).decode()
        value = f"{head}.{body.rstrip('=')}.{self.of(URL64, 86)}"
        self.values.append(value)
        return value

    def password(self) -> str:
        """What a password manager makes, without characters that files would have to escape."""
        return self.of(WORD, 14)


Make = Callable[[Maker], tuple[str, str]]

_KINDS: dict[str, Make] = {
    # Clouds
    "aws credentials": lambda m: (
        "deploy/aws.ini",
        f"[default]\naws_access_key_id = {m.of(BASE32, 16, before='AKIA')}\n"
        f"aws_secret_access_key = {m.of(BASE64, 40)}\n",
    ),
    "aws secret key alone": lambda m: ("settings.sh", f"export AWS_SECRET_ACCESS_KEY='{m.of(BASE64, 40)}'\n"),
    "aws key in code": lambda m: (
        "upload.py",
        f"import boto3\n\ns3 = boto3.client('s3', aws_access_key_id='{m.of(BASE32, 16, before='AKIA')}', "
        f"aws_secret_access_key='{m.of(BASE64, 40)}')\n",
    ),
    "aws session": lambda m: (
        "session.env.txt",
        f"AWS_ACCESS_KEY_ID={m.of(BASE32, 16, before='ASIA')}\nAWS_SESSION_TOKEN={m.of(BASE64, 340)}\n",
    ),
    "aws folder": lambda m: (".aws/config", f"[profile x]\naws_secret_access_key = {m.of(BASE64, 40)}\n"),
    "azure storage connection string": lambda m: (
        "conf/storage.txt",
        "DefaultEndpointsProtocol=https;AccountName=vision;"
        f"AccountKey={m.of(BASE64, 86)}==;EndpointSuffix=core.windows.net\n",
    ),
    "azure shared access signature": lambda m: (
        "read.py",
        "URL = 'https://vision.blob.core.windows.net/data?sv=2023-11-03&sr=c&sp=rl&se=2030-01-01T00%3A00%3A00Z"
        f"&sig={m.of(WORD, 43)}%3D'\n",
    ),
    "azure service bus": lambda m: (
        "bus.yaml",
        "bus: Endpoint=sb://jobs.servicebus.windows.net/;SharedAccessKeyName=send;"
        f"SharedAccessKey={m.of(BASE64, 43)}=\n",
    ),
    "azure client secret": lambda m: (
        "azure.json",
        json.dumps({"clientId": m.uuid(), "clientSecret": f"{m.of(WORD, 3)}8Q~{m.of(WORD, 34)}"}),
    ),
    "azure folder": lambda m: (".azure/msal_token_cache.json", json.dumps({"secret": m.of(URL64, 900)})),
    "azure publish settings": lambda m: (
        "vision.PublishSettings",
        f'<publishData><publishProfile userName="$vision" userPWD="{m.of(WORD, 60)}"/></publishData>\n',
    ),
    "azure cosmos key": lambda m: (
        "cosmos.env.txt",
        f"AccountEndpoint=https://v.documents.azure.com:443/;AccountKey={m.of(BASE64, 86)}==;\n",
    ),
    "gcloud application default credentials": lambda m: (
        "gcp/application_default_credentials.json",
        json.dumps(
            {
                "client_id": f"{m.of('0123456789a', 12)}.apps.googleusercontent.com",
                "client_secret": m.of(URL64, 24, before="d-"),
                "refresh_token": m.of(URL64, 90, before="1//0"),
                "type": "authorized_user",
            },
            indent=2,
        ),
    ),
    "gcp service account": lambda m: (
        "vision-123.json",
        json.dumps(
            {"type": "service_account", "private_key_id": m.of(HEX, 40), "private_key": m.pem(""), "client_email": "a@b"}
        ),
    ),
    "google api key": lambda m: ("maps.js", f"const key = '{m.of(URL64, 35, before='AIza')}';\n"),
    "google oauth secret": lambda m: (
        "oauth.json", json.dumps({"installed": {"client_secret": m.of(URL64, 28, before="GOCSPX-")}}),
    ),
    "gcloud folder": lambda m: (".config/gcloud/access_tokens.db", m.of(URL64, 200, before="ya29.")),
    "digital ocean": lambda m: ("do.sh", f"doctl auth init -t {m.of(HEX, 64, before='dop_v1_')}\n"),
    "oracle cloud": lambda m: (".oci/config", f"[DEFAULT]\nfingerprint=aa:bb\npass_phrase={m.password()}\n"),
    "alibaba": lambda m: ("ali.ini", f"access_key_id={m.of(WORD, 20, before='LTAI')}\n"),
    "cloudflare": lambda m: ("cf.toml", f"cloudflare_api_key = '{m.of(HEX, 37)}'\n"),
    # Tokens of code hosts and registries
    "github classic": lambda m: ("clone.sh", f"git clone https://{m.of(WORD, 36, before='ghp_')}@github.com/o/r\n"),
    "github fine grained": lambda m: (
        "notes.md", f"token: {m.of(WORD, 22, before='github_pat_')}_{m.of(WORD, 59)}\n",
    ),
    "github app": lambda m: ("ci.yml", f"GH: {m.of(WORD, 36, before='ghs_')}\n"),
    "gh cli": lambda m: ("gh/hosts.yml", f"github.com:\n    oauth_token: {m.of(WORD, 36, before='gho_')}\n"),
    "gitlab": lambda m: ("gl.py", f"gl = Gitlab(private_token='{m.of(URL64, 20, before='glpat-')}')\n"),
    "git credentials": lambda m: (".git-credentials", f"https://me:{m.password()}@git.example.org\n"),
    "url with a password": lambda m: (
        "requirements.txt", f"--index-url https://ci:{m.password()}@pypi.example.org/simple\ntorch\n",
    ),
    "npm": lambda m: (".npmrc", f"//registry.npmjs.org/:_authToken={m.of(WORD, 36, before='npm_')}\n"),
    "npm, another registry": lambda m: (".npmrc", f"//npm.example.org/:_authToken={m.uuid()}\n"),
    "pypirc": lambda m: (".pypirc", f"[pypi]\nusername = me\npassword = {m.password()}\n"),
    "pypi": lambda m: ("publish.sh", f"twine upload -p {m.of(URL64, 150, before='pypi-AgEIcHlwaS5vcmc')} dist/*\n"),
    "cargo": lambda m: (".cargo/credentials.toml", f"[registry]\ntoken = '{m.of(WORD, 32, before='cio')}'\n"),
    "gem": lambda m: (".gem/credentials", f":rubygems_api_key: {m.of(HEX, 48, before='rubygems_')}\n"),
    "docker config": lambda m: (
        ".docker/config.json",
        json.dumps({"auths": {"registry.example.org": {"auth": m.of(WORD, 40)}}}),
    ),
    "docker config under another name": lambda m: (
        "registry.json",
        json.dumps(
            {"auths": {"registry.example.org": {"auth": base64.b64encode(f"me:{m.password()}".encode()).decode()}}},
            indent=2,
        ),
    ),
    "dockercfg": lambda m: (".dockercfg", json.dumps({"registry.example.org": {"auth": m.of(WORD, 40)}})),
    "artifactory": lambda m: ("pip.sh", f"jfrog rt c --apikey={m.of(WORD, 69, before='AKCp')}\n"),
    # Models and trackers
    "hugging face": lambda m: ("train.py", f"login(token='{m.letters(34, before='hf_')}')\n"),
    "hugging face token file": lambda m: (
        ".cache/huggingface/token", m.letters(34, before="hf_"),
    ),
    "wandb": lambda m: ("run.sh", f"export WANDB_API_KEY={m.of(HEX, 40)}\n"),
    "wandb in code": lambda m: ("log.py", f"import wandb\nwandb.login(key='{m.of(HEX, 40)}')\n"),
    "openai": lambda m: (
        "eval.py", f"client = OpenAI(api_key='sk-proj-{m.of(URL64, 74)}T3BlbkFJ{m.of(URL64, 74)}')\n",
    ),
    "openai, first form": lambda m: ("eval.py", f"openai.api_key = 'sk-{m.of(WORD, 20)}T3BlbkFJ{m.of(WORD, 20)}'\n"),
    "anthropic": lambda m: ("judge.py", f"key = 'sk-ant-api03-{m.of(URL64, 93)}AA'\n"),
    "kaggle": lambda m: ("kaggle.json", json.dumps({"username": "me", "key": m.of(HEX, 32)})),
    "comet": lambda m: (".comet.config", f"[comet]\napi_key={m.of(WORD, 25)}\n"),
    "neptune": lambda m: ("neptune.sh", f"export NEPTUNE_API_TOKEN='{m.of(WORD, 120, before='eyJhcGlfYWRkcmVzcyI6')}'\n"),
    "mlflow": lambda m: (".mlflow/credentials", f"[mlflow]\nmlflow_tracking_password = {m.password()}\n"),
    "cohere": lambda m: ("co.py", f"co_api_key = '{m.of(WORD, 40)}'\n"),
    "replicate": lambda m: ("r.sh", f"export REPLICATE_API_TOKEN={m.of(WORD, 37, before='r8_')}\n"),
    "groq": lambda m: ("g.py", f"Groq(api_key='{m.of(WORD, 52, before='gsk_')}')\n"),
    # Messages, payments, monitoring
    "slack bot": lambda m: (
        "notify.py",
        f"TOKEN = '{m.of(WORD, 24, before='xoxb-91827364550-71625344098-')}'\n",
    ),
    "slack webhook": lambda m: (
        "hook.py",
        f"URL = 'https://hooks.slack.com/services/{m.of(UPPER, 9, before='T')}/{m.of(UPPER, 10, before='B')}/"
        f"{m.of(WORD, 24)}'\n",
    ),
    "teams webhook": lambda m: (
        "teams.py",
        f"URL = 'https://vision.webhook.office.com/webhookb2/{m.uuid()}@{m.uuid()}/IncomingWebhook/{m.of(HEX, 32)}/"
        f"{m.uuid()}'\n",
    ),
    "telegram": lambda m: ("bot.py", f"telegram_bot_token = '8172635440:A{m.of(URL64, 34)}'\n"),
    "discord": lambda m: ("d.py", f"discord_client_secret = '{m.of(URL64, 32)}'\n"),
    "stripe": lambda m: ("pay.py", f"stripe.api_key = '{m.of(WORD, 24, before='sk_live_')}'\n"),
    "sendgrid": lambda m: ("mail.py", f"sg = Client('SG.{m.of(URL64, 22)}.{m.of(URL64, 43)}')\n"),
    "twilio": lambda m: ("sms.py", f"key = '{m.of(HEX, 32, before='SK')}'\n"),
    "datadog": lambda m: ("dd.yaml", f"datadog_api_key: {m.of(HEX, 40)}\n"),
    "grafana": lambda m: ("gr.sh", f"TOKEN=glsa_{m.of(WORD, 32)}_{m.of(HEX, 8)}\n"),
    "sentry": lambda m: ("s.env.txt", f"SENTRY_AUTH_TOKEN={m.of(HEX, 64, before='sntryu_')}\n"),
    "new relic": lambda m: ("nr.yml", f"license: {m.of(UPPER, 27, before='NRAK-')}\n"),
    # Infrastructure
    "vault token file": lambda m: (".vault-token", m.of(URL64, 95, before="hvs.")),
    "vault token": lambda m: ("v.sh", f"export VAULT_TOKEN={m.of(URL64, 95, before='hvs.')}\n"),
    "terraform state": lambda m: (
        "terraform.tfstate",
        json.dumps({"version": 4, "resources": [{"instances": [{"attributes": {"password": m.password()}}]}]}),
    ),
    "terraform state, backup": lambda m: ("infra/terraform.tfstate.backup", json.dumps({"x": m.password()})),
    "terraform variables": lambda m: ("prod.tfvars", f'db_password = "{m.password()}"\n'),
    "terraform cloud": lambda m: (
        ".terraformrc", f'credentials "app.terraform.io" {{ token = "{m.of(WORD, 14)}.atlasv1.{m.of(WORD, 67)}" }}\n',
    ),
    "pulumi": lambda m: ("p.sh", f"export PULUMI_ACCESS_TOKEN={m.of(HEX, 40, before='pul-')}\n"),
    "kube config": lambda m: (
        ".kube/config", f"users:\n- name: me\n  user:\n    client-key-data: {m.of(BASE64, 1600)}\n",
    ),
    "kube config under another name": lambda m: (
        "cluster.yaml",
        "apiVersion: v1\nkind: Config\nusers:\n- name: me\n  user:\n"
        f"    client-key-data: {base64.b64encode(m.pem('RSA ').encode()).decode()}\n",
    ),
    "kube token": lambda m: ("cluster.yaml", f"users:\n- name: ci\n  user:\n    token: {m.jwt()}\n"),
    "kubernetes secret": lambda m: (
        "secret.yaml",
        f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\ndata:\n  password: {m.of(WORD, 24)}==\n",
    ),
    "ansible vault password": lambda m: ("ansible.cfg.yml", f"ansible_become_password: {m.password()}\n"),
    "htpasswd": lambda m: (".htpasswd", f"me:$apr1${m.of(WORD, 8)}${m.of(WORD, 22)}\n"),
    "jwt": lambda m: ("call.py", f"headers = {{'Authorization': 'Bearer {m.jwt()}'}}\n"),
    "curl with a header": lambda m: (
        "call.sh", f"curl -H 'Authorization: Bearer {m.of(WORD, 40)}' https://api.example.org/v1\n",
    ),
    # Keys
    "ssh key": lambda m: (".ssh/id_ed25519", m.pem("OPENSSH ", lines=5)),
    "ssh key under another name": lambda m: ("deploy", m.pem("OPENSSH ", lines=5)),
    "rsa key in code": lambda m: ("sign.py", f'KEY = """\n{m.pem("RSA ")}"""\n'),
    "encrypted key": lambda m: ("k.txt", m.pem("ENCRYPTED ")),
    "pgp key": lambda m: (
        "me.asc",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n" + "\n".join(m.of(BASE64, 64) for _ in range(9))
        + "\n-----END PGP PRIVATE KEY BLOCK-----\n",
    ),
    "putty key": lambda m: (
        "login.txt", f"{'PuTTY'}-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\n{m.of(BASE64, 48)}\n",
    ),
    "age key": lambda m: ("key.txt", f"{m.of('QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L', 58, before='AGE-SECRET-KEY-1')}\n"),
    "pem key": lambda m: ("tls/server.pem", m.pem("")),
    "pkcs12": lambda m: ("cert.p12", m.of(WORD, 100)),
    "java key store": lambda m: ("release.jks", m.of(WORD, 100)),
    "json web key": lambda m: (
        "jwk.json", json.dumps({"kty": "RSA", "n": m.of(URL64, 342), "e": "AQAB", "d": m.of(URL64, 342)}),
    ),
    "kerberos": lambda m: ("svc.keytab", m.of(WORD, 60)),
    # Databases and passwords
    "netrc": lambda m: (".netrc", f"machine api.wandb.ai\n  login user\n  password {m.of(HEX, 40)}\n"),
    "netrc under another name": lambda m: ("netrc.txt", f"machine api.wandb.ai login user password {m.of(HEX, 40)}\n"),
    "pgpass": lambda m: (".pgpass", f"db:5432:*:me:{m.password()}\n"),
    "my.cnf": lambda m: (".my.cnf", f"[client]\nuser=me\npassword={m.password()}\n"),
    "database address": lambda m: ("db.py", f"DSN = 'postgresql://app:{m.password()}@db.internal:5432/vision'\n"),
    "mongo address": lambda m: ("m.yml", f"uri: mongodb+srv://app:{m.password()}@c0.abcde.mongodb.net/\n"),
    "redis address": lambda m: ("q.py", f"broker = 'redis://:{m.password()}@cache.internal:6379/0'\n"),
    "sql server": lambda m: (
        "appsettings.json",
        json.dumps({"Db": f"Server=tcp:v.database.windows.net;User ID=app;Password={m.password()};Encrypt=True"}),
    ),
    "streamlit": lambda m: (".streamlit/secrets.toml", f'[db]\npassword = "{m.password()}"\n'),
    "secrets in yaml": lambda m: ("secrets.yaml", f"db:\n  password: {m.password()}\n"),
    "password in configuration": lambda m: ("config.yaml", f"database:\n  host: db\n  password: {m.password()}\n"),
    "password in python": lambda m: ("conf.py", f'DB_PASSWORD = "{m.password()}"\n'),
    "environment file": lambda m: (".env", f"API_TOKEN={m.of(WORD, 32)}\n"),
    "environment file under another name": lambda m: ("prod.env", f"API_TOKEN={m.of(WORD, 32)}\n"),
    "databricks": lambda m: (".databrickscfg", f"[DEFAULT]\nhost = https://x\ntoken = {m.of(HEX, 32, before='dapi')}\n"),
    "snowflake": lambda m: (".snowsql/config", f"[connections]\npassword = {m.password()}\n"),
    "dbt": lambda m: (".dbt/profiles.yml", f"x:\n  outputs:\n    dev:\n      password: {m.password()}\n"),
    "rclone": lambda m: ("rclone.conf", f"[s3]\ntype = s3\nsecret_access_key = {m.of(BASE64, 40)}\n"),
    "s3cfg": lambda m: (".s3cfg", f"[default]\nsecret_key = {m.of(BASE64, 40)}\n"),
    "boto": lambda m: (".boto", f"[Credentials]\ngs_oauth2_refresh_token = {m.of(URL64, 60, before='1//')}\n"),
    "openvpn": lambda m: ("office.ovpn", "client\n<key>\n" + m.pem("") + "</key>\n"),
    "jupyter": lambda m: (
        ".jupyter/jupyter_server_config.json", json.dumps({"PasswordIdentityProvider": {"hashed_password": m.of(WORD, 60)}}),
    ),
    "keepass": lambda m: ("team.kdbx", m.of(WORD, 60)),
    "shell history": lambda m: (".bash_history", f"export TOKEN={m.of(WORD, 32)}\n"),
    "behind the first 4 KiB": lambda m: (
        "long.py", "# a line of a comment, as there are many\n" * 400 + f"T = '{m.of(WORD, 36, before='ghp_')}'\n",
    ),
    "in a notebook": lambda m: (
        "explore.ipynb",
        json.dumps(
            {"cells": [{"cell_type": "code", "source": [f"os.environ['HF_TOKEN'] = '{m.letters(34, before='hf_')}'\n"]}]},
            indent=1,
        ),
    ),
    "in windows text": lambda m: ("w.ini", f"[aws]\r\naws_secret_access_key={m.of(BASE64, 40)}\r\n"),
}  # fmt: skip


def kinds(seed: int) -> list[Kind]:
    """Every kind of credential file, with the values that a seed gives it."""
    found = []
    for number, (name, make) in enumerate(_KINDS.items()):
        maker = Maker(seed * 1000 + number)
        path, content = make(maker)
        found.append(Kind(name, path, content, tuple(maker.values)))
    return found
