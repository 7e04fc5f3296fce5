"""Draw the picture of a report that the README shows, from a demo: PAGE, then PNG."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, TOP, HEIGHT = 1000, 8, 1010


def main(page: Path, out: Path) -> None:
    """Open the page, wait for its viewer, and photograph what changed and how methods compare."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=arguments
        )
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        view.goto(page.absolute().as_uri())
        view.locator("#siteless-viewer").scroll_into_view_if_needed()
        view.wait_for_selector("#siteless-viewer[aria-busy=false]")
        place = "document.querySelector('#where').getBoundingClientRect().top"
        view.evaluate(f"scrollBy(0, {place} + {TOP})")
        view.wait_for_timeout(1000)
        view.screenshot(path=out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
