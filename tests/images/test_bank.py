import multiprocessing
import sqlite3

import pytest
import torch
from PIL import Image

from slimprompt import FeatureBank, InputError, load_backbone
from slimprompt.images.bank import cached_banks, clear_cached_banks, encode_eval_views, train_view_name
from slimprompt.images.files import open_image
from slimprompt.images.views import train_view
from slimprompt.seeds import stream_seed
from tests.conftest import TINY, draw


@pytest.fixture
def pictures(photos):
    return sorted(photos.glob("*/*.png"))


def count_encoded(monkeypatch):
    from slimprompt.clip.backbone import Backbone

    calls = []
    original = Backbone.encode_images
    monkeypatch.setattr(
        Backbone, "encode_images", lambda self, pixels: calls.append(len(pixels)) or original(self, pixels)
    )
    return calls


def test_features_are_the_encoder_s_in_order(tiny, pictures):
    features = FeatureBank(tiny).features(pictures)
    direct = tiny.encode_images(torch.stack([tiny.eval_view(open_image(path)) for path in pictures]))
    torch.testing.assert_close(features, direct, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(encode_eval_views(tiny, pictures), direct, atol=1e-6, rtol=1e-5)
    assert torch.equal(FeatureBank(tiny).features(pictures[::-1]), features.flip(0))


def test_each_view_is_encoded_once_and_then_read(tiny, pictures, monkeypatch):
    calls = count_encoded(monkeypatch)
    first = FeatureBank(tiny).features(pictures, "1/0")
    n = len(calls)
    assert n > 0
    second = FeatureBank(tiny).features(pictures, "1/0")
    assert len(calls) == n
    assert torch.equal(first, second)


def test_random_views_depend_on_view_and_picture_only(tiny, pictures):
    bank = FeatureBank(tiny)
    a, b = bank.features(pictures, train_view_name(1, 0)), bank.features(pictures, train_view_name(1, 1))
    assert not torch.allclose(a, b)
    seed = stream_seed(0, "view", "1/0", bank._hash(pictures[3]))
    expected = tiny.encode_images(train_view(open_image(pictures[3]), tiny.preprocess, seed)[None])
    torch.testing.assert_close(a[3:4], expected, atol=1e-6, rtol=1e-5)


def test_bytes_do_not_depend_on_what_was_cached_before(tiny, pictures, tmp_path):
    whole = FeatureBank(tiny, tmp_path / "a")
    whole.build(pictures, ["", "1/0", "1/1"])
    parts = FeatureBank(tiny, tmp_path / "b")
    parts.build(pictures[5:9], ["1/1"])
    parts.build(pictures[::-1], ["1/0"])
    for view in ("", "1/0", "1/1"):
        assert torch.equal(whole.features(pictures, view), parts.features(pictures, view))


def test_equal_pictures_are_encoded_once(tiny, tmp_path, monkeypatch):
    calls = count_encoded(monkeypatch)
    paths = [draw(tmp_path / f"{n}.png", "red", 1) for n in range(3)]
    bank = FeatureBank(tiny)
    bank.build(paths)
    assert len(bank) == 1
    assert len(calls) == 1


def test_pil_images(tiny, pictures):
    images = [Image.open(path) for path in pictures]
    assert torch.equal(FeatureBank(tiny, None).features(images), FeatureBank(tiny, None).features(pictures))


def test_another_model_has_another_bank(tiny, pictures):
    other = load_backbone(TINY, seed=1, device="cpu")
    assert FeatureBank(tiny).path != FeatureBank(other).path
    assert not torch.allclose(FeatureBank(tiny).features(pictures), FeatureBank(other).features(pictures))


def test_a_bank_under_a_wrong_name_is_refused(tiny, tmp_path):
    other = load_backbone(TINY, seed=1, device="cpu")
    bank = FeatureBank(tiny, tmp_path)
    target = FeatureBank(other, tmp_path).path
    for part in tmp_path.glob(target.name + "*"):
        part.unlink()
    bank._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    target.write_bytes(bank.path.read_bytes())
    with pytest.raises(InputError, match="another model or transform"):
        FeatureBank(other, tmp_path)


def test_a_damaged_file(tiny, tmp_path):
    path = FeatureBank(tiny, tmp_path).path
    for part in tmp_path.glob(path.name + "-*"):
        part.unlink()
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(InputError, match="damaged.*cache clear"):
        FeatureBank(tiny, tmp_path)


def test_no_cache_writes_nothing(tiny, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(tmp_path / "none"))
    FeatureBank(tiny, None).features(pictures)
    assert not (tmp_path / "none").exists()


def test_unreadable_picture_stops_or_is_left_out(tiny, pictures, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    mixed = [*pictures[:2], tmp_path / "bad.png", tmp_path / "missing.png", *pictures[2:4]]
    with pytest.raises(InputError, match=r"bad\.png"):
        FeatureBank(tiny).build(mixed[:3])
    bad = FeatureBank(tiny).build(mixed, skip_bad=True)
    assert sorted(bad) == [2, 3]
    assert "missing.png" in str(bad[3])


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tiny, pictures, tmp_path):
    bank = FeatureBank(tiny, tmp_path)
    bank.build(pictures[:2])
    pages = bank._database.execute("PRAGMA page_count").fetchone()[0]
    bank._database.execute(f"PRAGMA max_page_count={pages}")  # SQLite then answers as on a full disk
    with pytest.raises(InputError, match="Free some space"):
        bank.build(pictures, [f"9/{n}" for n in range(60)])
    bank._database.execute("PRAGMA max_page_count=1000000")
    assert bank.features(pictures[:2]).shape == (2, 24)


def _build(folder, pictures, queue):
    torch.set_num_threads(1)
    bank = FeatureBank(load_backbone(TINY, seed=0, device="cpu"), folder)
    bank.build(pictures, ["", "1/0", "1/1", "1/2"])
    queue.put(bank.features(pictures, "1/2").numpy().tobytes())


def test_two_processes_build_one_bank(tiny, pictures, tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_build, args=(tmp_path, pictures, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = {queue.get(timeout=120) for _ in workers}
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(results) == 1
    assert len(FeatureBank(tiny, tmp_path)) == 4 * len(pictures)


def test_size_report_and_clearing(tiny, pictures):
    FeatureBank(tiny).build(pictures)
    (bank,) = cached_banks()
    assert bank.features == len(pictures)
    assert bank.size > 1000
    assert clear_cached_banks() >= bank.size
    assert cached_banks() == []


def test_an_interrupted_build_keeps_what_was_done(tiny, pictures, tmp_path, monkeypatch):
    from slimprompt.clip.backbone import Backbone

    original, calls = Backbone.encode_images, []

    def stop_at_third(self, pixels):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, pixels)

    monkeypatch.setattr(Backbone, "encode_images", stop_at_third)
    views = [f"1/{n}" for n in range(8)]
    with pytest.raises(KeyboardInterrupt):
        FeatureBank(tiny, tmp_path).build(pictures, views)
    monkeypatch.undo()
    bank = FeatureBank(tiny, tmp_path)
    assert len(bank) == 64
    bank.build(pictures, views)
    assert len(bank) == 8 * len(pictures)
    assert sqlite3.connect(bank.path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
