"""A person's way through the review, in a real browser: from opening to thirty decisions, undo, a kill, the export.

Debian's chromium is driven by playwright. Where one of them is missing, the tests say so and are skipped.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from judged_runs import by_file_name, colour_folder, judged_run

import fedsieve
from fedsieve.data.decisions import read_decisions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs it")

NAMELESS = """() => [...document.querySelectorAll("button, input, select, [role=option]")]
    .filter((element) => !(element.ariaLabel || element.textContent.trim() || element.labels?.length))
    .map((element) => element.outerHTML)"""
"""Controls of which a screen reader would have nothing to say."""


class Started:
    """`fedsieve review` in a process of its own."""

    def __init__(self, folder, *options):
        words = [sys.executable, "-m", "fedsieve", "review", str(folder), "--no-open", *options]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)
        self.said = []
        while not (found := re.search(r"http://\S+", self.said[-1] if self.said else "")):
            line = self.process.stdout.readline()
            assert line, "".join(self.said)
            self.said.append(line)
        self.address = found[0]

    def end(self, number):
        self.process.send_signal(number)
        rest = self.process.communicate(timeout=30)[0]
        return self.process.returncode, rest


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser):
    """Opens a page and notes what goes wrong in it, and whom it talks to."""
    contexts = []

    def open_page(address, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.wrong, page.asked = [], []
        page.on("console", lambda message: page.wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda problem: page.wrong.append(str(problem)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("#single:not([hidden])")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    return colour_folder(tmp_path_factory.mktemp("data") / "scans", each=60)


@pytest.fixture
def run(tmp_path, scans):
    judged_run(tmp_path / "run", by_file_name, data=str(scans))
    return tmp_path / "run"


def shown(page):
    return page.text_content("#given-name"), page.text_content("#suggested-name"), page.text_content("#where")


def saved(page, count):
    """Wait until so many rows are decided on disk."""
    for _ in range(300):
        if page.evaluate("async () => (await (await fetch('api/overview')).json()).decided.length") == count:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not {count} decided: {page.text_content('#counted')}, {page.text_content('#trouble')}")


def test_thirty_decisions_a_kill_and_a_new_start(run, opened):
    first = Started(run, "--owner", "north", "--reader", "ann", "--minutes", "30")
    page = opened(first.address)
    assert "token" not in page.url
    assert page.title() == "north: FedSieve review"
    expected = []
    for number in range(30):
        page.wait_for_function("() => document.getElementById('where').textContent")
        given, suggested, where = shown(page)
        true = where.rsplit("-", 1)[1].removesuffix(".png")
        key, action = ("u", "unsure") if number == 7 else ("k", "keep") if true == given else ("t", "take")
        page.keyboard.press(key)
        expected.append((where, action if key != "t" or true == suggested else "take"))
    assert re.match(r"30 of \d+ decided · \d+:\d\d left, about", page.text_content("#counted"))
    saved(page, 30)
    assert page.is_visible("#estimates")
    assert "controls" in page.text_content("#ground")
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    with (run / "decisions.jsonl").open("ab") as file:
        file.write(b'{"sample": {"own')  # as if it had been killed in the middle of a line
    found = read_decisions(run / "decisions.jsonl")
    assert [(e.sample.where, e.action) for e in found.entries] == expected
    assert {e.who for e in found.entries} == {"ann"}

    page.keyboard.press("k")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "Not saved yet" in page.text_content("#trouble")

    second = Started(run, "--owner", "north", "--reader", "ann")
    assert "torn" in "".join(second.said)
    page = opened(second.address)
    assert page.text_content("#counted").startswith("30 of ")
    assert shown(page)[2] not in [where for where, _ in expected]
    page.keyboard.press("z")
    page.keyboard.press("Control+z")
    saved(page, 28)
    page.wait_for_function("(w) => document.getElementById('where').textContent === w", arg=expected[28][0])
    assert page.wrong == []
    assert all(url.startswith(second.address.split("?")[0]) for url in page.asked)
    code, said = second.end(signal.SIGINT)
    assert code == 0
    assert f"28 rows decided by ann: {run / 'decisions.jsonl'}" in said

    exported = run.parent / "decided.json"
    command = [sys.executable, "-m", "fedsieve", "corrections"]
    options = ["--format", "label-studio", "--out", str(exported)]
    subprocess.run([*command, "export", str(run / "decisions.jsonl"), *options], check=True, stdout=subprocess.DEVNULL)
    assert len(json.loads(exported.read_text())) == 28
    data = fedsieve.load(run)["config"]["data"]
    mended, _ = fedsieve.federation(data=data, **{"data.corrections": str(run / "decisions.jsonl")})
    taken = sum(action == "take" for _, action in expected[:28])
    assert f"{taken} labels corrected" in mended.notes[-1]


def test_keyboard_alone_many_at_once_filters_and_typing(run, opened):
    started = Started(run, "--owner", "south")
    page = opened(started.address, color_scheme="dark")
    page.keyboard.press("o")
    page.keyboard.type("gre")
    assert page.get_attribute("#choose-list [aria-selected=true]", "data-class") == "1"
    page.keyboard.press("Enter")
    saved(page, 1)
    page.keyboard.press("2")
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#single [aria-pressed=true]", "id") in ("keep", "take", "other")
    page.keyboard.press("x")
    page.keyboard.press("g")
    page.wait_for_selector("#tiles [role=option]")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert page.text_content("#chosen") == "2 chosen"
    assert page.text_content("#live") == "2 chosen"
    page.keyboard.press("t")
    assert len(page.query_selector_all(".tile.decided")) >= 2
    page.keyboard.press("z")
    page.keyboard.press("a")
    count = len(page.query_selector_all("#tiles [role=option]"))
    page.keyboard.press("k")
    saved(page, count)
    page.keyboard.press("Enter")
    page.wait_for_selector("#single:not([hidden])")
    page.keyboard.press("f")
    page.select_option("#filter-given", label="red")
    page.check("#filter-open")
    page.wait_for_timeout(50)
    if page.is_visible("#single"):
        assert page.text_content("#given-name") == "red"
    assert page.wrong == []
    nameless = page.evaluate(NAMELESS)
    assert nameless == []
    assert started.end(signal.SIGTERM)[0] == 0


def test_two_readers_are_compared_and_do_not_see_each_others_decisions(run, opened):
    for reader, keys in (("ann", "ttttt"), ("bob", "ttttk")):
        started = Started(run, "--owner", "north", "--reader", reader)
        page = opened(started.address)
        assert page.text_content("#counted").startswith("0 of ")
        for key in keys:
            page.keyboard.press(key)
        saved(page, 5)
        if reader == "bob":
            page.wait_for_function("() => document.getElementById('ground').textContent.includes('kappa')")
            assert "ann and bob decided 5 rows both and differ on 1: Cohen's kappa" in page.text_content("#ground")
        started.end(signal.SIGTERM)


def test_filters_by_pair_and_score(run, opened):
    """Rows of one pair of classes only, and none that is less suspicious than asked for."""
    started = Started(run, "--owner", "north")
    page = opened(started.address, color_scheme="dark")
    whole = page.evaluate("() => review.store.view.length")
    page.keyboard.press("f")
    page.select_option("#filter-given", label="green")
    page.select_option("#filter-suggested", label="red")
    pairs = page.evaluate(
        "() => review.store.view.map((row) => [review.store.given[row], review.store.suggested[row]])"
    )
    names = page.evaluate("() => review.store.classes")
    assert 0 < len(pairs) < whole
    assert {(names[given], names[suggested]) for given, suggested in pairs} == {("green", "red")}
    page.click("#filter button[type=reset]")
    page.wait_for_function("(whole) => review.store.view.length === whole", arg=whole)
    scores = sorted(page.evaluate("() => review.store.view.map((row) => review.store.score[row])"))
    page.evaluate("""() => { const slider = document.getElementById("filter-score");
        slider.value = "0.01"; slider.dispatchEvent(new Event("input", { bubbles: true })); }""")
    assert page.evaluate("() => review.store.view.length") == sum(score <= 0.01 for score in scores)
    assert page.text_content("#filter-score-shown") == "0.01"
    assert page.wrong == []
    started.end(signal.SIGTERM)


def test_a_twin_is_shown_and_told(run, opened):
    file = run / "labels.csv"
    head, *lines = file.read_text().splitlines()
    north = [line for line in lines if line.startswith("north,")]
    kept = [line for line in north if line.split(",")[5] == "false"]
    one, other = (
        kept[0].split(",")[1],
        next(line.split(",")[1] for line in north if line.split(",")[2] != kept[0].split(",")[2]),
    )
    file.write_text("\n".join([head, *(line + other if line == kept[0] else line for line in lines)]) + "\n")
    started = Started(run, "--owner", "north", "--controls", "0")
    page = opened(started.address)
    page.wait_for_function("() => document.getElementById('where').textContent")
    assert page.is_hidden("#twin")
    page.keyboard.press("ArrowLeft")
    page.evaluate("() => review.go(review.store.view.length)")
    page.wait_for_selector("#twin:not([hidden]) img")
    assert page.text_content("#where") == one
    told = f"nearly the same as {other}, which is labelled {other.split('/')[1]}"
    assert page.text_content("#twin p") == told
    assert told in page.text_content("#live")
    assert page.wrong == []
    started.end(signal.SIGTERM)


def test_markup_in_names_is_shown_and_does_nothing(tmp_path, opened):
    from PIL import Image

    evil = "<img src=x onerror=window.hacked=1>"
    for number in range(20):
        place = tmp_path / "data" / "<b>owner<%b>" / (evil if number % 2 else "plain")
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(place / f"<i>{number}.png")
    judged_run(
        tmp_path / "run", lambda _, given: (evil, 0.1) if given == "plain" else None, data=str(tmp_path / "data")
    )
    started = Started(tmp_path / "run", "--reader", "<u>ann")
    page = opened(started.address)
    page.wait_for_function("() => document.getElementById('where').textContent")
    page.keyboard.press("g")
    page.wait_for_selector("#tiles [role=option]")
    page.keyboard.press("g")
    page.keyboard.press("o")
    assert evil in {*shown(page)[:2], page.text_content("#choose-list")} or evil in page.text_content("#choose-list")
    assert page.evaluate("() => window.hacked") is None
    assert page.query_selector("main b, main i, main u, h1 b") is None
    assert page.wrong == []
    started.end(signal.SIGTERM)


def test_the_page_without_a_server(run, opened, tmp_path):
    words = [
        sys.executable,
        "-m",
        "fedsieve",
        "review",
        str(run),
        "--owner",
        "north",
        "--static",
        str(tmp_path / "r.html"),
    ]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    page = opened((tmp_path / "r.html").as_uri(), accept_downloads=True)
    page.fill("#who", "zoë")
    page.focus("#main")
    for key in "ktu2x":
        page.keyboard.press(key)
    page.fill("#who", "bob")
    page.focus("#main")
    page.keyboard.press("z")
    page.reload()
    page.wait_for_selector("#single:not([hidden])")
    assert page.text_content("#counted").startswith("4 of ")
    with page.expect_download() as download:
        page.click("#download")
    download.value.save_as(tmp_path / "decisions.jsonl")
    found = read_decisions(tmp_path / "decisions.jsonl")
    assert [e.action for e in found.entries][:3] == ["keep", "take", "unsure"]
    assert found.entries[-1].action == "undo"
    assert {e.who for e in found.entries} == {"zoë"}
    assert len(found.standing()) == 4
    assert page.wrong == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_port_that_is_taken(run):
    started = Started(run, "--owner", "north")
    port = re.search(r":(\d+)/", started.address)[1]
    words = [sys.executable, "-m", "fedsieve", "review", str(run), "--owner", "north", "--port", port]
    again = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
    assert again.returncode == 2
    assert "FS002" in again.stderr
    assert started.end(signal.SIGINT)[0] == 0
