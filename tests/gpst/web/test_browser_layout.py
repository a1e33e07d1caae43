"""What the page shows agrees with itself, and stays in its place, in a real browser."""

from __future__ import annotations

import pytest

READ = (
    "typeof state === 'object' && state.lanes.length"
    " && state.lanes.every(lane => lane.words.length && !lane.busy)"
)
WIDTHS = {"phone": 400, "laptop": 1400}


@pytest.fixture
def read(tab):
    """read(text, width): one model has read the text on a screen so wide."""

    def of(text: str, width: int = 1400) -> None:
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                 deviceScaleFactor=1, mobile=width < 500)  # fmt: skip
        tab.value(f"state.choice = [0]; at('text').value = {text!r}; start(); 0")
        tab.wait(f"state.read === {text!r} && {READ}")
        tab.value("show()")

    tab.wait(READ)
    tab.value("state.pieces = false; press()")
    return of


@pytest.mark.parametrize("screen", WIDTHS)
def test_a_long_word_does_not_push_the_page_off_sideways(tab, read, screen):
    read("A b.", WIDTHS[screen])
    tab.value(
        "state.lanes[0].words[1] = 'x'.repeat(400); state.lanes[0].memo.clear();"
        " go(state.lanes[0].stop(2)); at('error').textContent = 'y'.repeat(400)"
    )
    assert tab.value("document.documentElement.scrollWidth") <= WIDTHS[screen]
    for part in ("where", "next-title-0"):
        assert tab.value(f"at('{part}').scrollWidth <= at('{part}').clientWidth + 1"), part


@pytest.mark.parametrize("screen", WIDTHS)
@pytest.mark.parametrize("text", ["A.", "We must act now"])
def test_the_texts_of_the_picture_lie_in_it_and_not_on_each_other(tab, read, screen, text):
    read(text, WIDTHS[screen])
    boxes = tab.value(
        "[...document.querySelectorAll('#figure-0 svg, #figure-0 svg text')].map(node => {"
        " const b = node.getBoundingClientRect();"
        " return [node.textContent, b.left, b.right, b.top, b.bottom]; })"
    )
    picture, *texts = boxes
    assert {"on the way to this tree", "100%", "0%"} <= {name for name, *_ in texts}
    for k, (name, left, right, top, bottom) in enumerate(texts):
        assert picture[1] <= left, name
        assert right <= picture[2], name
        for other, left2, right2, top2, bottom2 in texts[:k]:
            apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
            assert apart, (name, other)


def test_bars_start_at_one_line(tab, read):
    read("A b.")
    tab.value("state.lanes[0].next[2][0] = 'w'.repeat(60); show()")
    bars = "[...document.querySelectorAll('#next-0 .share')]"
    lefts = tab.value(f"{bars}.map(bar => bar.getBoundingClientRect().left)")
    assert len(lefts) == 8
    assert len(set(lefts)) == 1


def test_the_cards_are_about_the_tree_that_is_shown(tab, read):
    read("Old men sail.")
    titles = "[at('where'), at('beam-title-0'), at('next-title-0')].map(part => part.textContent)"
    tab.value("at('slider').value = 2; at('slider').dispatchEvent(new Event('input'))")
    so_far = ["after men · 2 of 4", "Most probable trees so far", "Expected after “men”"]
    assert tab.value(titles) == so_far
    tab.click("#inside")
    complete = ["the whole text", "Most probable trees of the whole text", "Expected after “.”"]
    assert tab.value(titles) == complete
    tab.click("#beam")
    assert tab.value(titles) == so_far
    tab.click("#inside")
    tab.click("#trees-0 button")
    assert tab.value(titles) == complete
    assert tab.value("at('inside').ariaPressed") == "false"


def test_one_word_ends_with_the_whole_text(tab, read):
    read("A")
    assert tab.value("at('where').textContent") == "the whole text"
    assert tab.value("at('slider').value === at('slider').max")


