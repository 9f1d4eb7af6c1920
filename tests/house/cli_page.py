"""The pages docs/cli.md and docs/zh-CN/cli.md, from the parsers of the command line.

``python tests/house/test_docs.py`` writes them. argparse's own way of showing help changes from one
Python to the next, so the parsers are read, not what they print.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from packhorse import cli
from packhorse.tools.option_flags import _PREFIX


@dataclass(frozen=True)
class Words:
    """What stands around what is generated, in one language."""

    head: str
    flag: str
    settings: str
    more: str
    titles: dict[str, str]


ENGLISH = Words(
    head="""\
# Every command and flag

<!-- Written by python tests/house/test_docs.py from the parsers of the command line. -->

What `packhorse COMMAND --help` says, but for the settings: these have the same flags in every
command and are in [one table](server.md#settings). [The command line](command-line.md) explains
with examples.
""",
    flag="| argument | meaning |\n|---|---|\n",
    settings="Settings, as flags: {}, and `--config FILE`.",
    more="Subcommands: {}.",
    titles={},
)

CHINESE = Words(
    head="""\
# 全部命令与参数

<!-- 由 python tests/house/test_docs.py 根据命令行的解析器生成。 -->

`packhorse COMMAND --help` 的内容，但不含设置项：它们在各命令中是同样的参数，
都在[一张表](server.md#设置项)里。说明文字就是程序自身的输出，因此是英文。用法与例子见[命令行](command-line.md)。
""",
    flag="| 参数 | 含义 |\n|---|---|\n",
    settings="可作参数的设置项：{}，以及 `--config FILE`。",
    more="子命令：{}。",
    titles={
        "input": "输入",
        "output": "输出",
        "texts": "文本",
        "run": "运行",
        "target": "目标",
        "requests": "请求",
        "load": "负载",
    },
)

PAGES = {"docs/cli.md": ENGLISH, "docs/zh-CN/cli.md": CHINESE}

_PLAIN = ("positional arguments", "options")
"""argparse's own groups, which get no title here."""


def page(words: Words) -> str:
    """The whole page."""
    parts = [words.head]
    for command in cli.COMMANDS:
        parser = argparse.ArgumentParser(prog=f"packhorse {command.name}", add_help=False)
        command.load().add_arguments(parser)
        parts += _command(parser, command.summary, words, 2)
    return "\n".join(parts)


def _command(
    parser: argparse.ArgumentParser, summary: str, words: Words, level: int
) -> Iterator[str]:
    yield f"{'#' * level} {parser.prog}\n"
    yield f"{summary[0].upper()}{summary[1:]}.\n"
    yield f"```text\n{_usage(parser)}\n```\n"
    below: list[tuple[argparse.ArgumentParser, str]] = []
    settings: list[str] = []
    for group in parser._action_groups:
        own = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                helps = {each.dest: each.help or "" for each in action._choices_actions}
                below = [(action.choices[name], helps[name]) for name in action.choices]
            elif action.dest.startswith(_PREFIX):
                settings.append((group.title or "").removesuffix(" settings"))
            elif action.dest not in ("help", "config"):
                own.append(action)
        if own:
            if group.title not in _PLAIN:
                yield f"**{words.titles.get(group.title or '', group.title)}**\n"
            yield words.flag + "".join(_row(action) for action in own)
    if settings:
        yield words.settings.format(", ".join(dict.fromkeys(settings))) + "\n"
    if below:
        yield words.more.format(", ".join(f"`{each.prog}`" for each, _ in below)) + "\n"
    for each, about in below:
        yield from _command(each, about, words, level + 1)


def _usage(parser: argparse.ArgumentParser) -> str:
    """What must be given, in order; the rest is in the tables."""
    required = [
        f"{action.option_strings[0]} {_metavar(action)}"
        for action in parser._actions
        if action.option_strings and action.required
    ]
    places = [
        f"[{_metavar(action)}]" if action.nargs == "?" else _metavar(action)
        for action in parser._actions
        if not action.option_strings
    ]
    return " ".join([parser.prog, *places, *required, "[…]"])


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return f"{{{','.join(str(choice) for choice in action.choices)}}}"
    return action.dest.upper()


def _row(action: argparse.Action) -> str:
    flags = [f"`{flag}`" for flag in action.option_strings] or [f"`{_metavar(action)}`"]
    if action.option_strings and action.nargs != 0:
        flags[-1] = f"{flags[-1][:-1]} {_metavar(action)}`"
    shown = (action.help or "") % vars(action)
    cells = (", ".join(flags), " ".join(shown.split()))
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
