"""The rules of the ``fast`` segmenter, as plain Python."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "marked",
    [
        "Hello world.| My name is Jonas.",
        "There it is!| I found it.| What is it?| A cat.",
        "Mr. Smith met Dr. J. R. Jones at 5 p.m. in St. Louis.| They spoke.",
        "He lives in the U.S. now.| The weather is fine in the U.S.| He likes it.",
        "It costs $3.50 or 1.000.000 yen, e.g. at Ford Motor Co. or at Sears Inc.| The end.",
        "He said: “Go home.”| She did.| (They all did.)| Then nothing.",
        'She asked "Why?" and left.| "No!" he said.',
        "See https://a.example.com/x.html?y=1. for more, or www.b.org.| Good.",
        "Wait... what?| I don't know…| You do.| . . .| Well.",
        "First line of a paragraph\n\nSecond paragraph.|\n\nThird".replace("\n\nS", "|\n\nS"),
        "1. Preheat the oven.| 2. Mix it.",
        "Items:|\n- First thing|\n- Second thing",
        "a long line of wrapped text that goes on and on without a stop and is then\n"
        "Continued in the next one.",
        "No. 5 is alive.| See Fig. 3 and pp. 4 to 6.| The answer is no.| Stop.",
        "He was born on Jan. 5.| In Feb. he left.",
        "Ça va?| Été comme hiver.| Да.| Нет.",
        "He has a Ph.D. in chemistry.| You and I.| It is so.",
        "It was I.| Peter left.| Just 12.| Nobody more.| Section 12. Nobody",
        "J. A. Roe, J. I. Doe and E. P. Poe wrote p. 5.| A fish swam.| I saw it.",
        # notes belong to the sentence before them, whether a space stands between or not
        "She learned Japanese. [2]| Following that, she left.[3] [note 4]| He stayed. [sic]| So.",
        "It was cold.| [He wept.]| It rained.",
        # who speaks, after a quotation
        '"Are you there?" I asked.| "Stop!" Pete said.| “Go …” Hall replied.| "No!"| Pete ran.',
        # smileys close, dashes go on
        "We met, right? :)| It was late. ;-)| You know.| I do :) or not.",
        "Why me? — because I can.| He left. – Not so fast.| “Never.” — Jane Roe",
        # but a hyphen begins an item, a speaker, or who wrote it
        "It is so.| - Buy bread.| - buy milk.| -- Posted by Jane",
        # life dates and years
        "Ann (b. May 1950) wed Max (d. 1975), c. 1640 or (m. 1949; div. 1964) later.| Then?",
        # numbers of things and of sections; a reference's number is no sentence
        "2.1. Prices and goods\n\nFigure 1. The old town.| It has a wall.".replace("\n", "|\n", 1),
        "He brought pens, ink, etc.| Nobody wrote.| Pens, ink, etc. were lost.",
        # small letters: sentences in mails, but not after what may be an abbreviation
        "i loved it. why not?| and you?| It is hot. they left.".replace(". ", ".| "),
        "What is Huh? is a title.| Is it new? yes.".replace("? yes", "?| yes"),
        # a no-break space, and wider ones
        "The end.|\u00a0Next one.| Last.|\u2003And more.",
        # a closer after a space, as in tokenized text
        "(We fly the next day. )| Then we rest.",
        # addresses, one a line; wrapped lines that begin small
        "http://a.org/b\n|http://a.org/c\n|www.d.org".replace("\n|", "|\n"),
        "  http://x.org\n|  http://a.org/b\n|  http://a.org/c\n|\twww.d.org".replace("\n|", "|\n"),
        "a line of text that leads to\nhttp://a.org/b\nand goes on",
        # items of a list, after lines of any length
        "a line that is as long as wrapped text usually is, or more|\n- an item|\n2) another",
    ],
)
def test_rules(marked, cut_plainly):
    expected = marked.split("|")
    if marked.startswith("Wait"):
        expected = ["Wait... what?", " I don't know…", " You do. . . .", " Well."]
    assert cut_plainly("".join(marked.split("|")))[0] == expected


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("de", "Am 3. Mai kam Hr. Maier, d.h. spät.| Er war der 2.| Die „Reise“ endete.| Gut."),
        ("de", "Er wohnt z.B. am Ring 5.| Über uns liegt Hamburg, s. Karte.| »Gut.«| »So!«"),
        ("de", "Er mag z. B. Hunde (z. T. Doggen).| Das ist z.\u00a0B. Hamburg.| Ja."),
        ("en", "We met\u00a0Dr.\u00a0Roe, and\u202fMr.\u202fPoe.| They left.|\u00a0It rained."),
        ("fr", "Chez\u00a0M.\u00a0Dupont.| Là."),
        ("es", "Los EE. UU. son grandes, p. ej. Texas y los EE.\u00a0UU. Mexicanos.| Sí."),
        ("fr", "M. Dupont et Mme. Roux vivent av. Foch.| Où est-il ?| « Là. »| Etc."),
        ("es", "El Sr. Gil vino.| ¿Quién es?| ¡Hola!| Vive en la pág. 3 del libro."),
        ("it", "Il sig. Rossi è a pag. 5.| Il dott. Bianchi no.| E lei?"),
        ("nl", "Dhr. Bos kwam, d.w.z. laat.| ,,Ja. ''| Hij ging bijv. naar huis."),
        ("pt", "O Sr. Silva mora na av. Brasil.| Não sei.| O Dr. Reis sabe."),
        ("ru", "В 1990 г. он уехал в г. Псков.| Это проф. А. С. Петров.| Он там, т.е. дома."),
        ("hi", "यह घर है।| वह डॉ. राम हैं।| कौन है?| ठीक॥| अब"),
        ("ar", "أين البيت؟| هنا.| نعم!"),
        ("und", "یہ گھر ہے۔| وہ کہاں ہے؟| یہاں۔"),
        (
            "zh",
            "今天下雨。|他说：“我不去。”|她去吗？|（不知道。）|“好！”|价格是3.5元。 |再见".replace(
                " |", "| "
            ),
        ),
        ("ja", "雨です。|「行く。」と言った。|どこ？|「ここ。」|彼は寝た!|次の日。。|（終）"),
        ("en", "He read 日本。|Then: 「はい」。| End."),
    ],
)
def test_languages(language, marked, cut_plainly):
    assert cut_plainly(marked.replace("|", ""), language)[0] == marked.split("|")


@pytest.mark.parametrize(
    "piece",
    ["?!", "a", ". ", "\n", "x\n", ". (", "A. ", "!\n\n", "…", "…) ", "1.", '"', "e.g. ", "。",
     "日。", "[2] ", ".[2", ". :)", "। ", "”“", "http://", "x. [", "a\n ", "'' ", "-- ", "\u00a0."],
)  # fmt: skip
def test_linear_time(piece, cut_plainly):
    """Eight times the text is read eight times as often, each byte a few dozen times at most."""
    reads = [cut_plainly(piece * (size // len(piece.encode())) + "x")[1] for size in (300, 2400)]
    assert reads[1] < 9 * reads[0]
    assert reads[1] < 60 * 2400


@pytest.mark.parametrize("length", [49, 50, 120, 121])
def test_lines_that_are_too_short_or_too_long_for_wrapped_text_end_sentences(length, cut_plainly):
    text = "a " * (length // 2) + "b" * (length % 2) + "\nNext line"
    assert len(cut_plainly(text)[0]) == (2 if length in (49, 121) else 1)


def test_a_list_of_addresses_is_a_sentence_a_line(cut_plainly):
    lines = [f"https://www.example.org/{'long/' * (n % 40)}page{n}.html" for n in range(50)]
    assert cut_plainly("\n".join(lines))[0] == [lines[0], *(f"\n{line}" for line in lines[1:])]
