"""The pages, the README and the tests: their words, and what pages say of commands, files and settings."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from pipeline import __version__
from pipeline.config.load import load_config
from pipeline.crash_steps import CrashStep
from pipeline.silver.decision import TABLE
from tests.support.paths import ROOT
from tests.support.tutorial import first_path, stated_path
from tools.docs_site import find_external, keep_options

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted([README, ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
README_WORDS = 1000
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEST_NAME_LETTERS = 70
# of the formatter's output, which to parse would take seconds
NAMES = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
DOCSTRINGS = re.compile(r'(?:\A|:(?:  #.*)?\n)\s*"""([\s\S]*?)"""')

# Words that the glossary replaced. Names of tests, columns and options are in code spans, which are left out.
WORDS = (
    r"anew",
    r"astray",
    r"beside",
    r"be it",
    r"be (?:they|there)",
    r"(?:some|no|any)body(?:'s)?",
    r"(?:is|are|was|were|be|been|being) told",
    r"tells?",
    r"stands(?! (?:for|in for)\b)",
    r"stood",
    r"of which",
    r"of whom",
    r"amid",
    r"goes another way",
    r"in silence",
    r"without a word",
    r"late commits?",
    r"(?:each|every|last|next) pass",
    r"passes of apply",
    r"patch(?:es|ed)?",
    r"ledger",
    r"bag",
)
OLD_WORDS = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
# what names and docstrings of tests say in other words, too
TEST_WORDS = re.compile(
    rf"\b(?:{'|'.join(WORDS)}|told|look(?:s|ed)?|wants?|goes on|went away)\b", re.IGNORECASE
)
OF_TABLE = re.compile(r"(?:^|[.:] )Of (?:a|an|each|the) \w+(?: \w+)? (?:with|that|whose)\b", re.MULTILINE)
# commands, keys and states that no release had
OLD_NAMES = re.compile(r"pgdelta retry|--rewrite|--prove|silver\.leaving|type_changes: rewrite|`left`")


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(text: str) -> str:
    """Return a page without code blocks, code spans and the addresses of links, its lines kept."""
    text = re.sub(r"^( *)(`{3,}).*?^\1\2$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"(`+).+?\1", "x", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def blocks(text: str, *languages: str) -> list[str]:
    """Return the code blocks of a page that are in one of the languages, as they are when not indented."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, flags=re.M | re.S)
    return [
        re.sub(rf"^{space}", "", code, flags=re.M) for space, language, code in found if language in languages
    ]


