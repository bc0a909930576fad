"""The script of served pages: it replaces what changed, every few seconds, while the page is visible.

Without it a page is loaded again by the browser. Details that are open stay open, and the keyboard's focus
stays where it is; a text that is selected is left alone.
"""

from __future__ import annotations

from pipeline.report.web.markup import Html, join, tag
from pipeline.report.web.style import POLICY, source_hash

REFRESH = 5  # seconds
_REFRESH_WITHOUT_SCRIPT = 15

_SCRIPT = """
(() => {
  "use strict";
  const button = document.getElementById("pause"), notice = document.getElementById("notice");
  let isPaused = false, isBusy = false;
  const key = (each) => each.id || (each.href ? "a:" + each.getAttribute("href") :
    each.parentElement && each.parentElement.id ? "in:" + each.parentElement.id : "");
  const find = (name, root) => [...root.querySelectorAll("a, summary, button, [id]")]
    .find((each) => key(each) === name);
  const replace = (page) => {
    for (const id of ["headline", "positions", "sections", "read-at"]) {
      const old = document.getElementById(id), now = page.getElementById(id);
      if (old && now && old.innerHTML !== now.innerHTML) old.replaceChildren(...now.childNodes);
    }
    const old = document.getElementById("content"), now = page.getElementById("content");
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) return;
    const open = [...old.querySelectorAll("details[open]")].map((each) => each.id);
    const focus = old.contains(document.activeElement) ? key(document.activeElement) : "";
    old.replaceChildren(...now.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focus) find(focus, old)?.focus({preventScroll: true});
  };
  const show = (text) => { if (notice.textContent !== text) notice.textContent = text; };
  const update = async () => {
    if (isPaused || isBusy || document.hidden) return;
    isBusy = true;
    try {
      const answer = await fetch(location.href, {cache: "no-store", signal: AbortSignal.timeout(60000)});
      if (!answer.ok) throw new Error(answer.statusText);
      replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
      show("");
    } catch {
      show("The job does not answer. The figures below are old.");
    }
    isBusy = false;
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Resume updates" : "Pause updates";
    update();
  });
  document.addEventListener("visibilitychange", update);
  setInterval(update, REFRESH * 1000);
})();
"""

SCRIPT = _SCRIPT.replace("REFRESH", str(REFRESH))
SERVED_POLICY = f"{POLICY}; script-src {source_hash(SCRIPT)}; connect-src 'self'"
"""The security policy of a page that a job serves."""

HEAD: Html = tag("noscript", tag("meta", http_equiv="refresh", content=_REFRESH_WITHOUT_SCRIPT))
CONTROLS: Html = join(
    [
        tag("button", "Pause updates", type="button", id="pause", hidden=True),
        tag("p", id="notice", role="alert"),
    ]
)
ELEMENT: Html = tag("script", Html(SCRIPT))
