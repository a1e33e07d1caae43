"""Formulas of SyntaxGym predictions."""

from __future__ import annotations

import pytest

from pipeline.evaluate.syntaxgym.formula import FormulaError, Region, parse_formula

BITS = {"a": {1: 1.0, 2: 2.0, 3: 4.0}, "b-x_1": {1: 8.0, 2: 2.0, 3: 0.0}}


def holds(text: str) -> bool:
    return parse_formula(text).holds(BITS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1;%a%) < (1;%b-x_1%)", True),
        ("(1;%a%)>(1;%b-x_1%)", False),
        # Sums, signs, brackets of both kinds.
        ("[ (1;%a%) + (3;%a%) ] < [ (1;%b-x_1%) + (2;%b-x_1%) ]", True),
        ("(3;%a%) - (2;%a%) - (1;%a%) > 0.5", True),  # 4 - 2 - 1 = 1, from the left
        ("(3;%a%) - ((2;%a%) - (1;%a%)) > 2.5", True),  # 4 - (2 - 1) = 3
        ("(3;%a%) - [(2;%a%) - (1;%a%)] < 2.5", False),
        ("-(1;%a%) < 0", True),
        ("[(1;%a%)-(2;%a%)]+[[(1;%b-x_1%)+(2;%b-x_1%)]-[(3;%a%)+(2;%a%)]]>0", True),  # 3
        # All regions of a condition: 7 and 10.
        ("(*;%a%) > 6.9", True),
        ("(*;%b-x_1%) - (*;%a%) = 3", True),
        ("( * ; % a % ) < 7.1", True),
        # Logic: from the left, after comparisons.
        ("(1;%a%) < 2 & (2;%a%) < 1", False),
        ("(1;%a%) < 2 | (2;%a%) < 1", True),
        ("(1;%a%) < 2 | (1;%a%) < 2 & (2;%a%) < 1", False),
        ("(1;%a%) < 2 | [(1;%a%) < 2 & (2;%a%) < 1]", True),
        ("(2;%a%) < 1 & (2;%a%) < 1 | (1;%a%) < 2", True),
        ("(1;%a%) < 2 & (1;%a%) < 2 & (2;%a%) < 1", False),
        ("[(1;%a%) < 2] & [(2;%a%) > 1] & [[(3;%a%)] = [4]]", True),
        # Equality has a tolerance of a thousandth of a bit.
        ("(2;%a%) = (2;%b-x_1%)", True),
        ("(2;%a%) = 2.0009", True),
        ("(2;%a%) = 2.01", False),
        (".5 < 1.", True),
    ],
)
def test_formulas_by_hand(text: str, expected: bool) -> None:
    assert holds(text) is expected


def test_a_formula_says_which_regions_it_needs() -> None:
    formula = parse_formula("(1;%a%) < 2 | (*;%c%) > (3;%b%)")

    assert formula.regions == (Region(1, "a"), Region(None, "c"), Region(3, "b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it ends too early"),
        ("(1;%a%)", "compares nothing"),
        ("(1;%a%) <", "it ends too early"),
        ("(1;%a%) < 2 & 3", "'&' stands between comparisons only"),
        ("(1;%a%) | (1;%a%) < 2", r"'\|' stands between comparisons only"),
        ("((1;%a%) < 2) + 1 > 0", r"'\+' stands between surprisals and numbers only"),
        ("-((1;%a%) < 2) < 0", "'-' stands between surprisals"),
        ("((1;%a%) < 2) = ((1;%a%) < 2)", "'=' stands between"),
        ("[(1;%a%) < 2)", r"'\[' is not followed by its '\]'"),
        ("(1;%a%) < 2 < 3", "'<' is not expected where it stands"),
        ("(1;%a%) < 2 (1;%a%)", "is not expected where it stands"),
        ("< 2", "'<' is not expected where it stands"),
        ("(1;%a%) <= 2", "'=' is not expected where it stands"),
        ("(1;a) < 2", "';' is no sign of formulas|'a' is no sign of formulas"),
        ("(1;%a%) ! 2", "'!' is no sign of formulas"),
    ],
)
def test_bad_formulas_are_refused_with_their_text(text: str, message: str) -> None:
    with pytest.raises(FormulaError, match=message) as caught:
        parse_formula(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(1;%c%) > 0", "there is no condition 'c'"),
        ("(4;%a%) > 0", "condition 'a' has no region 4"),
    ],
)
def test_what_an_item_lacks_is_named(text: str, message: str) -> None:
    with pytest.raises(FormulaError, match=message):
        parse_formula(text).holds(BITS)
