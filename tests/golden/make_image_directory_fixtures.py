#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/image_files: PNG and JPEG files of all kinds and what Pillow reads from them.

usage: make_image_directory_fixtures.py [DIRECTORY]     with Pillow (Debian: python3-pil) and h5py

  *.png, *.jpg   small images, named by their kind
  golden.h5      the reference values:

  rgb/FILE [H, W, 3], grey/FILE [H, W]    Image.open(FILE).convert("RGB"), and that as "L"
  crop/N, stretch/N [H, W, 3 or 1]        source.png in other sizes; attribute `source` is the size
                                          to which source.png is cut before
"""

import pathlib
import struct
import sys
import zlib

import h5py
import numpy as np
from PIL import Image

# Height and width of the source and of the result.
SIZES = [((61, 47), (16, 16)), ((31, 27), (31, 27)), ((61, 47), (20, 33)), ((21, 17), (60, 70)),
         ((61, 46), (7, 7)), ((40, 47), (40, 40)), ((2, 61), (5, 5)), ((1, 1), (3, 4)),
         ((47, 60), (47, 13)), ((60, 33), (14, 33)), ((61, 33), (28, 28)), ((61, 47), (1, 1))]


def scene(height, width, seed=1):
    """Waves, edges and noise."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = [np.sin(9 * x + 4 * y), np.cos(7 * y - 5 * x * y), np.sin(30 * x * y)]
    image = np.stack(waves, -1) * 100 + 128
    image[height // 3:height // 2, width // 4:] = (250, 10, 90)
    image += np.random.default_rng(seed).normal(0, 20, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def chunk(name, data):
    return (struct.pack(">I", len(data)) + name + data
            + struct.pack(">I", zlib.crc32(name + data)))


def png(height, width, depth, colour, interlaced, data):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9))
            + chunk(b"IEND", b""))


def interlaced(image):
    """Adam7, which Pillow reads but does not write."""
    data = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2),
                           (0, 1, 2, 2), (1, 0, 2, 1)):
        for row in image[y0::dy, x0::dx]:
            data += (b"\0" + row.tobytes()) if row.size else b""
    return png(*image.shape[:2], 8, 2, 1, data)


def write_files(place):
    rgb = scene(19, 23)
    image = Image.fromarray(rgb)
    grey = image.convert("L")
    alpha = np.dstack([rgb, np.arange(19 * 23, dtype=np.uint8).reshape(19, 23)])
    image.save(place / "rgb.png")
    grey.save(place / "grey.png")
    grey.convert("1").save(place / "one_bit.png")
    image.quantize(13).save(place / "palette.png", bits=4)
    image.quantize(40).save(place / "transparent_palette.png", transparency=3)
    Image.fromarray(alpha).save(place / "rgba.png")
    Image.fromarray(alpha[..., 2:]).save(place / "grey_alpha.png")
    (place / "interlaced.png").write_bytes(interlaced(rgb))
    wide = np.random.default_rng(2).integers(0, 65536, (5, 7, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    (place / "rgb_16_bit.png").write_bytes(png(5, 7, 16, 2, 0, rows))
    rows = b"".join(b"\0" + row.tobytes() for row in wide[..., 0])
    (place / "grey_16_bit.png").write_bytes(png(5, 7, 16, 0, 0, rows))
    image.save(place / "rgb.jpg", quality=90)
    image.save(place / "unsampled.jpg", quality=60, subsampling=0)
    image.save(place / "progressive.jpg", quality=80, progressive=True)
    grey.save(place / "grey.jpg")
    Image.fromarray(alpha, "CMYK").save(place / "cmyk.jpg", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    image.save(place / "turned.jpg", exif=exif)
    Image.fromarray(scene(61, 61, seed=3)).save(place / "source.png", optimize=True)


def crop(image, height, width):
    """torchvision's Resize(side) and CenterCrop(side) for height = width = side; for others, the
    smallest size of the image's proportions that covers them."""
    if height * image.width >= width * image.height:
        size = int(height * image.width / image.height), height
    else:
        size = width, int(width * image.height / image.width)
    image = image.resize(size, Image.BILINEAR)
    left, top = int(round((size[0] - width) / 2.0)), int(round((size[1] - height) / 2.0))
    return image.crop((left, top, left + width, top + height))


def main():
    place = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                         pathlib.Path(__file__).parents[1] / "fixtures/image_files")
    place.mkdir(parents=True, exist_ok=True)
    write_files(place)
    with h5py.File(place / "golden.h5", "w", libver="v110") as golden:
        for path in sorted([*place.glob("*.png"), *place.glob("*.jpg")]):
            image = Image.open(path)
            if image.mode.startswith("I"):  # convert() would cut 16 bits off at 255
                image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
            for mode, made in (("rgb", image.convert("RGB")),
                               ("grey", image.convert("RGB").convert("L"))):
                golden.create_dataset(f"{mode}/{path.name}", data=np.array(made),
                                      compression="gzip")
        source = Image.open(place / "source.png")
        for number, ((height, width), target) in enumerate(SIZES):
            image = source.crop((0, 0, width, height))
            if number % 3 == 2:
                image = image.convert("L")
            results = {"crop": crop(image, *target),
                       "stretch": image.resize(target[::-1], Image.BILINEAR)}
            for fit, result in results.items():
                values = np.array(result).reshape(*target, -1)
                data = golden.create_dataset(f"{fit}/{number}", data=values, compression="gzip")
                data.attrs["source"] = np.array([height, width], np.int32)
    print(f"{place}: {sum(path.stat().st_size for path in place.iterdir())} bytes")


if __name__ == "__main__":
    main()
