"""What commands import before they train a prompt and classify an image."""

import json
import os
import subprocess
import sys

UNUSED = [
    "sklearn",
    "scipy.stats",
    "pandas",
    "matplotlib",
    "torch._dynamo",
    "transformers",
    "wandb",
    "ray",
    "fastapi",
    "onnx",
]


def run(code, **variables):
    """Both streams of a new Python, and what it has printed last, as JSON."""
    environment = os.environ | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, json.loads(done.stdout.splitlines()[-1])


def test_commands_import_only_what_they_use_and_the_rest_can_be_imported_afterwards(tiny_folder, photos, tmp_path):
    """The terminal lacks characters that `fit` prints; Python reads PYTHONIOENCODING when it starts."""
    image, model = photos / "red disc" / "0.png", tmp_path / "model"
    fit = ["fit", photos, "--backbone", tiny_folder, "--shots", 2, "--set", "epochs=2", "--rank", 2, "--out", model]
    commands = [list(map(str, command)) for command in (fit, ["predict", model, image])]
    code = f"""
import json, sys
from slimprompt.cli import main
for command in {commands!r}:
    sys.argv[1:] = command
    try:
        main()
    except SystemExit as stop:
        assert not stop.code
assert "torch.optim.sgd" in sys.modules
unused = [name for name in {UNUSED!r} if sys.modules.get(name) is not None]
import torch, torchvision.ops
boxes = torch.tensor([[0, 0.0, 0.0, 2.0, 2.0]])
pooled = torchvision.ops.roi_align(torch.ones(1, 1, 4, 4), boxes, 1)
import torch._dynamo.utils, transformers
real = [torch._dynamo.disable.__module__, torch._dynamo.utils.is_compile_supported.__module__, transformers.__name__]
print(json.dumps([unused, float(pooled), real]))
"""
    output, errors, (unused, pooled, real) = run(code, PYTHONIOENCODING="ascii")
    assert "?" in output  # the quotation marks of the template
    assert sorted(path.name for path in model.iterdir()) == ["model.safetensors"]
    assert "Traceback" not in errors and "bug" not in errors
    assert unused == []
    assert pooled == 1
    assert real == ["torch._dynamo.decorators", "torch._dynamo.utils", "transformers"]


def test_importing_the_command_line_leaves_imports_alone():
    code = "import json, sys; before = list(sys.meta_path); import slimprompt.cli; print(json.dumps(sys.meta_path == before))"
    assert run(code)[-1] is True


def test_a_package_that_needs_more_is_imported_in_full(tmp_path):
    (tmp_path / "open_clip.py").write_text("import torch._dynamo\nversion = torch._dynamo.config\n")
    code = f"""
import json, sys, torch
assert "torch._dynamo" not in sys.modules
sys.path.insert(0, {str(tmp_path)!r})
from slimprompt.startup import import_lightly
import_lightly()
import open_clip
print(json.dumps(open_clip.version.__name__))
"""
    assert run(code)[-1] == "torch._dynamo.config"


def test_python_dash_m():
    start = [sys.executable, "-m", "slimprompt"]
    done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("slimprompt ")
    done = subprocess.run([*start, "runs", "list", "--runs", "nowhere"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: no runs folder at nowhere")


def test_what_the_fork_server_of_the_tests_preloads_exists() -> None:
    """It would be silently left out otherwise, and every forked command would import it."""
    environment = os.environ | {"SLIMPROMPT_TESTS_FORK_SERVER": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", "import tests.loaded_libraries"], env=environment, check=True)
