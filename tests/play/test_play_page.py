"""The page in a real browser: what a person sees, drags, types and copies."""

import json
import math
import shlex
import subprocess
import sys
import threading

import numpy as np
import pytest
from playing import NARROW, WIDE, random_points

from widemargin import Dataset, flows, margins, play, verify
from widemargin.cli import main

driver = pytest.importorskip("selenium.webdriver")
ActionChains, By, Keys = driver.ActionChains, driver.common.by.By, driver.Keys
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


def data_of(report) -> tuple[np.ndarray, np.ndarray]:
    rows = np.array(report["state"]["points"], dtype=float)
    return rows[:, :2], rows[:, 2]


@pytest.fixture(params=["served", "file"])
def address(request, served, one_file) -> str:
    return served.address if request.param == "served" else one_file.as_uri()


def test_it_works_from_a_file_and_from_the_server_without_errors_or_requests(page, address):
    """XOR without a bias is what it begins with: certified between 0.35355 and 0.35356, checked exactly."""
    page.open(address)
    found = page.certified()
    assert 0.35355 <= found["lower"] <= math.sqrt(2) / 4 <= found["upper"] <= 0.35356
    assert found["answer"] == "proved exactly"
    page.wait("return document.getElementById('badge').textContent === 'proved'")
    assert page.text("headline").startswith("No network of any width has a margin above 0.3535")
    assert "Checked exactly, in your browser" in page.text("sentence")
    X, y = data_of(page.report())
    assert verify.check(json.loads(found["text"]), X, y).ok
    page.wait("return playground.steps > 50")
    assert page.complaints() == []
    base = address.split("#")[0]
    assert page.requests() and all(url.startswith((base, "data:", "blob:")) for url in page.requests())


def test_proved_appears_only_after_the_exact_check(page, one_file):
    """With a checker that refuses everything the page never says proved."""
    text = one_file.read_text(encoding="utf-8")
    assert "function runItems(" in text
    broken = one_file.with_name("broken.html")
    refuse = 'need(false, "upper bound: tampered");'
    broken.write_text(text.replace("rules.upper(upper, weights, total);", refuse), encoding="utf-8")
    page.open(broken.as_uri())
    page.certified()
    page.wait("return document.getElementById('badge').textContent === 'not proved'")
    assert "tampered" in page.text("sentence") and "proved" not in page.text("headline").replace("not proved", "")


def test_random_sets_in_the_browser_meet_python(page, one_file):
    for number in (201, 202, 203, 205):
        X, y, bias = random_points(number)
        page.open(one_file.as_uri() + play.link(Dataset(X, y), bias=bias))
        found = page.certified()
        shown, labels = data_of(page.report())
        np.testing.assert_array_equal(shown, X)
        ours = margins.f1(Dataset(X, y), bias=bias, time_limit=30)
        assert found["answer"] == "proved exactly" and verify.check(json.loads(found["text"]), shown, labels).ok
        assert ours.lower <= found["upper"] and found["lower"] <= ours.upper


def test_a_certificate_that_is_opened_is_checked(page, one_file, tmp_path):
    page.open(one_file.as_uri())
    found = page.certified()
    body = json.loads(found["text"])
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(found["text"], encoding="utf-8")
    body |= {"upper": body["upper"] * 0.99, "lower": 0.3}
    bad.write_text(json.dumps(body | {"digest": verify.digest(body)}), encoding="utf-8")
    for file, said in ((good, "proved exactly"), (bad, "refused")):
        page.driver.find_element(By.ID, "file").send_keys(str(file))
        page.wait("return document.getElementById('note').textContent.includes(arguments[0])", said)
        if said == "proved exactly":  # of what, too: a true certificate may be about another margin, or say little
            assert "(F1), without a bias, lies in [0.3535" in note(page)


