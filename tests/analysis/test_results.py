import pytest

from slimprompt.analysis.arms import BEST_DENSE, dense, joint, transfer
from slimprompt.analysis.observations import observe
from slimprompt.analysis.results import CellKey, Estimate, Results, average, best_of
from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from slimprompt.lab.spec import RunSpec
from tests.synthetic_runs import accuracy_of, study_fields, write_run

BASE = {"backbone": "ViT-B-16", "dataset": "dtd", "shots": 1, "seed": 1, "n_ctx": 8}


@pytest.fixture
def results(study_results):
    return study_results


def expected(variant, *, dataset="dtd", shots=4, seeds=(1, 2, 3), **fields):
    specs = [
        RunSpec(**BASE | {"dataset": dataset, "shots": shots, "seed": seed, "variant": variant} | fields)
        for seed in seeds
    ]
    return [accuracy_of(spec) for spec in specs]


def test_a_cell_has_the_mean_the_sample_sd_and_the_runs(results):
    cell = results.cell("ViT-B/16", "DTD", joint(4), 4)
    values = expected("joint", rank=4)
    assert cell.mean == pytest.approx(sum(values) / 3)
    assert cell.sd == pytest.approx((sum((v - sum(values) / 3) ** 2 for v in values) / 2) ** 0.5)
    assert cell.n == len(cell.runs) == 3
    assert cell.by_seed == pytest.approx({1: values[0], 2: values[1], 3: values[2]})


def test_a_cell_without_runs_is_none(results):
    assert results.cell("ViT-B/16", "DTD", joint(16), 4) is None
    assert results.macro("ViT-B/16", ["DTD", "Food101", "nowhere"], joint(4), 4) is None


def test_the_macro_average_is_taken_within_seeds(results):
    found = results.macro("ViT-B/16", ["DTD", "Food101"], joint(4), 4)
    by_seed = [
        sum(pair) / 2
        for pair in zip(expected("joint", rank=4), expected("joint", rank=4, dataset="food101"), strict=True)
    ]
    assert found.mean == pytest.approx(sum(by_seed) / 3)
    assert list(found.by_seed.values()) == pytest.approx(by_seed)
    assert len(found.runs) == 6


def test_best_dense_is_the_better_length(results):
    lengths = [results.cell("RN50", "DTD", dense(m), 1) for m in (4, 8)]
    assert results.dense_lengths() == [4, 8]
    assert results.cell("RN50", "DTD", BEST_DENSE, 1).mean == max(one.mean for one in lengths)


def test_the_best_is_decided_on_common_seeds():
    easy, hard = Estimate(70.0, 0, 2, by_seed={1: 60.0, 2: 80.0}), Estimate(61.0, None, 1, by_seed={1: 61.0})
    assert best_of({"easy": easy, "hard": hard}) == "hard"
    assert best_of({"easy": easy, "other": Estimate(61.0, None, 1, by_seed={3: 61.0})}) is None
    assert best_of({}) is None
    cells = {CellKey("RN50", "DTD", *dense(m), 1): one for m, one in ((4, easy), (16, hard))}
    assert Results(cells).cell("RN50", "DTD", BEST_DENSE, 1) is hard


def test_parameters_come_from_the_records(results):
    assert results.parameters("RN50", dense(8)) == 8 * 32
    assert results.parameters("RN50", joint(4)) == 4 * (8 + 32)
    assert results.parameters("RN50", joint(7)) is None


def test_axis_lists_the_values_of_a_field(results):
    assert results.axis("rank", method="factorized", basis="trainable") == [2, 4]
    assert results.axis("shots", backbone="RN50", metric="accuracy") == [1, 4]
    assert results.axis("dataset", method={"fixed-A", "fixed-B"}) == ["DTD", "Food101", "pocket-toy"]


def test_differences_by_unit(results):
    arms = {"backbone": "RN50", "shots": 4, "first": joint(4), "second": dense(8)}
    by_run = results.differences(**arms, unit="run")
    by_dataset = results.differences(**arms, unit="dataset")
    by_seed = results.differences(**arms, unit="seed")
    assert (len(by_run), len(by_dataset), len(by_seed)) == (9, 3, 3)
    assert by_dataset["DTD"] == pytest.approx(sum(v for k, v in by_run.items() if k.startswith("DTD")) / 3)
    assert sum(by_seed.values()) == pytest.approx(sum(by_dataset.values()))
    with pytest.raises(InputError, match="unit of comparison"):
        results.differences(**arms, unit="datasets")


def test_only_matched_cells_are_compared(tmp_path):
    for fields in study_fields(backbones=("RN50",), datasets=("dtd", "food101"), shots=(1,)):
        if not (fields["variant"] == "dense" and fields["dataset"] == "food101"):
            write_run(tmp_path, fields)
    results = Results.of(observe(load_records(tmp_path)))
    assert set(results.differences(joint(4), dense(8), backbone="RN50", shots=1)) == {"DTD"}


def test_transfers_are_averaged_over_their_sources(results):
    found = results.differences(transfer("source-B", 4), transfer("random-B", 4), backbone="ViT-B/16", shots=4)
    assert set(found) == {"DTD", "Food101", "pocket-toy"}
    cells = [
        results.cell("ViT-B/16", "DTD", transfer("source-B", 4), 4, source=s).mean for s in ("Food101", "pocket-toy")
    ]
    random = results.cell("ViT-B/16", "DTD", transfer("random-B", 4), 4).mean
    assert found["DTD"] == pytest.approx(sum(cells) / 2 - random)


@pytest.mark.parametrize(
    ("first", "second", "metric"),
    [
        (joint(4), dense(16), "cross_dataset"),
        (transfer("source-B", 4), transfer("source-A", 4), "accuracy"),
    ],
)
def test_arms_with_sources_are_compared_on_equal_sources(first, second, metric):
    values = {(first, "DTD"): 70.0, (first, "Food101"): 50.0, (second, "Food101"): 40.0, (second, "UCF101"): 10.0}
    cells = {
        CellKey("RN50", "pocket-toy", *arm, 1, metric, source): Estimate(value, None, 1, by_seed={1: value})
        for (arm, source), value in values.items()
    }
    where = {"backbone": "RN50", "shots": 1, "metric": metric}
    assert Results(cells).differences(first, second, **where, unit="run") == {"pocket-toy, seed 1": 10.0}
    apart = Results({key: cell for key, cell in cells.items() if key.source != "Food101"})
    assert apart.differences(first, second, **where) == {}


def test_an_average_is_over_common_seeds_or_over_published_means():
    first, second = Estimate(3.0, None, 2, ("a",), {1: 1.0, 2: 5.0}), Estimate(7.0, None, 1, ("b",), {2: 7.0})
    found = average([first, second])
    assert (found.mean, found.n, found.by_seed, found.runs) == (6.0, 1, {2: 6.0}, ("a", "b"))
    assert average([first, None]) is None and average([]) is None
    published = average([Estimate(3.0, 0.1, 3), Estimate(4.0, 0.2, 3)])
    assert (published.mean, published.sd, published.n) == (3.5, None, 3)
