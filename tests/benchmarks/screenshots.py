"""Pictures of pages at three sizes, light and dark, before and after the window is resized.

    python tests/benchmarks/screenshots.py FOLDER PAGE.html ... [--only 1440x900-light]
    python tests/benchmarks/screenshots.py nbs/images resnet18.html --picture report.png

The second line makes the picture of the README: one page at 1440×740, light.
Needs selenium and Chrome or Chromium. A name of a picture says page, size, light or dark, and `resized` or `row`."""
import argparse, base64, shutil, time
from pathlib import Path

from selenium import webdriver

sizes = ((1440, 900), (1024, 768), (390, 844))

def chrome():
    options, driver = webdriver.ChromeOptions(), shutil.which("chromedriver")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{argument}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver) if driver else None)

def view(browser, width, height):
    "A viewport of this size."
    size = dict(width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

def shoot(browser, path):
    time.sleep(0.5)
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", dict(format="png"))["data"]))

def opened(browser, page, width, height, scheme):
    view(browser, width, height)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dict(features=[dict(name="prefers-color-scheme", value=scheme)]))
    browser.get("about:blank")
    browser.get(page.resolve().as_uri())
    while not browser.execute_script("return document.body.dataset.ready"): time.sleep(0.02)

def pictures(browser, page, folder, only):
    for width, height in sizes:
        for scheme in ("light", "dark"):
            name = f"{page.stem}-{width}x{height}-{scheme}"
            if only and not any(o in name for o in only): continue
            opened(browser, page, width, height, scheme)
            shoot(browser, folder/f"{name}.png")
            browser.execute_script("document.querySelectorAll('#table tbody tr')[2]?.click()")
            shoot(browser, folder/f"{name}-row.png")
            opened(browser, page, *((height, width) if width < 700 else (width - 300, height - 100)), scheme)
            view(browser, width, height)
            shoot(browser, folder/f"{name}-resized.png")
            print(name, flush=True)

def picture(browser, page, path):
    "The first screen of a page."
    opened(browser, page, 1440, 740, "light")
    shoot(browser, path)
    print(path, path.stat().st_size, "bytes")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--picture", help="One picture of this name, of the first page")
    given = parser.parse_args()
    browser = chrome()
    try:
        if given.picture: picture(browser, given.pages[0], given.folder/given.picture)
        else:
            for page in given.pages: pictures(browser, page, given.folder, given.only)
    finally: browser.quit()
