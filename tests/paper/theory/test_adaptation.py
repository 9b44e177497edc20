import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from slimprompt.paper.theory.adaptation import (
    DISPLACEMENT,
    PROMPT,
    adaptation_statements,
    trained_cases,
)
from slimprompt.paper.theory.asymmetry import top_share
from slimprompt.paper.theory.bases import kept_shares
from tests.synthetic_runs import write_run

M, D, R = 6, 24, 2
SETTINGS = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "n_ctx": M}


def dense(root, seed, displacement, p0, **fields):
    factors = {"B0": np.eye(M), "A0": p0, "B": np.eye(M), "A": p0 + displacement}
    write_run(root, {**SETTINGS, "seed": seed, "variant": "dense", **fields}, factors=factors)


def joint(root, seed, b, a, **fields):
    write_run(
        root,
        {**SETTINGS, "seed": seed, "variant": "joint", "rank": R, **fields},
        factors={"B0": b, "A0": a, "B": b, "A": a},
    )


def start(seed):
    return 0.02 * np.random.default_rng(seed).standard_normal((M, D))


def measured(root, rank=R, m=M):
    ((backbone, cases),) = trained_cases(load_records(root), m, rank).items()
    kept = kept_shares(cases, rank)
    statements = {one.name: one for one in adaptation_statements(backbone, cases, kept, rank, seed=0)}
    return cases, {(one.basis, one.side, one.target): one for one in kept}, statements


def test_random_displacement_agrees_with_the_surrogate(tmp_path):
    for seed in range(8):
        dense(tmp_path, seed, np.random.default_rng(100 + seed).standard_normal((M, D)), start(seed))
    _, kept, statements = measured(tmp_path)
    assert kept["svd", "token", DISPLACEMENT].predicted == R / M
    assert kept["svd", "embedding", DISPLACEMENT].predicted == R / D
    for name in ("svd B", "orthogonal B", "gaussian B", "svd A"):
        assert statements[f"{name}, {DISPLACEMENT} (pocket)"].verdict == "holds", name
    assert statements["Displacement without preferred directions (pocket)"].verdict == "holds"


def test_displacement_within_the_svd_basis_does_not(tmp_path):
    """If only the two largest token directions of P0 change, its svd basis keeps the whole displacement."""
    for seed in range(4):
        left = np.linalg.svd(start(seed))[0][:, :R]
        displacement = left @ np.random.default_rng(50 + seed).standard_normal((R, D))
        dense(tmp_path, seed, displacement, start(seed))
    _, kept, statements = measured(tmp_path)
    np.testing.assert_allclose(kept["svd", "token", DISPLACEMENT].values, 1, rtol=1e-5)
    assert statements[f"svd B, {DISPLACEMENT} (pocket)"].verdict == "violated"
    concentrated = statements["Displacement without preferred directions (pocket)"]
    assert concentrated.verdict == "violated" and concentrated.measured == pytest.approx(1)


def test_small_displacement_leaves_the_share_of_p0(tmp_path):
    """With a small displacement P* is close to P0, of which the svd basis keeps more than r/m."""
    for seed in range(4):
        dense(tmp_path, seed, 1e-4 * np.random.default_rng(seed).standard_normal((M, D)), start(seed))
    _, kept, _ = measured(tmp_path)
    expected = [top_share(start(seed), R) for seed in range(4)]
    np.testing.assert_allclose(kept["svd", "token", PROMPT].values, expected, rtol=0.01)


def test_learned_factors_come_from_the_matching_joint_run(tmp_path):
    generator = np.random.default_rng(0)
    for seed in (1, 2):
        a = generator.standard_normal((R, D))
        b = np.eye(M)[:, :R]
        dense(tmp_path, seed, b @ a, start(seed))  # displacement in the span of the learned factors
        joint(tmp_path, seed, b, a)
        joint(tmp_path, seed, np.eye(M)[:, -R:], generator.standard_normal((R, D)), dataset="food101")  # other settings
    _, kept, _ = measured(tmp_path)
    np.testing.assert_allclose(kept["learned", "token", DISPLACEMENT].values, 1, rtol=1e-5)
    np.testing.assert_allclose(kept["learned", "embedding", DISPLACEMENT].values, 1, rtol=1e-5)


def test_runs_of_a_seed_are_averaged(tmp_path):
    for seed in (1, 2):
        for shots in (1, 4, 16):
            displacement = np.random.default_rng(shots).standard_normal((M, D))
            dense(tmp_path, seed, displacement, start(seed), shots=shots)
    cases, kept, statements = measured(tmp_path)
    assert len(cases) == 6
    assert {one.values.size for one in kept.values()} == {2}
    assert "6 dense runs; means of 2 seeds" in statements[f"svd B, {DISPLACEMENT} (pocket)"].detail


def test_one_seed_decides_nothing(tmp_path):
    dense(tmp_path, 1, np.ones((M, D)), start(1))
    _, _, statements = measured(tmp_path)
    assert {one.verdict for one in statements.values()} == {"undecided"}


def test_backbones_are_separate(tmp_path):
    dense(tmp_path, 1, np.ones((M, D)), start(1))
    dense(tmp_path, 1, np.ones((M, D)), start(1), backbone="RN50", pretrained="openai")
    assert list(trained_cases(load_records(tmp_path), M, R)) == ["RN50 openai", "pocket"]


def test_missing_dense_runs_are_an_error(tmp_path):
    joint(tmp_path, 1, np.ones((M, R)), np.ones((R, D)))
    with pytest.raises(InputError, match="none of the runs is dense"):
        trained_cases(load_records(tmp_path), M, R)
    dense(tmp_path, 1, np.ones((M, D)), start(1))
    with pytest.raises(InputError, match=f"dense runs have m = {M}"):
        trained_cases(load_records(tmp_path), 16, R)


def test_untrained_run_is_an_error(tmp_path):
    dense(tmp_path, 1, np.zeros((M, D)), start(1))
    with pytest.raises(InputError, match="not trained"):
        measured(tmp_path)
