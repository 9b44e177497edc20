import numpy as np
import pytest
from scipy import stats

from slimprompt.paper.theory.asymmetry import (
    asymmetry_statements,
    corollary_statements,
    haar_frames,
    ideal_prompts,
    kept_share,
    lemma_statements,
    mean_projector,
    residual_curve,
    top_share,
)
from slimprompt.paper.theory.bases import (
    INDEPENDENT,
    START,
    kept_shares,
    start_cases,
    start_factors,
    start_statements,
)
from slimprompt.prompts.start import initial_context, start_prompt

M, D, R, TRIALS = 6, 20, 2, 3000


@pytest.fixture
def generator():
    return np.random.default_rng(7)


def curves(generator, ideal="spread", trials=TRIALS):
    prompt = ideal_prompts(M, D, 0)[ideal]
    return [residual_curve(side, ideal, prompt, trials, generator) for side in ("token", "embedding")]


def verdicts(statements):
    return {statement.name.split(" (")[0]: statement.verdict for statement in statements}


# -- Haar sampling ------------------------------------------------------------------------------------------------------


def test_frames_are_orthonormal(generator):
    frames = haar_frames(M, 3, 300, generator)
    assert frames.shape == (300, M, 3)
    np.testing.assert_allclose(np.swapaxes(frames, 1, 2) @ frames, np.broadcast_to(np.eye(3), (300, 3, 3)), atol=1e-12)


def test_entries_have_the_haar_distribution(generator):
    """In every column, a coordinate x of a uniform unit vector has x² ~ Beta(½, (m − 1)/2) and a random sign."""
    frames = haar_frames(M, 3, 4000, generator)
    for column in range(3):
        x = frames[:, 0, column]
        assert stats.kstest(x**2, stats.beta(0.5, (M - 1) / 2).cdf).pvalue > 1e-3
        assert stats.binomtest(int((x > 0).sum()), x.size).pvalue > 1e-3


def test_sign_correction_is_needed(generator):
    """Without it the first entry of LAPACK's QR of a normal matrix always has the same sign."""
    raw, _ = np.linalg.qr(generator.standard_normal((500, M, 3)))
    assert stats.binomtest(int((raw[:, 0, 0] > 0).sum()), 500).pvalue < 1e-6


def test_frames_are_invariant_under_rotations(generator):
    frames = haar_frames(M, 3, 4000, generator)
    left, right = haar_frames(M, M, 1, generator)[0], haar_frames(3, 3, 1, generator)[0]
    rotated = left @ haar_frames(M, 3, 4000, generator) @ right
    for i, j in ((0, 0), (2, 1), (5, 2)):
        assert stats.ks_2samp(frames[:, i, j], rotated[:, i, j]).pvalue > 1e-3
    # joint distribution of two columns
    assert stats.ks_2samp(frames[:, 0, 0] * frames[:, 1, 1], rotated[:, 0, 0] * rotated[:, 1, 1]).pvalue > 1e-3


def test_mean_projector_holds_for_haar_and_fails_for_a_biased_sampler(generator):
    frames = haar_frames(M, R, TRIALS, generator)
    assert mean_projector(frames).verdict == "holds"
    biased = generator.standard_normal((TRIALS, M, R)) * np.array([1.5, 1, 1, 1, 1, 1])[:, None]
    assert mean_projector(np.linalg.qr(biased)[0]).verdict == "violated"


# -- lemmas, by hand ----------------------------------------------------------------------------------------------------


def test_diagonal_ideal_by_hand():
    ideal = np.zeros((3, 5))
    np.fill_diagonal(ideal, (3.0, 2.0, 1.0))  # energies 9, 4, 1
    first = np.eye(3)[:, :1]
    assert kept_share(first, ideal) == pytest.approx(9 / 14)
    assert kept_share(-7.0 * first, ideal) == pytest.approx(9 / 14)  # scale does not matter
    assert kept_share(np.eye(5)[:, 1:3], ideal.T) == pytest.approx(5 / 14)
    assert top_share(ideal, 2) == pytest.approx(13 / 14)


def test_rank_deficient_basis_counts_its_span_only():
    ideal = np.eye(3)
    assert kept_share(np.array([[1.0, 2.0], [0, 0], [0, 0]]), ideal) == pytest.approx(1 / 3)
    assert kept_share(np.zeros((3, 2)), ideal) == 0.0


def test_minimisers_of_the_lemmas(generator):
    """The best A is UᵀP* with B = U fixed, and the best B is P*Qᵀ with A = Q fixed."""
    ideal = generator.standard_normal((M, D))
    u, q = haar_frames(M, R, 1, generator)[0], haar_frames(D, R, 1, generator)[0].T
    np.testing.assert_allclose(np.linalg.lstsq(u, ideal, rcond=None)[0], u.T @ ideal)
    np.testing.assert_allclose(np.linalg.lstsq(q.T, ideal.T, rcond=None)[0].T, ideal @ q.T)


def test_lemmas_agree_with_the_solver(generator):
    statements = lemma_statements(generator.standard_normal((M, D)), R, generator)
    assert [statement.verdict for statement in statements] == ["holds", "holds"]


