"""Fixtures: a tiny open_clip model with random weights, small image folders, and specs and grids on them.

Every process computes on one thread, because pytest-xdist starts a process for every core.

Fixtures import torch and slimprompt themselves: the controlling process of pytest-xdist imports this file too, and the others
start when it has done so.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import PIL
import pytest
from PIL import Image, ImageDraw

from tests.hub_server import TOKEN, Hub, hub, use_hub
from tests.shortcuts import RENDERED, copy_rendered_benchmarks, read_vocabulary_once, shortcuts  # noqa: F401

os.environ["OMP_NUM_THREADS"] = "1"  # numpy, scipy and torch read it when they are loaded, here and in child processes

if TYPE_CHECKING:
    from slimprompt.clip.backbone import Backbone
    from slimprompt.lab.environment import RunEnvironment
    from slimprompt.lab.executors import Executor
    from slimprompt.lab.spec import RunSpec
    from slimprompt.lab.study import Event, Outcome
    from slimprompt.paper.studies import Grid
    from slimprompt.report.page import Report

TINY = "tiny-for-tests"
TINY_CONFIG = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 40, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 3},
}

PILLOW = int(PIL.__version__.partition(".")[0])

#: Environment variables with which Ray misses a killed raylet after a second instead of twenty; one that is only slow has ten seconds
#: to answer, as always.
QUICK_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "2",
    "RAY_raylet_death_check_interval_milliseconds": "300",
}


@pytest.fixture(autouse=True, scope="session")
def _libraries_are_no_garbage() -> Iterator[None]:
    """Collections of garbage, of which every export to ONNX asks for several, pass over the objects of the libraries."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()  # libraries complain about objects that are left at the end


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the processes of pytest-xdist share."""
    root = tmp_path_factory.getbasetemp()
    return (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared-cache"


@pytest.fixture(autouse=True, scope="session")
def _made_once(shared_cache: Path) -> Iterator[None]:
    """What every command and every empty cache would make again is made once.

    That is the tokenizer's vocabulary, Typer's commands, and the images of a rendered benchmark, which are copied from the cache
    that documents use.
    """
    import open_clip
    import typer.main
    import typer.testing

    from slimprompt.data import catalogue

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RENDERED, str(shared_cache / "data"))  # commands that are forked read it too
        patch.setattr(catalogue, "render_benchmark", catalogue.render_benchmark)  # restored at the end
        copy_rendered_benchmarks()
        patch.setattr(open_clip.factory, "SimpleTokenizer", open_clip.factory.SimpleTokenizer)
        read_vocabulary_once()
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        patch.setattr(typer.testing, "_get_command", typer.main.get_command)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_ray_token() -> Iterator[None]:
    """The tests' Ray clusters know each other by a token of their own, whatever the user has set up.

    For the whole session: Ray reads it when it is imported.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
        yield


@pytest.fixture(scope="session")
def operators_parsed_once() -> Iterator[None]:
    """Every export to ONNX would parse the definitions of all operators of torch again."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or left in the user's cache."""
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in for the Hugging Face hub, with an empty cache and a token that may write."""
    from huggingface_hub import constants

    with hub() as state:
        use_hub(state.address, monkeypatch)
        monkeypatch.setattr(constants, "ENDPOINT", state.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield state


@pytest.fixture(scope="session")
def model_config(tmp_path_factory: pytest.TempPathFactory):
    """Registers an open_clip architecture under a name."""
    import open_clip

    def register(name: str, config: dict) -> str:
        path = tmp_path_factory.mktemp("configs") / f"{name}.json"
        path.write_text(json.dumps(config))
        open_clip.add_model_config(path)
        return name

    return register


@pytest.fixture(scope="session")
def tiny(model_config) -> Backbone:
    from slimprompt.clip.backbone import load_backbone

    return load_backbone(model_config(TINY, TINY_CONFIG), seed=0, device="cpu")


def in_double(backbone: Backbone) -> Backbone:
    """A copy of a backbone in fp64. Two ways of computing the same agree in it to many digits, on every processor."""
    return dataclasses.replace(backbone, model=copy.deepcopy(backbone.model).double())


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real benchmarks, where there is one."""
    root = os.environ.get("SLIMPROMPT_DATA")
    if not root:
        pytest.skip("SLIMPROMPT_DATA is not set: the real benchmark files are not here")
    return Path(root)


def entries_of(model: Path) -> dict[str, Any]:
    """The description of a saved model."""
    from slimprompt.saved import read_model

    return read_model(model).entries


