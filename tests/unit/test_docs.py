"""Pages cannot rot: names and defaults, error codes, links, commands and the longest example are held to the code."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml
from PIL import Image
from typer.main import get_command

import fedsieve
import fedsieve.core
import fedsieve.testing
from fedsieve import core
from fedsieve.base.errors import ConfigError
from fedsieve.base.options import options_of
from fedsieve.cli.app import app
from fedsieve.cli.arguments import settings_of
from fedsieve.core.combiners import COMBINERS
from fedsieve.data.augment import ATOMS, AUGMENTATIONS
from fedsieve.data.federation import ServerOptions
from fedsieve.data.noise import NOISES
from fedsieve.data.partition import PARTITIONS
from fedsieve.data.rates import RATES
from fedsieve.data.sources import DataOptions
from fedsieve.evaluate.disclosure import REPORTED
from fedsieve.evaluate.schema import DERIVED, LABEL_COLUMNS, METRICS, File
from fedsieve.methods import METHODS, build_method, method_options
from fedsieve.models import MODELS, options_of_model
from fedsieve.runs.comparison import cells
from fedsieve.settings.auditing import for_auditing
from fedsieve.settings.config import AdmitOptions, FlowerOptions, ScheduleOptions, Settings
from fedsieve.settings.planning import config_of
from fedsieve.settings.pretraining import for_pretraining
from fedsieve.testing import check_method

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:\w+=\S+ )*fedsieve (.+)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def read(path):
    return path.read_text(encoding="utf-8")


def blocks(page, language):
    return [body for found, body in BLOCK.findall(read(page)) if found == language]


def prose(page):
    return BLOCK.sub("", read(page))


def section(page, heading):
    """What stands below a heading, up to the next one."""
    parts = re.split(r"^#+ ", read(page), flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(f"{heading}\n"))


def row(key, option):
    """How a table begins the row of an option."""
    default = "number of cores" if key == "workers" else option.default
    return f"| `{key}` | {'empty' if default == '' else default} |"


def anchors(page):
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(prose(page))}


def check_options(config):
    """The options of the method and of the model are known; building would be the next step of a run."""
    build_method(config.top.method, config.options, config.code)
    assert set(config.of("model")) <= set(options_of_model(config.top.model, config.code))


def commands():
    """Every line of a shell block that calls fedsieve, with its page; what stands before (PYTHONPATH=.) is left out."""
    lines = [(page, line) for page in PAGES for body in blocks(page, "bash") for line in body.splitlines()]
    calls = [(page, COMMAND.match(line)) for page, line in lines]
    return [pytest.param(shlex.split(call[1]), id=f"{page.name}: {call[0]}") for page, call in calls if call]


@pytest.fixture(scope="module")
def files_of_the_docs(tmp_path_factory):
    """A folder with the files that pages tell to save: code and settings whose first line is their name."""
    folder = tmp_path_factory.mktemp("docs")
    for page in PAGES:
        for body in [*blocks(page, "python"), *blocks(page, "yaml")]:
            if named := re.match(r"# (\w+\.(?:py|yaml))\n", body):
                (folder / named[1]).write_text(body, encoding="utf-8")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fedsieve.settings.config.names_clients", lambda *_: False
        )  # the data that pages speak of are not here
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder


def test_every_error_code_has_an_entry_and_every_entry_a_code():
    sources = "".join(read(path) for path in (ROOT / "src").rglob("*.py"))
    raised = set(re.findall(r'"(FS\d{3})"', sources))
    explained = re.findall(r"^### (FS\d{3})$", read(REFERENCE / "errors.md"), re.MULTILINE)
    assert explained == sorted(raised)


@pytest.mark.parametrize("code", re.findall(r"^### (FS\d{3})$", read(REFERENCE / "errors.md"), re.MULTILINE))
def test_an_entry_has_a_meaning_an_example_and_advice(code):
    assert re.match(rf"{code}\n\n\*\*.+?\n```\n.+?\n```\n\n\S", section(REFERENCE / "errors.md", code), re.DOTALL)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_a_page_with_its_defaults(method):
    page = REFERENCE / "methods" / f"{method}.md"
    text = read(page)
    assert text.startswith(f"# {method}\n")
    for key, option in method_options(method)[method].items():
        assert row(f"{method}.{key}", option) in text
    for heading in ("What it does", "Equations", "Options", "What travels", "Try it"):
        assert f"\n## {heading}\n" in text
    assert f"reference/methods/{method}.md" in read(ROOT / "README.md")
    assert f"reference/methods/{method}.md" in read(ROOT / "docs" / "README.md")
    assert any(f"method={method}" in body or f"+{method}" in body for body in blocks(page, "bash"))


def test_no_page_of_a_method_that_is_gone():
    assert {page.stem for page in (REFERENCE / "methods").glob("*.md")} == set(METHODS)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_has_its_row_and_its_defaults(model):
    text = read(REFERENCE / "models.md")
    assert f"\n| `{model}` |" in text
    for key, option in options_of_model(model).items():
        assert f"| `{model}` {row(f'model.{key}', option)}" in text


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        (Settings, ""),
        (DataOptions, "data."),
        (ServerOptions, "server."),
        (ScheduleOptions, "schedule."),
        (AdmitOptions, "admit."),
        (FlowerOptions, "flower."),
    ],
)
def test_settings_are_listed_with_their_defaults(kind, before):
    text = read(REFERENCE / "configuration.md")
    for key, option in options_of(kind).items():
        assert row(f"{before}{key}", option) in text


@pytest.mark.parametrize("name", [*AUGMENTATIONS, *ATOMS])
def test_augmentations_are_listed(name):
    assert f"`{name}`" in section(REFERENCE / "configuration.md", "Augmentation")


@pytest.mark.parametrize(
    ("before", "name", "kind"),
    [
        *(("partition", name, kind) for name, kind in PARTITIONS.items()),
        *(("noise", name, kind) for name, kind in [*NOISES.items(), *RATES.items()]),
    ],
)
def test_partitions_noises_and_rates_are_listed_with_their_defaults(before, name, kind):
    text = section(REFERENCE / "partitions-and-noise.md", name)
    for key, option in options_of(kind).items():
        assert row(f"{before}.{key}", option) in text
    assert len(re.findall(rf"^\| `{before}\.", text, re.MULTILINE)) == len(options_of(kind))


@pytest.mark.parametrize("name", COMBINERS)
def test_combiners_are_listed_with_their_defaults(name):
    text = section(REFERENCE / "combiners.md", name)
    for key, option in options_of(COMBINERS[name]).items():
        assert row(f"combine.{key}", option) in text


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metrics_are_explained_as_they_are_declared(metric):
    page = REFERENCE / "metrics.md"
    assert f"| `{metric.name}` | {metric.meaning} |\n" in section(page, "metrics.jsonl")
    assert (f"`{metric.name}`" in section(page, "summary.json")) == (metric.summary is not None)


@pytest.mark.parametrize("metric", [metric for metric in DERIVED if metric.meaning], ids=lambda metric: metric.name)
def test_numbers_of_a_whole_run_are_explained_as_they_are_declared(metric):
    assert f"| `{metric.name}` | {metric.meaning} |\n" in section(REFERENCE / "metrics.md", "summary.json")


def test_files_and_columns_are_explained():
    page = REFERENCE / "metrics.md"
    for file in File:
        assert f"`{file}/`" in read(page) if file == File.CHECKPOINT else f"`{file}`" in read(page)
    listed = section(page, "labels.csv")
    assert tuple(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", listed, re.MULTILINE)))) == LABEL_COLUMNS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for link in LINK.findall(prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_the_index_names_every_page():
    index = read(ROOT / "docs" / "README.md")
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.name == "README.md" or f"({page.relative_to(ROOT / 'docs')})" in index


@pytest.mark.parametrize("words", commands())
def test_a_command_parses(words, files_of_the_docs):
    command, rest = get_command(app), list(words)
    while hasattr(command, "commands"):
        name = rest.pop(0)
        command = command.commands[name]
    given = command.make_context(name, rest).params
    settings = settings_of([key for key in given.get("keys") or [] if "=" in key or Path(key).exists()])
    defaults = {"pretrain": for_pretraining, "audit": for_auditing}
    settings = defaults.get(name, dict)(settings)
    if name == "compare":
        configs = [cell.config for cell in cells(settings, allow_code=True)]
    else:
        configs = [config_of(settings, allow_code=True)]
    for config in configs:
        check_options(config)


def test_a_wrong_command_would_be_found():
    with pytest.raises(ConfigError, match="FS001"):
        check_options(config_of(settings_of(["method=fedprox", "fedprox.my=1"])))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_compiles_and_settings_files_resolve(page, files_of_the_docs):
    for body in blocks(page, "python"):
        compile(body, str(page), "exec")
    for body in blocks(page, "yaml"):
        assert cells(yaml.safe_load(body), allow_code=True)


def test_the_method_of_the_docs_keeps_the_contract(files_of_the_docs):
    check_method("my_methods:mine")


def test_the_hooks_of_the_docs_do_as_they_say(files_of_the_docs):
    (example,) = (body for body in blocks(ROOT / "docs/how-to/add-a-method.md", "python") if "fake_client" in body)
    found: dict[str, object] = {}
    exec(compile(example, "test_my_methods.py", "exec"), found)
    tests = [test for name, test in found.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_public_names_are_listed():
    page = REFERENCE / "public-names.md"
    shown = set(re.findall(r"`(\w+)`", section(page, "`fedsieve.core`")))
    assert set(fedsieve.core.__all__) <= shown
    named = set(re.findall(r"[`.](\w+)`", section(page, "Public names")))
    assert {*fedsieve.__all__, "check_method", "fake_client", "fake_server", "fake_reports"} <= named
    assert named & set(fedsieve.testing.__all__) == {
        "check_method", "fake_client", "fake_reports", "fake_server", "tiny_federation",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "before"), [(core.Client, "c"), (core.Net, "net"), (core.Batch, "batch"), (core.Server, "s")]
)
def test_what_hooks_receive_is_listed_and_nothing_else(kind, before):
    text = section(REFERENCE / "for-authors.md", kind.__name__)
    shown = set(re.findall(rf"`{before}\.(\w+)", text))
    made = set(re.findall(r"self\.([a-z]\w*)(?:: [^=\n]+)?(?:, self\.\w+)* =", inspect.getsource(kind.__init__)))
    made |= set(
        re.findall(
            r"self\.([a-z]\w*)", " ".join(re.findall(r"^ +self\.\w+,.*=", inspect.getsource(kind.__init__), re.M))
        )
    )
    made |= {"labels"} if kind is core.Net else set()
    public = {name for name in vars(kind) if not name.startswith("_")} | made
    assert shown == public


def test_the_model_of_the_docs_can_be_built(files_of_the_docs):
    import torch

    from fedsieve.models import build_model

    model = build_model("my_models:Tiny", (3, 16, 16), 5, options={"width": 4}, allow_code=True)
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 5)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_speak_of_the_product_only(page):
    """No path of a machine, no note to oneself, no unfinished mark."""
    text = read(page)
    assert not re.search(r"(?<![\w./:~*)-])/[a-z]+/[\w.-]+", text), "a path of some machine"
    assert not re.search(r"TODO|FIXME|XXX|@@|lorem ipsum|language model|chatbot", text, re.IGNORECASE)


def test_what_pages_show_of_a_run_names_all_that_leaves_a_client():
    shown = [line for page in PAGES for line in read(page).splitlines() if line.startswith("leaves each client: ")]
    assert len(shown) > 2
    assert all(name in line for line in shown for name in REPORTED)


def test_the_picture_is_small_and_wide():
    path = ROOT / "docs" / "images" / "report.png"
    with Image.open(path) as picture:
        assert 1000 <= picture.width <= 1400
    assert path.stat().st_size < 400_000


def test_the_example_compiles_and_uses_every_function():
    code = read(ROOT / "examples" / "first_steps.py")
    compile(code, "first_steps.py", "exec")
    for function in ("federation", "run", "compare", "load", "predict"):
        assert f"fedsieve.{function}(" in code


def test_these_tests_look_at_something():
    assert len(PAGES) > 25
    assert len(commands()) > 40


def test_the_leaderboard_is_what_its_runs_say(tmp_path):
    """Made anew from the files beside the page, both the page and its HTML are what they are."""
    results = ROOT / "docs" / "results"
    page, html = results / "leaderboard.md", results / "leaderboard" / "leaderboard.html"
    (tmp_path / page.name).write_text(read(page), encoding="utf-8")
    named = re.search(r"^fedsieve leaderboard (.+) --out", read(page), re.MULTILINE)
    folders = [ROOT / folder for folder in named[1].split()]
    assert sorted(folders) == sorted(folder for folder in html.parent.iterdir() if folder.is_dir())
    fedsieve.leaderboard(*folders, out=tmp_path)
    assert read(tmp_path / page.name) == read(page), "the command at the end of the page writes it"
    assert read(tmp_path / html.name) == read(html)
