#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes tests/fixtures/tokenizer: a small byte-level BPE, texts of all kinds and their token ids.

The ids come from transformers' GPT2TokenizerFast where a text is valid UTF-8, and from the
reference below (pattern by the regex module, merges as in arXiv 1508.07909) where it is not.

    DELTAPIPE_DATA=<folder of real texts> python3 tests/golden/make_tokenizer_fixtures.py

Needs transformers, tokenizers, regex. DELTAPIPE_DATA holds gpt2_bpe, wikitext2, tinyshakespeare and
arxiv_abstracts.
"""

import json
import os
import random
import sys
import tempfile
import unicodedata
from pathlib import Path

import regex
from tokenizers import ByteLevelBPETokenizer, pre_tokenizers
from transformers import GPT2TokenizerFast

OUT = Path(__file__).resolve().parent.parent / "fixtures" / "tokenizer"
DATA = Path(os.environ.get("DELTAPIPE_DATA", ""))
END = "<|endoftext|>"
VOCABULARY = 3000
TRAINED = 1000
MASK = (1 << 64) - 1
PATTERN = regex.compile(
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

PHRASES = [
    "The quick brown fox didn't jump; it'd rather sleep, wouldn't you? I'll say we've seen they're I'm",
    "It'S NOT'T DON'T WE'RE I'Ve 'll'd's''''t'm 'sad 'tis 'really 'very 'dull", "a'b'c's d'",
    "for (int i = 0; i < n; ++i) {\n\tx[i] += a * y[i];  // axpy\n}\n\n\n", "def f(x):\n    return {k: v for k, v in x}\n",
    "#include <vector>\n\n\nstd::vector<float> x(1'000'000);", "{\"key\": [1, 2.5e-7, null, \"\\u00e9\"]}",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich", "Où est l'été? Ça n'est pas là, cœur naïf",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το σκυλί", "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "نص حكيم له سر قاطع وذو شأن عظيم ٠١٢٣٤٥٦٧٨٩", "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "我能吞下玻璃而不伤身体。天地玄黄，宇宙洪荒", "いろはにほへと ちりぬるを ｶﾀｶﾅ 全角ＡＢＣ１２３", "키스의 고유조건은 입술끼리 만나야 하고",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ 🤷🏻‍♂️ 😀😀😀😀", "e\u0301 a\u0308\u0323 Z\u0351\u036b\u0343\u036a\u0302\u036b n\u0303o", "½ ² ³ Ⅷ ① ৳ ፲ 𝟘𝟙𝟚 ௧௨",
    "∫₀^∞ e^{-x²} dx = √π/2 ≠ ∑ᵢ αᵢ·βᵢ → ∅", "$3.50 €20 £1,000.00 ¥5000 50% #1 @user user@example.org https://example.org/a?b=c&d=e",
    "3.14159 1234567890123456789 1e10 0xDEADBEEF v1.2.3 12:34:56 2024-02-29", "word1word2 a1b2c3 1st 2nd x86_64 utf8",
    " = Title = \n \n Some text @-@ like @,@ that . \n", "<unk> <s> </s> <|endoftext| >", "--- *** ... !!! ??? ,,, ((())) [[]] {}{} \"\"'' ``",
    "ﬁ ﬂ ǆ ß ẞ İ ı ſ K Å", "\ufeffBOM and \u200bzero\u200b width \u200d\u200c \u2060 \u180e Mongolian",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore",
    "and the of to in that is was he for it with as his on be at by I this had not are but from or have an they which one you were her all she there would their we him been has when who will more no if out so said what up its about into than them can only other new some could time these two may then do first any my now such like our over man me even most made after also did many before must through back years where much your way well down should because each just those people",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethethethethethethethethethethethethethethethethethe",
]
SPACES = [" ", "  ", "   ", " " * 17, "\n", "\n\n", "\r\n", "\t", "\t\t ", " \n", "\n ", "\v\f", "\u00a0", " \u00a0",
          "\u00a0 ", "\u2003", "\u2028", "\u2029", "\u3000", "\u1680", "\u202f\u205f", "\x85", "\x1c\x1d\x1e\x1f", "\u180e"]
INVALID = [b"\x80", b"\xff", b"\xfe\xff", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80",
           b"\xf0\x9f\x98", b"\xc3", b"\xe9t\xe9", b"\xf8\x88\x80\x80\x80", b"\xe0\x80\x80", b"\xbf\xbf\xbf", b" \xff", b"\xff ",
           b"'\xff's", b"a\xffb", b"1\xff2", b"!\xff!", b"\n\xff\n", b"\xf0\x80\x80\x80", b"\xc1\x81", b"\xc2 \xa0"]


def fnv1a(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        h = ((h ^ i) * 0x100000001B3) & MASK
    return f"{h:016x}"


def splitmix64(counter):
    z = (counter + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def random_characters(rng, count):
    picked = []
    while len(picked) < count:
        c = chr(rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000)]))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            picked.append(c)
    return "".join(picked)


def make_lines(rng):
    lines = [p.encode() for p in PHRASES] + [s.encode() for s in SPACES] + INVALID + [END.encode(), (END * 3).encode()]
    lines += [bytes([b]) for b in range(256)]
    for number in range(400):
        parts = []
        for _ in range(rng.randrange(1, 9)):
            kind = rng.randrange(12)
            if kind < 5:
                words = rng.choice(PHRASES).split(" ")
                start = rng.randrange(len(words))
                parts.append(" ".join(words[start:start + rng.randrange(1, 12)]).encode())
            elif kind < 8:
                parts.append(rng.choice(SPACES).encode())
            elif kind < 10:
                parts.append(random_characters(rng, rng.randrange(1, 12)).encode())
            elif kind == 10:
                parts.append(rng.choice([END, str(rng.randrange(10**9)), "'s", "'ll", "'", "\x00", "\x07\x1b[0m"]).encode())
            elif number % 2:
                parts.append(rng.choice(INVALID) if rng.randrange(2) else rng.randbytes(rng.randrange(1, 8)))
            parts.append(rng.choice([b"", b" ", b" ", b"\n"]))
        lines.append(b"".join(parts))
    return lines


def is_valid(line):
    try:
        line.decode("utf-8")
        return True
    except UnicodeDecodeError:
        return False


class Reference:
    """Byte-level BPE on bytes; a byte outside valid UTF-8 is one lone surrogate to the pattern."""

    def __init__(self, tokenizer):
        backend = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        order = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
        names = {b: chr(b) for b in order}
        others = [b for b in range(256) if b not in names]
        names.update({b: chr(256 + n) for n, b in enumerate(others)})
        self.names = names
        self.vocab = backend["vocab"]
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in backend["merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.end = tokenizer.convert_tokens_to_ids(END)
        self.cache = {}

    def merge(self, parts):
        while len(parts) > 1:
            rank, i = min((self.ranks.get(pair, 1 << 60), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == 1 << 60:
                break
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return parts

    def encode(self, data):
        ids = []
        for n, stretch in enumerate(data.split(END.encode())):
            if n > 0:
                ids.append(self.end)
            for piece in PATTERN.findall(stretch.decode("utf-8", "surrogateescape")):
                if piece not in self.cache:
                    raw = piece.encode("utf-8", "surrogateescape")
                    self.cache[piece] = [self.vocab[t] for t in self.merge([self.names[b] for b in raw])]
                ids += self.cache[piece]
        return ids


def classes():
    """Ranges of code points that pre-tokenisation takes for letters, digits and spaces."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    one = lambda s: len(splitter.pre_tokenize_str(s)) == 1
    ranges = {"letters": [], "digits": [], "spaces": []}
    for point in range(0x110000):
        if 0xD800 <= point < 0xE000:
            continue
        c = chr(point)
        kind = "letters" if one("a" + c) else "digits" if one("1" + c) else None if one("!" + c) else "spaces"
        if kind and ranges[kind] and ranges[kind][-1][1] == point - 1:
            ranges[kind][-1][1] = point
        elif kind:
            ranges[kind].append([point, point])
    return ranges


