#!/usr/bin/env python3
"""Makes and checks the tokenizer goldens with the Python `tokenizers` package.

  make_tokenizer_goldens.py make              writes tests/golden/tokenizer/ anew
  make_tokenizer_goldens.py compare PROGRAM   random hostile texts: PROGRAM (tokenizer_probe)
                                              against the package; 77 when it is not installed
  make_tokenizer_goldens.py additions         prints src/text/tokenizer_unicode_additions.inc

Each <family>/tokenizer.json is a small tokenizer trained here on TEXT with the family's own
normalizer, pre-tokenizer, decoder and post-processor. <family>/golden.json holds what the package
makes of it. `sentencepiece.json` is a model trained by the `sentencepiece` package with its
answers, as the fields of a GGUF file.
"""
import argparse
import io
import json
import os
import random
import subprocess
import sys
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "tests", "golden", "tokenizer")

TEXT = """The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore, and
the shells she sells are surely seashells. It's true that they'll come; we've seen them, I'm sure,
and he'd say so. Don't you think there's something in the air? In the beginning was the word, the
word was long, and nobody had heard it before the morning. A tokenizer cuts a text into pieces and
gives every piece a number; a model reads the numbers and says what number may come next.
In 1984 there were 365 days, 24 hours in each of them, and 1234567890 other things to count.
def encode(text, add_special_tokens=True):
    ids = []
    for word in split(text):
        ids.extend(merge(word))  # the loop
    return ids if ids else None
int main(int argc, char** argv) { if (argc > 1) { printf("%s\\n", argv[1]); } return 0; }
<div class="note">HTML &amp; CSS</div> https://example.org/a/b?c=d&e=f#top  x += 1;  y -= 2;
Der Löwe frißt Äpfel über Öl. L'été, où êtes-vous ? Ça va très bien, merci. El niño comió piñas.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
人人生而自由，在尊严和权利上一律平等。すべての人間は、生まれながらにして自由である。 모든 인간은 태어날 때부터 자유롭다.
יולדו כל בני האדם בני חורין. يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. सभी मनुष्यों को जन्म से स्वतंत्रता मिली है।
"""

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK_V3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
CJK_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
CJK_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

