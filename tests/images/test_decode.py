import numpy as np
import pytest
from PIL import Image

from slimprompt import InputError
from slimprompt.images.decode import UnreadableImageError, image_files, is_hidden, open_image, walk_images
from tests.conftest import PILLOW
from tests.images.odd_images import ODD_IMAGES, write_odd_image

DECODES = ("upright", "plain")
RAMP = np.tile(np.linspace(0, 1, 16), (8, 1))


def test_16_bit_grey_is_scaled_not_clipped(tmp_path):
    Image.fromarray((RAMP * 65535).astype(np.uint16)).save(tmp_path / "x.png")
    values = np.asarray(open_image(tmp_path / "x.png"))[0, :, 0]
    np.testing.assert_allclose(values, RAMP[0] * 255, atol=1)


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.pgm"])
def test_one_grey_level_does_not_change_the_scale(tmp_path, name):
    """Frames of a dark scene, whose brightest pixels are 255 and 256 of 65535."""
    for brightest in (255, 256):
        values = np.full((8, 16), 200, np.uint16)
        values[0, 0] = brightest
        Image.fromarray(values).save(tmp_path / name)
        found = np.asarray(open_image(tmp_path / name))
        assert (found[1:] == 1).all() and found[0, 0].tolist() == [1, 1, 1]


def test_32_bit_integers_are_read_as_16_bit_ones(tmp_path):
    """Old versions of Pillow also open a 16-bit PNG file in mode I."""
    image = Image.fromarray(np.array([[-5, 0, 257, 65535, 70000]], np.int32))
    assert image.mode == "I"
    image.save(tmp_path / "x.tif")
    for source in (image, tmp_path / "x.tif"):
        assert np.asarray(open_image(source))[0, :, 0].tolist() == [0, 0, 1, 255, 255]


@pytest.mark.parametrize("white", [1, 255, 65535])
def test_floats_are_scaled_by_the_lowest_usual_white(tmp_path, white):
    Image.fromarray((RAMP * white).astype(np.float32)).save(tmp_path / "x.tif")
    np.testing.assert_allclose(np.asarray(open_image(tmp_path / "x.tif"))[0, :, 0], RAMP[0] * 255, atol=1)


def test_transparency_is_blended_with_white(tmp_path):
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.save(tmp_path / "x.png")
    assert open_image(tmp_path / "x.png").getpixel((0, 0)) == (255, 255, 255)


def test_a_transparent_colour_is_white_in_all_modes(tmp_path):
    for mode, colour in (("RGB", (0, 0, 0)), ("L", 0), ("P", 0)):
        image = Image.new(mode, (4, 4), colour)
        image.putpixel((1, 0), (9, 9, 9) if mode == "RGB" else 9)
        image.putpalette(np.arange(256).repeat(3).tolist()) if mode == "P" else None
        image.save(tmp_path / "x.png", transparency=colour)
        found = open_image(tmp_path / "x.png")
        assert (found.mode, found.getpixel((0, 0)), found.getpixel((1, 0))) == ("RGB", (255,) * 3, (9,) * 3), mode


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_float_pixels_without_data_are_black(tmp_path, value):
    values = RAMP.astype(np.float32)
    values[0, 8] = value
    Image.fromarray(values).save(tmp_path / "x.tif")
    found = np.asarray(open_image(tmp_path / "x.tif"))[..., 0]
    assert found[0, 8] == 0
    assert np.array_equal(found[1:], (RAMP[1:] * 255).round())


@pytest.mark.parametrize("mode", ["L", "1", "CMYK", "LA", "YCbCr", "RGB", "F"])
def test_modes(tmp_path, mode):
    path = tmp_path / ("x.png" if mode in ("L", "1", "LA", "RGB") else "x.tif")
    Image.new("RGB", (5, 4), (200, 100, 50)).convert(mode if mode != "LA" else "L").convert(mode).save(path)
    if mode == "YCbCr" and PILLOW < 13:
        pytest.skip("Pillow before version 13 cannot read the TIFF file that it writes")
    image = open_image(path)
    assert (image.mode, image.size) == ("RGB", (5, 4))


def test_exif_rotation_is_applied(tmp_path):
    image = Image.new("RGB", (6, 3))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "x.jpg", exif=exif)
    assert open_image(tmp_path / "x.jpg").size == (3, 6)


