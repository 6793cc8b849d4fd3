"""A folder as a site on this machine, and a browser to look at it."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Concatenate, TypeVar

from playwright.async_api import Browser, Playwright, async_playwright

T = TypeVar("T")


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for many files

    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # a browser asks for it on its own, not because a page names it
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=3600")  # a browser asks again for files that are a few minutes old
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: the tests report what is missing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address under which a folder is served."""
    handler = functools.partial(_Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Chromium:
    """A browser that is started once; `run` calls a coroutine function of `visits.py` with it."""

    def __init__(self, runner: asyncio.Runner, executable: str):
        self._runner = runner
        self._playwright: Playwright = runner.run(async_playwright().start())
        self._browser: Browser = runner.run(_coroutine(self._playwright.chromium.launch, executable_path=executable))

    def run(self, function: Callable[Concatenate[Browser, ...], Awaitable[T]], *args: Any) -> T:
        return self._runner.run(_coroutine(function, self._browser, *args))

    def close(self) -> None:
        self._runner.run(_coroutine(self._browser.close))
        self._runner.run(_coroutine(self._playwright.stop))


async def _coroutine(function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    return await function(*args, **kwargs)
