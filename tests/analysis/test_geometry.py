from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import subspace_angles

from slimprompt.analysis.geometry import AXES, class_subset_of, measure, medians, one_axis_pairs
from slimprompt.analysis.subspaces import compare_pairs, overlap_and_angle, random_overlaps, subspaces
from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from tests.synthetic_runs import RANKS, factors_of, write_run, write_study

BASE = {"backbone": "pocket", "dataset": "dtd", "shots": 1, "seed": 1, "n_ctx": 8}


@pytest.fixture
def generator():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return load_records(write_study(tmp_path_factory.mktemp("runs"), backbones=("pocket",)))


@pytest.fixture(scope="module")
def few(records):
    """The runs on one dataset."""
    return [record for record in records if record.spec.dataset == "dtd"]


@pytest.fixture(scope="module")
def geometry(records):
    return measure(records, draws=300)


@pytest.mark.parametrize(("dimension", "rank", "other"), [(16, 4, 4), (16, 1, 8), (64, 4, 2)])
def test_overlap_and_angle_agree_with_scipy(generator, dimension, rank, other):
    matrices = [generator.standard_normal((dimension, r)) for r in (rank, other)]
    spaces = subspaces(matrices, [rank, other])
    overlap, angle = compare_pairs(spaces, spaces, [(0, 1)])
    angles = subspace_angles(*matrices)[-min(rank, other) :]
    assert overlap[0] == pytest.approx(np.cos(angles).mean())
    assert angle[0] == pytest.approx(np.degrees(angles).mean())


def test_deep_prompts_are_left_out_with_a_note(records, geometry):
    deep = replace(records[-1], spec=records[-1].spec.model_copy(update={"depth": 2}))
    found = measure([*records[:-1], deep], draws=10)
    assert any("1 run of deep prompts left out" in note for note in found.notes)
    assert len(found.displacement) < len(geometry.displacement)


def test_equal_and_orthogonal_subspaces():
    basis = np.eye(6)
    assert overlap_and_angle(basis[:, :2], basis[:, :2] @ np.array([[0, 1], [1, 0]])) == pytest.approx((1.0, 0.0))
    assert overlap_and_angle(basis[:, :2], basis[:, 2:4]) == pytest.approx((0.0, 90.0))
    assert overlap_and_angle(basis[:, :2], basis[:, 1:3]) == pytest.approx((0.5, 45.0))


def test_overlap_depends_on_the_span_only(generator):
    one, other = generator.standard_normal((2, 12, 3))
    mixed = other @ (generator.standard_normal((3, 3)) + 3 * np.eye(3)) * 1e-4
    spaces = subspaces([one, other, mixed], [3, 3, 3])
    overlap, _ = compare_pairs(spaces, spaces, [(0, 1), (0, 2), (1, 2)])
    assert overlap[0] == pytest.approx(overlap[1])
    assert overlap[2] == pytest.approx(1.0)


def test_batch_agrees_with_single_pairs(generator):
    matrices = [generator.standard_normal((10, r)) for r in (1, 2, 3, 2, 1, 3)]
    spaces = subspaces(matrices, [1, 2, 3, 2, 1, 3])
    pairs = [(i, j) for i in range(6) for j in range(6)]
    overlap, _ = compare_pairs(spaces, spaces, pairs)
    for (i, j), value in zip(pairs, overlap, strict=True):
        alone = subspaces([matrices[i], matrices[j]], [matrices[i].shape[1], matrices[j].shape[1]])
        assert value == pytest.approx(compare_pairs(alone, alone, [(0, 1)])[0][0])


def test_given_rank_ignores_rounding_noise(generator):
    """A rank-4 product stored in half precision appears to have rank 16, as in the paper's records."""
    products = [generator.standard_normal((16, 4)) @ generator.standard_normal((4, 64)) for _ in range(2)]
    rounded = [product.astype(np.float16).astype(float) for product in products]
    assert np.linalg.matrix_rank(rounded[0]) == 16
    exact, stored = (subspaces([p.T for p in these], [4, 4]) for these in (products, rounded))
    pairs = [(0, 1)]
    assert compare_pairs(exact, exact, pairs)[0] == pytest.approx(compare_pairs(stored, stored, pairs)[0], abs=0.01)


def test_pairs_differ_in_exactly_one_axis(records):
    specs = [record.spec for record in records if record.spec.variant == "joint"]
    found = {(*sorted(pair), axis) for *pair, axis in one_axis_pairs(specs)}
    dumps = [spec.model_dump() for spec in specs]
    by_hand = set()
    for i in range(len(specs)):
        for j in range(i + 1, len(specs)):
            differing = [name for name in dumps[i] if dumps[i][name] != dumps[j][name]]
            if len(differing) == 1 and differing[0] in AXES:
                by_hand.add((i, j, differing[0]))
    assert found == by_hand
    assert {axis for *_, axis in found} == set(AXES)


