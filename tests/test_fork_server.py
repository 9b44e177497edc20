"""Commands of the fork server are processes of their own: streams, exit codes, environment, working folder.

What signals do to them is tested by `tests/cli/test_study.py`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

from slimprompt import __version__
from tests.fork_server import forked_python, start_command


def test_streams_and_exit_codes(tmp_path: Path) -> None:
    right = start_command(["--version"])
    assert right.communicate() == (f"slimprompt {__version__}\n", "")
    assert right.returncode == 0 and right.pid != os.getpid()
    wrong = start_command(["runs", "list", "--runs", "nowhere"], cwd=tmp_path)
    output, errors = wrong.communicate()
    assert wrong.returncode == 2 and output == ""
    assert errors.startswith("error: no runs folder at nowhere")
    both = start_command(["runs", "list", "--runs", "nowhere"], cwd=tmp_path, one_stream=True)
    assert both.communicate()[0] == errors


def test_environment(tmp_path: Path) -> None:
    variables = {**os.environ, "SLIMPROMPT_CACHE": str(tmp_path / "mine"), "COLUMNS": "200"}
    assert str(tmp_path / "mine") in start_command(["cache", "show"], environment=variables).communicate()[0]


SCRIPT = """
import sys
import mine
print(mine.VALUE, __name__, sys.argv[1:], "torch" in sys.modules, sys.stdin.read(), flush=True)
print("to the other stream", file=sys.stderr)
sys.exit(7)
"""


def test_python(tmp_path: Path) -> None:
    """A file, a module, code and other options; `sys.executable` starts another fork."""
    python = forked_python()
    (tmp_path / "mine.py").write_text("VALUE = 'imported'\nif __name__ == '__main__': print(VALUE)\n")
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *arguments], cwd=tmp_path, input=text, capture_output=True, text=True)

    done = run("script.py", "a", "b c", text="typed")
    assert done.stdout == "imported __main__ ['a', 'b c'] True typed\n"
    assert (done.stderr, done.returncode) == ("to the other stream\n", 7)
    assert run("-m", "mine").stdout == "imported\n"
    again = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'import mine, os; print(mine.VALUE, os.getpid())'])"
    assert run("-c", again).stdout.startswith("imported ")
    assert "ZeroDivisionError" in (failed := run("-c", "1 / 0")).stderr and failed.returncode == 1
    assert run("-c", "import os; os.kill(os.getpid(), 9)").returncode == -9
    assert "Python 3" in run("--version").stdout


def test_signals_reach_a_forked_python(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([forked_python(), "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        assert fork != process.pid
        watched = os.pidfd_open(fork)
        process.send_signal(number)
        assert process.wait(timeout=30) == -number
        assert select.select([watched], [], [], 30)[0], "the fork is still running"
        os.close(watched)


def test_another_slimprompt_of_pythonpath_is_imported_instead(tmp_path: Path) -> None:
    (tmp_path / "slimprompt").mkdir()
    (tmp_path / "slimprompt" / "__init__.py").write_text("print('mine')\n")
    done = subprocess.run(
        [forked_python(), "-c", "import slimprompt"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "mine\n"