HOSTILE = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "  a  ", "Hello, world!", " Hello  world ",
    "It's I'M we'Ve he'LL they'd DON'T 'S 'ſ 'K k's", "x'rest 'll'll''s", "ABCdef ABCDefGHI aBc",
    "1 12 123 1234 12345 1234567890 3.14 1,000,000 ٣٤٥ ४५६ ⅷ ½ ①②③ 二〇二六", "x2y33z444",
    "\n\n\n", " \n \n ", "a\n\n  b\r\n\r\n\tc", "   \u00a0\u2003\u3000 x", "\u180e\u200b\ufeff x\u180e",
    "\x00\x01\x7f\x80\x85\x1f", "\u2028\u2029a\u2028b", "tab\tsep\x0bvt\x0cff",
    "😀😃😄", "👩\u200d👩\u200d👧\u200d👦 family", "👍🏽 🇩🇪🇫🇷 ❤\ufe0f\u200d🔥", "e\u0301 é E\u0301\u0323 ạ\u0308\u0304",
    "ﬁne ﬀ ﬃ ſt ǅ ß ẞ İi ıI Σσς", "한국어 텍스트 각각", "日本語テキスト、漢字とかなカナ。", "中文字符，测试。",
    "שלום עולם", "مرحبا بالعالم ١٢٣", "नमस\u094dत\u0947 द\u0941निया क\u094dषत\u094dरिय", "ภาษาไทยไม\u0e48ม\u0e35ช\u0e48องว\u0e48าง", "မြန\u103aမာဘာသာ",
    "\u202eRTL override\u202c", "\U00031350\U0002ebf0\U00010d40\U00016d40\U0001cc00\U00011f00",
    "Z\u0351\u036b\u0313\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u0334\u0335\u031c\u0330\u0354\u036b\u0357\u0362L\u0320\u0368\u0367\u0369\u0358G\u0334\u033b\u0348\u034d\u0354\u0339\u0311\u0357\u030e\u0305\u035b\u0301Ǫ\u0335\u0339\u033b\u031d\u0333\u0342\u030c\u030c\u0358!\u0356\u032c\u0330\u0319\u0317\u033f\u030b\u0365\u0365\u0302\u0363\u0310\u0301\u0301\u035c\u035e",
    "for (int i = 0; i < n; ++i) { a[i] = b[i] ** 2; } // loop", "    indented\n\tand\n        more",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case", "a/b\\c C:\\dir\\file.txt ~/x",
    "#!/bin/sh\necho \"$HOME\" | grep -E '^[a-z]+$' && exit 1", "=== --- *** ___ ... ??? !!! ;;; :::",
    "https://example.org/p?q=1&r=%20#frag", "<|special|>", "<|special|> <|special|>x<|special|>",
    "a<|special|>b<|end|>c", " <|special|> \n", "<|special", "<|special|", "<|spec<|special|>ial|>",
    "  lstrip  <L>  x", "x  <R>  y  <R>", "<W> a<W> <W>a <W>é é<W> .<W>.", "<N> <n> norm <N>x",
    "\n<R>\n\n<R>\n<L>\n\n<L>", "<L><R><L> <R> <L>", "</s><s> </s> x<s>", "<0x41> <0xE2>", "▁ ▁▁ a▁b ▁a▁",
    "<｜User｜>Hi<｜end▁of▁sentence｜>", "<unk> <pad>", "ĠhelloĊ Ġ Ċ ġ", "¡¬®ÿĀāłŃ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethethethethethethethethethethethethethethethethethethe",
    "????????????????????????????????????????????????", "ab" * 40, " " * 70 + "x", "\n" * 50,
    "0" * 64, "é" * 40, "😀" * 20, "的" * 50, "\u0301" * 40, "a\u0301" * 30, ("word " * 30).strip(),
    "$+<=>^~| $1 +2 <3 =4 >5 ^6 ~7 |8", "…—–‘’“”«»„‚‹›¿¡", "€£¥₹₿¢", "∑∏∫√∞≠≤≥±×÷", "←↑→↓⇒⇔",
    "\ufffd\ufffe\uffff", "\U0010ffff\U000e0001\U000f0000", "\u0378\u0600\u061c\u070f", "ⅣⅫ ⓐⓑ ㊀ ㍿ ﷺ",
    "seashells surely morning something", "The beginning tokenizer encode", "add_special_tokens",
]

PAIRS = [("The quick brown fox", "jumps over the lazy dog"), ("a", ""), ("Where?", "[SEP] There. 中文")]

# (unit, count) of single lines of about 10^6 characters.
LONG = [("a", 1000000), (" ", 1000000), ("\n", 1000000), ("the ", 250000), ("0", 1000000),
        ("?", 1000000), (" \n", 500000), ("é", 1000000), ("中", 1000000), ("😀", 500000),
        ("a1 ", 333333), ("abcdefghij", 100000), ("\u0301", 1000000), (" '", 500000),
        ("aB", 500000), ("▁", 500000), ("x  ", 333333), ("'s", 500000), ("The lazy dog's word. ", 47000)]


