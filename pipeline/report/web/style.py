"""The colours and the style sheet of the pages, and the script of those that a job serves.

`LIGHT` and `DARK` have the colours of a light and of a dark page; a test computes the contrasts of texts.
Pages load nothing: the security policy allows only what is in them.
"""

from __future__ import annotations

import base64
import hashlib

LIGHT = {
    "page": "#f6f7f9",
    "card": "#ffffff",
    "text": "#1b2430",
    "quiet": "#566273",
    "line": "#d5dae1",
    "link": "#0b5cad",
    "red": "#a31621",
    "red-back": "#fdecec",
    "amber": "#7a4b00",
    "amber-back": "#fdf3d8",
    "blue": "#0b5394",
    "blue-back": "#e5f0fb",
    "green": "#1c6434",
    "green-back": "#e6f5ea",
    "grey": "#4d5866",
    "grey-back": "#eceff3",
    "first-plot": "#0b5cad",
    "second-plot": "#b04a00",
}
DARK = {
    "page": "#12161c",
    "card": "#1b2129",
    "text": "#e4e9f0",
    "quiet": "#a3afbf",
    "line": "#38424f",
    "link": "#7db8f5",
    "red": "#ff9d9d",
    "red-back": "#4a1c20",
    "amber": "#f3c969",
    "amber-back": "#423309",
    "blue": "#93c5fd",
    "blue-back": "#16324f",
    "green": "#86d9a0",
    "green-back": "#15391f",
    "grey": "#b6c1cf",
    "grey-back": "#2c343f",
    "first-plot": "#7db8f5",
    "second-plot": "#f0a35e",
}
STATES = {
    "failed": ("red", "\N{MULTIPLICATION X}"),
    "held": ("red", "\N{BLACK SQUARE}"),
    "refused": ("red", "\N{BLACK DIAMOND}"),
    "in doubt": ("red", "\N{QUESTION MARK}"),
    "unpublished": ("red", "\N{EMPTY SET}"),
    "paused": ("amber", "\N{DOUBLE VERTICAL LINE}"),
    "behind": ("amber", "\N{BLACK LEFT-POINTING TRIANGLE}"),
    "copying": ("blue", "\N{DOWNWARDS ARROW}"),
    "detached": ("grey", "\N{WHITE CIRCLE}"),
    "current": ("green", "\N{BLACK CIRCLE}"),
}
"""The colour and the sign of each state; the sign is decoration, because the state is always written out."""


def _variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{color};" for name, color in palette.items())


_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;color-scheme:light dark}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
header,main,footer{max-width:80rem;margin:0 auto;padding:0 1rem}
header{padding-top:1.25rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}
main>h1{margin-top:1.25rem}
h2{font-size:1.15rem;margin:0 0 .5rem}
h3{font-size:1rem;margin:1.25rem 0 .5rem}
p{margin:.25rem 0;overflow-wrap:anywhere}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,button:focus-visible,[tabindex]:focus-visible
{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-99rem}
.skip:focus{position:static}
.headline{font-size:1.1rem;font-weight:600}
.quiet{color:var(--quiet)}
nav ul{display:flex;flex-wrap:wrap;gap:0 1rem;list-style:none;margin:.5rem 0;padding:0}
nav a{display:inline-block;padding:.25rem 0}
section{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem;margin:1rem 0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
caption{text-align:left;overflow-wrap:anywhere;color:var(--quiet);padding-bottom:.5rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-top:1px solid var(--line);
overflow-wrap:anywhere}
thead th{border-top:0;color:var(--quiet);font-weight:600;vertical-align:bottom;overflow-wrap:normal}
tbody th{font-weight:600}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;overflow-wrap:normal}
.facts th{width:11rem;color:var(--quiet);font-weight:400}
.facts tr:first-child th,.facts tr:first-child td{border-top:0}
.state{display:inline-block;white-space:nowrap;border-radius:1rem;padding:0 .6rem;font-weight:600}
.whole,time{white-space:nowrap}
.notices{list-style:none;margin:0;padding:0}
.notices li{padding:.5rem 0;border-top:1px solid var(--line);overflow-wrap:anywhere}
.notices li:first-child{border-top:0}
progress{width:8rem;max-width:100%;vertical-align:middle;accent-color:var(--link)}
details{border-top:1px solid var(--line)}
summary{padding:.5rem 0;cursor:pointer;overflow-wrap:anywhere}
summary .state{margin-left:.5rem}
details[open]{padding-bottom:1rem}
button{font:inherit;color:var(--link);background:var(--card);border:1px solid var(--link);
border-radius:.4rem;padding:.3rem .8rem;cursor:pointer}
[hidden]{display:none}
footer{padding-bottom:2rem;color:var(--quiet);font-size:.9rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:0;max-width:30rem}
figcaption{font-weight:600;margin-bottom:.25rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--quiet);font:14px system-ui,sans-serif}
svg .grid{stroke:var(--line);stroke-width:1}
svg .series{fill:none;stroke-width:2;stroke-linejoin:round;vector-effect:non-scaling-stroke}
svg .first{stroke:var(--first-plot)}
svg .second{stroke:var(--second-plot);stroke-dasharray:6 3}
.first-sign{color:var(--first-plot)}
.second-sign{color:var(--second-plot)}
figure details{border:0}
svg .first-end{fill:var(--first-plot)}
svg .second-end{fill:var(--second-plot)}
@media (max-width:48rem){
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.cards,.cards tbody,.cards tr,.cards th,.cards td,.cards caption{display:block;width:100%}
.cards tr{padding:.6rem 0;border-top:1px solid var(--line)}
.cards tbody tr:first-child{border-top:0}
.cards th,.cards td{border:0;padding:.1rem 0}
.cards tr{display:grid;grid-template-columns:1fr 1fr;gap:0 .75rem}
.cards th,.cards td.long{grid-column:1/-1}
.cards td{position:relative;padding-left:4.4rem;text-align:left;white-space:normal}
.cards td.long{padding-left:5.8rem}
.cards td:empty{display:none}
.cards td::before{content:attr(data-label);position:absolute;left:0;color:var(--quiet);white-space:nowrap}
.facts{font-size:.82rem}
.facts th{width:8.8rem;padding-left:0}
}
@media print{
:root{"""

_PRINT = """}
body{font-size:11pt}
header,main,footer{max-width:none;padding:0}
section{border:0;border-top:1px solid var(--line);border-radius:0;padding:.5rem 0}
nav,.skip,button{display:none}
tr,li,figure{break-inside:avoid}
thead{display:table-header-group}
details::details-content{content-visibility:visible;block-size:auto}
a{color:inherit;text-decoration:none}
}
"""

_STATE_RULES = "".join(
    f".{color}{{color:var(--{color});background:var(--{color}-back)}}"
    f".{color}-text{{color:var(--{color});font-weight:600}}"
    for color in ("red", "amber", "blue", "green", "grey")
)

STYLE = (
    f":root{{{_variables(LIGHT)}}}\n@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    f"{_RULES}{_variables(LIGHT)}{_PRINT}{_STATE_RULES}"
)
"""The style sheet; a printed page is light."""


def source_hash(text: str) -> str:
    """Return the source of a security policy that allows a style sheet or a script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {source_hash(STYLE)}; img-src data:; base-uri 'none'; form-action 'none'"
)
"""The security policy of a page without a script."""
