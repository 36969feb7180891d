"""Pictures: read whatever their format, fitted as YOLOv5 does it, quantised as the port says."""

import io

import numpy as np
import pytest
from PIL import Image

from sim.pictures import PictureError, crop, fit, is_picture, letterbox, read_picture, real_range
from sw.reader.model import Port

RNG = np.random.default_rng(1)


def picture(height, width):
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(
    ("size", "into", "inner", "corner"),
    [
        ((480, 640), (640, 640), (480, 640), (0, 80)),
        ((400, 600), (640, 640), (427, 640), (0, 106)),  # 213 rows of border: the odd one goes to the bottom
        ((600, 400), (640, 640), (640, 427), (106, 0)),
        ((1, 1), (32, 64), (32, 32), (16, 0)),
        ((5000, 1), (64, 64), (64, 1), (31, 0)),
        ((32, 32), (96, 160), (96, 96), (32, 0)),
    ],
)
def test_letterbox_places_as_yolov5_does(size, into, inner, corner):
    image = picture(*size)
    out, placement = letterbox(image, *into)
    left, top = corner
    assert out.shape == (*into, 3)
    assert (placement.left, placement.top) == corner
    mask = np.ones(into, bool)
    mask[top : top + inner[0], left : left + inner[1]] = False
    assert (out[mask] == 114).all()
    if inner == size:
        assert np.array_equal(out[~mask].reshape(*inner, 3), image)


def test_letterbox_interpolates_between_centres_of_pixels():
    # Twice as large: quarters between the neighbours, the edges repeated. 0, 100 -> 0, 25, 75, 100, by hand.
    image = np.repeat(np.array([[0, 100]], np.uint8)[:, :, None], 3, 2)
    out, placement = letterbox(image, 4, 4)
    assert out[:, :, 1].tolist() == [[114] * 4, [0, 25, 75, 100], [0, 25, 75, 100], [114] * 4]
    assert (placement.scale, placement.left, placement.top) == (2, 0, 1)


@pytest.mark.parametrize("seed", range(30))
def test_edges_of_the_letterbox_are_those_of_the_picture_within_half_a_pixel(seed):
    rng = np.random.default_rng([2, seed])
    height, width = (int(n) for n in rng.integers(200, 2000, 2))
    into = tuple(int(n) * 32 for n in rng.integers(2, 12, 2))
    out, placement = letterbox(np.zeros((height, width, 3), np.uint8), *into)
    rows, columns = np.nonzero(out[:, :, 0] == 0)
    corners = np.array([[columns.min(), rows.min()], [columns.max() + 1, rows.max() + 1]], float)
    off = np.abs(placement.to_picture(corners) - [[0, 0], [width, height]]) * placement.scale
    assert off.max() <= 0.5 + 1e-9, f"seed {seed}"


@pytest.mark.parametrize("size", [(300, 500), (500, 300), (1, 900), (900, 1), (1, 1), (224, 224), (7, 3)])
def test_a_crop_is_the_middle_of_the_picture(size):
    into = (64, 96)
    image = np.zeros((*size, 3), np.uint8)
    image[..., 0] = np.linspace(0, 255, size[0])[:, None]
    image[..., 1] = np.linspace(0, 255, size[1])
    out, placement = crop(image, *into)
    assert out.shape == (*into, 3)
    corners = placement.to_picture(np.array([[0, 0], [into[1], into[0]]], float))
    assert np.allclose(corners.sum(axis=0), [size[1], size[0]])  # as much is cut on the left as on the right
    assert (corners >= -1e-6).all() and (corners <= np.array([size[1], size[0]]) + 1e-6).all()
    sides = corners[1] - corners[0]
    assert np.isclose(sides / [size[1], size[0]], 1).any()  # one side whole
    assert np.isclose(sides[0] / sides[1], into[1] / into[0])


@pytest.mark.parametrize("how", [letterbox, crop])
def test_a_point_of_the_input_leads_back_to_the_picture(how):
    image = np.zeros((60, 90, 3), np.uint8)
    image[20:30, 40:50] = 255
    out, placement = how(image, 120, 120)
    rows, columns = np.nonzero(out[:, :, 0] > 200)
    box = placement.to_picture(np.array([[columns.min(), rows.min()], [columns.max() + 1, rows.max() + 1]], float))
    assert np.abs(box - [[40, 20], [50, 30]]).max() <= 0.6


def test_a_long_narrow_picture_is_cropped_without_being_scaled_whole():
    out, _ = crop(picture(1, 50_000), 224, 224)
    assert out.shape == (224, 224, 3)


def save(path, image, **options):
    Image.fromarray(image).save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "ppm"])
def test_formats(suffix, tmp_path):
    image = picture(9, 13)
    options = {"lossless": True} if suffix == "webp" else {}
    assert np.array_equal(read_picture(save(tmp_path / f"p.{suffix}", image, **options)), image)


def test_grey_alpha_palette_and_16_bits(tmp_path):
    grey = RNG.integers(0, 256, (5, 7), np.uint8)
    assert np.array_equal(read_picture(save(tmp_path / "grey.png", grey)), np.repeat(grey[:, :, None], 3, 2))
    deep = grey.astype(np.uint16) * 257
    assert np.array_equal(read_picture(save(tmp_path / "deep.png", deep))[:, :, 0], grey)
    dark = np.full((5, 7), 200, np.uint16)
    assert read_picture(save(tmp_path / "dark.png", dark)).max() == 0
    clear = np.dstack([picture(5, 7), np.zeros((5, 7), np.uint8)])
    assert (read_picture(save(tmp_path / "clear.png", clear)) == 255).all()
    Image.fromarray(picture(5, 7)).convert("P").save(tmp_path / "palette.gif")
    assert read_picture(tmp_path / "palette.gif").shape == (5, 7, 3)