def families():
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                            pre_tokenizers as pre, processors, trainers)

    def added(tokenizer, more=()):
        tokenizer.add_special_tokens(["<|special|>", "<|end|>"])
        tokenizer.add_tokens([
            AddedToken("<L>", lstrip=True, normalized=False),
            AddedToken("<R>", rstrip=True, normalized=False),
            AddedToken("<W>", single_word=True, normalized=False),
            AddedToken("<N>", normalized=True),
            AddedToken("<|special", normalized=False),
            AddedToken("\n\n\n", normalized=False)])
        for token in more:
            tokenizer.add_tokens([token])
        return tokenizer

    def byte_level(pre_tokenizer, vocab=500, normalizer=None, ignore_merges=False, whole=(),
                   decoder=True):
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=1, show_progress=False,
                                      initial_alphabet=pre.ByteLevel.alphabet())
        tokenizer.train_from_iterator(TEXT.splitlines(True), trainer)
        if decoder:
            tokenizer.decoder = decoders.ByteLevel()
        if whole:  # tokens that no merge leads to
            spec = json.loads(tokenizer.to_str())
            for token in whole:
                spec["model"]["vocab"].setdefault(token, len(spec["model"]["vocab"]))
            tokenizer = Tokenizer.from_str(json.dumps(spec))
        return tokenizer

    def split(pattern, behavior="isolated", invert=False):
        return pre.Split(Regex(pattern), behavior, invert)

    def plain(add_prefix_space=False):
        return pre.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)

    def pieces(vocab=500, byte_fallback=True, fuse_unk=True, normalizer=None, pre_tokenizer=None,
               train_pre=None, decoder=None, alphabet=120):
        model = dict(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback)
        tokenizer = Tokenizer(models.BPE(**model))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = train_pre or pre_tokenizer
        specials = ["<unk>", "<s>", "</s>"]
        if byte_fallback:
            specials += ["<0x%02X>" % b for b in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=1, show_progress=False,
                                      special_tokens=specials, limit_alphabet=alphabet)
        tokenizer.train_from_iterator(TEXT.splitlines(True), trainer)
        spec = json.loads(tokenizer.to_str())
        spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        if pre_tokenizer is None:
            spec["pre_tokenizer"] = None
            tokenizer = Tokenizer.from_str(json.dumps(spec))
        else:
            tokenizer.pre_tokenizer = pre_tokenizer
        if decoder is not None:
            tokenizer.decoder = decoder
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
        return tokenizer

    meta = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    meta_strip = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                    decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    def word_piece(lowercase, template):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=400, min_frequency=1, show_progress=False, limit_alphabet=120,
                                            special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
        tokenizer.train_from_iterator(TEXT.splitlines(True), trainer)
        tokenizer.decoder = decoders.WordPiece(cleanup=lowercase)
        ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
        tokenizer.post_processor = processors.BertProcessing(*ends) if not template else processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=ends)
        return tokenizer

    on_meta = pre.Metaspace(prepend_scheme="never", split=True)
    made = {}

    made["gpt2"] = added(byte_level(pre.ByteLevel(add_prefix_space=False)))
    prefix = added(byte_level(pre.ByteLevel(add_prefix_space=True)))
    prefix.post_processor = processors.RobertaProcessing(
        ("<|end|>", prefix.token_to_id("<|end|>")), ("<|special|>", prefix.token_to_id("<|special|>")))
    made["gpt2_prefix"] = prefix

    llama3 = added(byte_level(pre.Sequence([split(LLAMA3), plain()]), ignore_merges=True,
                              whole=["Ġseashells", "Ġsurely", "Ġmorning", "seash", "1234", "éé"]))
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|special|> $A", pair="<|special|> $A <|special|> $B",
                                      special_tokens=[("<|special|>", llama3.token_to_id("<|special|>"))])])
    made["llama3"] = llama3
    made["qwen2"] = added(byte_level(pre.Sequence([split(QWEN2), plain()]), normalizer=normalizers.NFC()))
    made["smollm"] = added(byte_level(pre.Sequence([
        pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])))
    made["o200k"] = added(byte_level(pre.Sequence([split(O200K), plain()]), ignore_merges=True))
    made["deepseek_v3"] = added(byte_level(pre.Sequence([
        split(r"\p{N}{1,3}"), split(CJK_KANA), split(DEEPSEEK_V3), plain()])),
        [AddedToken("<｜User｜>", normalized=False), AddedToken("<｜end▁of▁sentence｜>", special=True)])
    made["deepseek_coder"] = added(byte_level(pre.Sequence([
        split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK_HANGUL),
        pre.Digits(individual_digits=True), plain()])))
    made["gguf_default"] = added(byte_level(pre.Sequence([
        split(r"[\p{P}\$\+<=>\^~\|]+"),
        split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        split(r"\p{N}+"), split("[0-9][0-9][0-9]"), plain()])))
    made["falcon"] = added(byte_level(pre.Sequence([
        pre.Punctuation("contiguous"), pre.ByteLevel(add_prefix_space=False), pre.Digits(False),
        split("[0-9][0-9][0-9]")]), vocab=400, decoder=True))

    made["llama2"] = pieces(normalizer=normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), decoder=meta_strip, train_pre=on_meta)
    made["mistral"] = pieces(pre_tokenizer=pre.Metaspace(prepend_scheme="first", split=False),
                             train_pre=on_meta, decoder=meta_strip)
    gemma = pieces(normalizer=normalizers.Replace(" ", "▁"),
                   pre_tokenizer=pre.Split(" ", "merged_with_previous"), decoder=meta)
    made["gemma"] = gemma
    made["metaspace"] = added(pieces(byte_fallback=False, pre_tokenizer=pre.Metaspace(),
                                     decoder=decoders.Metaspace(), vocab=300, alphabet=90))
    made["unk"] = added(pieces(byte_fallback=False, fuse_unk=False, vocab=300, alphabet=60,
                               pre_tokenizer=pre.Whitespace(), normalizer=normalizers.Sequence([
                                   normalizers.NFKC(), normalizers.Lowercase(),
                                   normalizers.Replace(Regex(r"\s{2,}|[aeiou]{3}"), "_"),
                                   normalizers.Strip(True, True)])))
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        made["split_" + behavior] = pieces(
            byte_fallback=False, vocab=130, alphabet=100, decoder=decoders.Fuse(),
            normalizer=normalizers.NFD(), train_pre=on_meta,
            pre_tokenizer=pre.Sequence([
                split(r"[[:alpha:]_]+|\b", behavior),
                split(r"(?<=[aeiou])[^\Waeiou]{2,}?|[^\S\r\n]+", behavior, invert=True),
                pre.Punctuation(behavior), pre.WhitespaceSplit()]))
    def unigram(byte_fallback):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")])
        metaspace = pre.Metaspace(prepend_scheme="first" if byte_fallback else "always")
        tokenizer.pre_tokenizer = metaspace if byte_fallback else pre.Sequence([pre.WhitespaceSplit(), metaspace])
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=400, show_progress=False, unk_token="<unk>",
                                          special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
        tokenizer.train_from_iterator(TEXT.splitlines(True), trainer)
        spec = json.loads(tokenizer.to_str())
        if byte_fallback:
            spec["model"]["byte_fallback"] = True
            spec["model"]["vocab"] += [["<0x%02X>" % b, -20.0] for b in range(256)]
        else:
            spec["added_tokens"].append(dict(id=400, content="<mask>", single_word=False, lstrip=True, rstrip=False,
                                             normalized=False, special=True))
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
        return tokenizer

    made["xlm_roberta"] = unigram(False)
    made["unigram_bytes"] = unigram(True)
    made["bert"] = word_piece(True, True)
    made["bert_cased"] = word_piece(False, False)
    return made