def test_row_space_of_the_product_is_that_of_a(geometry):
    table = geometry.pairs.pivot(index=["run", "other_run"], columns="factor", values="overlap")
    np.testing.assert_allclose(table["BA"], table["A"], atol=1e-9)


def test_factors_that_hardly_move_keep_their_overlap(geometry):
    """In the synthetic runs B stays near an initial value that depends on the seed only, and A moves far."""
    table = geometry.medians().set_index(["axis", "factor"])
    for axis in ("dataset", "shots", "rank"):
        assert table.loc[(axis, "B"), "overlap"] > 0.95 > 0.6 > table.loc[(axis, "A"), "overlap"]
        assert table.loc[(axis, "B"), "start_overlap"] == pytest.approx(1.0)
    assert table.loc[("seed", "B"), "overlap"] < 0.8
    assert table.loc[("seed", "B"), "overlap"] == pytest.approx(table.loc[("seed", "B"), "chance_overlap"], abs=0.15)
    assert list(dict.fromkeys(geometry.medians()["axis"])) == list(AXES)


def test_medians_count_pairs(geometry, records):
    table = geometry.medians().set_index(["axis", "factor"])
    n_joint = sum(record.spec.variant == "joint" and record.spec.class_subset == "all" for record in records)
    assert table.loc[("seed", "B"), "n"] == n_joint
    assert table.loc[("rank", "B"), "n"] == n_joint // len(RANKS)
    split = geometry.medians(("axis", "rank"))
    assert split[split["axis"] == "seed"]["n"].sum() == table.loc["seed", "n"].sum()


def test_pairs_that_differ_in_a_grouped_column_have_both_values(geometry):
    table = geometry.medians(("axis", "rank"))
    assert table[["axis", "rank"]].drop_duplicates().to_numpy().tolist() == [
        *([axis, rank] for axis in ("seed", "dataset", "shots") for rank in RANKS),
        ["rank", "2–4"],
    ]
    everything = geometry.medians().set_index(["axis", "factor"])
    for row in table[table["axis"] == "rank"].to_dict("records"):
        assert row["n"] == everything.loc[("rank", row["factor"]), "n"]
        assert row["overlap"] == everything.loc[("rank", row["factor"]), "overlap"]
    by_dataset = geometry.medians(("axis", "dataset"))
    values = by_dataset.loc[(by_dataset["axis"] == "dataset") & (by_dataset["factor"] == "B"), "dataset"]
    assert list(values) == ["DTD–Food101", "DTD–pocket-toy", "Food101–pocket-toy"]


def test_chance_is_that_of_the_pairs_of_a_group(records, geometry):
    table = geometry.medians(("axis", "rank")).set_index(["axis", "rank", "factor"])
    for rank in RANKS:
        alone = measure([record for record in records if record.spec.rank == rank], draws=300).medians()
        for row in alone.to_dict("records"):
            found = table.loc[(row["axis"], rank, row["factor"])]
            assert found["overlap"] == row["overlap"]
            assert found["chance_overlap"] == pytest.approx(row["chance_overlap"], abs=0.03)
    assert table.loc[("seed", 4, "B"), "chance_overlap"] > table.loc[("seed", 2, "B"), "chance_overlap"] + 0.1


def test_displacement_from_the_initial_factors(geometry, records):
    table = geometry.displacement.set_index(["run", "factor"])
    for record in records:
        if record.spec.variant == "dense" or record.spec.class_subset == "base":
            assert (str(record.folder), "B") not in table.index
            continue
        factors = {name: value.astype("float32").astype(float) for name, value in factors_of(record.spec).items()}
        for factor in "AB":
            row = table.loc[(str(record.folder), factor)]
            moved = factors[factor] - factors[f"{factor}0"]
            expected = np.linalg.norm(moved) / np.linalg.norm(factors[f"{factor}0"])
            assert row["relative_norm"] == pytest.approx(expected, rel=1e-5)
        if record.spec.variant == "fixed-B":
            assert table.loc[(str(record.folder), "B"), "relative_norm"] == 0
            assert table.loc[(str(record.folder), "B"), "overlap"] == pytest.approx(1.0)


