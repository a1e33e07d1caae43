"""The page itself in a real browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from gpst.tree import Tree


def test_the_page_in_a_browser(tab):
    tab.wait(
        "typeof state !== 'undefined' && state.lanes.length && state.lanes.every(l => !l.busy)"
    )
    assert tab.value("state.lanes.length") == 2  # two models side by side
    tab.click("#side")
    tab.value("at('text').value = ''; at('text').focus()")
    tab.call("Input.insertText", text="Old <i>m(n</i> sail.")
    tab.click("#analyse")
    tab.wait("state.text.startsWith('Old') && state.lanes.length === 1 && !state.lanes[0].busy")
    words = ["Old", "<", "i", ">", "m", "(", "n", "</", "i", ">", "sail", "."]
    figure = "#figure-0 svg"
    tab.wait(f"document.querySelectorAll('{figure} .node').length === 11")
    texts = f"[...document.querySelectorAll('{figure} text:not(.small):not(.turn)')]"
    assert tab.value(f"{texts}.map(text => text.textContent)") == words
    assert tab.value(f"document.querySelectorAll('{figure} .edge').length") == 22
    bits = tab.value(f"[...document.querySelectorAll('{figure} .small')].map(t => t.textContent)")
    assert len([text for text in bits if re.fullmatch(r"\d+\.\d", text)]) == 12
    brackets = tab.value("at('brackets-0').textContent")
    assert Tree.from_brackets(brackets)[1] == words
    # The tree grows with the slider; what is not built yet is open, what is not read pale.
    tab.value("at('slider').value = 4; at('slider').dispatchEvent(new Event('input'))")
    assert "4 of 12" in tab.value("at('where').textContent")
    assert tab.value(f"document.querySelectorAll('{figure} .unread').length") == 8
    edges = tab.value(f"document.querySelectorAll('{figure} .edge, {figure} .open').length")
    assert edges == 6
    assert tab.value("document.querySelectorAll('#trees-0 button').length") >= 1
    assert tab.value("document.querySelectorAll('#next-0 button').length") == 8
    picture = ElementTree.fromstring(tab.value("picture(state.lanes[0])"))
    assert picture.get("viewBox")
    assert "Old%20%3Ci%3E" in tab.value("location.hash.replaceAll('+', '%20')")
    tab.click("#pieces")
    assert tab.value(f"{texts}.length") == len(" Old <i>m(n</i> sail.")
    tab.click("#continue")
    tab.wait("!at('continuation').hidden && at('stop').hidden")
    assert tab.value("at('written').textContent").startswith("Old <i>m(n</i> sail.")
    assert tab.value("at('error').textContent") == ""
    tab.value("at('text').value = ' '")
    tab.click("#analyse")
    tab.wait("at('error').textContent.includes('write a sentence')")
