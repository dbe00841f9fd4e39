"""Every Python block and shell command of README.md and docs/, and every example, runs in an empty folder.

Output shown below a block, or below a shell command, is compared with what is printed now, up to the numbers in it.
"""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from widemargin import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# These take minutes: tests/monitor/test_examples.py, test_transformer_example.py and tests/sweep/test_example.py run them
# at a small size.
LONG = {"monitor_mlp.py", "monitor_resnet.py", "monitor_text.py", "monitor_transformer.py", "phase_diagram.py"}
EXAMPLES = sorted(file for file in (ROOT / "examples").glob("*.py") if file.name not in LONG)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
HASH = re.compile(r"\b[0-9a-f]{64}\b")
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?")
FRAME = re.compile(r"[\s─-╿]+")  # spaces and the lines of tables
PROGRESS = re.compile(r"^(f1|train) +[\d.]+ s .*$", re.MULTILINE)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """(language, text, line of its first line) of every fenced block."""
    text = page.read_text(encoding="utf-8")
    return [(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in BLOCK.finditer(text)]


def shape(text: str) -> str:
    """The text without its numbers, spacing and table lines."""
    return FRAME.sub(" ", NUMBER.sub("#", HASH.sub("#", PROGRESS.sub("", text)))).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_is_shown(page, capsys):
    names: dict[str, object] = {"__name__": "__main__"}
    found = blocks(page)
    for (language, source, line), (follower, shown, _) in zip(found, [*found[1:], ("", "", 0)]):
        if language != "python":
            continue
        if named := re.match(r"# (\w+\.py)\n", source):  # a file that later blocks find in the folder
            Path(named[1]).write_text(source, encoding="utf-8")
        exec(compile("\n" * (line - 1) + source, page.name, "exec"), names)  # the blocks of a page share their names
        printed = capsys.readouterr().out
        if follower == "text":
            assert shape(printed) == shape(shown), f"{page.name}: below line {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_commands_run_and_print_what_is_shown(page, capsys):
    for language, text, line in blocks(page):
        if language != "console":
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            words = shlex.split(command)
            assert words[0] == "widemargin", f"{page.name}: line {line} can only show widemargin"
            assert cli.main(words[1:]) == 0
            said = capsys.readouterr()
            assert shape(said.out + said.err) == shape(shown), f"{page.name}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: there is no {target}"


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
    assert sum(language == "python" for page in PAGES for language, _, _ in blocks(page)) >= 8