def spans(text: str) -> list[str]:
    """Return the code spans of a page."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S))


def test_the_readme_is_short() -> None:
    assert len(read(README).split()) <= README_WORDS


def test_the_tutorial_counts_the_keystrokes_to_the_first_equal_table() -> None:
    commands, keystrokes = first_path()
    stated = stated_path()
    assert (stated.commands, stated.keystrokes) == (commands, keystrokes)


SECTIONS = re.findall(
    r"^## (\S+)( \(not released\))?\n(.*?)(?=^## |\Z)",
    read(ROOT / "CHANGELOG.md"),
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize(("version", "text"), [(version, text) for version, _, text in SECTIONS])
def test_a_section_of_the_changelog_has_a_few_short_lines(version: str, text: str) -> None:
    lines = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
    assert 1 <= len(lines) <= 20, version
    assert not [line for line in lines if len(line.split()) > 10]


def test_the_newest_version_is_the_one_that_files_name() -> None:
    assert SECTIONS[0][0] == __version__
    files = [*PAGES, *sorted((ROOT / "deploy").rglob("*"))]
    texts = {path: read(path) for path in files if path.is_file() and path.name != "CHANGELOG.md"}
    named = {path: set(re.findall(r"pgdelta[:-](\d+\.\d+\.\d+)", text)) for path, text in texts.items()}
    assert sum(map(bool, named.values())) >= 6
    assert set().union(*named.values()) == {__version__}


def test_every_release_has_a_stored_lake() -> None:
    released = [version for version, is_open, _ in SECTIONS if not is_open and version != __version__]
    assert released
    assert all((ROOT / "tests" / "lakes" / f"{version}.tar.xz").exists() for version in released)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_pages_are_in_the_glossarys_words(page: Path) -> None:
    lines = prose(read(page)).splitlines()
    found = [f"{n}: {m[0]}" for n, line in enumerate(lines, 1) for m in OLD_WORDS.finditer(line)]
    found += [f"{n}: {m[0]}" for n, line in enumerate(lines, 1) for m in OF_TABLE.finditer(line)]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_pages_have_the_names_of_this_release(page: Path) -> None:
    assert not OLD_NAMES.findall(read(page))


def test_tests_are_in_the_glossarys_words() -> None:
    found = []
    for file in TESTS:
        text = read(file)
        names = NAMES.findall(text)
        said = [
            *DOCSTRINGS.findall(text),
            *(name.replace("_", " ") for name in names if name.startswith("test_")),
        ]
        found += [f"{ids(file)}: {m[0]}" for each in said for m in TEST_WORDS.finditer(each)]
        found += [f"{ids(file)}: {name} is too long" for name in names if len(name) > TEST_NAME_LETTERS]
    assert not found


def test_old_words_are_found() -> None:
    text = "A table is copied anew.\n\nOf a table with a key it reads the rest. `test_anew` stands here.\n"
    assert [m[0] for m in OLD_WORDS.finditer(prose(text))] == ["anew", "stands"]
    assert OF_TABLE.search(prose(text))
    assert not OLD_WORDS.search(prose("```sh\nanew\n```\n"))


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", read(README))
    paths = [target for target in targets if "://" not in target]
    assert len(paths) > 20
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = [
        span
        for span in spans(read(page))
        if re.fullmatch(r"(?:conf|docs|jobs|notebooks|pipeline|tests|tools)/[\w./-]+", span)
    ]
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", sorted((DOCS / "architecture").glob("*.md")), ids=ids)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    """The steps end with their modules, such as *(`silver/fold/fold`)*."""
    named = [name for group in re.findall(r"\*\((`[^)]+`)\)\*", read(page)) for name in spans(group)]
    paths = [ROOT / "pipeline" / name for name in named]
    assert not [str(path) for path in paths if not (path.is_dir() or path.with_suffix(".py").exists())]


@pytest.mark.parametrize("room", ["", "types", "schema", "fold", "write", "read", "compare"])
def test_silvers_rooms_list_their_modules(room: str) -> None:
    folder = ROOT / "pipeline" / "silver" / room
    text = ast.get_docstring(ast.parse(read(folder / "__init__.py"))) or ""
    modules = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/*.py")
    }
    assert set(spans(text)) - {"mirror"} == modules - {"__init__"}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_targets_that_a_page_names_are_made(page: Path) -> None:
    makefile = read(ROOT / "Makefile")
    code = "\n".join([*spans(read(page)), *blocks(read(page), "sh")])
    for target in set(re.findall(r"(?:^|\n)make ([a-z0-9-]+)", code)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


EXAMPLES = [
    (page, text)
    for page in PAGES
    for text in blocks(read(page), "yaml")
    if set(yaml.safe_load(text) or ()) & {"pipeline", "source", "storage", "silver", "tables"}
]


@pytest.mark.parametrize(
    ("page", "text"), EXAMPLES, ids=[f"{ids(page)}-{n}" for n, (page, _) in enumerate(EXAMPLES)]
)
def test_examples_of_the_configuration_are_valid(page: Path, text: str, tmp_path: Path) -> None:
    """What an example leaves out is the default."""
    del page
    if "pipeline:" not in text:
        text = f"pipeline: shop\n{text}"
    (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
    environ = {"PGDELTA_CONNINFO": "dbname=shop", "PGDELTA_HASH_KEY": "0123456789abcdef"}
    environ |= {"LAKE_KEY": "a key", "LAKE_SECRET": "a secret"}
    assert load_config(tmp_path / "pipeline.yaml", environ).pipeline == "shop"


def test_the_table_of_decisions_is_the_code_s() -> None:
    text = read(DOCS / "architecture" / "apply.md")
    section = text[text.index("## The decision") :].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", section, re.MULTILINE)[1:]
    assert [(name, step) for name, step in rows if name != "---"] == [
        (row.name, row.step.value) for row in TABLE
    ]


def test_the_crash_points_are_the_named_steps() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| (?:ingest|apply) \|", read(DOCS / "architecture" / "crash-points.md"), re.M
    )
    assert rows == [step.value for step in CrashStep]


def test_metrics_of_the_alerts_are_in_the_reference() -> None:
    known = set(re.findall(r"`(?:pgdelta_)?([a-z_]+)[`{]", read(DOCS / "reference" / "metrics.md")))
    rules = read(ROOT / "deploy" / "prometheus" / "pgdelta.yml")
    named = set(re.findall(r"\bpgdelta_(\w+)", rules))
    assert len(named) > 5
    assert named <= known


@pytest.mark.parametrize(
    ("html", "external"),
    [
        ('<script src="../assets/a.js"></script><img src="b.svg"><a href="https://delta.io">x</a>', []),
        ('<link rel="canonical" href="https://docs.example.org/">', []),
        ('<script src="https://unpkg.com/x"></script>', ["https://unpkg.com/x"]),
        ('<link rel="stylesheet" href="//fonts.example.org/css">', ["//fonts.example.org/css"]),
    ],
)
def test_what_a_page_loads_from_a_network_is_found(html: str, external: list[str]) -> None:
    assert find_external(html) == external


def test_options_stay_on_one_line_outside_code_blocks() -> None:
    html = "<p><code>pgdelta apply --table a-b</code> a--b</p><pre><code>apply --confirm</code></pre>"
    assert keep_options(html) == (
        '<p><code>pgdelta apply <span class="option">--table</span> a-b</code> a--b</p>'
        "<pre><code>apply --confirm</code></pre>"
    )