def test_trees_that_are_not_known_are_said_to_be(tab, read):
    read("A b.")
    tab.value("state.lanes[0].prefixes = []; state.lanes[0].memo.clear(); show()")
    assert "not known" in tab.value("at('rest-0').textContent")
    # No tree is drawn or copied that no model has made.
    assert tab.value("at('figure-0').querySelectorAll('.edge, .open').length") == 0
    assert tab.value("[at('brackets-0').textContent, at('copy-0').disabled]") == ["", True]


def test_bits_a_word_are_those_of_whole_words(tab, read):
    read("Abc d.")
    tab.value("state.lanes[0].bits = state.lanes[0].bits.slice(0, 2); show()")
    assert "a\u00a0word" not in tab.value("at('numbers-0').textContent")
    read("Ab cd.")
    tab.value("state.lanes[0].bits = [1, 2, 4, 8]; show()")  # up to the second word's space
    assert tab.value("at('numbers-0').textContent").startswith("15.0\u00a0bits · 7.00\u00a0a")


def test_a_picture_that_is_a_little_too_wide_is_made_smaller(tab, read):
    read("The old man the boats.", 430)
    needed, width, hidden = tab.value(
        "(figure => { const needed = figure.querySelector('svg').viewBox.baseVal.width;"
        " figure.style.width = `${needed / 1.1 + 40}px`; show();"
        " const found = [needed, figure.querySelector('svg').getBoundingClientRect().width,"
        " figure.scrollWidth - figure.clientWidth]; figure.style.width = ''; return found; })"
        "(at('figure-0'))"
    )
    assert width < needed
    assert hidden <= 0


def test_no_empty_card_is_shown_before_a_model_has_its_turn(tab, read):
    read("The old man sat.")
    shown = "['.pair', '.brackets'].map(part => lanes.querySelector(part).offsetHeight > 0)"
    assert tab.value(f"(lanes => {shown})(at('lanes'))") == [True, True]
    tab.value(
        "window.laneOfModel = state.lanes[0];"
        " state.lanes[0] = Object.assign(new Lane(0), {model: 0, waiting: true});"
        " at('lanes').replaceChildren(laneElement(state.lanes[0])); showLane(state.lanes[0])"
    )
    assert tab.value("at('numbers-0').textContent") == "waiting for its turn …"
    assert tab.value(f"(lanes => {shown})(at('lanes'))") == [False, False]
    tab.value("state.lanes[0] = window.laneOfModel; 0")


def test_long_brackets_are_read_whole_on_a_phone(tab, read):
    read("A b.", WIDTHS["phone"])
    tab.value("at('brackets-0').textContent = '(a '.repeat(60)")
    sizes = tab.value("(c => [c.scrollWidth, c.clientWidth, c.clientHeight])(at('brackets-0'))")
    assert sizes[0] <= sizes[1] + 1
    assert sizes[2] > 40  # several lines


def test_the_reading_of_another_text_is_marked_or_gone(tab, read):
    read("A b.")
    tab.value("at('text').value = 'C d.'; at('text').dispatchEvent(new Event('input'))")
    assert tab.value("at('stale').textContent").startswith("Below is the reading of “A b.”")
    tab.click("#pieces")
    assert tab.value("location.hash").startswith("#text=A+b.")
    tab.value("at('text').value = 'A b.'; at('text').dispatchEvent(new Event('input'))")
    assert tab.value("at('stale').hidden")
    tab.click("#continue")  # of the text that is shown
    tab.wait("!at('continuation').hidden && at('stop').hidden")
    assert not tab.value("at('analysis').hidden")
    tab.value("at('text').value = 'C d.'")
    tab.click("#continue")
    assert tab.value("at('analysis').hidden")
    read("A b.")
    tab.value(f"at('text').value = '{'x' * 200}'; start(); 0")
    tab.wait("at('error').textContent.includes('word pieces')")
    tab.wait("at('analysis').hidden")
    assert tab.value("document.querySelectorAll('#lanes svg').length") == 0
