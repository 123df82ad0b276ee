"""cloudtrain's rules for secrets in addition to those of gitleaks. They cover keys, URLs and settings with a
password, the files of docker, kubectl and netrc, cloud accounts, and the experiment trackers and model hosts of machine
learning."""

from __future__ import annotations

from cloudtrain.bundle.secrets.rule import Allowed, Rule
from cloudtrain.bundle.secrets.suspects import SETTINGS

_IS = r"""["'\]]{0,2}[ \t]{0,8}(?:=>|:=|[:=])[ \t]{0,8}["']?"""
"""The separator between a name and its value, in settings and in code."""

_VALUE = r"""([^\s"'`,;<>{}()$%\\]{8,128})"""
_LINE_END = r"""["']?[ \t]*,?[ \t]*\r?$"""

_USER = r"""://[^\s/:@,"'<>{}$\\`|]{0,64}:"""
_PASSWORD = r"""[^\s/@,"'<>{}$\\`|]"""
_HOST = r"""@[\w\[]"""

_CONNECTION = r"(?:server|data source|host)=[^;\n]{3,200};[^\n]{0,300}?"
_PASSWORD_NAMES = (b"passw", b"passphrase", b"pass_phrase", b"pwd", b"secret")

_EMULATOR = r"^Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6"
"""The key that every Azurite has, as printed in its documentation."""