def test_lemmas_fail_for_a_basis_that_is_not_orthonormal(generator, monkeypatch):
    """The lemmas assume orthonormal U: otherwise (I − UUᵀ)P* is not the residual."""
    from slimprompt.paper.theory import asymmetry

    monkeypatch.setattr(asymmetry, "haar_frames", lambda n, r, trials, g: g.standard_normal((trials, n, r)))
    statements = asymmetry.lemma_statements(generator.standard_normal((M, D)), R, generator)
    assert {statement.verdict for statement in statements} == {"violated"}


# -- the theorem --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ideal", ["spread", "one token"])
def test_theorem_and_corollary_hold(generator, ideal):
    token, embedding = curves(generator, ideal)
    np.testing.assert_allclose(token.samples[:, -1], 0, atol=1e-12)  # r = m: B is a complete basis
    statements = asymmetry_statements(token, embedding, R)
    assert [statement.predicted for statement in statements[:2]] == [1 - R / M, 1 - R / D]
    assert set(verdicts(statements).values()) == {"holds"}


def test_one_token_ideal_has_the_beta_distribution(generator):
    """With P* in one token, the share kept is the squared norm of a projected unit vector, Beta(r/2, (m − r)/2)."""
    token, _ = curves(generator, "one token")
    kept = 1 - token.samples[:, R - 1]
    assert stats.kstest(kept, stats.beta(R / 2, (M - R) / 2).cdf).pvalue > 1e-3


def test_theorem_fails_with_a_wrong_constant(generator):
    token, embedding = curves(generator)
    wrong = asymmetry_statements(token._replace(dimension=M + 1), embedding, R)  # 1 − r/(m + 1)
    assert verdicts(wrong)["Residual, random B fixed"] == "violated"
    assert verdicts(wrong)["Residual ratio"] == "violated"
    assert verdicts(wrong)["Both formulas at every r"] == "violated"
    assert verdicts(wrong)["Residual, random A fixed"] == "holds"


def test_order_fails_when_the_sides_are_swapped(generator):
    token, embedding = curves(generator)
    assert verdicts(asymmetry_statements(embedding, token, R))["Fixing B loses less"] == "violated"


def test_theorem_fails_for_bases_that_are_not_uniform(generator):
    """With coordinate axes instead of random directions and P* in one token, everything or nothing is kept."""
    token, embedding = curves(generator, "one token")
    favoured = np.zeros((TRIALS, M))
    favoured[::3] = 1.0  # the first axis is chosen with probability 2/3 instead of r/m
    biased = token._replace(samples=favoured)
    assert verdicts(asymmetry_statements(biased, embedding, R))["Residual, random B fixed"] == "violated"


def test_corollary_statements(generator):
    token, embedding = curves(generator)
    found = verdicts(corollary_statements(token, embedding, R))
    assert found["Share kept, random B fixed"] == found["Share kept, random A fixed"] == "holds"
    assert found["Corollary to the letter, random B fixed"] == "violated"
    assert found["Corollary to the letter, random A fixed"] == "violated"


def test_kept_and_removed_agree_at_half_the_tokens(generator):
    """r = m/2 is the only case in which "removes r/m" is correct for B."""
    token, embedding = curves(generator)
    assert (
        verdicts(corollary_statements(token, embedding, M // 2))["Corollary to the letter, random B fixed"] == "holds"
    )


# -- bases in use -------------------------------------------------------------------------------------------------------


def test_start_bases_match_those_of_a_run():
    p0 = initial_context(M, D, 3).double().numpy()
    bases, coefficients = start_factors(p0, R, 3)
    for name, basis in bases.items():
        prompt = start_prompt("fixed-B", width=D, seed=3, n_ctx=M, rank=R, basis=name)
        np.testing.assert_allclose(basis, prompt.B.detach().numpy(), rtol=1e-5)
    fixed_a = start_prompt("fixed-A", width=D, seed=3, n_ctx=M, rank=R, basis="svd")
    np.testing.assert_allclose(coefficients, fixed_a.A.detach().numpy(), rtol=1e-5)


def test_gaussian_and_orthogonal_of_a_seed_span_the_same_space():
    bases, _ = start_factors(initial_context(M, D, 3).double().numpy(), R, 3)
    assert kept_share(bases["gaussian"], bases["orthogonal"]) == pytest.approx(1.0)


def test_bases_in_use_keep_the_share_of_a_random_basis():
    shares = kept_shares(start_cases(M, D, range(150)), R)
    assert {statement.verdict for statement in start_statements(shares)} == {"holds"}
    wrong = [kept._replace(predicted=kept.predicted * 1.2) for kept in shares if kept.target == INDEPENDENT]
    assert {statement.verdict for statement in start_statements(wrong)} == {"violated"}


def test_complete_bases_keep_everything():
    statements = start_statements(kept_shares(start_cases(M, D, range(3)), M))
    assert [one.verdict for one in statements if one.predicted == 1] == ["holds"] * 6


def test_svd_basis_keeps_the_largest_share_of_p0():
    shares = kept_shares(start_cases(M, D, [4]), R)
    (kept,) = [one for one in shares if (one.basis, one.side, one.target) == ("svd", "token", START)]
    assert kept.values[0] == pytest.approx(top_share(initial_context(M, D, 4).double().numpy(), R), rel=1e-5)
