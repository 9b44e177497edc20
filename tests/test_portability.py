"""The package assumes neither Linux nor a UTF-8 locale: checked on its source, because the other systems are not always at hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import slimprompt

SOURCE = Path(slimprompt.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

#: Modules of the standard library that Windows does not have.
POSIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline"}
#: Attributes of `os` and `signal` that Windows does not have.
POSIX_ATTRIBUTES = {
    "fork",
    "forkpty",
    "getuid",
    "geteuid",
    "getgid",
    "setsid",
    "killpg",
    "getpgid",
    "mkfifo",
    "statvfs",
    "uname",
}
POSIX_ATTRIBUTES |= {"chown", "fchmod", "wait3", "wait4", "sched_getaffinity", "alarm", "setitimer", "pthread_sigmask"}
POSIX_ATTRIBUTES |= {"SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGPIPE"}
#: Defaults of arguments that another function of the same file reads with an alternative.
GUARDED_ELSEWHERE = {"text/memory.py": ["'/proc'", "'/sys/fs/cgroup'"]}
POSIX_PATHS = ("/proc/", "/tmp/", "/dev/", "/sys/", "/var/", "/etc/")


def assumptions(node: ast.AST) -> Iterator[str]:
    """What a piece of code takes from POSIX systems."""
    for child in ast.walk(node):
        match child:
            case ast.Import(names):
                yield from (alias.name for alias in names if alias.name.split(".")[0] in POSIX_MODULES)
            case ast.ImportFrom(str(module)) if module.split(".")[0] in POSIX_MODULES:
                yield module
            case ast.Attribute(ast.Name("os" | "signal" as owner), name) if name in POSIX_ATTRIBUTES:
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
    found = list(assumptions(tree))
    if not found:
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    excused = [found for function in functions if has_alternative(function) for found in assumptions(function)]
    for one in excused:
        if one in found:
            found.remove(one)
    return found


def is_text_mode(mode: ast.expr | None) -> bool:
    return mode is None or (isinstance(mode, ast.Constant) and "b" not in str(mode.value))


def without_encoding(tree: ast.Module) -> list[int]:
    """Lines that read or write a text file in the encoding of the locale."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        first, second = (*node.args, None, None)[:2]
        match node.func:
            case ast.Name("open") if is_text_mode(second):
                lines.append(node.lineno)
            case ast.Attribute(attr="open") if is_text_mode(first):  # of a path: the mode is the first argument
                lines.append(node.lineno)
            case ast.Attribute(attr="read_text" | "write_text"):
                lines.append(node.lineno)
    return lines


def test_source() -> None:
    trees = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    assert len(trees) > 200
    assert {name: found for name, tree in trees.items() if (found := unguarded(tree))} == GUARDED_ELSEWHERE
    assert {name: lines for name, tree in trees.items() if (lines := without_encoding(tree))} == {}


def test_the_checks_find_what_they_look_for() -> None:
    assert unguarded(ast.parse("import fcntl")) == ["fcntl"]
    assert unguarded(ast.parse("def f():\n    return Path('/proc/cpuinfo')")) == ["'/proc/cpuinfo'"]
    assert unguarded(ast.parse("def f():\n    os.kill(1, signal.SIGKILL)")) == ["signal.SIGKILL"]
    assert unguarded(ast.parse("def f():\n    if os.name != 'nt':\n        import resource")) == []
    assert (
        unguarded(ast.parse("def f():\n    try:\n        import resource\n    except ImportError:\n        return 0"))
        == []
    )
    assert without_encoding(
        ast.parse("a.read_text()\nopen(p)\np.open()\nopen(p, 'rb')\nImage.open(p)\nopen(p, encoding='utf-8')")
    ) == [1, 2, 3]
