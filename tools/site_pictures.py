"""Looks at the site of `make docs` in headless Chromium, at the widths of a telephone and of a desktop.

    python tools/site_pictures.py            says which pages are wider than the window, and writes pictures
    python tools/site_pictures.py --check    writes none

The pictures are docs/screenshots/site-WIDTH.png. The exit status is 1 where a page is too wide: its reader would have
to scroll sideways to read a line.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import html
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
PICTURES = ROOT / "docs" / "screenshots"
WIDTHS, HEIGHT = (400, 1400), 900
PICTURED = "index.html"
LIMIT = 120.0  # seconds that the browser may take
# Each page in turn in a frame of that width; what is told in the end is the width that its text would need.
_LOOK = """<!doctype html><title>looking</title>
<iframe id="frame" width="{width}" height="{height}"></iframe><pre></pre>
<script>
const pages = {pages}, found = {{}}, frame = document.getElementById("frame");
function next() {{
  const page = pages.shift();
  if (page === undefined) {{
    document.querySelector("pre").textContent = JSON.stringify(found);
    return;
  }}
  frame.onload = () => {{
    found[page] = frame.contentDocument.documentElement.scrollWidth;
    next();
  }};
  frame.src = "/" + page;
}}
next();
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and pages that are made for the browser to look at it."""

    def made(self) -> str | None:
        """The page of ``self.path``; None: a file of the site. /look/WIDTH is the page that measures all others."""
        asked = re.fullmatch(r"/look/(\d+)", self.path)
        if asked is None:
            return None
        pages = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html"))
        return _LOOK.format(width=asked[1], height=HEIGHT, pages=json.dumps(pages))

    def do_GET(self) -> None:
        """Answers a request."""
        made = self.made()
        if made is None:
            super().do_GET()
            return
        body = made.encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the browser ends when it has printed
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing of a request."""


@contextlib.contextmanager
def served(kind: type[Handler] = Handler) -> Iterator[str]:
    """The address of the site, on a port of the loopback interface, as long as the context lasts."""
    handler = functools.partial(kind, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def browse(chromium: str, address: str, *options: str, virtual: bool = True) -> str:
    """What Chromium prints of the page. CalledProcessError or TimeoutExpired of subprocess where it fails.

    In virtual time what a page does by itself is awaited, but nothing that it has a worker do.
    """
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [
            f"--user-data-dir={profile}",
            *(["--virtual-time-budget=60000"] if virtual else []),
            *options,
            address,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    return done.stdout


def browser() -> str | None:
    """The path of Chromium; None, and a word on stderr, where it or the site is missing."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("Neither chromium nor google-chrome is here. Debian: apt install chromium.", file=sys.stderr)
    elif not (SITE / PICTURED).exists():
        print(f"There is no {SITE.relative_to(ROOT)}: make docs", file=sys.stderr)
        return None
    return chromium


def widths(chromium: str, address: str, width: int) -> dict[str, int]:
    """How many pixels wide each page is in a window of that width. RuntimeError where the browser has not shown all."""
    shown = browse(chromium, f"{address}/look/{width}", f"--window-size={width + 100},{HEIGHT}", "--dump-dom")
    found = re.search(r"<pre>(\{.*?\})</pre>", shown, re.DOTALL)
    if found is None:
        raise RuntimeError(f"Chromium has not shown all pages:\n{shown[-2000:]}")
    told: dict[str, int] = json.loads(html.unescape(found[1]))
    return told


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write no pictures")
    args = parser.parse_args(arguments)
    chromium = browser()
    if chromium is None:
        return 2
    wide = 0
    with served() as address:
        for width in WIDTHS:
            found = widths(chromium, address, width)
            for page, needs in found.items():
                if needs > width:
                    print(f"{page} needs {needs} pixels, and the window has {width}")
                    wide += 1
            print(f"{len(found)} pages in a window of {width} pixels")
            if not args.check:
                picture = PICTURES / f"site-{width}.png"
                browse(chromium, f"{address}/{PICTURED}", f"--window-size={width},{HEIGHT}", f"--screenshot={picture}")
                print(picture.relative_to(ROOT))
    return int(wide > 0)


if __name__ == "__main__":
    sys.exit(main())
