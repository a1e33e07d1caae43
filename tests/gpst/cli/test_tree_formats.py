"""The formats of trees: text, brackets, pictures."""

import io
import json
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_trees import right_branching
from PIL import Image

from gpst.api import ParsedSentence
from gpst.render import as_png, as_svg, as_text, draw
from gpst.tree import Tree

PARSED = ParsedSentence(["a(b", "<&", "c"], Tree.from_splits(3, {(0, 2): 1, (0, 1): 0}), -1.5)


def test_text_formats():
    assert as_text(PARSED, "bracket") == "((a-LRB-b <&) c)"
    assert as_text(PARSED, "ptb") == "(X (X (W a-LRB-b) (W <&)) (W c))"
    assert as_text(PARSED, "ascii").splitlines() == ["┬─┬─a(b", "│ └─<&", "└─c"]
    values = json.loads(as_text(PARSED, "json"))
    assert values["words"] == PARSED.words
    assert values["brackets"] == as_text(PARSED, "bracket")
    assert Tree.from_brackets(values["brackets"]) == (PARSED.tree, PARSED.words)
    assert values["spans"][-1] == [0, 2]
    assert values["log_p"] == -1.5
    with pytest.raises(ValueError, match="format: 'x'"):
        as_text(PARSED, "x")


def cross(a, b):
    """Whether two edges have a point in common that is the end of neither."""

    def side(line, x, y):
        return (line[2] - line[0]) * (y - line[1]) - (line[3] - line[1]) * (x - line[0])

    return side(a, *b[:2]) * side(a, *b[2:]) < -1e-6 and side(b, *a[:2]) * side(b, *a[2:]) < -1e-6


def test_edges_of_any_tree_do_not_cross():
    random = Random(0)
    for _ in range(30):
        words = ["x" * random.randint(1, 12) for _ in range(random.randint(1, 20))]
        splits = {}
        work = [(0, len(words) - 1)]
        while work:
            i, j = work.pop()
            if i < j:
                splits[i, j] = random.randint(i, j - 1)
                work += [(i, splits[i, j]), (splits[i, j] + 1, j)]
        lines = draw(ParsedSentence(words, Tree.from_splits(len(words), splits))).lines
        assert len(lines) == 2 * len(words) - 2
        assert not any(cross(a, b) for a, b in combinations(lines, 2))
    assert cross((0, 0, 2, 2), (0, 2, 2, 0))


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_svg_is_well_formed_and_brackets_read_back(words):
    parsed = ParsedSentence(words, right_branching(len(words)))
    root = ElementTree.fromstring(as_svg([parsed]).encode("utf-8"))
    assert root.get("width") == root.get("viewBox").split()[2]
    plain = [word for word in words if not any(c.isspace() for c in word) and "RB-" not in word]
    if plain == words:
        assert Tree.from_brackets(str(parsed)) == (parsed.tree, words)


def test_pictures_show_every_word_and_edge():
    long = ParsedSentence([f"word{k}" for k in range(9)], right_branching(9))
    root = ElementTree.fromstring(as_svg([PARSED, long]))
    name = "{http://www.w3.org/2000/svg}"
    assert [t.text for t in root.iter(name + "text")] == [*PARSED.words, *long.words]
    assert len(list(root.iter(name + "line"))) == 2 * 2 + 2 * 8
    width, height = float(root.get("width")), float(root.get("height"))
    for drawing in (draw(PARSED), draw(long)):
        for line in drawing.lines:
            assert min(line) >= 0
            assert max(line[0], line[2]) <= width
            assert line[3] <= height
            assert line[1] < line[3]  # the parent is above
        assert not any(cross(a, b) for a, b in combinations(drawing.lines, 2))
    image = Image.open(io.BytesIO(as_png([PARSED, long])))
    assert image.size == (
        int(draw(long).width) + 1,
        int(draw(PARSED).height + draw(long).height) + 1,
    )
    assert len(set(image.convert("L").tobytes())) > 2