@pytest.mark.parametrize(("dimension", "rank", "other"), [(16, 4, 4), (16, 2, 8), (64, 4, 4)])
def test_chance_has_the_known_mean_square_cosine(generator, dimension, rank, other):
    """Σcos² of the principal angles of random subspaces is rank·other/dimension on average."""
    draws = 3000
    bases = [np.linalg.qr(generator.standard_normal((draws, dimension, r)))[0] for r in (rank, other)]
    cosines = np.linalg.svd(np.swapaxes(bases[0], 1, 2) @ bases[1], compute_uv=False)
    assert (cosines**2).sum(axis=1).mean() == pytest.approx(rank * other / dimension, rel=0.03)
    overlap, angle = random_overlaps(dimension, rank, other, draws=draws, generator=generator)
    assert np.median(overlap) == pytest.approx(np.median(cosines.mean(axis=1)), rel=0.03)
    assert np.median(angle) == pytest.approx(np.median(np.degrees(np.arccos(cosines)).mean(axis=1)), rel=0.03)


def test_chance_is_seeded_and_bounded(few):
    one, other = measure(few, draws=50, seed=7).chance, measure(few, draws=50, seed=7).chance
    assert len(one) and one.equals(other)
    assert not one.equals(measure(few, draws=50, seed=8).chance)
    assert (one["overlap_low"] <= one["overlap"]).all() and (one["overlap"] <= one["overlap_high"]).all()


def test_rank_must_not_exceed_the_dimension(generator):
    with pytest.raises(InputError, match="rank 9 does not fit in 8"):
        random_overlaps(8, 9, 2, draws=10, generator=generator)


def test_default_is_the_runs_on_all_classes(records, geometry):
    """The medians of a folder with both kinds of runs are those of the all-class runs alone."""
    by_subset = {name: [record for record in records if record.spec.class_subset == name] for name in ("all", "base")}
    assert all(any(record.spec.variant == "joint" for record in mine) for mine in by_subset.values())
    alone = measure(by_subset["all"], draws=300)
    pd.testing.assert_frame_equal(geometry.medians(), alone.medians())
    pd.testing.assert_frame_equal(geometry.displacement_medians(), alone.displacement_medians())
    assert {spec.class_subset for spec in geometry.compared} == {"all"}
    assert "left out, not trained on all classes" in geometry.notes[0]
    assert alone.notes == ()


def test_base_class_runs_on_request(few):
    base = measure([record for record in few if record.spec.class_subset == "base"], class_subset=None, draws=20)
    assert set(base.pairs["class_subset"]) == {"base"}
    both = measure(few, class_subset=None, draws=20)
    assert both.medians()["n"].sum() == base.medians()["n"].sum() + measure(few, draws=20).medians()["n"].sum()
    pd.testing.assert_frame_equal(measure(few, class_subset="base", draws=20).medians(), base.medians())
    assert class_subset_of(["shots=4", "class_subset=base"]) is None
    assert class_subset_of(["shots=4"]) == "all"


def test_lost_rank_is_reported(tmp_path):
    for seed in (1, 2):
        factors = {name: value.copy() for name, value in zip(("B0", "A0", "B", "A"), _full(seed), strict=True)}
        if seed == 1:
            factors["B"][:, 1] = factors["B"][:, 0]
        write_run(tmp_path, BASE | {"variant": "joint", "rank": 2, "seed": seed}, factors=factors)
    notes = measure(load_records(tmp_path), draws=10).notes
    assert any("B has lost rank" in note for note in notes)


def _full(seed):
    generator = np.random.default_rng(seed)
    b, a = generator.standard_normal((8, 2)), generator.standard_normal((2, 32))
    return b, a, b, a


@pytest.mark.parametrize("variants", [[], [{"variant": "dense"}], [{"variant": "joint", "rank": 2}]])
def test_too_few_runs_give_empty_tables(tmp_path, variants):
    for fields in variants:
        write_run(tmp_path, BASE | fields)
    found = measure(load_records(tmp_path), draws=10)
    assert found.pairs.empty and found.chance.empty
    assert found.medians().empty and medians(found.pairs).empty
    assert len(found.displacement) == 3 * sum(fields["variant"] != "dense" for fields in variants)


def test_backbones_are_measured_independently(tmp_path):
    """They are read one after the other; the rows keep the order of the runs."""
    records = load_records(
        write_study(tmp_path, backbones=("RN50", "ViT-B-16"), shots=(1,), datasets=("dtd", "food101"))
    )
    both = measure(records, draws=10)
    assert len(both.pairs) and set(both.pairs["backbone"]) == {"RN50", "ViT-B/16"}
    for backbone in ("RN50", "ViT-B/16"):
        own = [record for record in records if record.spec.backbone == backbone.replace("/", "-")]
        alone = measure(own, draws=10)
        for table in ("pairs", "displacement"):
            frame = getattr(both, table)
            rows = frame[frame["backbone"] == backbone].reset_index(drop=True)
            pd.testing.assert_frame_equal(rows, getattr(alone, table), check_exact=True)
