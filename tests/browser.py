"""A real browser for pages that must open from disk, without a network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    ViewportSize,
    sync_playwright,
)

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Graphics by the processor, which are the same with and without a graphics card.
ARGUMENTS = [
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
]


Theme = Literal["dark", "light"]


def find_browser() -> str | None:
    """Return where Chromium is, or what SITELESS_BROWSER names; None if there is none."""
    named = os.environ.get("SITELESS_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def run_browser() -> Iterator[Browser]:
    """Run the browser without a window, or skip the test if there is none."""
    if find_browser() is None:
        pytest.skip("Chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    browser: Browser,
    path: Path,
    *,
    width: int = 1280,
    height: int = 900,
    theme: Theme = "light",
    first: str = "",
) -> Iterator[Page]:
    """Open a file with the network off; fail if the page complained or asked for anything.

    `first` is JavaScript that runs before the page's own.
    """
    size = ViewportSize(width=width, height=height)
    context = browser.new_context(viewport=size, color_scheme=theme)
    context.set_offline(True)
    context.add_init_script(first)
    page = context.new_page()
    complaints = watch(page)
    try:
        page.goto(path.as_uri())
        yield page
    finally:
        context.close()
    assert not complaints, "\n".join(complaints)


def watch(page: Page) -> list[str]:
    """Return a list that fills with errors, warnings and requests beyond the page itself."""
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"console {message.type}: {message.text}")

    def count(request: Request) -> None:
        inside = request.url.startswith(("data:", "blob:"))
        if not inside and not request.is_navigation_request():
            complaints.append(f"request: {request.url}")

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
    page.on("request", count)
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url[:200]}"))
    return complaints
