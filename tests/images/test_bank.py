import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from slimprompt import FeatureBank, InputError, load_backbone
from slimprompt.images.decode import open_image
from slimprompt.images.encoding import encode_eval_views
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


def test_bytes_do_not_depend_on_the_order_of_encoding(tiny, images, tmp_path):
    whole = FeatureBank(tiny, tmp_path / "a")
    whole.build(images, ["", "1/0", "1/1"])
    parts = FeatureBank(tiny, tmp_path / "b")
    parts.build(images[5:9], ["1/1"])
    parts.build(images[::-1], ["1/0"])
    for view in ("", "1/0", "1/1"):
        assert torch.equal(whole.features(images, view), parts.features(images, view))


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


def test_a_bank_is_used_from_other_threads(tiny, images, tmp_path):
    bank = FeatureBank(tiny, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda part: bank.features(images[part::4], "1/0"), range(4)))
    for part, features in enumerate(found):
        assert torch.equal(features, bank.features(images[part::4], "1/0"))


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
