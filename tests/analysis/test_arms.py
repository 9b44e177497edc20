import pytest

from slimprompt.analysis.arms import Arm, arm_label, arm_of, transfer
from slimprompt.analysis.observations import observe
from slimprompt.lab.records import load_records
from slimprompt.lab.spec import RunSpec
from tests.synthetic_runs import write_run

BASE = {"backbone": "ViT-B-16", "dataset": "dtd", "shots": 1, "seed": 1, "n_ctx": 8}


@pytest.mark.parametrize(
    ("fields", "arm", "label"),
    [
        ({"variant": "dense"}, Arm("dense", "identity", 8), "dense m8"),
        ({"variant": "joint", "rank": 4}, Arm("factorized", "trainable", 4), "joint r4"),
        ({"variant": "fixed-B", "basis": "svd", "rank": 2}, Arm("factorized", "svd", 2), "fixed-B svd r2"),
        (
            {"variant": "fixed-B", "basis": "source", "source": "food101", "rank": 4},
            transfer("source-B", 4),
            "fixed-B source r4",
        ),
        ({"variant": "fixed-A", "basis": "random", "rank": 4}, transfer("random-A", 4), "fixed-A random r4"),
        ({"variant": "fixed-A", "basis": "svd", "rank": 4}, Arm("fixed-A", "svd", 4), "fixed-A svd r4"),
    ],
)
def test_the_arm_of_every_kind_of_run(fields, arm, label):
    assert arm_of(RunSpec(**BASE, **fields)) == arm
    assert arm_label(arm) == label


@pytest.mark.parametrize(
    ("backbone", "pretrained", "title"),
    [
        ("ViT-B-16", "openai", "ViT-B/16"),
        ("ViT-B-16-quickgelu", "openai", "ViT-B/16"),
        ("RN50", "/weights/RN50.pt", "RN50"),
        ("ViT-B-16-quickgelu", "/weights/ViT-B-16.pt", "ViT-B/16"),
        ("ViT-B-16", "laion2b_s34b_b88k", "ViT-B/16 (laion2b_s34b_b88k)"),
        ("pocket", None, "pocket"),
    ],
)
def test_the_backbone_title_includes_other_weights(tmp_path, backbone, pretrained, title):
    write_run(tmp_path, BASE | {"variant": "dense", "backbone": backbone, "pretrained": pretrained})
    assert set(observe(load_records(tmp_path))["backbone"]) == {title}