@pytest.mark.parametrize("name", ODD_IMAGES)
def test_plain_is_what_coop_reads(tmp_path, name):
    path = write_odd_image(tmp_path, name)
    plain = open_image(path, "plain")
    with Image.open(path) as image:
        expected = image.convert("RGB")
    assert (plain.mode, plain.size) == ("RGB", expected.size)
    assert plain.tobytes() == expected.tobytes()
    with Image.open(path) as image:
        assert open_image(image, "plain").tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ODD_IMAGES)
def test_plain_and_upright_differ_only_where_upright_corrects(tmp_path, name):
    path = write_odd_image(tmp_path, name)
    plain, upright = open_image(path, "plain"), open_image(path, "upright")
    same = (plain.size, plain.tobytes()) == (upright.size, upright.tobytes())
    assert same == (name in ("cmyk.jpg", "palette.png"))


@pytest.mark.parametrize("decode", DECODES)
def test_truncated_file(tmp_path, decode):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "x.jpg")
    data = (tmp_path / "x.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"cannot read the image .*cut\.jpg"):
        open_image(tmp_path / "cut.jpg", decode)


@pytest.mark.parametrize("decode", DECODES)
def test_decompression_bombs_are_refused(tmp_path, monkeypatch, decode):
    Image.new("RGB", (50, 50)).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with pytest.raises(InputError, match="decompression bomb"):
        open_image(tmp_path / "x.png", decode)


def test_missing_file_and_folder(tmp_path):
    for path, message in (
        (tmp_path / "none.png", f"no such image: {tmp_path / 'none.png'}"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(UnreadableImageError, match=f"^{message}" if path.suffix else message) as caught:
            open_image(path)
        assert str(caught.value).count(str(path)) == 1, "the name is said once"


def test_heic_files_get_advice(tmp_path):
    (tmp_path / "x.heic").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(UnreadableImageError, match="that Pillow does not know; convert HEIC to JPEG"):
        open_image(tmp_path / "x.heic")


def test_files_and_folders_of_images(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("b/2.PNG", "b/c/1.jpg", "b/notes.txt", "a.bin"):
        (tmp_path / name).touch()
    given = [tmp_path / "b", tmp_path / "a.bin"]  # a file that is named is taken whatever its suffix
    assert image_files(given) == [tmp_path / "b" / "2.PNG", tmp_path / "b" / "c" / "1.jpg", tmp_path / "a.bin"]
    with pytest.raises(InputError, match="no such image"):
        image_files([tmp_path / "none.png"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no images under"):
        image_files([tmp_path / "empty"])


def test_a_walk_has_the_order_of_sorted_paths(tmp_path):
    for name in ("b/1.png", "b.png", "b/c/2.png", "a/z.jpg", "b-/3.png", "B.png", "b/notes.txt", "a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "linked.png").symlink_to(tmp_path / "a.png")
    found = list(walk_images(tmp_path))
    assert found == sorted(path for path in tmp_path.rglob("*") if path.suffix in (".png", ".jpg"))
    assert len(found) == 8
    with pytest.raises(InputError, match="cannot read the folder"):
        list(walk_images(tmp_path / "none"))


def test_files_of_a_browser_on_windows_are_images_and_those_of_its_explorer_are_hidden(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.jfif", "JPEG")
    assert image_files([tmp_path]) == [tmp_path / "a.jfif"]
    assert is_hidden("Thumbs.db") and is_hidden("desktop.ini")


def test_a_walk_leaves_out_hidden_files_and_macos_archive_folders(tmp_path):
    for name in ("cats/a.png", "cats/._a.png", "__MACOSX/cats/._a.png", "__MACOSX/b.png", ".cache/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(walk_images(tmp_path)) == [tmp_path / "cats" / "a.png"]
    assert image_files([tmp_path / ".cache", tmp_path / "cats/._a.png"]) == [  # what is named is taken
        tmp_path / ".cache" / "c.png",
        tmp_path / "cats/._a.png",
    ]


def test_a_walk_follows_links_to_folders_but_not_back(tmp_path):
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "a.png").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "cats").symlink_to(tmp_path / "photos" / "cats")
    (tmp_path / "photos" / "cats" / "loop").symlink_to(tmp_path / "photos")
    assert list(walk_images(tmp_path / "tree")) == [tmp_path / "tree" / "cats" / "a.png"]
    assert list(walk_images(tmp_path / "photos")) == [tmp_path / "photos" / "cats" / "a.png"]
