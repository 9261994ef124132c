"""Photographs a report in headless Chromium: light and dark, 400 and 1,400 CSS pixels wide, the whole page.

    python tests/report/screenshots.py report.html shots/

It needs Chromium on the PATH, and aiohttp, which comes with `ray[default]`. It opens the page from a file, with the
network off. It prints the page's width and height, and every message of the console. It exits with 1 if there is a
message, if the page asks for anything but itself, or if it scrolls sideways.
"""

import argparse
import asyncio
import base64
import itertools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp

WIDTHS = (400, 1400)
THEMES = ("light", "dark")
PART_HEIGHT = 1600  # of one picture: a higher one is hard to look at


class Tab:
    """A page in Chromium, by the DevTools protocol."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count(1)
        self.messages, self.requests, self.loads = [], [], 0

    async def call(self, method, **parameters):
        """Send a command and wait for its answer. Events that come before it are kept."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async for message in self._socket:
            answer = message.json()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._keep(answer)
        raise AssertionError("Chromium has closed the connection")

    def _keep(self, event):
        values = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(str([each.get("value") for each in values["args"]]))
        elif event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(values["exceptionDetails"]["text"])
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(values["entry"]["text"])
        elif event.get("method") == "Page.loadEventFired":
            self.loads += 1
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    async def open(self, url):
        """Go to an address, and wait until the page is loaded."""
        before = self.loads
        await self.call("Page.navigate", url=url)
        while self.loads == before:
            self._keep(await self._socket.receive_json())

    async def evaluate(self, script):
        """The value of an expression."""
        return (await self.call("Runtime.evaluate", expression=script, returnByValue=True))["result"].get("value")


async def photograph(tab, page, folder, width, theme):
    """Open the page at one width in one theme, and save it in parts. Return its height."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    await tab.call("Emulation.setDeviceMetricsOverride", **metrics)
    await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    await tab.open(page.resolve().as_uri())
    height = await tab.evaluate("document.documentElement.scrollHeight")
    for part, top in enumerate(range(0, height, PART_HEIGHT), start=1):
        clip = {"x": 0, "y": top, "width": width, "height": min(PART_HEIGHT, height - top), "scale": 1}
        shot = await tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        (folder / f"{page.stem}-{width}-{theme}-{part}.png").write_bytes(base64.b64decode(shot["data"]))
    return height


async def photograph_all(page, folder, port):
    """All widths and themes. Return what is wrong."""
    wrong = []
    async with aiohttp.ClientSession() as session:
        targets = await (await session.get(f"http://127.0.0.1:{port}/json")).json()
        url = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
        async with session.ws_connect(url, max_msg_size=0) as socket:
            tab = Tab(socket)
            for domain in ("Page", "Runtime", "Log", "Network"):
                await tab.call(f"{domain}.enable")
            await tab.call(
                "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
            )
            for width, theme in itertools.product(WIDTHS, THEMES):
                height = await photograph(tab, page, folder, width, theme)
                content = await tab.evaluate("document.documentElement.scrollWidth")
                print(f"{width} {theme}: {content} x {height}")
                if content > width:
                    wrong.append(f"{width} {theme}: the page is {content} pixels wide")
            foreign = [url for url in tab.requests if url != page.resolve().as_uri()]
            wrong += [f"console: {text}" for text in tab.messages] + [f"asked for {url}" for url in foreign]
    return wrong


def main(words):
    """Start Chromium, photograph the page, and end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        print("screenshots: Chromium is not on the PATH", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
            f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            line = next(line for line in process.stderr if "DevTools listening" in line)
            port = int(line.split("127.0.0.1:")[1].split("/")[0])
            wrong = asyncio.run(photograph_all(options.page, options.folder, port))
        finally:
            process.terminate()
            process.wait()
    print("\n".join(wrong) or "no message on the console, nothing loaded, no sideways scrolling")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