OWN_RULES = (
    # Keys
    Rule("private-key", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
         r"(?:(?!-----END)[\s\S]){0,500}?([A-Za-z0-9+/]{24})", (b"-----begin",)),
    Rule("putty-private-key", r"PuTTY-User-Key-File-\d: \S", (b"putty-user-key-file",)),
    Rule("json-web-key", r'"d"\s*:\s*"([A-Za-z0-9_-]{40,})"', (b'"kty"',), entropy=4),
    Rule("kubernetes-client-key", r"client-key-data:\s*[\"']?([A-Za-z0-9+/]{64,}={0,2})", (b"client-key-data",)),
    Rule("kubernetes-secret", r"(?m)^kind: Secret\b", (b"kind: secret",), certain=False, path=r"(?i)\.ya?ml$"),
    # Addresses, headers and files with a password
    Rule("credentials-in-address", rf"{_USER}({_PASSWORD}{{10,200}}){_HOST}", (b"://",), entropy=3, random=True),
    Rule("password-in-address", rf"{_USER}({_PASSWORD}{{6,200}}){_HOST}", (b"://",), certain=False, entropy=2.2,
         random=True),
    Rule("authorization-header",
         r"(?i)authorization[\"']?\s*[:=,]\s*[\"']?(?:bearer|basic|token)\s+([A-Za-z0-9._~+/=-]{20,})",
         (b"authorization",), entropy=3.5, random=True),
    Rule("netrc-password", r"(?i)machine\s+\S+\s+login\s+\S+\s+password\s+(\S{6,})", (b"machine",), entropy=2.5,
         random=True),
    Rule("database-password", rf"(?i){_CONNECTION}(?:password|pwd)=([^;\"'\s<>{{}}$]{{8,128}})[;\"']",
         (b"password=", b"pwd="), entropy=2.75, random=True),
    Rule("password-hash", r"(?m)^[^\s:]{1,64}:(\$(?:apr1|2[aby]|5|6)\$[./A-Za-z0-9$]{20,})",
         (b"$apr1$", b"$2", b"$5$", b"$6$"), certain=False),
    Rule("docker-registry-auth", r'"auth"\s*:\s*"([A-Za-z0-9+/]{12,}={0,2})"', (b'"auth"',), entropy=2.5, random=True),
    Rule("npm-registry-token", r"_(?:authToken|auth|password)\s*=\s*[\"']?([A-Za-z0-9+/_=-]{16,})",
         (b"_auth", b"_password"), path=r"npmrc|yarnrc", entropy=3, random=True),
    # Clouds
    Rule("aws-secret-access-key", rf"(?i)secret_?access_?key{_IS}([A-Za-z0-9/+]{{40}})(?![A-Za-z0-9/+=])",
         (b"secret_access_key", b"secretaccesskey"), entropy=3.5, random=True),
    Rule("aws-session-token", rf"(?i)(?:session|security)_?token{_IS}([A-Za-z0-9/+=]{{100,}})",
         (b"session_token", b"sessiontoken", b"security_token"), entropy=4, random=True),
    Rule("azure-storage-key", r"(?i)(?:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{40,}={0,2})",
         (b"accesskey=", b"accountkey="), entropy=3.5, allowed=(Allowed((_EMULATOR,)),)),
    Rule("azure-shared-access-signature", r"(?i)[?&;]sig=([A-Za-z0-9%+/]{40,70})", (b"sig=",), entropy=3.5),
    Rule("azure-publish-profile", r'(?i)userPWD="([^"\s]{30,})"', (b"userpwd",), entropy=3),
    Rule("gcp-refresh-token", r"\b(1//0[A-Za-z0-9_-]{30,})", (b"1//0",), entropy=3.5),
    Rule("gcp-access-token", r"\b(ya29\.[A-Za-z0-9_-]{40,})", (b"ya29.",), entropy=3.5),
    Rule("gcp-client-secret", r"\b(GOCSPX-[A-Za-z0-9_-]{28})", (b"gocspx-",), entropy=3),
    # Trackers and hosts of models
    Rule("huggingface-token", r"\b(hf_[A-Za-z0-9]{30,40})\b", (b"hf_",), entropy=3.2),
    Rule("wandb-api-key", rf"(?i)wandb[\w.]{{0,12}}(?:key{_IS}|login\([^)\n]{{0,60}}?[\"'])([0-9a-f]{{40}})\b",
         (b"wandb",), entropy=3),
    Rule("wandb-key", r"\b(wandb_v1_[A-Za-z0-9_-]{20,})", (b"wandb_v1_",), entropy=3),
    Rule("neptune-api-token", r"\b(eyJhcGlfYWRkcmVzcyI6[A-Za-z0-9+/]{40,}={0,2})", (b"eyjhcglfywrkcmvzcyi6",)),
    Rule("replicate-api-token", r"\b(r8_[A-Za-z0-9]{37})\b", (b"r8_",), entropy=3),
    Rule("groq-api-key", r"\b(gsk_[A-Za-z0-9]{52})\b", (b"gsk_",), entropy=3),
    Rule("xai-api-key", r"\b(xai-[A-Za-z0-9]{70,})\b", (b"xai-",), entropy=3),
    Rule("nvidia-api-key", r"\b(nvapi-[A-Za-z0-9_-]{60,})", (b"nvapi-",), entropy=3),
    Rule("langsmith-api-key", r"\b(lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10})\b", (b"lsv2_",)),
    Rule("openrouter-api-key", r"\b(sk-or-v1-[0-9a-f]{64})\b", (b"sk-or-v1-",)),
    Rule("pinecone-api-key", r"\b(pcsk_[A-Za-z0-9_]{50,})", (b"pcsk_",), entropy=3),
    Rule("anthropic-key", r"\b(sk-ant-[a-z0-9]{3,10}-[A-Za-z0-9_-]{40,})", (b"sk-ant-",), entropy=3),
    # Other services
    Rule("vault-token", r"\b(hv[sb]\.[A-Za-z0-9_-]{24,300})", (b"hvs.", b"hvb."), entropy=3.5),
    Rule("docker-hub-token", r"\b(dckr_pat_[A-Za-z0-9_-]{27})", (b"dckr_pat_",), entropy=3),
    Rule("cargo-registry-token", r"\b(cio[A-Za-z0-9]{32})\b", (b"cio",), path=r"credentials|\.toml$|\.sh$", entropy=3),
    Rule("new-relic-key", r"\b(NRAK-[A-Z0-9]{27})\b", (b"nrak-",), entropy=3),
    # Secrets that only their name reveals
    Rule("password-in-code",
         rf"(?i)(?:passw(?:or)?d|passphrase|pwd|secret)(?:[ \t]*[\"'\]]{{1,2}})?[ \t]*[:=][ \t]*[\"']{_VALUE}[\"']",
         _PASSWORD_NAMES, certain=False, entropy=2.9, random=True),
    Rule("password-in-settings", rf"(?im)(?:passw(?:or)?d|pass_?phrase|pwd|secret){_IS}{_VALUE}{_LINE_END}",
         _PASSWORD_NAMES, certain=False, entropy=2.75, random=True, path=SETTINGS),
    Rule("token-in-settings",
         rf"(?im)(?:token|api_?-?key|access_?-?key|private_?-?key|key|auth){_IS}([A-Za-z0-9+/=_.~-]{{20,}}){_LINE_END}",
         (b"token", b"key", b"auth"), certain=False, entropy=3.7, random=True, path=SETTINGS),
)  # fmt: skip
