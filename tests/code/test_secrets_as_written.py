"""Tokens are found however a script or a notebook sets them, and files that only look like it are left alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.code.tree import scan
from tests.code.credential_files import BASE64, HEX, UPPER, URL64, WORD, Maker
from tests.code.findings import secret_findings


def _discord(maker: Maker, digits: int, last: int) -> str:
    number = "".join(str(int(letter, 16) % 10) for letter in maker.of(HEX, digits))
    return f"{base64.b64encode(number.encode()).decode().rstrip('=')}.{maker.of(WORD, 6)}.{maker.of(URL64, last)}"


def _dashed(maker: Maker, *lengths: int) -> str:
    return "-".join(maker.of(HEX, length) for length in lengths)


TOKENS: dict[str, Callable[[Maker], str]] = {
    # Models, trackers and data
    "OPENAI_API_KEY": lambda m: f"sk-{m.of(WORD, 20)}T3BlbkFJ{m.of(WORD, 20)}",
    "OPENAI_KEY_OF_48": lambda m: m.of(WORD, 48, before="sk-"),
    "OPENAI_PROJECT": lambda m: f"sk-proj-{m.of(URL64, 74)}T3BlbkFJ{m.of(URL64, 74)}",
    "OPENAI_PROJECT_SHORT": lambda m: m.of(WORD, 48, before="sk-proj-"),
    "OPENAI_SERVICE_ACCOUNT": lambda m: m.of(WORD, 60, before="sk-svcacct-"),
    "OPENAI_ADMIN": lambda m: m.of(WORD, 60, before="sk-admin-"),
    "AZURE_OPENAI_API_KEY": lambda m: m.of(HEX, 32),
    "ANTHROPIC": lambda m: f"sk-ant-api03-{m.of(URL64, 93)}AA",
    "HF_TOKEN": lambda m: m.letters(34, before="hf_"),
    "WANDB_API_KEY": lambda m: m.of(HEX, 40),
    "WANDB_NEW": lambda m: m.of(WORD, 60, before="wandb_v1_"),
    "KAGGLE_KEY": lambda m: m.of(HEX, 32),
    "COMET_API_KEY": lambda m: m.of(WORD, 25),
    "NEPTUNE": lambda m: m.of(WORD, 120, before="eyJhcGlfYWRkcmVzcyI6"),
    "COHERE_API_KEY": lambda m: m.of(WORD, 40),
    "MISTRAL_API_KEY": lambda m: m.of(WORD, 32),
    "TOGETHER_API_KEY": lambda m: m.of(HEX, 64),
    "GEMINI": lambda m: m.of(URL64, 35, before="AIza"),
    "REPLICATE": lambda m: m.of(WORD, 37, before="r8_"),
    "GROQ": lambda m: m.of(WORD, 52, before="gsk_"),
    "XAI": lambda m: m.of(WORD, 80, before="xai-"),
    "NGC": lambda m: m.of(URL64, 64, before="nvapi-"),
    "LANGSMITH": lambda m: f"lsv2_pt_{m.of(HEX, 32)}_{m.of(HEX, 10)}",
    "OPENROUTER": lambda m: m.of(HEX, 64, before="sk-or-v1-"),
    "PINECONE": lambda m: m.of(WORD, 60, before="pcsk_"),
    "PINECONE_API_KEY": lambda m: m.uuid(),
    "TAVILY_API_KEY": lambda m: m.of(WORD, 32, before="tvly-"),
    "SERPER_API_KEY": lambda m: m.of(HEX, 40),
    "DATABRICKS": lambda m: m.of(HEX, 32, before="dapi"),
    # Messages
    "DISCORD_17": lambda m: _discord(m, 17, 27),
    "DISCORD_18": lambda m: _discord(m, 18, 38),
    "DISCORD_19": lambda m: _discord(m, 19, 38),
    "DISCORD_20": lambda m: _discord(m, 20, 38),
    "DISCORD_WEBHOOK": lambda m: f"https://discord.com/api/webhooks/1182736455019283746/{m.of(URL64, 68)}",
    "TELEGRAM": lambda m: m.of(URL64, 33, before="8172635440:AA"),
    "TELEGRAM_ADDRESS": lambda m: f"https://api.telegram.org/bot817263544:AA{m.of(URL64, 33)}/sendMessage",
    "MAILGUN_API_KEY": lambda m: m.of(HEX, 32, before="key-"),
    "MAILGUN_SIGNING_KEY": lambda m: _dashed(m, 32, 8, 8),
    "SENDGRID": lambda m: f"SG.{m.of(URL64, 22)}.{m.of(URL64, 43)}",
    "SLACK_BOT": lambda m: m.of(WORD, 24, before="xoxb-91827364550-71625344098-"),
    "SLACK_HOOK": lambda m: (
        f"https://hooks.slack.com/services/{m.of(UPPER, 9, before='T')}/{m.of(UPPER, 10, before='B')}/{m.of(WORD, 24)}"
    ),
    "TWILIO": lambda m: m.of(HEX, 32, before="SK"),
    # Clouds, code hosts and registries
    "AWS_SECRET_ACCESS_KEY": lambda m: m.of(BASE64, 40),
    "AWS_SESSION_TOKEN": lambda m: m.of(BASE64, 340),
    "AZURE_STORAGE": lambda m: f"DefaultEndpointsProtocol=https;AccountName=vision;AccountKey={m.of(BASE64, 86)}==;",
    "AZURE_CLIENT_SECRET": lambda m: f"{m.of(WORD, 3)}8Q~{m.of(WORD, 34)}",
    "GOOGLE_OAUTH": lambda m: m.of(URL64, 28, before="GOCSPX-"),
    "DIGITALOCEAN": lambda m: m.of(HEX, 64, before="dop_v1_"),
    "CLOUDFLARE_API_KEY": lambda m: m.of(HEX, 37),
    "GITHUB": lambda m: m.of(WORD, 36, before="ghp_"),
    "GITHUB_FINE": lambda m: f"{m.of(WORD, 22, before='github_pat_')}_{m.of(WORD, 59)}",
    "GITLAB": lambda m: m.of(URL64, 20, before="glpat-"),
    "NPM": lambda m: m.of(WORD, 36, before="npm_"),
    "PYPI": lambda m: m.of(URL64, 150, before="pypi-AgEIcHlwaS5vcmc"),
    "DOCKER": lambda m: m.of(URL64, 27, before="dckr_pat_"),
    "VAULT": lambda m: m.of(URL64, 95, before="hvs."),
    # Others
    "STRIPE": lambda m: m.of(WORD, 24, before="sk_live_"),
    "NEW_RELIC": lambda m: m.of(UPPER, 27, before="NRAK-"),
    "GRAFANA": lambda m: f"glsa_{m.of(WORD, 32)}_{m.of(HEX, 8)}",
    "DATABASE": lambda m: f"postgresql://app:{m.password()}@db.internal:5432/vision",
    "DB_PASSWORD": lambda m: m.password(),
    "JWT": lambda m: m.jwt(),
}  # fmt: skip
"""What a person sets a variable of that name to."""


def notebook(*lines: str) -> str:
    """A notebook of one cell, as Jupyter writes it."""
    return json.dumps(
        {
            "cells": [
                {"cell_type": "code", "outputs": [], "source": [f"{line}\n" for line in lines]}
            ]
        },
        indent=1,
    )


def written(name: str, value: str) -> dict[str, str]:
    """Files that set a variable to a value, by their paths."""
    return {
        f"{name}/constant.py": f'import os\n{name} = "{value}"\n',
        f"{name}/environ.py": f'import os\nos.environ["{name}"] = "{value}"\n',
        f"{name}/environ_short.py": f"import os\nos.environ['{name}']='{value}'\n",
        f"{name}/constant.ipynb": notebook(f'{name} = "{value}"', "print(1)"),
        f"{name}/environ.ipynb": notebook("import os", f'os.environ["{name}"] = "{value}"'),
        f"{name}/single.ipynb": notebook("import os", f"os.environ['{name}'] = '{value}'"),
        f"{name}/one_text.ipynb": json.dumps(
            {"cells": [{"source": f'import os\nos.environ["{name}"] = "{value}"\n'}]}
        ),
    }


@pytest.mark.slow
def test_a_token_is_found_however_it_is_set(tmp_path: Path) -> None:
    """62 kinds, in scripts and in notebooks, whose cells have JSON's backslashes; the line is the right one."""
    maker, expected = Maker(1), dict[str, list[int]]()
    for name, make in TOKENS.items():
        (tmp_path / name).mkdir()
        value = make(maker)
        for path, content in written(name, value).items():
            (tmp_path / path).write_text(content)
            expected[path] = [content[: content.index(value)].count("\n") + 1]
    tree = scan(tmp_path)
    lines = {entry.path: [secret.line for secret in entry.secrets] for entry in tree.entries}
    assert {path: lines[path] for path in expected if lines[path] != expected[path]} == {}
    assert len(expected) == 7 * len(TOKENS) == 7 * 62
    assert not [part for part in maker.values if part[-12:] in repr(secret_findings(tree))]


