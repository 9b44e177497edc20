import hashlib
import json
import multiprocessing
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from slimprompt import FeatureBank, InputError, load_backbone
from slimprompt.images.bank import train_view_name
from slimprompt.images.decode import open_image
from slimprompt.images.encoding import encode_eval_views
from slimprompt.images.store import cached_banks
from slimprompt.images.views import train_view
from slimprompt.seeds import stream_seed
from tests.conftest import TINY, draw
from tests.images.odd_images import write_odd_image


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
    assert len(bank) == len(calls) == 1


def test_no_images_and_no_cache(tiny, images, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(tmp_path / "none"))
    FeatureBank(tiny, None).features(images)
    assert not (tmp_path / "none").exists()
    for bank in (FeatureBank(tiny), FeatureBank(tiny, None)):
        assert bank.features([]).shape == (0, 24) and bank.hashes([]) == [] and bank.build([]) == {}
    assert encode_eval_views(tiny, []).shape == (0, 24)


def test_a_given_image_that_was_changed_is_encoded_again(tiny):
    image, bank = Image.new("RGB", (40, 40), "red"), FeatureBank(tiny, None)
    before = bank.features([image])
    image.paste("blue", (0, 0, 20, 40))
    after = bank.features([image])
    assert (before - after).norm() > 1e-3
    assert torch.equal(after, features_of(tiny, image))


def test_renamed_bank_is_refused(tiny, tmp_path):
    other = load_backbone(TINY, seed=1, device="cpu")
    bank = FeatureBank(tiny, tmp_path)
    bank.build([draw(tmp_path / "a.png", "red", 1)])
    bank.path.rename(FeatureBank(other, tmp_path).path)
    with pytest.raises(InputError, match="another model or preprocessing"):
        FeatureBank(other, tmp_path)


def test_unreadable_image_raises_or_is_skipped(tiny, images, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"not an image")
    mixed = [*images[:2], tmp_path / "bad.png", tmp_path / "missing.png", *images[2:4], tmp_path / "bad.png"]
    for encode in (FeatureBank(tiny).build, lambda given: encode_eval_views(tiny, given)):
        with pytest.raises(InputError, match=r"bad\.png"):
            encode(mixed[:3])
    bad = FeatureBank(tiny).build(mixed, skip_bad=True)
    assert sorted(bad) == [2, 3, 6]
    assert "missing.png" in str(bad[3])


def test_an_image_too_narrow_to_be_resized_is_unreadable(tiny, images, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)
    Image.new("RGB", (2000, 1)).save(tmp_path / "strip.png")
    bad = FeatureBank(tiny, None).build([images[0], tmp_path / "strip.png"], skip_bad=True)
    assert [*bad] == [1] and str(bad[1]).endswith("strip.png: 2000 × 1 pixels are too narrow to be resized")
    for encode in (FeatureBank(tiny, None).features, lambda given: encode_eval_views(tiny, given)):
        with pytest.raises(InputError, match=r"an image that was given: 1 × 2000 pixels are too narrow"):
            encode([Image.new("RGB", (1, 2000))])


def _build(folder, images):
    torch.set_num_threads(1)
    bank = FeatureBank(load_backbone(TINY, seed=0, device="cpu"), folder)
    bank.build(images, ["", "1/0", "1/1", "1/2"])
    return bank.features(images, "1/2").numpy().tobytes()


def test_two_processes_build_one_bank(tiny, images, tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.starmap(_build, [(tmp_path, images)] * 2, chunksize=1)
    assert len(set(results)) == 1
    assert len(FeatureBank(tiny, tmp_path)) == 4 * len(images)


def features_of(tiny, image, **options):
    return FeatureBank(tiny, None).features([image], **options)


def palette_image(colours):
    image = Image.new("P", (8, 8))
    image.putdata([n % 4 for n in range(64)])
    image.putpalette(colours)
    return image


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
    image = Image.new("RGB", (8, 12), "red")
    image.putpixel((1, 2), (0, 0, 255))
    turned = image.copy()
    turned.getexif()[0x0112] = 6
    straight, upright = FeatureBank(tiny, None).features([image, turned])
    assert (straight - upright).norm() > 1e-4
    expected = tiny.encode_images(tiny.eval_view(open_image(turned))[None])[0]
    torch.testing.assert_close(upright, expected, atol=1e-6, rtol=1e-5)


def test_the_hash_of_a_pil_image_is_that_of_its_pixels(tiny):
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


def test_banks_in_a_folder_with_odd_characters(tiny, images, tmp_path):
    folder = tmp_path / "a?b%20#\udce9"
    FeatureBank(tiny, folder).build(images[:2])
    assert [bank.features for bank in cached_banks(folder)] == [2]


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
    assert FeatureBank(load_backbone(TINY, seed=1, device="cpu"), tmp_path).hashes(images) == expected


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


def test_names_of_banks_are_names_of_files(tiny, tmp_path):
    for name in ("hf-hub:org/model", "local-dir:C:\\models\\clip", "local-dir:/a/b c"):
        bank = FeatureBank(replace(tiny, name=name), tmp_path)
        assert bank.path.parent == tmp_path
        assert not set(bank.path.name) & set(":\\/ ")