def charsmap():
    """A small map as SentencePiece compiles it: what becomes nothing, a space, another character or several."""
    import tempfile
    import sentencepiece as spm
    rules = {"\ufb01": "fi", "\u2460": "1", "\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": "",
             "e\u0301": "\u00e9", "E\u0301": "\u00c9", "\u00bd": "1/2", "\u2026": "...", "\u30ab\u3099": "\u30ac", "\u0130": "i"}
    rules |= {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as tsv:
        for source, target in sorted(rules.items()):
            tsv.write("\t".join(" ".join("%X" % ord(c) for c in text) for text in (source, target)) + "\n")
        tsv.flush()
        spm.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.splitlines()), model_writer=model, vocab_size=400,
                                       hard_vocab_limit=False, normalization_rule_tsv=tsv.name, minloglevel=2)
    normalizer = dict(fields(model.getvalue()))[3]
    return dict(fields(normalizer))[2]


def fields(message):
    """(number, bytes) of the fields with a length in a message of Protocol Buffers."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            varint()
        elif key & 7 == 2:
            size = varint()
            yield key >> 3, message[at:at + size]
            at += size
        else:
            at += 4 if key & 7 == 5 else 8


class Texts:
    """Random hostile texts."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.words = TEXT.split()
        self.bits = [t for t in HOSTILE if t and len(t) < 30]

    def char(self):
        r = self.random
        kind = r.randrange(10)
        if kind < 3:
            return chr(r.randrange(1, 128))
        if kind < 5:
            return r.choice(" \n\r\t'.,-_0123456789")
        if kind == 5:
            return chr(r.randrange(0x80, 0x800))
        if kind == 6:
            return r.choice("\u0301\u200d\ufe0f\u3000\u00a0\u2581ſKİßǅŉﬀ")
        while True:
            c = r.randrange(0x800, 0x110000 if kind == 7 else 0x30000)
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def text(self):
        r = self.random
        parts = []
        for _ in range(r.randrange(1, 12)):
            kind = r.randrange(4)
            if kind == 0:
                parts.append(r.choice(self.words))
            elif kind == 1:
                parts.append(r.choice(self.bits))
            elif kind == 2:
                parts.append("".join(self.char() for _ in range(r.randrange(1, 12))))
            else:
                parts.append(r.choice([" ", "  ", "\n", "", " ", "'s", "\t"]) * r.randrange(1, 4))
        return "".join(parts)


