"""The package assumes neither Linux nor a UTF-8 locale: checked on its source, because tests do not reach every line on other systems."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import slimprompt

SOURCE = Path(slimprompt.__file__).parent

#: What Windows does not have: modules of the standard library, attributes of `os` and `signal`, and paths.
POSIX_MODULES = re.compile("fcntl|resource|pwd|grp|termios|tty|pty|syslog|posix|readline")
POSIX_ATTRIBUTES = re.compile(
    "fork|forkpty|get(uid|euid|gid|pgid)|setsid|killpg|mkfifo|statvfs|uname|chown|fchmod|wait[34]|sched_getaffinity|alarm|setitimer|"
    "pthread_sigmask|SIG(KILL|HUP|USR1|USR2|ALRM|CHLD|PIPE)"
)
POSIX_PATHS = ("/proc/", "/tmp/", "/dev/", "/sys/", "/var/", "/etc/")


def assumptions(node: ast.AST) -> Iterator[str]:
    """What a piece of code takes from POSIX systems."""
    for child in ast.walk(node):
        match child:
            case ast.Import(names):
                yield from (alias.name for alias in names if POSIX_MODULES.fullmatch(alias.name.split(".")[0]))
            case ast.ImportFrom(str(module)) if POSIX_MODULES.fullmatch(module.split(".")[0]):
                yield module
            case ast.Attribute(ast.Name("os" | "signal" as owner), name) if POSIX_ATTRIBUTES.fullmatch(name):
                yield f"{owner}.{name}"
            case ast.Constant(str(text)) if text == "fork" or f"{text}/".startswith(POSIX_PATHS):
                yield repr(text)


def has_alternative(function: ast.AST) -> bool:
    """Whether a function tests the platform, or handles the error of an assumption that fails."""
    for child in ast.walk(function):
        match child:
            case ast.Attribute(ast.Name("sys"), "platform") | ast.Attribute(ast.Name("os"), "name"):
                return True
            case ast.Call(ast.Name("hasattr"), [ast.Name("os" | "signal"), *_]):
                return True
            case ast.Try(body) if any(list(assumptions(statement)) for statement in body):
                return True
    return False


def unguarded(tree: ast.Module) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    excused = [found for function in functions if has_alternative(function) for found in assumptions(function)]
    return list((Counter(assumptions(tree)) - Counter(excused)).elements())


def without_encoding(tree: ast.Module) -> list[int]:
    """Lines that read or write a text file in the encoding of the locale."""

    def is_text_mode(modes: list[ast.expr]) -> bool:
        return not modes or (isinstance(modes[0], ast.Constant) and "b" not in str(modes[0].value))

    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not any(keyword.arg == "encoding" for keyword in node.keywords):
            match node.func:
                case ast.Name("open") if is_text_mode(node.args[1:]):
                    lines.append(node.lineno)
                case ast.Attribute(attr="open") if is_text_mode(node.args):  # of a path: the mode is the first argument
                    lines.append(node.lineno)
                case ast.Attribute(attr="read_text" | "write_text"):
                    lines.append(node.lineno)
    return lines


def test_source() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
    assert {name: found for name, tree in trees.items() if (found := unguarded(tree))} == {}
    assert {name: lines for name, tree in trees.items() if (lines := without_encoding(tree))} == {}


def test_the_checks_find_what_they_look_for() -> None:
    assert unguarded(ast.parse("import fcntl\ndef f():\n    os.kill(1, signal.SIGKILL)")) == ["fcntl", "signal.SIGKILL"]
    assert unguarded(ast.parse("def f():\n    if os.name != 'nt':\n        import resource")) == []
    code = "a.read_text()\nopen(p)\np.open()\nopen(p, 'rb')\nImage.open(p)\nopen(p, encoding='utf-8')"
    assert without_encoding(ast.parse(code)) == [1, 2, 3]
