"""Asks the search box of the site of `make docs` what a first-time reader asks: is the page that answers found first?

    python -m tools.site_search                 asks all QUESTIONS
    python -m tools.site_search "why slow"      shows the pages that are found for this

The site's own search worker answers, in headless Chromium. The exit status is 1 where another page comes first.
"""

from __future__ import annotations

import html
import json
import re
import sys
import threading

from tools import site_pictures

# What to ask, and the page that answers.
QUESTIONS = {
    "two hosts with RoCE": "howto/two-hosts.html",
    "2 hosts": "howto/two-hosts.html",
    "run on two hosts": "howto/two-hosts.html",
    "run on 2 hosts with RoCE?": "howto/two-hosts.html",
    "why slow": "howto/slow.html",
    "Why is it slow?": "howto/slow.html",
    "what if a host dies": "howto/rank-dies.html",
    "What happens if a host dies?": "howto/rank-dies.html",
    "which algorithm and why": "howto/choose-algorithm.html",
    "Which algorithm and why?": "howto/choose-algorithm.html",
    "my own algorithm": "howto/own-algorithm.html",
    "How do I write my own algorithm?": "howto/own-algorithm.html",
    "from Horovod": "howto/move-over.html",
    "from NCCL": "howto/move-over.html",
}
# Some word begins with each of them: a search that finds nothing has failed.
_BEGIN = "0123456789abcdefghijklmnopqrstuvwxyz"
_SHOWN = 4  # pages of each answer
# Speaks with the worker as the theme's script does: 0 sets it up, 1 says that it is ready, 2 asks, 3 answers. Chromium
# prints a page when it is complete, which the picture puts off until the server has been asked for /release.
_ASK = """<!doctype html><title>asking</title><img src="/hold"><pre></pre>
<script>
const questions = {questions}, found = {{}};
(async () => {{
  const index = await (await fetch("/search/search_index.json")).json();
  const worker = new Worker("/{worker}");
  const next = async () => {{
    if (questions.length) worker.postMessage({{type: 2, data: questions[0]}});
    else {{
      document.querySelector("pre").textContent = JSON.stringify(found);
      await fetch("/release");
    }}
  }};
  worker.onmessage = ({{data: {{type, data}}}}) => {{
    if (type == 3) {{
      const pages = data.items.map(group => group[0].location.split("#")[0]);
      found[questions.shift()] = pages;
    }}
    next();
  }};
  worker.postMessage({{type: 0, data: {{config: index.config, docs: index.docs, options: {{suggest: true}}}}}});
}})();
</script>"""


def found(chromium: str, questions: list[str]) -> dict[str, list[str]]:
    """The pages that the search box shows for each question, the first one first. RuntimeError where it fails."""
    answered = threading.Event()
    (worker,) = (site_pictures.SITE / "assets/javascripts/workers").glob("search.*.min.js")
    path = worker.relative_to(site_pictures.SITE)

    class Handler(site_pictures.Handler):
        def made(self) -> str | None:
            if self.path == "/hold":
                # Less than the browser may take, so that it shows the page of a search that does not answer.
                answered.wait(site_pictures.LIMIT / 2)
            elif self.path == "/release":
                answered.set()
            elif self.path == "/ask":
                return _ASK.format(questions=json.dumps(questions), worker=path)
            else:
                return super().made()
            return ""

    try:
        with site_pictures.served(Handler) as address:
            shown = site_pictures.browse(chromium, f"{address}/ask", "--dump-dom", virtual=False)
    finally:
        answered.set()
    told = re.search(r"<pre>(\{.*?\})</pre>", shown, re.DOTALL)
    if told is None:
        raise RuntimeError(f"The search has not answered:\n{shown[-2000:]}")
    pages: dict[str, list[str]] = json.loads(html.unescape(told[1]))
    return pages


def main(questions: list[str]) -> int:
    """The exit status."""
    chromium = site_pictures.browser()
    if chromium is None:
        return 2
    wrong = 0
    for question, pages in found(chromium, questions or [*QUESTIONS, *_BEGIN]).items():
        expected = QUESTIONS.get(question)
        # Nothing may well be found for a question that is not one of these.
        right = pages[:1] == [expected] if expected else bool(pages) or question not in {*_BEGIN}
        if not right or question in QUESTIONS or questions:
            fault = "" if right else f" - not {expected} first" if expected else " - something begins so"
            print(f"{question} -> {', '.join(pages[:_SHOWN]) or 'nothing'}{fault}")
        wrong += not right
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