def test_tokens_of_these_services_are_errors(tmp_path: Path) -> None:
    """Their form is certain enough to stop a submit, whatever the variable is called."""
    names = [
        name for name in TOKENS if name.startswith(("DISCORD", "TELEGRAM", "MAILGUN", "OPENAI"))
    ]
    for name in names:
        value = TOKENS[name](Maker(5))
        text = f'requests.post("https://api.mailgun.net/v3/x", auth=("api", "{value}"))\n'
        (tmp_path / f"{name}.py").write_text(
            text if name.startswith("MAILGUN") else f'connect("{value}")\n'
        )
    secrets = {entry.path: entry.secrets for entry in scan(tmp_path).entries}
    assert [
        name for name in names if not any(secret.certain for secret in secrets[f"{name}.py"])
    ] == []


HARMLESS = {
    "the environment is read": ("a.py", 'key = os.environ["OPENAI_API_KEY_OF_THE_TEAM_2"]\nassert os.environ["KEY"] == "x" * 40\n'),
    "the environment is read in a notebook": ("a.ipynb", notebook('key = os.environ["OPENAI_API_KEY_OF_THE_TEAM_2"]', 'print(f"{key}")')),
    "placeholders in a notebook": (
        "a.ipynb",
        notebook('os.environ["OPENAI_API_KEY"] = "sk-..."', 'os.environ["HF_TOKEN"] = "hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"',
                 'os.environ["WANDB_API_KEY"] = "<your key>"', 'login(token="your-token-goes-here-0123")'),
    ),
    "settings of the runtime": (
        "a.py",
        'os.environ["TOKENIZERS_PARALLELISM"] = "false"\nos.environ["MASTER_ADDR"] = "127.0.0.1"\n'
        'os.environ["HF_HOME"] = "/mnt/disk-2/cache/huggingface/hub-2024"\nos.environ["WANDB_PROJECT"] = "resnet50-cifar10-2024-11"\n'
        'os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-8f6d3c21-9b1e-4f57-a0c3-5d2e7b9a1c44"\n',
    ),
    "the same settings in a notebook": (
        "a.ipynb",
        notebook('os.environ["TOKENIZERS_PARALLELISM"] = "false"', 'os.environ["NCCL_SOCKET_IFNAME"] = "eth0"',
                 'os.environ["HF_HUB_ENABLE_HF_TRANSFER"] = "1"', 'os.environ["WANDB_PROJECT"] = "resnet50-cifar10-2024-11"'),
    ),
    "values by key": (
        "a.py",
        'config["tokenizer"] = "NousResearch/Meta-Llama-3-8B-Instruct"\nbatch["__key__"] = "sample_000123"\n'
        'special_tokens["pad_token"] = "<|finetune_right_pad_id|>"\ntags["git"] = "528a1174aa96b214ba9f6f9935dbcaf6da0fec02"\n',
    ),
    "an image in an output": (
        "a.ipynb",
        json.dumps({"cells": [{"outputs": [{"data": {"image/png": "iVBORw0KGgo" + Maker(3).of(BASE64, 4000) + "\n"}}]}]}),
    ),
    "widgets of a notebook": (
        "a.ipynb",
        json.dumps({"metadata": {"widgets": {Maker(4).of(HEX, 32): {"layout": f"IPY_MODEL_{Maker(6).of(HEX, 32)}"}}}}, indent=1),
    ),
    "a table and a model in HTML": (
        "a.ipynb",
        json.dumps({"text/html": ['<div id="df-4e1cbf0a-7d0b-4d5c-9a53-8f2f1f6f3a10">\n', '<style>#sk-container-id-1 div.sk-toggleable__content {',
                                  'div class="sk-text-repr-fallback-for-estimators-version-130"></div>\n']}, indent=1),
    ),
    "Telegram's own examples": (
        "a.md", "Use `110201543:AAHdqTcvCH1vGWJxf" + "SeofSAs0K5PALDsaw` or `4839574812:AAFD39kkdpWt3ywy" + "RZergyOLMaJhac60qc`.\n",
    ),
    "places of tokens": (
        "a.py",
        'URL = f"https://api.telegram.org/bot{token}/sendMessage"\nHOOK = "https://discord.com/api/webhooks/{webhook_id}/{webhook_token}"\n'
        'auth = ("api", os.environ["MAILGUN_API_KEY"])\nAPI = "key-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"\n',
    ),
    "dotted names": ("a.py", "from MTJyQ2Fz import Module\nx = MyModelWithDDP.module.transformer_layers_of_the_encoder_2\n"),
    "hashes and digests": (
        "uv.lock",
        f'{{ url = "https://files.pythonhosted.org/packages/{Maker(7).of(HEX, 60)}/x.whl", hash = "sha256:{Maker(8).of(HEX, 64)}" }}\n',
    ),
    "identifiers of a tokenizer": ("tokenizer.json", json.dumps({"model": {"vocab": {"sk-": 1, 'key\\"': 2, "\\\\\"]=": 3, "Ġtoken=\\\"": 4}}})),
    "text in escaped quotes": ("a.py", 'print("write \\"name\\": \\"resnet50-cifar10-2024\\", or \\"token\\": \\"$TOKEN\\"")\n'),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_file_without_a_secret_is_left_alone(name: str, tmp_path: Path) -> None:
    """No error and no warning."""
    path, content = HARMLESS[name]
    (tmp_path / path).write_text(content)
    assert secret_findings(scan(tmp_path)) == []
