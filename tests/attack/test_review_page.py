"""The review page: another site, a browser without the token, a path outside the data, markup in names."""

import asyncio
import errno
import http.client
import json
import re
import socket
import threading
from contextlib import suppress

import pytest
from judged_runs import coloured_run, judged_run
from PIL import Image

from fedsieve.data.decisions import read_decisions
from fedsieve.review import static_page
from fedsieve.review.desk import Desk, Sitting
from fedsieve.review.subject import open_subject

uvicorn = pytest.importorskip("uvicorn")
EVIL = "<img src=x onerror=alert(1)>"


class Served:
    """A review behind a real server, and requests that any program on this machine could make."""

    def __init__(self, desk):
        from fedsieve.review.server import review_app

        self.desk = desk
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen()
        self.port = self.listening.getsockname()[1]
        self.app = review_app(desk, self.port)
        config = uvicorn.Config(self.app, log_level="critical", lifespan="off", ws="none", server_header=False)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([self.listening],), daemon=True)
        self.thread.start()
        self.here = f"127.0.0.1:{self.port}"
        _, told, _ = self.ask("GET", f"/?token={self.app.token}")
        self.cookie = told["Set-Cookie"].split(";")[0]

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.headers, content

    def mine(self, method, path, body=None, **headers):
        """As the page itself asks."""
        usual = {"Cookie": self.cookie, "Sec_Fetch_Site": "same-origin"}
        if method == "POST":
            usual |= {"Origin": f"http://{self.here}", "Content_Type": "application/json"}
        return self.ask(method, path, body, **usual | headers)

    def close(self):
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder, *_ = coloured_run(tmp_path_factory.mktemp("review"))
    desk = Desk(open_subject(folder, "north"), Sitting("ann"))
    desk.prepare()
    found = Served(desk)
    yield found
    found.close()


KEEP = json.dumps({"wishes": [{"row": 0, "action": "keep"}]})
PATHS = [
    "/",
    "/main.js",
    "/review.css",
    "/api/overview",
    "/api/sample/0",
    "/api/samples?rows=0",
    "/api/estimates",
    "/image/0/large",
]


@pytest.mark.parametrize("path", PATHS)
def test_the_page_itself_gets_what_it_asks_for(served, path):
    status, headers, content = served.mine("GET", path)
    assert status == 200
    assert content
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "path", [*PATHS, "/nothing", "/?token=", "/?token=x", "/api/overview?token={token}", "/?token=%00"]
)
def test_without_the_token_there_is_nothing(served, path):
    for cookie in (
        "",
        served.cookie.split("=")[0] + "=wrong",
        "a=b",
        "fedsieve-review=" + served.app.token,
        ";;;=,",
        f"a/b=1; {served.cookie}",
    ):
        status, headers, content = served.ask("GET", path.format(token=served.app.token), Cookie=cookie)
        assert status == 403
        assert content == b"Open the address that `fedsieve review` printed.\n"
        assert "Set-Cookie" not in headers


def test_the_cookie_is_strict_and_no_token(served):
    _, headers, _ = served.ask("GET", f"/?token={served.app.token}")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert served.app.token not in cookie
    assert len(served.app.token) >= 32


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "localhost:{port}.evil.example"]
)
def test_another_name_for_this_machine_is_refused(served, host):
    """A site whose name suddenly leads to 127.0.0.1 is still that site."""
    host = host.format(port=served.port)
    assert served.mine("GET", "/api/overview", Host=host)[0] == 403
    assert served.mine("POST", "/api/decide", KEEP, Host=host, Origin=f"http://{host}")[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://{here}"},
        {"Origin": ""},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
    ],
)
def test_another_site_cannot_decide_even_with_the_cookie(served, headers):
    sent = {name: value.format(here=served.here) for name, value in headers.items()}
    assert served.mine("POST", "/api/decide", KEEP, **sent)[0] == 403
    if sent.get("Sec_Fetch_Site") != "none":
        assert served.mine("GET", "/api/overview", **sent)[0] == 403
    assert not served.desk.log.entries


def test_a_form_of_another_site_cannot_decide(served):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert served.mine("POST", "/api/decide", KEEP, Content_Type=kind)[0] == 415
    assert not served.desk.log.entries


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fpyproject.toml",
        "/image/../../etc/passwd",
        "/image/..%2f..%2fetc%2fpasswd/large",
        "/image/-1/large",
        "/image/99999/large",
        "/image/0/../../../../etc/passwd",
        "/image/0/huge",
        "/api/sample/-1",
        "/api/samples?rows=-1",
        "/api/samples?rows=0,../../etc/passwd",
        "/api/samples?rows=99999999999999999999",
        "/api/samples?rows=",
        "/api/samples?rows=%D9%A3",
        "/review.html",
        "/desk.py",
        "/labels.csv",
        "/decisions.jsonl",
        "/page/main.js",
        "//etc/passwd",
        "/%00",
    ],
)
def test_no_path_leads_out(served, path):
    status, _, content = served.mine("GET", path)
    assert status in (400, 404)
    assert len(content) < 100


