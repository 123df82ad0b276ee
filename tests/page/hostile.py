"""Texts that a careless page would interpret, or that a terminal hides."""

from __future__ import annotations

_ATTACK = "globalThis.attacked=1"

_MARKUP = [
    "<script>alert(1)</script>",
    f"<script>{_ATTACK}</script>",
    f"<img src=x onerror={_ATTACK}>",
    f"<svg onload={_ATTACK}>",
    f"<svg/onload={_ATTACK}//",
    f"<iframe srcdoc='<script>parent.{_ATTACK}</script>'>",
    f"<iframe src=javascript:parent.{_ATTACK}>",
    f"<body onload={_ATTACK}>",
    f"<details open ontoggle={_ATTACK}>",
    f"<input autofocus onfocus={_ATTACK}>",
    f"<video><source onerror={_ATTACK}>",
    f"<a href='javascript:{_ATTACK}'>x</a>",
    f"<math><mtext></style><img src onerror={_ATTACK}>",
    f"</script><script>{_ATTACK}</script>",
    f"</textarea><script>{_ATTACK}</script>",
    f"</title><script>{_ATTACK}</script>",
    f"--><script>{_ATTACK}</script>",
    f"]]><script>{_ATTACK}</script>",
    f'"><script>{_ATTACK}</script>',
    f"'><script>{_ATTACK}</script>",
    f'" onmouseover="{_ATTACK}',
    f"' onfocus='{_ATTACK}' autofocus='",
    f"` onload={_ATTACK}",
    "<base href='http://evil.example/'>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<form action=http://evil.example/><button>",
    "<style>*{display:none}</style>",
    "<template><script>1</script></template>",
    "<object data=http://evil.example/>",
    "<!--",
    "<",
    "<b>bold</b>",
    "&lt;b&gt;",
    "&#60;b&#62;",
    "&amp;",
]

_ADDRESSES = [
    f"javascript:{_ATTACK}",
    f"JaVaScRiPt:{_ATTACK}",
    f"data:text/html,<script>{_ATTACK}</script>",
    "//evil.example/x",
    "http://evil.example/",
    "#/run/../../x",
    "../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "?token=x",
    "%00",
]

_TEMPLATES = [
    "${7*7}",
    "{{7*7}}",
    "{% x %}",
    "__proto__",
    "constructor",
    "' OR 1=1 --",
    "\r\nSet-Cookie: x=1",
    "a" * 300,
]

HIDDEN = [
    "\x1b[2J",
    "\x1b]0;x\x07",
    "\x1b]8;;http://evil.example\x07x\x1b]8;;\x07",
    "\x9b31m",
    "\x00",
    "\u202eevil",
    "\u2066x\u2069",
    "\u200b",
    "\ufeff",
    "\U000e0041",
]
"""What no text of an answer may hold as it is."""

HOSTILE = [*_MARKUP, *_ADDRESSES, *_TEMPLATES, *HIDDEN]
"""64 of them."""

assert len(HOSTILE) == 64
