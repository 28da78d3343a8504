"""What is not here says so by name, and the page at `/` says what is."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from gateway.http.extensions import ABSENT, Absent
from tests.support.http_kit import RawClient, get, http


@pytest.mark.parametrize("absent", ABSENT, ids=lambda a: f"{a.path} {a.methods[0]}")
async def test_an_absent_extension_is_501_by_name_and_is_not_listed(client: RawClient, absent: Absent) -> None:
    path = re.sub(r"\{model\}", "ident_f32", re.sub(r"\{(version|region)\}", "1", absent.path))
    for method in absent.methods:
        reply = await client.ask(http(b"{}", path=path, method=method))
        assert reply.status == 501
        assert repr(absent.extension) in reply.error
        assert reply.headers["headrace-error"] == "not-supported"
    assert absent.extension not in (await client.ask(get("/v2"))).json["extensions"]


async def test_another_method_on_an_absent_extension_is_405(client: RawClient) -> None:
    reply = await client.ask(get("/v2/systemsharedmemory/region/r/register"))
    assert reply.status == 405
    assert reply.headers["allow"] == "POST, OPTIONS"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a":
            self.links.append(str(found["href"]))
        elif "src" in found or tag in {"link", "script", "img", "iframe"}:
            self.loads.append(tag)


async def test_the_page_at_the_root_says_what_this_is_and_loads_nothing(client: RawClient) -> None:
    reply = await client.ask(get("/"))
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    text = reply.body.decode()
    assert "model server" in text
    assert "curl http://test/v2/models/MODEL" in text
    assert "ident_f32" not in text
    page = Page(text)
    assert "/openapi.json" in page.links
    assert not page.loads
    for link in page.links:
        assert (await client.ask(get(link))).status == 200, link


async def test_a_host_that_carries_markup_stays_text(client: RawClient) -> None:
    client.send(b"GET / HTTP/1.1\r\nHost: <script>x</script>\r\n\r\n")
    reply = await client.read()
    assert reply.status in (200, 400)
    assert b"<script>" not in reply.body