TURNS = {
    2: np.fliplr,
    3: lambda x: np.rot90(x, 2),
    4: np.flipud,
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: np.rot90,
}
"""What makes a picture upright, by the number that EXIF has for its orientation."""


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_picture_upright(orientation, tmp_path):
    image = picture(4, 6)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(image).save(tmp_path / "p.png", exif=exif)
    turned = TURNS.get(orientation, np.array)(image)
    assert np.array_equal(read_picture(tmp_path / "p.png"), turned)
    Image.fromarray(image).save(tmp_path / "p.tiff", exif=exif)
    assert np.array_equal(read_picture(tmp_path / "p.tiff"), turned)
    smooth = np.repeat(np.repeat(image[:2, :3], 16, 0), 16, 1)
    Image.fromarray(smooth).save(tmp_path / "p.jpeg", exif=exif, quality=100, subsampling=0)
    read = read_picture(tmp_path / "p.jpeg").astype(int)
    assert np.abs(read - TURNS.get(orientation, np.array)(smooth)).max() <= 4


def test_damaged_exif_leaves_a_good_picture_as_it_is(tmp_path):
    image = picture(4, 6)
    Image.fromarray(image).save(tmp_path / "p.png", exif=b"Exif\0\0garbage")
    assert np.array_equal(read_picture(tmp_path / "p.png"), image)


def refused(path):
    with pytest.raises(PictureError) as error:
        read_picture(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_picture_is_refused_in_one_line(tmp_path):
    assert "No such file" in refused(tmp_path / "none.png")
    assert "it is no file" in refused(tmp_path)
    (tmp_path / "text.png").write_text("no picture")
    assert "is no picture" in refused(tmp_path / "text.png")
    (tmp_path / "empty.jpg").write_bytes(b"")
    assert "is no picture" in refused(tmp_path / "empty.jpg")
    (tmp_path / "two\nlines.png").write_text("x")
    refused(tmp_path / "two\nlines.png")
    assert "File name too long" in refused(tmp_path / ("long" * 100))
    Image.fromarray(np.full((5, 7), 0.5, np.float32)).save(tmp_path / "real.tiff")
    assert "real numbers" in refused(tmp_path / "real.tiff")
    Image.new("1", (10_000, 9_500)).save(tmp_path / "bomb.png")
    assert "too many pixels" in refused(tmp_path / "bomb.png")


@pytest.mark.parametrize("suffix", ["jpeg", "png", "webp", "gif", "bmp"])
def test_truncated_pictures_are_refused(suffix, tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(picture(40, 40)).save(buffer, suffix)
    data = buffer.getvalue()
    for part in range(1, 16):
        (tmp_path / "p").write_bytes(data[: len(data) * part // 16])
        refused(tmp_path / "p")


def port(shape, dtype="int8", quantisation=None, *, first=False):
    return Port("x", shape, dtype, quantisation, channels_first=first)


@pytest.mark.parametrize(
    ("shape", "first", "expected"),
    [
        ((1, 32, 32, 3), False, True),
        ((1, 32, 40, 1), False, True),
        ((1, 3, 32, 32), True, True),
        ((1, 3, 32, 32), False, False),
        ((2, 32, 32, 3), False, False),
        ((1, 32, 32, 4), False, False),
        ((1, 4, 32, 3), False, False),
        ((1, 490), False, False),
    ],
)
def test_is_picture(shape, first, expected):
    assert is_picture(port(shape, first=first)) is expected


@pytest.mark.parametrize(
    ("dtype", "quantisation", "expected"),
    [
        ("float32", None, (0, 1)),
        ("int8", (1 / 255, -128), (0, 1)),
        ("uint8", (1 / 255, 0), (0, 1)),
        ("int8", (2 / 255, 0), (-1, 1)),
        ("uint8", (1 / 127.5, 127), (-1, 1)),
        ("uint8", (1.0, 0), (0, 255)),
        ("uint8", None, (0, 255)),
        ("int8", (1.0, -128), (0, 255)),
        ("int8", (1.0, 0), (-128, 127)),
    ],
)
def test_what_black_and_white_are(dtype, quantisation, expected):
    assert real_range(port((1, 32, 32, 3), dtype, quantisation)) == expected


def test_fit_quantises_as_the_port_says():
    image = picture(32, 32)
    exact, placement = fit(image, port((1, 32, 32, 3), "int8", (1 / 255, -128)))
    assert np.array_equal(exact[0], (image.astype(int) - 128).astype(np.int8))
    assert (placement.scale, placement.left, placement.top) == (1, 0, 0)
    first, _ = fit(image, port((1, 3, 32, 32), "uint8", (1 / 255, 0), first=True))
    assert np.array_equal(first[0], image.transpose(2, 0, 1))
    real, _ = fit(image, port((1, 32, 32, 3), "float32"))
    assert real.dtype == np.float32 and np.allclose(real[0], image / 255)
    signed, _ = fit(image, port((1, 32, 32, 3), "int8", (2 / 255, -1)))
    assert np.abs(signed[0].astype(int) - (image.astype(int) - 128)).max() <= 1
    grey, _ = fit(image, port((1, 32, 32, 1), "uint8", (1 / 255, 0)))
    weights = np.array([0.299, 0.587, 0.114])
    assert np.abs(grey[0, :, :, 0] - image @ weights).max() <= 1