def ids_hash(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        for byte in int(i).to_bytes(4, "little"):
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % value


def random_ids(tokenizer, rng, count):
    size = tokenizer.get_vocab_size()
    byte_ids = [i for i in (tokenizer.token_to_id("<0x%02X>" % b) for b in range(256)) if i is not None]
    rows = []
    for _ in range(count):
        row = []
        for _ in range(rng.randrange(1, 24)):
            kind = rng.randrange(8)
            if kind == 0:
                row += tokenizer.encode(rng.choice(HOSTILE)[:20], add_special_tokens=False).ids
            elif kind < 3 and byte_ids:
                row += [rng.choice(byte_ids) for _ in range(rng.randrange(1, 6))]
            else:
                row.append(rng.randrange(size + 3))
        rows.append(row)
    return rows


def golden(tokenizer, seed, long):
    rng = random.Random(seed)
    texts = Texts(seed)
    cases = HOSTILE + [texts.text() for _ in range(20)]
    encode = lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids
    pairs = [] if tokenizer.post_processor is None else [tokenizer.encode(a, b) for a, b in PAIRS]
    return {
        "vocab_size": tokenizer.get_vocab_size(),
        "pairs": [[a, b, pair.ids, pair.type_ids] for (a, b), pair in zip(PAIRS, pairs)],
        "encode": [[text, encode(text, False)] for text in cases],
        "with_special": encode("Hello", True),
        "long": [[unit, count, len(ids), ids_hash(ids)] for unit, count in long
                 for ids in [encode(unit * count, False)]],
        "decode": [[row, tokenizer.decode(row, skip_special_tokens=False),
                    tokenizer.decode(row, skip_special_tokens=True)]
                   for row in random_ids(tokenizer, rng, 60)],
    }


def sentencepiece_golden():
    import sentencepiece as spm
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=model, vocab_size=700,
        model_type="bpe", byte_fallback=True, character_coverage=0.98, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        hard_vocab_limit=False)
    sp = spm.SentencePieceProcessor(model_proto=model.getvalue())
    size = sp.get_piece_size()
    types = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1
             for i in range(size)]
    texts = Texts(99)
    # The package swallows NUL; no special token is spelled out in the texts here.
    cases = [t for t in HOSTILE + [texts.text() for _ in range(60)]
             if "\x00" not in t and "<" not in t]
    return {
        "tokens": [sp.id_to_piece(i) for i in range(size)],
        "scores": [sp.get_score(i) for i in range(size)],
        "token_types": types,
        "encode": [[text, sp.encode(text)] for text in cases],
    }


