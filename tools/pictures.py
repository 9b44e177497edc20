"""Make the images of the README from a real run: a terminal recording (SVG) and the page of a fit (PNG).

    python tools/pictures.py [--out docs/images]

The commands run on the embedded pocket model and rendered images. The page is photographed by Chromium through Selenium.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from slimprompt.files import write_file

COLUMNS = 104
COMMANDS = (
    "slimprompt fit photos --backbone pocket --shots 4 --out my-prompt --report fit.html",
    "slimprompt predict my-prompt photos/test/black_arrow/028.png photos/test/*ring/030.png --top 2",
    'slimprompt predict my-prompt photos/test/black_arrow/028.png --classes "star,black arrow"',
)
_SECONDS_PER_LINE = 0.25
_PAGE_SIZE = (1180, 820)
#: Rich's format without its download of a font and its window buttons.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>slimprompt in a terminal</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
<rect fill="#16181d" x="1" y="1" width="{width}" height="{height}" rx="8"/>
<g transform="translate(9, 12)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_BACKGROUND, _TEXT = (22, 24, 29), (220, 223, 228)
_COLOURS = [(224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194)]
_THEME = TerminalTheme(_BACKGROUND, _TEXT, [_BACKGROUND, *_COLOURS, _TEXT], [(92, 99, 112), *_COLOURS, (255, 255, 255)])


def record(folder: Path) -> list[str]:
    """Run the commands in a folder; returns the lines of the terminal."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "SLIMPROMPT_CACHE": str(folder / "cache")}
    program = shlex.join([sys.executable, "-m", "slimprompt"])
    lines: list[str] = []
    for command in COMMANDS:
        done = subprocess.run(
            command.replace("slimprompt", program, 1),
            shell=True,
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        lines += [f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m", *done.stdout.splitlines(), ""]
    return lines[:-1]


def render(lines: list[str]) -> str:
    """The recording as SVG; its lines appear one after the other, unless the reader prefers no motion."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        for line in lines:
            console.print(Text.from_ansi(line), soft_wrap=False, overflow="ellipsis", no_wrap=True)
        svg = console.export_svg(title="", theme=_THEME, code_format=_SVG, unique_id="t")
    rules = "\n".join(
        f'[clip-path="url(#t-line-{number})"] {{ animation-delay: {_SECONDS_PER_LINE * number:.2f}s; }}'
        for number in range(len(lines))
    )
    motion = (
        "@media (prefers-reduced-motion: no-preference) {\n"
        "text { animation: appear 0.1s both; }\n@keyframes appear { from { opacity: 0; } }\n"
        f"{rules}\n}}\n</style>"
    )
    return re.sub(r"[ \t]+\n", "\n", svg.replace("</style>", motion, 1))


def photograph(page: Path, target: Path) -> None:
    """The top of a page as PNG."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-color-profile=srgb"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={_PAGE_SIZE[0]},{_PAGE_SIZE[1]}")
    driver = shutil.which("chromedriver")  # else Selenium looks for one
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as browser:
        browser.get(page.resolve().as_uri())
        browser.save_screenshot(str(target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run(
            [sys.executable, "-m", "slimprompt", "data", "pocket", "--out", str(folder / "photos")], check=True
        )
        write_file(options.out / "terminal.svg", render(record(folder)))
        photograph(folder / "fit.html", options.out / "fit.png")


if __name__ == "__main__":
    main()
