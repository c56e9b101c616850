"""Debian's Chromium, without a window, for tests that open pages; `tests/servers/install.sh` installs it.

One browser serves the tests of a file. Each page is opened in a context of its own, and what the page says to the
console is kept: a page without errors says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import program

CHROMIUM = program("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: tests/servers/install.sh")


class Browser:
    """A running Chromium."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    def open(self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Any:
        """A page of Playwright's at an address; its `said` are the lines of its console and its uncaught errors.

        Close it with `page.context.close()`. Moving parts stand still.
        """
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
        )
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.said.append(f"error: {error}"))
        page.goto(address)
        return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of a file: Playwright is started once at a time in a process."""
    from playwright.sync_api import sync_playwright

    # As root, and in containers without user namespaces, Chromium has no sandbox of its own.
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=flags, timeout=120_000)
        yield Browser(chromium)
        chromium.close()


def keep_picture(page: Any, name: str, folder: Path, *, whole: bool = False) -> Path:
    """Write a picture of a page to a folder; with UPDATE_GOLDEN=1 also to the documentation's pictures."""
    path = folder / name
    page.screenshot(path=path, full_page=whole, animations="disabled")
    if os.environ.get("UPDATE_GOLDEN"):
        pictures = Path(__file__).parents[2] / "docs" / "guide" / "pictures"
        pictures.mkdir(exist_ok=True)
        (pictures / name).write_bytes(path.read_bytes())
    return path
