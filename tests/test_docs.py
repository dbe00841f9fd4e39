"""Every Python block and shell command of README.md and docs/, and every example, runs in an empty folder.

Output shown below a block, or below a shell command, is compared with what is printed now, numbers included: docs/shown.py says
how, and `make docs-update` rewrites what is shown.
"""

import importlib
import re
import runpy
import sys
from importlib import util
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
spec = util.spec_from_file_location("shown", ROOT / "docs" / "shown.py")
assert spec is not None and spec.loader is not None
shown = util.module_from_spec(spec)
sys.modules["shown"] = shown
spec.loader.exec_module(shown)

# These take minutes: tests/monitor/test_examples.py, test_transformer_example.py and tests/sweep/test_example.py run them
# at a small size.
LONG = {"monitor_mlp.py", "monitor_resnet.py", "monitor_text.py", "monitor_transformer.py", "phase_diagram.py"}
EXAMPLES = sorted(file for file in (ROOT / "examples").glob("*.py") if file.name not in LONG)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", shown.PAGES, ids=lambda page: page.name)
def test_pages_print_what_they_show(page):
    stale = [f"line {one.line}, {one.what}: {one.differs()}" for one in shown.run(page) if one.differs()]
    assert not stale, f"{page.name}: " + "\n".join(stale)


@pytest.mark.parametrize(
    ("before", "now", "rule", "agree"),
    [
        ("margin 0.0842758", "margin 0.0842759", "", True),  # one in the last digit
        ("margin 0.0842758", "margin 0.0842760", "", False),
        ("0.8660254 in all", "1.2324 in all", "", False),
        ("8 neurons", "7 neurons", "", False),
        ("8 neurons", "7 neurons", "numbers within 20 %", True),
        ("8 neurons", "7 atoms", "any numbers", False),
        ("gap 3.5e-09", "gap 1e-12", "", True),  # rounding
        ("gap 3.5e-09", "gap 1e-3", "", False),
        ("done in 3.2 s", "done in 30 s", "", True),
        ("3.2 steps", "30 steps", "", False),
        ("7.15e+64", "7.16e+64", "", True),
        ("7.15e+64", "7.18e+64", "", False),
        ("┃ x ┃ seconds ┃\n│ 1 │ 2.5 │", "┃ x ┃ seconds ┃\n│ 1 │ 7 │", "", True),
        ("┃ x ┃ seconds ┃\n│ 1 │ 2.5 │", "┃ x ┃ seconds ┃\n│ 2 │ 2.5 │", "", False),
        ("┃ x ┃ y ┃\n│ 1 │ 2 │", "┃ x  ┃ y ┃\n│  1 │ 2 │", "", True),  # the width of a table is no matter
        ("n=30,d=2", "n=30,d=3", "", False),
    ],
)
def test_numbers_that_are_shown_are_compared(before, now, rule, agree):
    assert (shown.difference(before, now, rule) == "") == agree


def test_a_page_is_rewritten_where_it_is_stale(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1.5)\n```\n\n<!-- numbers within 5 % -->\n```text\n1.9\n```\n\nEnd.\n")
    (one,) = shown.run(page)
    assert one.differs() == "1.9 is now 1.5" and one.line == 7 and one.rule == "numbers within 5 %"
    shown.rewrite(page, [one])
    assert page.read_text().endswith("```text\n1.5\n```\n\nEnd.\n") and not next(shown.run(page)).differs()


@pytest.mark.parametrize("page", shown.PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: there is no {target}"


# What a reader meets without opening anything; more belongs into tables and folds, or is cut.
BUDGET, README_BUDGET = 20_500, 600
NOT_PROSE = re.compile(r"<!--.*?-->|^```.*?^```$|<details.*?</details>", re.MULTILINE | re.DOTALL)


def open_words(text: str) -> int:
    """Words outside of code fences, tables, pictures, comments and what is folded (<details>, or ??? with its indented lines)."""
    kept, folded = [], False
    for line in NOT_PROSE.sub("", text).splitlines():
        folded = line.startswith("??? ") or (folded and (not line.strip() or line.startswith("    ")))
        if not folded and not line.lstrip().startswith(("|", "![")):
            kept.append(re.sub(r"\]\([^)]*\)", "]", line))  # the text of a link counts, its address does not
    return len(" ".join(kept).split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# Two words\n\nand [two](more than this).", 5),
        ("one\n\n```python\nnot = this\n```\n\ntwo", 2),
        ("one\n| not | this |\n|---|---|\n![nor this](x.png)\n<!-- nor\nthis -->\ntwo", 2),
        ('one\n<details markdown="1"><summary>Not</summary>\n\n```\nnot\n```\nthis\n</details>\ntwo', 2),
        ('one\n\n??? note "Not this"\n\n    nor this\n\n    nor that\n\ntwo\n\n    three', 3),
    ],
)
def test_open_words_are_counted(text, words):
    assert open_words(text) == words


def test_open_prose_stays_within_its_budget():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = {page.name: open_words(page.read_text(encoding="utf-8")) for page in pages}
    longest = sorted(found.items(), key=lambda one: -one[1])[:5]
    assert sum(found.values()) < BUDGET, f"{sum(found.values())} words; the longest pages: {longest}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < README_BUDGET


# Half a minute, and a block of docs/guarantees.md runs much the same.
APART = {"what_it_guarantees.py": pytest.mark.long}
# One or two minutes at full size.
ARGUMENTS = {"did_training_find_the_optimum.py": ["--quick"], "which_weight_decay.py": ["--quick"]}


@pytest.mark.parametrize("example", [pytest.param(one, marks=APART.get(one.name, ()), id=one.name) for one in EXAMPLES])
def test_examples_run(example, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(example), *ARGUMENTS.get(example.name, [])])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


def test_there_is_something_to_run():
    assert len(EXAMPLES) >= 4
    assert sum(block.language == "python" for page in shown.PAGES for block in shown.blocks(page)) >= 8


ROOMS = ("margins", "optima", "plots", "flows", "theory", "monitor", "papers", "sweep", "report", "verify", "spaces")
NAMED = re.compile(rf"(?<![\w./-])(?:widemargin\.|wm\.)?({'|'.join(ROOMS)})\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def resolves(room: str, name: str) -> bool:
    """Whether this is a name of the room, of a file in it, or of a monitor, which pages call so."""
    path = name.split(".")
    starts = [importlib.import_module(f"widemargin.{room}")]
    if room == "monitor":
        starts.append(starts[0].MarginMonitor)
    for at in starts:
        for k, part in enumerate(path):
            if not hasattr(at, part):
                try:
                    at = importlib.import_module(".".join(["widemargin", room, *path[: k + 1]]))
                    continue
                except ImportError:
                    break
            at = getattr(at, part)
        else:
            return True
    return False


@pytest.mark.parametrize(
    "page", [page for page in shown.PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_functions_that_pages_name_are_there(page):
    spans = re.findall(r"`([^`\n]+)`", page.read_text())
    named = sorted({found for span in spans for found in NAMED.findall(span)})
    files = (".py", ".md", ".html", ".js", ".json")  # names of files, not of functions
    named = [f"{room}.{path}" for room, path in named if not f".{path}".endswith(files)]
    assert not [name for name in named if not resolves(*name.split(".", 1))]