def draw(path: Path, colour: str, number: int, size: int = 40) -> Path:
    """A disc of one colour, somewhere on grey."""
    image = Image.new("RGB", (size, size), (128, 128, 128 + number % 8))
    x, y = 4 + number * 3 % 12, 4 + number * 5 % 12
    ImageDraw.Draw(image).ellipse((x, y, x + 20, y + 20), fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def rotated_copy(path: Path, target: str) -> None:
    """A copy whose pixels are rotated and whose EXIF orientation undoes that, as a camera held upright writes it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(target, "PNG", exif=exif)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/<class>/<image>: three classes of six images."""
    root = tmp_path_factory.mktemp("photos")
    for colour in ("red", "green", "blue"):
        for number in range(6):
            draw(root / f"{colour} disc" / f"{number}.png", colour, number)
    return root


PREPROCESS = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
COLOURS = {"warm": ("red", "orange", "yellow", "brown", "pink"), "cold": ("blue", "green", "cyan", "purple")}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a backbone that every process can load: open_clip's own folder format, with random weights."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.CLIP(**TINY_CONFIG)
    config = {"model_cfg": TINY_CONFIG, "preprocess_cfg": PREPROCESS}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    return f"local-dir:{folder}"


@pytest.fixture(scope="session")
def collections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two folders train/<class>/<image> and test/<class>/<image>: five warm and four cold colours."""
    root = tmp_path_factory.mktemp("collections")
    for name, colours in COLOURS.items():
        for colour in colours:
            for number in range(9):
                part = "train" if number < 5 else "test"
                draw(root / name / part / f"{colour} disc" / f"{number}.png", colour, number)
    return {name: str(root / name) for name in COLOURS}


@pytest.fixture
def environment(tmp_path: Path) -> RunEnvironment:
    from slimprompt.lab.environment import RunEnvironment

    return RunEnvironment(runs=tmp_path / "runs", device="cpu")


@pytest.fixture
def run_spec(tiny_folder: str, collections: dict[str, str]) -> Callable[..., RunSpec]:
    """A spec on the tiny model; by default joint, rank 2, warm colours, 2 shots, seed 1, a few epochs."""
    from slimprompt.lab.spec import RunSpec

    def make(**fields: Any) -> RunSpec:
        default = {"backbone": tiny_folder, "dataset": collections["warm"], "shots": 2, "seed": 1, "n_ctx": 4}
        how = {"variant": "joint", "rank": 2, "recipe": {"epochs": 3, "views": 2, "batch_size": 4}}
        chosen = {**default, **how, **fields}
        if chosen["variant"] == "dense":
            chosen["rank"] = None
        return RunSpec(**chosen)

    return make


@pytest.fixture
def small_grid(tiny_folder: str, collections: dict[str, str]) -> Callable[..., Grid]:
    """A grid on the tiny model that has every kind of run."""
    from slimprompt.paper.studies import make_grid

    def make(**fields: Any) -> Grid:
        axes = {
            "backbones": [tiny_folder],
            "datasets": list(collections.values()),
            "shots": [1, 2],
            "seeds": [1],
            "ranks": [2],
            "bases": ["orthogonal", "learned"],
            "n_ctx": 4,
            "short_ctx": 2,
            "recipe": {"epochs": 3, "views": 2, "batch_size": 4},
        }
        return make_grid({**axes, **fields})

    return make


@pytest.fixture(scope="session")
def study_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of a synthetic study of the paper, which has every table and figure."""
    from slimprompt.paper.contents import PAPER
    from slimprompt.report.page import build_report
    from tests.synthetic_runs import write_study

    root = tmp_path_factory.mktemp("study") / "runs"
    write_study(root, backbones=("pocket",), datasets=("dtd", "food101"), seeds=(1, 2))
    return build_report(root, PAPER)


def complete_study(
    specs: Iterable[RunSpec],
    runs: Path,
    executor: Executor,
    watch: Callable[[Event], object] = lambda event: None,
    *,
    prompt_batch: int = 1,
) -> Outcome:
    """Run a study to its end; `watch` is called with what happens."""
    from slimprompt.lab.study import open_study, outcome_of, run_study

    def watched() -> Generator[Event, None, None]:
        with closing(run_study(study, executor, prompt_batch=prompt_batch)) as events:
            for event in events:
                watch(event)
                yield event

    study = open_study(specs, runs)
    return outcome_of(study, watched())


def fingerprints(runs: Path) -> dict[str, dict[str, str]]:
    """Run → hash of each file that must be the same whenever and wherever a spec is run."""
    found: dict[str, dict[str, str]] = {}
    for folder in sorted(path for path in runs.iterdir() if not path.name.startswith(".")):
        record = json.loads((folder / "record.json").read_text())
        assert record["status"] == "complete", record.get("error")
        hashes = {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in ("factors.safetensors", "manifest.json", "curve.csv")
        }
        found[folder.name] = {**hashes, "metrics": json.dumps(record["metrics"], sort_keys=True)}
    return found


def run_folders(runs: Path) -> list[str]:
    """What stands in a runs folder, drafts included, but for the writers' lock."""
    return sorted(path.name for path in runs.iterdir() if path.name != ".lock")


_BROWSER_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, driven by selenium; tests are skipped without them."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed (pip install 'slimprompt[dev]')"
    )
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (program and driver):
        pytest.skip("Chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*_BROWSER_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture(scope="module")
def browser(chromium: Any) -> Any:
    """Chromium with an empty page and an empty log."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    return chromium