def test_mouse_click_drag_flip_and_undo(page, one_file):
    page.open(one_file.as_uri())
    page.certified()
    before = page.report()
    stage = page.driver.find_element(By.ID, "stage")
    ActionChains(page.driver).move_to_element_with_offset(stage, 40, -60).click().perform()
    page.wait("return playground.state.points.length === 5")
    assert page.certified()["answer"] == "proved exactly"
    point = page.driver.find_elements(By.CLASS_NAME, "point")[0]
    where = page.report()["state"]["points"][0]
    ActionChains(page.driver).click_and_hold(point).move_by_offset(30, 20).move_by_offset(15, 10).release().perform()
    page.wait("return playground.state.points[0][0] !== arguments[0]", where[0])
    moved = page.report()["state"]["points"][0]
    assert all((64 * v).is_integer() for v in moved[:2]) and moved[0] > where[0] and moved[1] < where[1]
    assert page.certified()["answer"] == "proved exactly"
    ActionChains(page.driver).key_down(Keys.SHIFT).click(point).key_up(Keys.SHIFT).perform()
    page.wait("return playground.state.points[0][2] === -1")
    assert page.run("return playground.stage.buttons[0].classList.contains('minus')")
    for _ in range(3):
        page.driver.find_element(By.ID, "undo").click()
    page.wait("return playground.state.points.length === 4")
    assert page.report()["state"]["points"] == before["state"]["points"]
    assert page.certified()["upper"] == before["certs"]["f1"]["upper"]
    assert page.complaints() == []


def test_a_long_press_flips(page, one_file):
    page.open(one_file.as_uri())
    point = page.driver.find_elements(By.CLASS_NAME, "point")[1]
    before = page.report()["state"]["points"]
    ActionChains(page.driver).click_and_hold(point).pause(0.9).release().perform()
    page.wait("return playground.state.points[1][2] === -1")
    after = page.report()["state"]["points"]  # it has not moved, and no other has changed
    assert before[1][2] == 1 and after == [[*one[:2], -1] if k == 1 else one for k, one in enumerate(before)]


def test_the_keyboard_alone_can_do_everything(page, one_file):
    page.open(one_file.as_uri(), still=True)  # no training beside sixty keys
    page.run("document.body.focus()")
    keys = lambda *these: ActionChains(page.driver).send_keys(*these).perform()  # noqa: E731
    seen = set()
    for _ in range(60):  # Tab reaches scenes, points, the sphere and every control
        keys(Keys.TAB)
        seen.add(page.run("const e = document.activeElement; return e.id || e.className || e.textContent"))
    wanted = {
        "point",
        "ball",
        *[
            "run",
            "step",
            "reset",
            "undo",
            "add",
            "clear",
            "paint",
            "preset",
            "width",
            "scale",
            "mode",
            "rule",
            "decay",
            "loss",
            "speed",
            "seed",
            "bias",
            "share",
            "python",
            "command",
            "file",
        ],
    }
    disabled = set(page.run("return [...document.querySelectorAll(':disabled')].map((e) => e.id)"))
    assert wanted - disabled <= seen, wanted - disabled - seen
    page.run("playground.stage.buttons[2].focus()")
    x, y, label = page.report()["state"]["points"][2]
    keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert page.report()["state"]["points"][2] == [x + 0.125, y + 0.125, label]
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_LEFT).key_up(Keys.SHIFT).perform()
    assert page.report()["state"]["points"][2] == [x + 0.125 - 1 / 64, y + 0.125, label]
    keys(" ")
    assert page.report()["state"]["points"][2][2] == -label
    assert page.run("return document.activeElement === playground.stage.buttons[2]")
    keys(Keys.DELETE)
    assert len(page.report()["state"]["points"]) == 3 and page.run(
        "return document.activeElement.className"
    ).startswith("point")
    page.run("document.getElementById('add').focus()")
    keys(Keys.ENTER)
    assert page.report()["state"]["points"][3][:2] == [0, 0]
    assert page.run("return document.activeElement === playground.stage.buttons[3]")
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()
    assert len(page.report()["state"]["points"]) == 3
    yaw = page.run("playground.ball.canvas.focus(); return playground.ball.yaw")
    keys(Keys.ARROW_RIGHT)
    assert page.run("return playground.ball.yaw") > yaw
    assert page.complaints() == []


