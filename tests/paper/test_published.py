from collections import Counter
from pathlib import Path
from statistics import mean

import open_clip
import pytest

from slimprompt.analysis.arms import BEST_DENSE, dense, fixed_basis, joint, transfer
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.paper.published import (
    N_CTX,
    OWN_TEMPLATE,
    WIDTH,
    printed_numbers,
    published_baselines,
    published_geometry,
    published_numbers,
    published_pairs,
    published_results,
)
from slimprompt.prompts.spec import FIXED_BASES
from slimprompt.training.metrics import harmonic_mean


def test_the_file_has_all_numbers_of_every_table():
    frame = published_numbers()
    assert len(frame) == 2552
    assert frame.groupby("table").size().to_dict() == {
        "base2new": 288,
        "base2new_full": 630,
        "b_ablation": 1008,
        "best_delta": 84,
        "factor_geometry": 24,
        "fixedB": 120,
        "headline": 24,
        "rank_sweep": 168,
        "transfer_best_delta": 64,
        "transfer_four_modes": 64,
        "transfer_pairs": 78,
    }
    # The best dense prompt is printed in the ablation tables of all four ranks; every other key is unique.
    assert len(printed_numbers()) == len(frame) - 3 * 2 * 21
    repeated = frame[frame["basis"] == "best"].groupby(["table", "backbone", "dataset", "shots", "source"])
    assert (repeated["mean"].nunique() == 1).all() and (repeated["std"].nunique() <= 1).all()


def test_cells_have_the_printed_values():
    results = published_results()
    cell = results.cell("ViT-B/16", "Oxford Flowers", joint(4), 16)
    assert (cell.mean, cell.sd, cell.n, cell.runs) == (96.20, 0.29, 3, ())
    assert results.cell("RN50", "DTD", joint(4), 1, "harmonic").mean == 46.70
    assert results.cell("ViT-B/16", "DTD", transfer("source-B", 4), 16, source="FGVC Aircraft").mean == 68.86
    assert results.cell("ViT-B/16", "DTD", transfer("random-A", 4), 16).mean == 47.61
    assert results.axis("dataset") == [
        "Caltech101", "DTD", "FGVC Aircraft", "Food101", "Oxford Flowers", "Oxford Pets", "UCF101",
    ]  # fmt: skip


def test_dense_accuracies_follow_from_the_printed_differences():
    """The best low-rank prompt on Food101 at 16 shots reaches 86.87, 2.53 above 16 tokens and 1.77 above 4 tokens."""
    results = published_results()
    assert results.cell("ViT-B/16", "Food101", dense(16), 16).mean == pytest.approx(84.34)
    assert results.cell("ViT-B/16", "Food101", dense(4), 16).mean == pytest.approx(85.10)
    assert results.cell("ViT-B/16", "Food101", BEST_DENSE, 16).mean == 85.10
    assert results.cell("RN50", "Food101", dense(16), 16, "accuracy") is None


def test_averages_are_recomputed_or_taken_as_printed():
    results = published_results()
    datasets = results.axis("dataset")
    joint_average = results.macro("RN50", datasets, joint(4), 1)
    assert joint_average.mean == pytest.approx(60.4957, abs=1e-3) and not joint_average.printed
    dense_average = results.macro("RN50", datasets, dense(16), 1)
    assert dense_average.mean == 58.50 and dense_average.printed


def test_parameters_and_geometry():
    assert (N_CTX, WIDTH) == (16, 512)
    results = published_results()
    assert [results.parameters("RN50", arm) for arm in (dense(16), joint(4), transfer("source-A", 4))] == [
        8192,
        2112,
        64,
    ]
    table = published_geometry().set_index(["axis", "factor"])
    assert table.loc[("seed", "B"), "overlap"] == 0.41
    assert table.loc[("rank", "BA"), "angle"] == 80.3
    assert len(published_pairs()) == 12


def test_baselines_are_complete_and_of_known_benchmarks():
    """Five methods on the eleven datasets of CoOp, at 1 to 16 shots; zero-shot without shots."""
    rows = [row for row in published_baselines() if row.class_subset == "all"]
    assert len({(row.method, row.dataset, row.backbone, row.shots) for row in rows}) == len(rows) == 231
    assert {row.dataset for row in rows} == {
        name for name, info in BENCHMARKS.items() if not info.rendered and not info.evaluation_only
    }
    assert len({row.dataset for row in rows}) == 11
    assert {row.backbone for row in rows} == {"RN50"} <= set(open_clip.list_models())
    assert all(0 < row.accuracy < 100 and row.source and row.protocol for row in rows)
    assert Counter((row.method, row.shots) for row in rows) == {("zero-shot", 0): 11} | {
        (method, shots): 11
        for method in ("tip-adapter", "tip-adapter-f", "clip-adapter", "gda")
        for shots in (1, 2, 4, 8, 16)
    }


def test_zero_shot_of_vit_on_base_and_new_classes():
    rows = [row for row in published_baselines() if row.class_subset != "all"]
    assert {(row.method, row.backbone, row.shots, row.protocol) for row in rows} == {
        ("zero-shot", "ViT-B-16", 0, OWN_TEMPLATE)
    }
    assert len({(row.dataset, row.class_subset) for row in rows}) == len(rows) == 20
    values = {(row.dataset, row.class_subset): row.accuracy for row in rows}
    # The harmonic means that the same table prints.
    for dataset, expected in {"caltech101": 95.40, "oxford_pets": 94.12, "dtd": 56.37, "ucf101": 73.85}.items():
        assert harmonic_mean(values[dataset, "base"], values[dataset, "new"]) == pytest.approx(expected, abs=0.005)


def test_averages_of_the_baselines_on_the_datasets_of_the_paper():
    """On the seven datasets of the paper's RN50 table."""
    titles = published_results().axis("dataset")
    rows = [
        row for row in published_baselines() if BENCHMARKS[row.dataset].title in titles and row.class_subset == "all"
    ]

    def average(method, shots):
        values = [row.accuracy for row in rows if (row.method, row.shots) == (method, shots)]
        assert len(values) == 7
        return round(mean(values), 1)

    assert average("zero-shot", 0) == 62.2
    assert [average("tip-adapter", shots) for shots in (1, 4, 16)] == [64.5, 68.6, 72.5]
    assert [average("tip-adapter-f", shots) for shots in (1, 4, 16)] == [66.9, 71.3, 76.7]
    assert [average("gda", shots) for shots in (1, 4, 16)] == [64.1, 71.8, 77.3]


def test_the_readme_has_the_range_of_the_papers_prompts():
    """Dense prompts and all rank-4 ones on RN50, averaged over the datasets."""
    results = published_results()
    arms = (dense(4), dense(16), joint(4), *(fixed_basis(basis, 4) for basis in FIXED_BASES))

    def ends(shots):
        averages = [results.macro("RN50", results.axis("dataset"), arm, shots).mean for arm in arms]
        return f"{min(averages):.1f} to {max(averages):.1f}"

    text = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"the paper's dense and rank-4 prompts {ends(16)}; at one image per class, these prompts reach {ends(1)}"
        in text
    )


def test_zero_shot_on_imagenet_averages_templates():
    """So it cannot be compared with one template, unlike the other ten."""
    protocols = {row.dataset: row.protocol for row in published_baselines() if row.method == "zero-shot"}
    assert [name for name, protocol in protocols.items() if protocol != OWN_TEMPLATE] == ["imagenet"]
    assert protocols["imagenet"] == "seven general templates averaged"
