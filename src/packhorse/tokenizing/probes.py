"""Texts in which two tokenizers are likely to differ if they differ at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tokenizers


def probes(library: tokenizers.Tokenizer) -> list[str]:
    """About 200 texts in which two tokenizers are likely to differ if they differ at all."""
    added = [token.content for token in library.get_added_tokens_decoder().values()][:8]
    return [*_TEXTS, *_around_characters(), *_around_added_tokens(added)]


_TEXTS = (
    "",
    " ",
    "\t\n",
    "A plain sentence, with punctuation; and (brackets)!",
    "MiXeD CaSe, don't can't O'Neill's rock'n'roll",
    "$5 + 3 = 8 < 9 | ~ ^ ` @user #tag a_b c-d e/f 50% 1,000.50 3.14e-10",
    "https://example.org/path?query=1&other=two#part me@example.org",
    "unaffable antidisestablishmentarianism supercalifragilisticexpialidocious",
    "naïve café résumé Ångström coöperate façade El Niño",
    "nai\u0308ve cafe\u0301 A\u030angstro\u0308m",
    "x\u0301\u0302\u0323\u0300y \u0301alone",
    "Straße ẞ ﬁne ﬂow ǆ Ǆ ĳ",
    "İstanbul ısı I i",
    "ΑΣ ΑΣ. Σ ὈΔΥΣΣΕΎΣ ς σ ᾳ \u0345",
    "Привет, мир! Ёлка ёлка Й",
    "שָׁלוֹם עולם مَرْحَبًا بالعالم",
    "नमस्ते दुनिया สวัสดีชาวโลก தமிழ்",
    "中文字符和English混合。全角！？（括号）",
    "日本語のテキスト カタカナ ﾊﾝｶｸ 々〆",
    "한국어 텍스트 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u3400\u4db5\uf900\ufa0e\U00020000\U0002a6d6\U0002b740\U0002b920\U0002f800",
    "😀 a😀b 😀😀😀😀 🥱 👩\u200d👩\u200d👧 🇩🇪 👍🏽 ☀\ufe0f 1\ufe0f\u20e3",
    "°C © ™ ½ ² ₂ Ⅷ ① ㎏ ﷺ ﹰ",
    "“quotes” ‘single’ – — … • · ¿ ¡ § ¶",
    "a\x00b \x00 c\x01d e\x1ff g\x7fh i\x80j k\x85l m\x9fn o\x0bp q\x0cr",
    "s\u00adt u\u200bv w\u200cx y\u200dz \ufeffa b\u2060c d\ufffde f\ue000g h\uffff",
    "a\u00a0b\u1680c\u2003d\u2028e\u2029f\u202fg\u205fh\u3000i\u180ej",
    " leading",
    "trailing ",
    "two  spaces",
    "a\tb\nc\rd\r\ne",
    "\u202ertl \u2066iso\u2069 \U000e0041tag \U0001d400\U0001d7ce \U0010ffff",
    "ＦＵＬＬ ｗｉｄｔｈ １２３",
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "é" * 50,
    "é" * 100,
    "中" * 120,
    "!" * 120,
    "😀" * 101,
    "ab" * 3000,
    "word " * 300,
    "##ing ## #a ##",
    "[",
    "]",
    "[]",
    "[ SEP ]",
    "[sep]",
    "[SEP",
    "SEP]",
    "[[SEP]]",
)


_CHARACTERS = (
    "\x00\x0b\x1c\x7f\x85\xa0\xad\u0301\u0345\u0489\u200b\u200d\u2028\u3000\ufe0f\ufffdßİΣ中！가😀ﾞ"
)


def _around_characters() -> Iterator[str]:
    """One character of each kind: within a word, at either end, doubled, by itself."""
    for character in _CHARACTERS:
        yield f"un{character}able"
        yield f"{character}able un{character}"
        yield f"a {character} b"
        yield f"A{character}1"
        yield f"e{character}{character}!{character}"


def _around_added_tokens(added: Sequence[str]) -> Iterator[str]:
    """Added tokens alone, glued to words, spaced, doubled and in another case."""
    for token in added:
        yield token
        yield f"a{token}b"
        yield f" a {token} b "
        yield f"{token}{token}"
        yield f"{token.lower()} {token.upper()} {token.title()}"
        yield f"{token[:-1]} {token[1:]}"
        yield f"é{token}\u0301中{token}!"