def test_names_and_a_live_region_for_those_who_listen(page, one_file):
    page.open(one_file.as_uri())
    page.certified()
    page.wait("return document.getElementById('live').textContent.startsWith('Proved. No network of any width')")
    page.wait("return /Step \\d+\\. Margin .* of the bound/.test(document.getElementById('live').textContent)")
    named = page.run("return playground.stage.buttons.map((one) => one.getAttribute('aria-label'))")
    assert named[0] == "point 1, label plus one, at 1, 1" and "minus one" in named[2]
    unnamed = page.run(
        """return [...document.querySelectorAll("button, input, select, textarea, canvas:not([aria-hidden])")].filter((one) =>
          !(one.labels?.length || one.getAttribute("aria-label") || one.textContent.trim())).map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    shapes = page.run("return [0, 2].map((i) => getComputedStyle(playground.stage.buttons[i], '::after').borderRadius)")
    assert shapes[0] != shapes[1]  # not by colour alone


def test_less_motion_where_it_is_asked_for(page, one_file):
    page.open(one_file.as_uri(), still=True)
    page.certified()
    assert page.report()["running"] is False and page.report()["steps"] == 0
    page.driver.find_element(By.ID, "step").click()
    page.wait("return playground.steps === 1")


def contrast(one, other):
    def light(rgb):
        parts = [(v / 255 / 12.92) if v / 255 <= 0.03928 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in rgb]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    a, b = sorted((light(one), light(other)))
    return (b + 0.05) / (a + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_read(page, one_file, dark):
    page.open(one_file.as_uri(), dark=dark)
    rgb = page.run("return playground.colours.rgb")
    assert (rgb["paper"][0] < 60) == dark
    for name in ("ink", "quiet", "link", "best", "second", "plus", "minus"):
        assert contrast(rgb[name], rgb["paper"]) > 4, name
        assert contrast(rgb[name], rgb["card"]) > 3.5, name
    page.run("playground.get('stage').scrollIntoView()")
    assert page.complaints() == []


def test_nothing_sticks_out_on_a_phone(page, one_file):
    page.open(one_file.as_uri(), NARROW)
    page.certified()
    for scene in range(5):
        page.run("playground.scene(arguments[0])", scene)
        page.wait("return playground.steps > 3")
        width, shown = page.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert width <= shown == NARROW[0]
    small = page.run(
        """return [...document.querySelectorAll("button:not(.point), select, .file")].filter((one) => one.offsetParent &&
          one.getBoundingClientRect().height < 32).map((one) => one.id)"""
    )
    assert small == []


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_choices_can_be_read_to_their_end(page, one_file, size):
    page.open(one_file.as_uri(), size, still=True)
    cut = page.run(
        """const pen = document.createElement("canvas").getContext("2d");
        return [...document.querySelectorAll(".fields select")].flatMap((one) => {
          const style = getComputedStyle(one), arrow = 22;
          pen.font = style.font;
          const room = one.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - arrow;
          return [...one.options].filter((each) => pen.measureText(each.text).width > room).map((each) => each.text);
        });"""
    )
    assert cut == []


def test_a_link_restores_the_same_numbers(page, served):
    page.open(served.address)
    page.set("preset", "ring")
    page.set("rule", "gd")
    page.set("seed", 3)
    page.certified()
    page.wait("return playground.steps > 40")
    page.stop()
    page.driver.find_element(By.ID, "share").click()
    link = page.wait("return document.getElementById('copied').value")
    before = page.report()
    page.open(link)
    page.certified()
    page.wait("return playground.steps === arguments[0]", before["steps"])
    after = page.report()
    assert not after["running"] and after["steps"] == before["steps"] > 40
    for key in ("f1", "f2", "risk"):
        assert after[key] == before[key]
    assert after["certs"]["f1"]["text"] == before["certs"]["f1"]["text"]


@pytest.mark.parametrize(
    "way", ["both", *(pytest.param(way, marks=pytest.mark.long) for way in ("frozen", "output")), "decay", "linear"]
)
def test_copied_python_gives_the_same_interval_and_the_same_curve(page, one_file, capsys, way):
    page.open(one_file.as_uri())
    page.set("preset", "kkt" if way == "linear" else "ring")
    page.set("rule", "gd")
    page.set("width", 30)
    if way in ("frozen", "output"):
        page.set("mode", way)
    if way == "decay":
        page.set("decay", "0.003")
    if way == "linear":
        page.set("start", "linear")
    kind, named = {"decay": ("f1-optimum", "best"), "output": ("rf", "own"), "frozen": ("frozen", "own")}.get(
        way, ("f1", "cert")
    )
    page.certified("rf")
    page.wait("return playground.steps > 60")
    page.stop()
    page.driver.find_element(By.ID, "python").click()
    code = page.wait("return document.getElementById('copied').value")
    here = page.report()
    more = f"""
import json
cert = {named}
last = [float(run[name][-1, 0]) for name in ("{"margin_M7" if way == "output" else "margin_M1"}", "log_risk")]
print(json.dumps([cert.lower, cert.upper, cert.data_sha256, *last]))
"""
    if way == "both":  # in a process of its own, as a person would run it
        done = subprocess.run([sys.executable, "-c", code + more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        exec(compile(code + more, "copied.py", "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
    lower, upper, digest, margin, log_risk = json.loads(printed.splitlines()[-1])
    cert = here["certs"][kind]
    assert lower <= cert["upper"] and cert["lower"] <= upper  # the same interval, up to where the searches stopped
    assert json.loads(cert["text"])["data"]["sha256"] == digest
    assert abs(margin - here["f2" if way == "output" else "f1"]) < 1e-9
    if way != "output":
        assert abs(math.exp(log_risk) / here["risk"] - 1) < 1e-9
    assert "verified exactly" in printed


def test_copied_commands_run(page, one_file, tmp_path, monkeypatch, capsys):
    page.open(one_file.as_uri())
    page.set("preset", "ring")
    page.set("rule", "ngd")
    page.certified()
    page.wait("return playground.steps > 20")
    page.stop()
    page.driver.find_element(By.ID, "command").click()
    text = page.wait("return document.getElementById('copied').value")
    here = page.report()
    points, commands = text.split("\nEND\n")
    subprocess.run(["bash", "-e", "-c", f"{points}\nEND\n"], check=True, cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in commands.replace("--seed", "--json --seed").splitlines():
        name, *words = shlex.split(line)
        assert name == "widemargin" and main(words) == 0
    printed = capsys.readouterr().out
    assert "verified exactly" in printed
    trial = json.loads(printed.splitlines()[-1])["trials"][0]
    assert abs(trial["margin_M1"] - here["f1"]) < 1e-9


def test_the_downloaded_certificate_verifies(page, one_file, tmp_path):
    page.open(one_file.as_uri())
    page.certified()
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.wait("return !document.getElementById('download').disabled")
    page.driver.find_element(By.ID, "download").click()
    file = tmp_path / "f1.json"
    page.wait("return true")
    for _ in range(100):
        if file.exists() and file.stat().st_size:
            break
        page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    (tmp_path / "points.csv").write_text("x1,x2,label\n1,1,1\n-1,-1,1\n1,-1,-1\n-1,1,-1\n", encoding="utf-8")
    command = [sys.executable, "-m", "widemargin", "verify", str(file), str(tmp_path / "points.csv")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "verified exactly" in done.stdout, done.stdout + done.stderr


def note(page) -> str:
    return page.run("const n = document.getElementById('note'); return n.hidden ? '' : n.textContent")


def test_bad_input_gets_a_sentence_and_never_a_blank_page(page, one_file, tmp_path):
    page.open(one_file.as_uri() + "#hello=world")
    assert "not one of ours" in note(page) and page.certified()["answer"] == "proved exactly"
    page.driver.find_element(By.ID, "clear").click()
    page.wait("return document.getElementById('badge').textContent === 'no points'")
    assert "no points" in note(page)
    many = tmp_path / "many.csv"
    many.write_text("x1,x2,label\n" + "0.5,0.5,1\n" * 10_000, encoding="utf-8")
    field = page.driver.find_element(By.ID, "file")
    field.send_keys(str(many))
    page.wait("return document.getElementById('note').textContent.includes('10,000')")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\nc,d\n", encoding="utf-8")
    field.send_keys(str(wrong))
    page.wait("return document.getElementById('note').textContent.includes('Row 1')")
    page.set("seed", -3)
    assert "whole number" in note(page)
    one = Dataset([[1.0, 1.0], [0.5, -1.0]], [1, 1])
    page.open(one_file.as_uri() + play.link(one, bias=True))
    assert "one label" in note(page) and page.certified()["answer"] == "proved exactly"
    both = Dataset([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]], [1, -1, 1])
    page.open(one_file.as_uri() + play.link(both, bias=True))
    assert "on top of each other" in note(page)
    found = page.certified()
    assert (found["lower"], found["upper"], found["answer"]) == (0, 0, "proved exactly")
    page.wait("return document.getElementById('headline').textContent === 'No network separates these points.'")
    assert page.complaints() == []


def test_odd_files_links_and_buttons_get_a_sentence_too(page, one_file):
    page.open(one_file.as_uri())
    page.run("playground.open({size: 1, text: () => Promise.reject(new Error('a folder'))})")
    page.wait("return document.getElementById('note').textContent.includes('cannot be read')")
    page.run("location.hash = '#v=1&p=1_2p.oops'")
    page.wait("return document.getElementById('note').textContent.includes('The page stays as it was')")
    assert len(page.report()["state"]["points"]) == 4
    assert page.run("return document.getElementById('undo').disabled")  # nothing has changed
    page.run("document.getElementById('skip').click()")  # a place of the page, and no link of ours
    assert page.run("return document.activeElement.id") == "run" and "not one of ours" in note(page)
    page.driver.find_element(By.ID, "clear").click()
    for name in ("python", "command"):
        page.driver.find_element(By.ID, name).click()
        assert "no run to copy" in note(page) and page.run("return document.getElementById('copied').hidden")
    far = Dataset([[100.0, 100.0], [-100.0, 50.0]], [1, -1])
    page.open(one_file.as_uri() + play.link(far))
    stage = page.driver.find_element(By.ID, "stage")
    half = stage.size["width"] // 2
    ActionChains(page.driver).move_to_element_with_offset(stage, half - 4, 4 - half).click().perform()
    page.wait("return playground.state.points.length === 3")  # the square is wider than what a link can hold
    assert page.report()["state"]["points"][2][:2] == [100, 100]
    assert page.complaints() == []


def test_drags_end_at_the_edge_and_when_the_points_change(page, one_file):
    page.open(one_file.as_uri(), still=True)
    hold = lambda k: ActionChains(page.driver).click_and_hold(page.driver.find_elements(By.CLASS_NAME, "point")[k])  # noqa: E731
    hold(0).move_by_offset(500, 0).release().perform()
    assert page.report()["state"]["points"][0][0] == page.run("return playground.stage.half")
    hold(1).move_by_offset(10, 10).perform()
    page.run("playground.preset('ring')")
    before = page.report()["state"]["points"]
    ActionChains(page.driver).move_by_offset(20, 20).release().perform()
    assert page.report()["state"]["points"] == before and len(before) == 24
    assert page.complaints() == []


def test_a_link_of_many_steps_shows_them_and_gives_way(page, one_file):
    page.open(one_file.as_uri() + "#v=1&bias=0&p=64_64p.-64_-64p.64_-64m.-64_64m&width=200&steps=1000000000")
    page.wait("return playground.frames > 2")
    assert page.report()["steps"] < 1_000_000_000 and page.run("return playground.waiting")
    page.set("preset", "ring")
    page.wait("return playground.shown && playground.shown.margins.length === 24")
    page.driver.find_element(By.ID, "run").click()
    page.wait("return playground.steps > 3")
    assert page.complaints() == []


def test_scenes_give_way_to_each_other(page, one_file):
    page.open(one_file.as_uri())
    for first in range(5):
        for then in range(5):
            page.run(
                "playground.scene(arguments[0]); playground.story.turn(1); playground.scene(arguments[1])", first, then
            )
            title, name, place = page.run(
                """return [playground.get("story-title").textContent, playground.get("scenes").children[arguments[0]].textContent,
                  playground.get("story-place").textContent]""",
                then,
            )
            assert title == name and place == "1 of 5"
    page.certified("f1-optimum")
    assert page.complaints() == []


def test_a_run_that_diverges_says_so(page, one_file):
    page.open(one_file.as_uri())
    page.set("rule", "gd")
    page.set("lr", 1000)
    page.wait("return playground.shown && playground.shown.step > 10")
    assert page.complaints() == []


def test_a_storm_of_changes_leaves_no_stale_frame_and_no_memory(page, one_file):
    page.open(one_file.as_uri())
    page.certified()
    storm = """
    const [count, done] = arguments, keys = ["xor", "ring", "disks", "spirals", "moons", "kkt"], page = playground;
    let stale = 0, k = 0;
    const hear = page.hear.bind(page);
    page.hear = (message) => {
      const gen = page.gen;
      hear(message);
      if (page.shown && page.shown.margins.length !== page.state.points.length) stale++;
      for (const cert of Object.values(page.certs)) if (cert.gen !== gen || cert.dual.length !==
        page.state.points.length) stale++;
    };
    const next = () => {
      if (k++ >= count) { page.hear = hear; return done(stale); }
      if (k % 4 === 0) page.preset(keys[(k / 4) % keys.length]);
      else page.movePoint(k % page.state.points.length, Math.round(128 * Math.cos(k)) / 64, Math.round(128 *
        Math.sin(2 * k)) / 64);
      setTimeout(next, k % 7 ? 8 : 60);
    };
    next();"""
    settle = "playground.history.length = 0; playground.preset('ring');"

    def used():
        page.run(settle)
        page.certified("rf")
        page.stop()  # a network that trains makes new arrays all the time
        sizes = []
        for _ in range(5):
            page.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
            sizes.append(page.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"])
        page.run("document.getElementById('run').click()")
        return min(sizes)

    assert page.driver.execute_async_script(storm, 40) == 0  # what is made once, at the first use, is there
    before = used()
    assert page.driver.execute_async_script(storm, 200) == 0
    after = used()
    assert 0 < after < 1.2 * before, (before, after)
    assert page.certified()["answer"] == "proved exactly" and page.complaints() == []


def test_what_is_drawn_is_the_network(page, one_file):
    """The shading against the network's values, and neurons of the sphere where they are."""
    page.open(one_file.as_uri())
    page.set("preset", "ring")
    page.certified("rf")
    page.wait("return playground.steps > 200 && playground.own.length > 2")
    page.stop()
    page.wait("return !playground.dirty")
    theta, mass, half, values = page.run(
        """const {theta, mass} = playground.shown, {half, values} = playground.stage;
        return [[...theta], [...mass], half, [...values]]"""
    )
    theta, mass, N = np.reshape(theta, (-1, 3)), np.array(mass), math.isqrt(len(values))
    place = (np.arange(N) + 0.5) * 2 * half / N - half
    x, y = np.meshgrid(place, -place)
    f = (np.stack([x.ravel(), y.ravel(), np.ones(N * N)], axis=1) @ theta.T).clip(0) @ mass
    np.testing.assert_allclose(values, f, atol=1e-9 * np.abs(mass).sum() * half * N)
    report = page.report()
    rows = np.array(report["state"]["points"])
    p = rows[:, 2] * ((np.column_stack([rows[:, :2], np.ones(len(rows))]) @ theta.T).clip(0) @ mass)
    assert abs(p.min() / np.abs(mass).sum() - report["f1"]) < 1e-12
    own = [value for _, value in report["own"]]
    assert own == sorted(own, reverse=True) and own[-1] >= report["certs"]["f1"]["lower"]
    assert report["f1"] <= report["certs"]["f1"]["upper"] and report["f2"] <= report["certs"]["rf"]["upper"]


@pytest.mark.parametrize("scene", [0, 3, *(pytest.param(scene, marks=pytest.mark.long) for scene in (1, 2, 4))])
def test_scenes_have_five_sentences_and_end_as_they_say(page, one_file, scene):
    page.open(one_file.as_uri())
    page.set("speed", 3)
    page.run("playground.get('scenes').children[arguments[0]].click()", scene)
    seen = [page.text("story-text")]
    for _ in range(4):
        page.driver.find_element(By.ID, "story-next").click()
        seen.append(page.text("story-text"))
    assert len(set(seen)) == 5 and page.run("return document.getElementById('story-next').disabled")
    decay = page.report()["state"]["decay"]
    assert page.certified("f1-optimum" if decay else "f1")["answer"] == "proved exactly"
    enough = {0: "r.f1 / r.certs.f1.upper > 0.5", 1: "r.steps > 1500", 2: "r.f1 / r.certs.f1.upper > 0.8", 3: "r.steps > 500",
              4: "r.objective < 1.03 * r.certs['f1-optimum'].lower"}[scene]  # fmt: skip
    page.wait(f"const r = playground.report(); return {enough}", seconds=200)
    report = page.report()
    share = report["f1"] / report["certs"]["f1"]["upper"]
    if scene == 1:
        assert 0.2 < share < 0.85  # too narrow
    if scene == 2:
        assert report["f2"] < report["certs"]["rf"]["upper"] < 0.6 * report["certs"]["f1"]["upper"]
    if scene == 3:
        assert 0.05 < share < 0.2  # stuck
        page.set("start", "drawn")
        page.set("scale", 50)
        page.wait("const r = playground.report(); return r.certs.f1 && r.f1 / r.certs.f1.upper > 0.95", seconds=100)
    page.driver.find_element(By.ID, "story-close").click()
    assert page.complaints() == []


def test_python_certifies_many_points(page, served):
    rng = np.random.default_rng(0)
    X = np.round(rng.uniform(-2, 2, (160, 2)) * 64) / 64
    y = np.where(X[:, 0] + X[:, 1] > 0, 1.0, -1.0)
    page.open(served.address + play.link(Dataset(X, y), bias=True))
    found = page.certified()
    assert found["answer"] == "proved exactly" and json.loads(found["text"])["seconds"] is not None  # it was Python's
    X[1], y[:2] = X[0], (1, -1)
    page.open(served.address + play.link(Dataset(X, y), bias=True))  # Python has another proof of this
    found = page.certified()
    assert found["answer"] == "proved exactly" and found["upper"] == 0
    page.open(served.address)  # a second page
    assert page.certified()["answer"] == "proved exactly" and page.complaints() == []


def test_a_run_of_python_is_replayed(page, tmp_path):
    rng = np.random.default_rng(2)
    X = np.round(rng.uniform(-2, 2, (12, 2)) * 64) / 64
    data = Dataset(X, np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0))
    record = flows.Record(["default", "weights"], points=30)
    run = flows.train(
        data, flows.TwoLayer(3, 20), flows.GD(lr=0.5), stop=300, keep=tmp_path / "run", bias=True, record=record
    )
    with play.Server(run=play.replay(tmp_path / "run")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(server.address + "?run")
        page.wait("return playground.replay && playground.steps === 300")
        assert abs(page.report()["f1"] - run["margin_M1"][-1, 0]) < 1e-12
        assert page.certified()["answer"] == "proved exactly" and "recorded by Python" in note(page)
        page.set("seed", 1)  # a change, and it trains here
        page.wait("return playground.steps > 0 && playground.shown.mass2.length > 0")
        assert "recorded" not in note(page) and page.complaints() == []
        server.shutdown()
