"""Markdown of a card as HTML: what people write, and nothing that could do harm."""

from __future__ import annotations

import pytest

from stoker.report.cards import html


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("# Went *well*", "<h1>Went <em>well</em></h1>\n"),
        ("### a b ###", "<h3>a b</h3>\n"),
        ("Title\n=====", "<h1>Title</h1>\n"),
        ("one\ntwo\n\nthree", "<p>one<br>\ntwo</p>\n<p>three</p>\n"),
        (
            "- a\n- **b**\n1. c\n2. d",
            "<ul>\n<li>a</li>\n<li><strong>b</strong></li>\n</ul>\n<ol>\n<li>c</li>\n<li>d</li>\n</ol>\n",
        ),
        ("- a\n  - b\n- c", "<ul>\n<li>a\n<ul>\n<li>b</li>\n</ul>\n</li>\n<li>c</li>\n</ul>\n"),
        ("- a\n  more\n- b", "<ul>\n<li>a<br>\nmore</li>\n<li>b</li>\n</ul>\n"),
        ("3. a\n4. b", '<ol start="3">\n<li>a</li>\n<li>b</li>\n</ol>\n'),
        ("> so\n> be it", "<blockquote>\n<p>so<br>\nbe it</p>\n</blockquote>\n"),
        ("> - a", "<blockquote>\n<ul>\n<li>a</li>\n</ul>\n</blockquote>\n"),
        (
            "| a | b |\n|---|---|\n| 1 | *2* |",
            (
                "<table>\n<thead>\n<tr>\n<th>a</th>\n<th>b</th>\n</tr>\n</thead>\n"
                "<tbody>\n<tr>\n<td>1</td>\n<td><em>2</em></td>\n</tr>\n</tbody>\n</table>\n"
            ),
        ),
        ("---", "<hr>\n"),
        (
            "```python\na < b\n\n# no heading\n```\nafter",
            '<pre><code class="language-python">a &lt; b\n\n# no heading\n</code></pre>\n<p>after</p>\n',
        ),
        ("```\nnever closed", "<pre><code>never closed</code></pre>\n"),
        ("`a*b*` and a_b_c, 2 * 3 * 4", "<p><code>a*b*</code> and a_b_c, 2 * 3 * 4</p>\n"),
        ("[a `b`](https://x.org/?a=1&b=2)", '<p><a href="https://x.org/?a=1&amp;b=2">a <code>b</code></a></p>\n'),
        ("[a](https://x.org/b_(c))", '<p><a href="https://x.org/b_(c)">a</a></p>\n'),
        ("<https://x.org>", '<p><a href="https://x.org">https://x.org</a></p>\n'),
        ("![a](https://x.org/a.png)", '<p>!<a href="https://x.org/a.png">a</a></p>\n'),
        ("__b__ _e_ ~~s~~", "<p><strong>b</strong> <em>e</em> <s>s</s></p>\n"),
        ("***x***", "<p><em><strong>x</strong></em></p>\n"),
        (r"\*no\* &lt;", "<p>*no* &lt;</p>\n"),
        ("[a](/etc/passwd) [b](data:image/png;base64,x)", "<p>[a](/etc/passwd) [b](data:image/png;base64,x)</p>\n"),
        ("", ""),
    ],
)
def test_what_people_write(text: str, made: str) -> None:
    assert html(text) == made


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
