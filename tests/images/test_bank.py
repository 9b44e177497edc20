import hashlib
import json
import multiprocessing
import resource
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from slimprompt import FeatureBank, InputError, load_backbone
from slimprompt.images.bank import train_view_name
from slimprompt.images.cached import cached_banks, clear_cached_banks
from slimprompt.images.decode import open_image
from slimprompt.images.encoding import encode_eval_views
from slimprompt.images.views import normalise, train_pixels_by_torch, train_view
from slimprompt.seeds import stream_seed
from tests.conftest import TINY, draw
from tests.images.odd_images import write_odd_image


def index_of(bank):
    """The file of the index of a bank."""
    (path,) = bank.path.glob("*.sqlite")
    return path


@contextmanager
def largest_file(n_bytes):
    """Writes beyond this size of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def images(photos):
    return sorted(photos.glob("*/*.png"))


def count_encoded(monkeypatch):
    from slimprompt.clip.backbone import Backbone

    calls = []
    original = Backbone.encode_images
    monkeypatch.setattr(
        Backbone, "encode_images", lambda self, pixels: calls.append(len(pixels)) or original(self, pixels)
    )
    return calls


def test_features_equal_the_encoder_output_in_order(tiny, images):
    features = FeatureBank(tiny).features(images)
    direct = tiny.encode_images(torch.stack([tiny.eval_view(open_image(path)) for path in images]))
    torch.testing.assert_close(features, direct, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(encode_eval_views(tiny, images), direct, atol=1e-6, rtol=1e-5)
    assert torch.equal(FeatureBank(tiny).features(images[::-1]), features.flip(0))


def test_each_view_is_encoded_once(tiny, images, monkeypatch):
    calls = count_encoded(monkeypatch)
    first = FeatureBank(tiny).features(images, "1/0")
    n = len(calls)
    assert n > 0
    second = FeatureBank(tiny).features(images, "1/0")
    assert len(calls) == n
    assert torch.equal(first, second)


def test_train_views_depend_only_on_view_and_image(tiny, images):
    bank = FeatureBank(tiny)
    a, b = bank.features(images, train_view_name(1, 0)), bank.features(images, train_view_name(1, 1))
    assert not torch.allclose(a, b)
    seed = stream_seed(0, "view", "1/0", bank.hashes(images[3:4])[0])
    expected = tiny.encode_images(train_view(open_image(images[3]), tiny.preprocess, seed)[None])
    torch.testing.assert_close(a[3:4], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("decode", ["upright", "plain"])
def test_views_resized_by_torch_are_stored_beside_those_of_pillow(tiny, images, tmp_path, decode):
    pillow, by_torch = train_view_name(1, 0), train_view_name(1, 0, "torch")
    bank = FeatureBank(tiny, tmp_path / "bank")
    bank.build(images, [by_torch, "", pillow], decode=decode)
    assert len(bank) == 3 * len(images)
    prefix = "" if decode == "upright" else "plain:"
    assert bank.store.view_names == {prefix, f"{prefix}1/0", f"{prefix}1/0@torch"}
    for view in ("", pillow):
        alone = FeatureBank(tiny, tmp_path / f"alone-{view != ''}")
        assert torch.equal(bank.features(images, view, decode=decode), alone.features(images, view, decode=decode))
    for path, key, feature in zip(
        images, bank.hashes(images), bank.features(images, by_torch, decode=decode), strict=True
    ):
        pixels = torch.from_numpy(np.array(open_image(path)))
        view = train_pixels_by_torch(pixels, tiny.preprocess, stream_seed(0, "view", "1/0", key)).copy()
        expected = tiny.encode_images(normalise(torch.from_numpy(view)[None], tiny.preprocess))[0]
        torch.testing.assert_close(feature, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("view", ["", "1/0"])
def test_both_ways_to_decode_are_stored_beside_each_other(tiny, tmp_path, view):
    paths = [write_odd_image(tmp_path, name) for name in ("rotated.jpg", "transparent.png", "16-bit.png")]
    bank = FeatureBank(tiny, tmp_path / "bank")
    upright = bank.features(paths, view)
    plain = bank.features(paths, view, decode="plain")
    assert len(bank) == 6
    assert ((upright - plain).norm(dim=1) > 1e-3).all()
    for features, decode in ((upright, "upright"), (plain, "plain")):
        assert torch.equal(FeatureBank(tiny, tmp_path / "bank").features(paths, view, decode=decode), features)
        alone = FeatureBank(tiny, None).features(paths, view, decode=decode)
        torch.testing.assert_close(features, alone, atol=1e-6, rtol=1e-5)
    assert bank.store.view_names == {view, f"plain:{view}"}  # upright views keep the names of version 0.1


def test_plain_features_are_those_of_coop_s_pixels(tiny, tmp_path):
    path = write_odd_image(tmp_path, "rotated.jpg")
    expected = tiny.encode_images(tiny.eval_view(Image.open(path).convert("RGB"))[None])
    torch.testing.assert_close(FeatureBank(tiny).features([path], decode="plain"), expected, atol=1e-6, rtol=1e-5)


def test_bytes_do_not_depend_on_the_order_of_encoding(tiny, images, tmp_path):
    whole = FeatureBank(tiny, tmp_path / "a")
    whole.build(images, ["", "1/0", "1/1"])
    parts = FeatureBank(tiny, tmp_path / "b")
    parts.build(images[5:9], ["1/1"])
    parts.build(images[::-1], ["1/0"])
    for view in ("", "1/0", "1/1"):
        assert torch.equal(whole.features(images, view), parts.features(images, view))


def test_equal_images_are_encoded_once(tiny, tmp_path, monkeypatch):
    calls = count_encoded(monkeypatch)
    paths = [draw(tmp_path / f"{n}.png", "red", 1) for n in range(3)]
    bank = FeatureBank(tiny)
    bank.build(paths)
    assert len(bank) == 1
    assert len(calls) == 1


def test_pil_images(tiny, images):
    opened = [Image.open(path) for path in images]
    assert torch.equal(FeatureBank(tiny, None).features(opened), FeatureBank(tiny, None).features(images))


def test_models_have_separate_banks(tiny, images):
    other = load_backbone(TINY, seed=1, device="cpu")
    assert FeatureBank(tiny).path != FeatureBank(other).path
    assert not torch.allclose(FeatureBank(tiny).features(images), FeatureBank(other).features(images))


def test_renamed_bank_is_refused(tiny, tmp_path):
    other = load_backbone(TINY, seed=1, device="cpu")
    bank = FeatureBank(tiny, tmp_path)
    target = FeatureBank(other, tmp_path).path
    shutil.rmtree(target)
    bank.store.close()
    bank.path.rename(target)
    with pytest.raises(InputError, match="another model or transform"):
        FeatureBank(other, tmp_path)


def test_damaged_file(tiny, tmp_path):
    bank = FeatureBank(tiny, tmp_path)
    bank.store.close()
    index_of(bank).write_bytes(b"not a database" * 100)
    with pytest.raises(InputError, match="damaged.*cache clear"):
        FeatureBank(tiny, tmp_path)


def test_no_cache_writes_nothing(tiny, images, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(tmp_path / "none"))
    FeatureBank(tiny, None).features(images)
    assert not (tmp_path / "none").exists()


def test_unreadable_image_raises_or_is_skipped(tiny, images, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"not an image")
    mixed = [*images[:2], tmp_path / "bad.png", tmp_path / "missing.png", *images[2:4]]
    with pytest.raises(InputError, match=r"bad\.png"):
        FeatureBank(tiny).build(mixed[:3])
    bad = FeatureBank(tiny).build(mixed, skip_bad=True)
    assert sorted(bad) == [2, 3]
    assert "missing.png" in str(bad[3])


def test_an_image_too_narrow_to_be_resized_is_unreadable(tiny, images, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)
    Image.new("RGB", (2000, 1)).save(tmp_path / "strip.png")
    bad = FeatureBank(tiny, None).build([images[0], tmp_path / "strip.png"], skip_bad=True)
    assert [*bad] == [1] and str(bad[1]).endswith("strip.png: 2000 × 1 pixels are too narrow to be resized")
    for encode in (FeatureBank(tiny, None).features, lambda given: encode_eval_views(tiny, given)):
        with pytest.raises(InputError, match=r"an image that was given: 1 × 2000 pixels are too narrow"):
            encode([Image.new("RGB", (1, 2000))])


@pytest.mark.parametrize("full", ["index", "shard"])
def test_full_disk_raises_and_keeps_stored_features(tiny, images, tmp_path, full):
    bank = FeatureBank(tiny, tmp_path)
    bank.build(images[:2])
    before, stored = bank.features(images[:2]), len(bank)
    views = [f"9/{n}" for n in range(600)]
    if full == "index":
        database = bank.store._database
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count={pages}")  # SQLite then fails as on a full disk
        with pytest.raises(InputError, match="Free some space"):
            bank.build(images[:4], views)
        database.execute("PRAGMA max_page_count=1000000")
    else:
        with largest_file(200_000), pytest.raises(InputError, match="cannot be written .*Free some space"):
            bank.build(images[:4], views)
    assert stored <= len(bank) < stored + 4 * len(views)
    assert torch.equal(bank.features(images[:2]), before)
    bank.build(images[:4], views)
    assert len(bank) == stored + 4 * len(views)
    for view in views[::100]:
        assert torch.equal(bank.features(images[:4], view), FeatureBank(tiny, None).features(images[:4], view))


def _build(folder, images, queue):
    torch.set_num_threads(1)
    bank = FeatureBank(load_backbone(TINY, seed=0, device="cpu"), folder)
    bank.build(images, ["", "1/0", "1/1", "1/2"])
    queue.put(bank.features(images, "1/2").numpy().tobytes())


def test_two_processes_build_one_bank(tiny, images, tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_build, args=(tmp_path, images, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = {queue.get(timeout=120) for _ in workers}
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(results) == 1
    assert len(FeatureBank(tiny, tmp_path)) == 4 * len(images)


def test_list_and_clear_banks(tiny, images):
    FeatureBank(tiny).build(images)
    (bank,) = cached_banks()
    assert bank.features == len(images)
    assert bank.size > 1000
    assert clear_cached_banks() >= bank.size
    assert cached_banks() == []


def test_interrupted_build_keeps_finished_batches(tiny, images, tmp_path, monkeypatch):
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
        FeatureBank(tiny, tmp_path).build(images, views)
    monkeypatch.undo()
    bank = FeatureBank(tiny, tmp_path)
    assert len(bank) == 64
    bank.build(images, views)
    assert len(bank) == 8 * len(images)
    assert sqlite3.connect(index_of(bank)).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def features_of(tiny, image, **options):
    return FeatureBank(tiny, None).features([image], **options)


def palette_image(colours):
    image = Image.new("P", (8, 8))
    image.putdata([n % 4 for n in range(64)])
    image.putpalette(colours)
    return image


def rotated():
    image = Image.new("RGB", (8, 12), "red")
    image.putpixel((1, 2), (0, 0, 255))
    exif = image.getexif()
    exif[0x0112] = 6
    image.info["exif"] = exif.tobytes()
    turned = image.copy()
    turned.getexif()[0x0112] = 6
    return image, turned


@pytest.mark.parametrize("decode", ["upright", "plain"])
@pytest.mark.parametrize("view", ["", "1/0"])
def test_pil_images_with_other_pixels_have_other_features(tiny, tmp_path, view, decode):
    first = palette_image([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    second = palette_image([255, 255, 255, 0, 255, 0, 255, 0, 0, 9, 99, 199])
    see_through = palette_image([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    see_through.info["transparency"] = 1
    deep = [Image.fromarray(np.full((8, 8), value, dtype=np.uint16)) for value in (300, 30_000)]
    bank = FeatureBank(tiny, tmp_path / "bank")
    images = [first, second, see_through, *deep, *map(Image.open, [write_odd_image(tmp_path, "rotated.jpg")])]
    together = bank.features(images, view, decode=decode)
    for image, feature in zip(images, together, strict=True):
        torch.testing.assert_close(features_of(tiny, image, view=view, decode=decode)[0], feature, atol=1e-6, rtol=1e-5)
    assert (together[0] - together[1]).norm() > 1e-3


def test_an_exif_rotated_image_has_a_key_of_its_own(tiny):
    image, turned = rotated()
    bank = FeatureBank(tiny, None)
    straight, upright = bank.features([Image.frombytes("RGB", image.size, image.tobytes()), turned])
    assert (straight - upright).norm() > 1e-4
    expected = tiny.encode_images(tiny.eval_view(open_image(turned))[None])[0]
    torch.testing.assert_close(upright, expected, atol=1e-6, rtol=1e-5)


def test_keys_of_plain_rgb_images_are_those_of_version_0_1(tiny):
    image = Image.new("RGB", (4, 5), (1, 2, 3))
    expected = hashlib.sha256(f"{image.mode}{image.size}".encode() + image.tobytes()).hexdigest()
    assert FeatureBank(tiny, None).hashes([image]) == [expected]


def test_a_replaced_file_is_encoded_again(tiny, tmp_path):
    path = draw(tmp_path / "a.png", "red", 1)
    bank = FeatureBank(tiny, None)
    before = bank.features([path])
    draw(tmp_path / "other.png", "blue", 7).replace(path)
    after = bank.features([path])
    assert (before - after).norm() > 1e-3
    torch.testing.assert_close(after, features_of(tiny, path))


def test_a_bank_is_used_from_other_threads(tiny, images, tmp_path):
    bank = FeatureBank(tiny, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda part: bank.features(images[part::4], "1/0"), range(4)))
    for part, features in enumerate(found):
        assert torch.equal(features, bank.features(images[part::4], "1/0"))


def damage_rows(content):
    def damage(bank):
        (shard,) = bank.path.glob("*.fp32")
        rows = shard.read_bytes()
        shard.write_bytes(rows[:96] + content + rows[192:] if len(content) == 96 else rows[: 96 + len(content)])

    return damage


def damage_index(sql, *values):
    def damage(bank):
        with sqlite3.connect(index_of(bank)) as database:
            database.execute(sql, values)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *map(damage_rows, [b"", b"\0" * 96, b"\xff" * 96, b"\0" * 40, b"123"]),
        damage_index("UPDATE key SET value = 'text' WHERE name = 'embed_dim'"),
        damage_index("UPDATE key SET value = 40 WHERE name = 'embed_dim'"),
        damage_index("DELETE FROM key WHERE name = 'embed_dim'"),
        *(damage_index("UPDATE blocks SET image = ?", value) for value in ("text", None, b"", b"123", b"\0" * 12)),
        *(damage_index("UPDATE blocks SET start = ?", value) for value in ("text", None, 7, -1)),
        damage_index("UPDATE blocks SET shard = 2"),
        damage_index("UPDATE shards SET id = 2"),
        damage_index("UPDATE images SET hash = 'text'"),
        damage_index("UPDATE images SET hash = NULL"),
    ],
)
def test_damaged_features_are_refused(tiny, images, tmp_path, damage):
    bank = FeatureBank(tiny, tmp_path)
    bank.build(images[:3])
    bank.store.close()
    damage(bank)
    with pytest.raises(InputError, match="damaged.*cache clear"):
        FeatureBank(tiny, tmp_path).features(images[:3])


def test_banks_in_a_folder_with_odd_characters(tiny, images, tmp_path):
    folder = tmp_path / "a?b%20#\udce9"
    FeatureBank(tiny, folder).build(images[:2])
    assert [bank.features for bank in cached_banks(folder)] == [2]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE key SET value = CAST(x'ff' AS TEXT)",
        "UPDATE sqlite_master SET name = CAST(x'ff' AS TEXT), sql = 'nonsense' WHERE name = 'blocks'",
    ],
)
def test_text_that_is_not_utf8_is_refused(tiny, tmp_path, damage):
    bank = FeatureBank(tiny, tmp_path)
    bank.store.close()
    with sqlite3.connect(index_of(bank)) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute(damage)
    for _ in range(2):  # the first attempt leaves nothing locked
        with pytest.raises(InputError, match="cannot be opened|damaged"):
            FeatureBank(tiny, tmp_path)


def test_more_features_than_the_disk_can_hold_are_refused(tiny, photos, tmp_path, monkeypatch):
    images = sorted(photos.rglob("*.png"))
    monkeypatch.setattr("slimprompt.images.bank._MANY_FEATURES", len(images))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2000))
    bank = FeatureBank(tiny, tmp_path)
    with pytest.raises(InputError, match=f"^{len(images)} image features need about .* where 0.0 GB are free"):
        bank.build(images)
    assert len(bank) == 0
    bank.build(images[:-1])  # few enough not to be measured
    assert len(bank) == len(images) - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    bank.build(images, ["1/0"])


def test_half_precision_has_a_store_of_its_own(tiny, images, tmp_path, monkeypatch):
    exact = FeatureBank(tiny, tmp_path)
    half = FeatureBank(tiny, tmp_path, store_precision="fp16")
    assert exact.path != half.path
    features, rounded = exact.features(images), half.features(images)
    assert torch.equal(rounded, features.half().float())
    assert not torch.equal(rounded, features)
    monkeypatch.setenv("SLIMPROMPT_FEATURES", "fp16")
    for folder in (tmp_path, None):
        assert torch.equal(FeatureBank(tiny, folder).features(images), rounded)


def test_files_are_not_looked_at_again_if_their_hashes_are_given(tiny, tmp_path):
    paths = [draw(tmp_path / f"{n}.png", "red", n) for n in range(3)]
    bank = FeatureBank(tiny, tmp_path / "bank")
    expected, hashes = bank.features(paths), bank.hashes(paths)
    for path in paths[:2]:
        path.unlink()
    assert torch.equal(bank.features(paths, hashes=hashes), expected)
    with pytest.raises(InputError, match="no such image"):
        bank.features(paths, "1/0", hashes=hashes)
    draw(paths[0], "blue", 7)
    draw(paths[1], "red", 1)
    with pytest.raises(InputError, match="changed while its features were computed"):
        bank.features(paths, "1/0", hashes=hashes)


def test_images_are_hashed_once_for_all_banks(tiny, images, tmp_path, monkeypatch):
    from slimprompt.images import hashes

    monkeypatch.setattr(hashes, "_SETTLED", -(10**12))  # although the images are new
    expected = FeatureBank(tiny, tmp_path).hashes(images)
    monkeypatch.setattr(hashes, "file_sha256", lambda path: pytest.fail(f"{path} was hashed again"))
    assert FeatureBank(tiny, tmp_path, store_precision="fp16").hashes(images) == expected


def test_an_edited_configuration_has_a_bank_of_its_own(tiny_folder, images, tmp_path):
    """The weights do not tell the number of heads."""
    shutil.copytree(tiny_folder.removeprefix("local-dir:"), tmp_path / "model")
    name, features = f"local-dir:{tmp_path / 'model'}", []
    for head_width in (16, 8):
        path = tmp_path / "model" / "open_clip_config.json"
        config = json.loads(path.read_text())
        config["model_cfg"]["vision_cfg"]["head_width"] = head_width
        path.write_text(json.dumps(config))
        backbone = load_backbone(name, device="cpu")
        features.append(FeatureBank(backbone).features(images))
        torch.testing.assert_close(features[-1], encode_eval_views(backbone, images))
    assert (features[0] - features[1]).abs().max() > 1e-3


def test_the_folder_of_a_bank_is_in_the_cache_whatever_the_backbone_is_called(tiny, tmp_path):
    for name in ("hf-hub:org/model", "local-dir:C:\\models\\clip", "local-dir:/a/b c"):
        bank = FeatureBank(replace(tiny, name=name), tmp_path)
        assert bank.path.parent == tmp_path
        assert not set(bank.path.name) & set(":\\/ ")