def write_json(path, value):
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        json.dump(value, out, ensure_ascii=True, separators=(",", ":"))
        out.write("\n")


def make(only):
    for seed, (name, tokenizer) in enumerate(families().items()):
        if only not in name:
            continue
        folder = os.path.join(OUT, name)
        os.makedirs(folder, exist_ok=True)
        write_json(os.path.join(folder, "tokenizer.json"), json.loads(tokenizer.to_str()))
        write_json(os.path.join(folder, "golden.json"), golden(tokenizer, seed, [] if name.startswith("split_") else LONG))
        print(name, tokenizer.get_vocab_size())
    from tokenizers import Tokenizer
    tale = Tokenizer.from_file(os.path.join(ROOT, "models", "tale-llama", "tokenizer.json"))
    write_json(os.path.join(OUT, "tale_llama_golden.json"), golden(tale, 77, LONG))
    write_json(os.path.join(OUT, "sentencepiece.json"), sentencepiece_golden())


def probe(program, tokenizer_path, requests):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([program, tokenizer_path], input=lines.encode(), stdout=subprocess.PIPE,
                          check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare_one(program, path, seed, count):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    texts = Texts(seed)
    rng = random.Random(seed)
    cases = [texts.text() for _ in range(count)]
    rows = random_ids(tokenizer, rng, count)
    requests = [{"text": t} for t in cases]
    requests += [{"ids": row, "skip_special_tokens": skip} for row in rows for skip in (False, True)]
    wanted = [tokenizer.encode(t).ids for t in cases]
    wanted += [tokenizer.decode(row, skip_special_tokens=skip) for row in rows for skip in (False, True)]
    got = probe(program, path, requests)
    bad = [(r, w, g) for r, w, g in zip(requests, wanted, got) if w != g]
    for request, want, have in bad[:3]:
        print("%s: %s\n  want %s\n  have %s" % (path, json.dumps(request), json.dumps(want), json.dumps(have)))
    return len(bad), len(requests)


def compare(program, seed, count):
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        print("the Python package `tokenizers` is not installed")
        return 77
    paths = [os.path.join(OUT, name, "tokenizer.json") for name in sorted(os.listdir(OUT))]
    paths = [p for p in paths if os.path.exists(p)]
    paths.append(os.path.join(ROOT, "models", "tale-llama", "tokenizer.json"))
    wrong = 0
    for path in paths:
        bad, all_of_them = compare_one(program, path, seed, count)
        print("%s: %d of %d differ" % (os.path.relpath(path, ROOT), bad, all_of_them))
        wrong += bad
    return 1 if wrong else 0


def additions():
    """Code points that the package knows and Unicode 14 (Debian 12's PCRE2) does not."""
    from tokenizers import Regex, normalizers
    assert unicodedata.unidata_version == "14.0.0", "run with Python 3.11"
    new = [c for c in range(0x110000)
           if not 0xD800 <= c <= 0xDFFF and unicodedata.category(chr(c)) == "Cn"]
    rows = []
    for category in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split():
        drop = normalizers.Replace(Regex(r"\p{%s}" % category), "")
        left = set(map(ord, drop.normalize_str("".join(map(chr, new)))))
        start = last = None
        for c in [c for c in new if c not in left] + [None]:
            if last is not None and c == last + 1:
                last = c
                continue
            if start is not None:
                rows.append((start, last, category))
            start = last = c
    for start, last, category in sorted(rows):
        print('{0x%X, 0x%X, "%s"},' % (start, last, category))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("--only", default="", help="families named so")
    commands.add_parser("additions")
    live = commands.add_parser("compare")
    live.add_argument("program")
    live.add_argument("--seed", type=int, default=1)
    live.add_argument("--count", type=int, default=200)
    args = parser.parse_args()
    if args.command == "make":
        return make(args.only)
    if args.command == "additions":
        return additions()
    return compare(args.program, args.seed, args.count)


if __name__ == "__main__":
    sys.exit(main())
