"""What `--http` serves: addresses, headers, hosts, and reads that no number of requests multiplies."""

import http.client
import json
import socket
import threading
import time
from contextlib import closing

import pytest

from pipeline.errors import ConfigError, EndpointError, LakeError
from pipeline.report import endpoint as endpoints
from pipeline.report.endpoint import Endpoint, is_local
from pipeline.report.web import script, site
from pipeline.report.web.site import Answer, Pages
from pipeline.report.web.style import source_hash
from pipeline.table_name import TableName
from tests.support.threads import wait_until
from tests.support.web_pages import PageSource, page_facts, parse_page, served_pages

FACTS = page_facts()


def request(port: int, method: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
        client.request(method, path, headers=headers)
        answer = client.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def test_every_link_of_the_page_leads_to_a_page_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_DUTY", 0.0)
    source = PageSource(FACTS)
    with served_pages(source) as port:
        status, headers, body = request(port, "GET", "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        page = parse_page(body)
        links = [link.attributes["href"] for link in page.by_id("tables").every("a")]
        assert len(set(links)) == 80
        for table, link in list(zip(FACTS.tables, links, strict=True))[:14]:
            status, _, body = request(port, "GET", f"/{link}")
            assert status == 200, link
            shown = next(parse_page(body).every("h1")).text
            assert shown.startswith("Table ")
            assert source.reads[-1] == table.name
        assert request(port, "GET", "/tables/public.orders")[0] == 200
        status, _, body = request(port, "GET", "/tables/public.%3Cscript%3E")
        assert status == 404
        assert "no table public.<script>." in parse_page(body).text


def test_other_addresses_methods_and_paths_are_refused() -> None:
    with served_pages(PageSource(FACTS)) as port:
        for path in ("/index.html", "/../etc/passwd", "/tables", "/metrics/", "/healthz/x", "/%ff"):
            assert request(port, "GET", path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            status, headers, _ = request(port, method, "/")
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
            assert request(port, method, "/metrics")[0] == 405
        status, headers, body = request(port, "HEAD", "/healthz")
        assert (status, body, int(headers["Content-Length"]) > 0) == (200, "", True)
        found = json.loads(request(port, "GET", "/healthz")[2])
        assert (found["pipeline"], found["command"]) == ("shop", "run")
        assert "pgdelta_info" in request(port, "GET", "/metrics")[2]


def test_headers_forbid_what_a_page_does_not_need() -> None:
    with served_pages(PageSource(FACTS)) as port:
        _, headers, body = request(port, "GET", "/")
    policy = headers["Content-Security-Policy"]
    [element] = parse_page(body).every("script")
    assert element.text == script.SCRIPT
    assert source_hash(element.text) in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert headers["Access-Control-Allow-Origin"] is None
    assert '<noscript><meta http-equiv="refresh"' in body


@pytest.mark.promise("pages")
def test_a_local_page_has_only_names_of_this_machine() -> None:
    with served_pages(PageSource(FACTS)) as port:
        for host in ("localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:9", "127.0.0.2"):
            assert request(port, "GET", "/healthz", Host=host)[0] == 200, host
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]"):
            for path in ("/", "/metrics", "/healthz"):
                assert request(port, "GET", path, Host=host)[0] == 403, host
    with served_pages(PageSource(FACTS), is_loopback=False) as port:
        assert request(port, "GET", "/healthz", Host="shop.example")[0] == 200
    assert is_local("localhost", 80, "--http")
    assert is_local("::1", 80, "--http")
    assert not is_local("0.0.0.0", 80, "--http")
    with pytest.raises(ConfigError, match=r"--http: Host \S+ is unknown"):
        is_local("no.such.host.invalid", 80, "--http")


@pytest.mark.promise("pages")
def test_many_requests_are_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = PageSource(FACTS)
    with served_pages(source) as port:
        threads = [threading.Thread(target=request, args=(port, "GET", "/")) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert source.reads == [None]
        monkeypatch.setattr(site, "AGE", 0.0)
        request(port, "GET", "/")
        assert source.reads == [None, None]


def test_a_status_that_cannot_be_read_is_a_page_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "AGE", 0.0)
    source = PageSource(FACTS)
    source.error = LakeError("The storage is not available. Try again.")
    with served_pages(source) as port:
        status, _, body = request(port, "GET", "/")
        assert status == 503
        assert "The storage is not available. Try again." in parse_page(body).text
        source.error = ValueError("geheim")
        status, _, body = request(port, "GET", "/")
        assert (status, "geheim" in body) == (503, False)
        source.error = None
        assert request(port, "GET", "/")[0] == 200


def test_a_slow_read_delays_no_page_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "AGE", 0.0)
    monkeypatch.setattr(site, "_UPDATE_PATIENCE", 0.05)
    go, count = threading.Event(), iter(range(10))

    def read(name: TableName | None) -> Answer:
        number = next(count)
        if number:
            go.wait(30)
        return Answer("200 OK", str(number))

    with closing(Pages(read)) as pages:
        assert pages.get(None) == ("200 OK", "0", "text/html; charset=utf-8")
        began = time.monotonic()
        found = pages.get(None)
        assert found is not None
        assert found.body == "0"
        assert time.monotonic() - began < 5
        go.set()
        wait_until(lambda: (pages.get(None) or Answer("", "")).body != "0")


def test_pages_and_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_DUTY", 0.0)
    with closing(Pages(lambda name: Answer("200 OK", str(name)))) as pages:
        for number in range(100):
            assert pages.get(TableName("public", str(number))) is not None
        assert len(pages._read_pages) == site.MAX_PAGES


def test_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_CLIENTS", 2)
    with served_pages(PageSource(FACTS)) as port:
        rude = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        for each in rude:
            each.sendall(b"GET /heal")
        time.sleep(0.3)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            request(port, "GET", "/healthz")
        for each in rude:
            each.close()

        def is_served() -> bool:
            try:
                return request(port, "GET", "/healthz")[0] == 200
            except (http.client.HTTPException, OSError):
                return False

        wait_until(is_served)


def test_an_address_that_is_used_is_one_sentence() -> None:
    with (
        served_pages(PageSource(FACTS)) as port,
        pytest.raises(EndpointError, match=f"--http: Port {port} of 127.0.0.1"),
    ):
        Endpoint("127.0.0.1", port, lambda *_: [], option="--http", name="pages")