def role_files(flags, end_id):
    """tokenizer_config.json and special_tokens_map.json that give a token a role and flags; last one that
    tokenizer.json has without them. Of vocabulary and merges alone, transformers 4 and 5 take the flags of
    END from different roles."""
    none = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    token = {"content": "the", **none, **flags}
    typed = {"__type": "AddedToken", **token}
    decoder = {"added_tokens_decoder": {str(end_id): {"content": END, **none, "special": True}}}
    return [({}, {"eos_token": token}), ({"eos_token": "and"}, {"eos_token": token}), ({"eos_token": typed}, {}),
            ({"additional_special_tokens": [typed]}, {}), ({"eos_token": "the", **decoder}, {"eos_token": token}),
            ({"eos_token": typed, **decoder}, {}), ({"eos_token": "the", "bos_token": None, "unk_token": None}, {}), ({}, {"eos_token": {**token, "content": END}})]


def roles(small):
    """Ids with and without flags: where they are the same, the flags count for nothing."""
    end_id = small.convert_tokens_to_ids(END)
    text = f"a  the  other {END} the"

    def ids(config, role_map, whole):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("vocab.json", "merges.txt"):
                (Path(folder) / name).write_bytes((OUT / name).read_bytes())
            if whole:
                small.backend_tokenizer.save(str(Path(folder) / "tokenizer.json"))
            (Path(folder) / "config.json").write_text('{"model_type": "gpt2"}')
            (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
            (Path(folder) / "special_tokens_map.json").write_text(json.dumps(role_map))
            return GPT2TokenizerFast.from_pretrained(folder)(text).input_ids

    cases = []
    for flag in (None, "lstrip", "rstrip", "single_word"):
        flags = {flag: True} if flag else {}
        for plain, (config, role_map) in zip(role_files({}, end_id), role_files(flags, end_id)):
            for whole in (False, True):
                if whole or role_map.get("eos_token", {}).get("content") != END:
                    cases.append({"whole": whole, "config": config, "map": role_map,
                                  "ids": ids(config, role_map, whole), "plain": ids(*plain, whole)})
    return {"text": text, "cases": cases}


def write_lf(path, text):
    path.write_bytes(text.encode())


def main():
    if not (DATA / "gpt2_bpe" / "encoder.json").exists():
        sys.exit("set DELTAPIPE_DATA to the folder with gpt2_bpe, wikitext2, tinyshakespeare and arxiv_abstracts")
    OUT.mkdir(parents=True, exist_ok=True)
    lines = make_lines(random.Random(20220602))
    (OUT / "mixed.bin").write_bytes(b"".join(lines))
    valid = [line for line in lines if is_valid(line)]

    # The tokenizer of the fixtures: learnt from English and from the mixed lines.
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "train.txt"
        shakespeare = (DATA / "tinyshakespeare" / "input.txt").read_bytes()[:600000]
        text.write_bytes(shakespeare + b"\n" + b"\n".join(valid))
        trainer = ByteLevelBPETokenizer()
        trainer.train([str(text)], vocab_size=VOCABULARY - 1, min_frequency=2, show_progress=False)
        trainer.save_model(folder)
        vocab = json.loads((Path(folder) / "vocab.json").read_text())
        vocab[END] = len(vocab)
        write_lf(OUT / "vocab.json", json.dumps(vocab, ensure_ascii=False, separators=(",", ":")) + "\n")
        write_lf(OUT / "merges.txt", (Path(folder) / "merges.txt").read_text())
    small = GPT2TokenizerFast(str(OUT / "vocab.json"), str(OUT / "merges.txt"))
    reference = Reference(small)

    expected = {"lines": []}
    for line in lines:
        ids = reference.encode(line)
        if is_valid(line):
            assert ids == small(line.decode()).input_ids, line
        expected["lines"].append([len(line), len(ids), fnv1a(ids), ids[:4]])
    # At least 1 MB by drawing lines, once valid ones only and once all.
    for name, pool in (("megabyte_valid", valid), ("megabyte", lines)):
        drawn, size, counter = [], 0, 0
        while size < 1 << 20:
            drawn.append(pool[splitmix64(counter) % len(pool)])
            size += len(drawn[-1])
            counter += 1
        data = b"".join(drawn)
        ids = reference.encode(data)
        if name == "megabyte_valid":
            assert ids == small(data.decode()).input_ids
        expected[name] = {"bytes": len(data), "ids": len(ids), "hash": fnv1a(ids)}

    # The vocabulary that the tokenizers package learns from the valid lines, one document each.
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator([line.decode() for line in valid if END.encode() not in line], vocab_size=TRAINED - 1,
                                min_frequency=2, show_progress=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_model(folder)
        write_lf(OUT / "trained_merges.txt", (Path(folder) / "merges.txt").read_text())

    gpt2 = GPT2TokenizerFast(str(DATA / "gpt2_bpe" / "encoder.json"), str(DATA / "gpt2_bpe" / "vocab.bpe"))
    expected["gpt2"] = {}
    for name in ("wikitext2/test.raw.txt", "wikitext2/train.raw.1MB.txt", "wikitext2/valid.raw.100kB.txt",
                 "arxiv_abstracts/abstracts.jsonl", "tinyshakespeare/input.txt"):
        ids = gpt2((DATA / name).read_bytes().decode()).input_ids
        expected["gpt2"][name] = {"ids": len(ids), "hash": fnv1a(ids)}
    ids = [i for line in valid for i in gpt2(line.decode()).input_ids]
    expected["gpt2_lines"] = {"ids": len(ids), "hash": fnv1a(ids)}

    expected["roles"] = roles(small)
    expected["classes"] = classes()
    write_lf(OUT / "expected.json", json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
