# SPDX-License-Identifier: BSD-3-Clause
"""The Unigram tokenizer of tests/fixtures/sentencepiece, as files of a directory."""

import base64
import json
import pathlib
import shutil
import struct

FIXTURE = pathlib.Path(__file__).resolve().parents[1] / "fixtures/sentencepiece"


def fields(message):
    """(number, value) of a protobuf message's fields: integers, or bytes."""
    place = 0

    def varint():
        nonlocal place
        number = shift = 0
        while True:
            byte = message[place]
            place += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while place < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(tag & 7) or varint()
            yield tag >> 3, message[place:place + size]
            place += size


def tokenizer_json():
    """What DebertaV2TokenizerFast makes of the model."""
    whole = json.loads((FIXTURE / "expected.json").read_text())["jsons"][0]["json"]
    vocabulary = whole["model"]["vocab"] = []
    for number, value in fields((FIXTURE / "spm.model").read_bytes()):
        if number == 1:
            piece = dict(fields(value))
            score = struct.unpack("<f", piece.get(2, bytes(4)))[0]
            vocabulary.append([piece[1].decode(), score])
        elif number == 3:
            charsmap = base64.b64encode(dict(fields(value))[2]).decode()
    for step in whole["normalizer"]["normalizers"]:
        if step["type"] == "Precompiled":
            step["precompiled_charsmap"] = charsmap
    return whole


def write_model(directory):
    """A directory with an spm.model, as DeBERTa-v3 is published."""
    directory.mkdir()
    shutil.copy(FIXTURE / "spm.model", directory)
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    return directory


def write_json(directory):
    """A directory with a tokenizer.json."""
    directory.mkdir()
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    return directory