@pytest.mark.parametrize("row", ["99999", "9" * 30])
def test_rows_that_are_not_there(served, row):
    assert served.mine("GET", f"/api/sample/{row}")[0] == 400
    assert served.mine("GET", f"/image/{row}/large")[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "[]",
        "null",
        "[" * 50_000,
        '{"wishes": []}',
        '{"wishes": [{"row": 0}]}',
        '{"wishes": [{"row": "0", "action": "keep"}]}',
        '{"wishes": [{"row": true, "action": "keep"}]}',
        '{"wishes": [{"row": -1, "action": "keep"}]}',
        '{"wishes": [{"row": 0, "action": "delete"}]}',
        '{"wishes": [{"row": 0, "action": "other", "choice": 1e3}]}',
        '{"wishes": [{"row": 0, "action": "keep", "who": "bob"}]}',
        '{"wishes": [{"row": 0, "action": "keep"}], "file": "/tmp/x"}',
        json.dumps({"wishes": [{"row": 0, "action": "keep"}] * 1001}),
        b"\xff\xfe",
    ],
)
def test_what_is_not_understood_writes_nothing(served, body):
    assert served.mine("POST", "/api/decide", body)[0] == 400
    assert not served.desk.log.entries


def test_a_body_without_end_is_cut_off(served):
    assert served.mine("POST", "/api/decide", b" " * (1 << 20))[0] == 413

    def chunks():
        for _ in range(400):
            yield b" " * 1024

    with suppress(BrokenPipeError, ConnectionResetError):  # the server need not wait for the end
        assert served.mine("POST", "/api/decide", chunks())[0] == 413
    assert not served.desk.log.entries


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods(served, method):
    assert served.mine(method, "/api/decide", Origin=f"http://{served.here}")[0] == 405
    assert served.ask(method, "/api/decide")[0] == 403


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Owners, classes and files whose names are markup."""
    root = tmp_path_factory.mktemp("hostile")
    owner, classes = "<script>alert(1)<%script>", ("</script><script>alert(2)<%script>", EVIL, "=cmd|x")
    for number in range(30):
        place = root / "data" / owner / classes[number % 3].replace("/", "%")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(place / f"<b>{number}.png")
    swapped = {classes[0].replace("/", "%"): EVIL}
    judged_run(
        root / "run", lambda _, given: (swapped[given], 0.1) if given in swapped else None, data=str(root / "data")
    )
    desk = Desk(open_subject(root / "run"), Sitting("<u>ann</u>"))
    desk.prepare()
    return desk


def test_names_travel_as_data_and_never_as_markup(hostile):
    found = Served(hostile)
    try:
        for path in ("/api/overview", "/api/sample/0"):
            status, headers, content = found.mine("GET", path)
            assert status == 200
            assert headers["Content-Type"] == "application/json"
            json.loads(content)
        _, _, page = found.mine("GET", "/")
        assert b"alert(" not in page
        assert found.mine("POST", "/api/decide", KEEP)[0] == 200
    finally:
        found.close()
    (entry,) = read_decisions(hostile.subject.file).entries
    assert entry.who == "<u>ann</u>"


def test_names_cannot_leave_the_data_of_the_static_page(hostile, tmp_path):
    static_page.write_static(hostile, tmp_path / "review.html", most=30)
    page = (tmp_path / "review.html").read_text()
    assert len(re.findall("<script", page)) == len(re.findall("</script", page)) == 2
    assert EVIL not in page
    assert "<b>" not in page


def test_no_script_of_the_page_writes_markup():
    from fedsieve.review.pages import FILES

    for name, file in FILES.items():
        if name.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", file.read_text()
            )


def test_what_is_no_request_gets_no_answer(served):
    async def never(*_):
        raise AssertionError

    assert asyncio.run(served.app({"type": "websocket"}, never, never)) is None


def test_a_disk_that_refuses_is_told(served, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(served.desk, "decide", refuse)
    status, _, content = served.mine("POST", "/api/decide", KEEP)
    assert status == 507
    assert b"no space left" in content
    assert b"FS243" in content
