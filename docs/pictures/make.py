"""Takes the pictures of docs/guide/report.md from pages of the gallery, as small PNG files: `make pictures`.

    python docs/pictures/make.py GALLERY

GALLERY is a folder written by docs/examples/gallery.py. Needs Chromium.
"""

import base64
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from reports import _pictures

HERE = Path(__file__).resolve().parent
WIDTH, SCALE, COLOURS, APART = 900, 1.5, 64, 12
MARGIN = 12
LIMIT_BYTES = 60_000
PICTURES = {
    "verdict": ("run/report.html", "section.verdict"),
    "misses": ("run/report.html", "section[aria-labelledby=t-misses]"),
    "attainment": ("curve/report.html", "section[aria-labelledby=t-attainment_rate]"),
    "latency": ("curve/report.html", "section[aria-labelledby=t-latency_rate]"),
    "capacity": ("found/report.html", "section[aria-labelledby=t-attainment_rate]"),
    "systems": ("systems.html", "section[aria-labelledby=t-attainment_rate]"),
    "forest": ("compare.html", "section[aria-labelledby=t-forest]"),
    "series": ("series/report.html", "section[aria-labelledby=t-trend-1]"),
}
"""Picture name: page, CSS selector."""

SHOW = """(part) => {
  const section = part.closest("details.section");
  if (section) section.open = true;
  part.scrollIntoView({ block: "center" });
}"""
READ = """async (data) => {
  const picture = new Image();
  picture.src = "data:image/png;base64," + data;
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const bytes = context.getImageData(0, 0, picture.width, picture.height).data;
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return [picture.width, picture.height, btoa(text)];
}"""


def taken(page: Page, gallery: Path) -> Iterator[tuple[str, bytes]]:
    """Name and screenshot of each picture, with a margin."""
    for name, (file, part) in PICTURES.items():
        page.goto((gallery / file).resolve().as_uri())
        page.locator(part).evaluate(SHOW)
        for figure in page.locator(f"{part} [data-figure]").all():
            figure.locator(".main-svg").first.wait_for()
        box = page.locator(part).bounding_box()
        assert box is not None, part
        width, height = box["width"] + 2 * MARGIN, box["height"] + 2 * MARGIN
        yield (
            name,
            page.screenshot(clip={"x": box["x"] - MARGIN, "y": box["y"] - MARGIN, "width": width, "height": height}),
        )


def pixels(page: Page, picture: bytes) -> np.ndarray:
    """(height, width, 3) of a PNG file, read by the browser."""
    width, height, data = page.evaluate(READ, base64.b64encode(picture).decode())
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)[:, :, :3]


def small(picture: np.ndarray) -> bytes:
    """A PNG file with a palette of the most frequent colours that are `APART`: text and lines need few."""
    flat = picture.reshape(-1, 3)
    colours, inverse, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    away = np.full(len(colours), np.inf)  # squared distance to the nearest that is kept
    kept = np.empty((0, 3), int)
    while len(kept) < COLOURS and len(left := order[away[order] >= APART**2]):
        kept = np.append(kept, [colours[left[0]].astype(int)], axis=0)
        away = np.minimum(away, ((colours.astype(int) - kept[-1]) ** 2).sum(axis=1))
    distances = ((colours[:, None, :].astype(int) - kept[None, :, :]) ** 2).sum(axis=2)  # (colours, kept)
    indexes = distances.argmin(axis=1).astype(np.uint8)[inverse.ravel()].reshape(picture.shape[:2])
    rows = np.pad(indexes, ((0, 0), (1, 0)))  # a filter byte 0 before each row
    head = struct.pack(">IIBBBBB", picture.shape[1], picture.shape[0], 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", head),
        (b"PLTE", kept.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def main(gallery: Path) -> None:
    """Write every picture beside this file. Raises SystemExit if one is too large."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_pictures.find(), args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": WIDTH, "height": 1800}, device_scale_factor=SCALE)
        page, reader = context.new_page(), context.new_page()
        for name, picture in taken(page, gallery):
            file = small(pixels(reader, picture))
            (HERE / f"{name}.png").write_bytes(file)
            print(f"{name}.png {len(file):,} bytes")
            if len(file) > LIMIT_BYTES:
                raise SystemExit(f"{name}.png is larger than {LIMIT_BYTES:,} bytes; select a smaller part of the page.")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
