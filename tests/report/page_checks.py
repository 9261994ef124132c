"""What must hold of every page: read by a parser, not by a browser."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

VOID = {"meta", "br", "img", "input", "hr", "link"}


class Reader(HTMLParser):
    """Reads a page, and checks that its elements are closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.tags, self.text, self.style = [], [], [], "", ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            self.style += data
        else:
            self.text += data

    def all(self, *names):
        return [attrs for tag, attrs in self.tags if tag in names]


def drawings(page):
    """Every SVG of a page, parsed as XML."""
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    found = re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL)
    return [ET.fromstring(svg.replace("<svg ", f"<svg {namespaces} ", 1)) for svg in found]


def check_page(page):
    """Well-formed, self-contained, and with a text for every picture. Return its reader."""
    reader = Reader(page)
    assert len(reader.ids) == len(set(reader.ids))
    assert not reader.all("script", "link", "img", "iframe", "object", "embed", "foreignobject")
    for _, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on") or name in {"src", "srcset", "action"}]
        links = [value for name, value in attributes.items() if name.endswith("href")]
        links += re.findall(
            r"url\(([^)]*)\)", " ".join(value or "" for name, value in attributes.items() if name != "aria-label")
        )
        assert [link for link in links if not (link.startswith("#") and link[1:] in reader.ids)] == []
    assert not re.search(r"//|url|@import", reader.style)
    pictures = reader.all("svg")
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 20 for attrs in pictures)
    assert len(drawings(page)) == len(pictures)
    assert len(page.encode()) < 3_000_000
    return reader
