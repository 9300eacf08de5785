#!/usr/bin/env python3
"""Makes the fixtures of GGUF files (gguf 0.19.0, numpy, tokenizers 0.23.3, sentencepiece 0.2.3, transformers 5.24.0).

    python make_gguf.py            # gguf/

gguf/types.gguf has a matrix of each type, gguf/types.f32 the values that the gguf package reads from them, matrix after
matrix. gguf/tokenizers/*.gguf have the vocabularies of small tokenizers that are trained here, one for each kind that
loramux reads; ids.json what tokenizers, or sentencepiece, make of texts.json with them.
"""
import io
import json
import pathlib

import gguf
import numpy as np
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.gemma.tokenization_gemma import GemmaTokenizer
from transformers.models.qwen3_5 import tokenization_qwen3_5

HERE = pathlib.Path(__file__).parent
OUT = HERE / "gguf"
ROWS, COLUMNS = 3, 512
Type = gguf.GGMLQuantizationType
QUANTISED_BY_PACKAGE = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
# The package reads these and does not write them: random codes with sensible float16 numbers, whose places follow.
RANDOM_BLOCKS = {Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}


def random_blocks(kind, random):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS, COLUMNS // elements, size), dtype=np.uint8)
    for place in RANDOM_BLOCKS[kind]:
        halves = random.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, place:place + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def types():
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(OUT / "types.gguf", "none")
    expected = []
    for kind in QUANTISED_BY_PACKAGE + list(RANDOM_BLOCKS):
        if kind in RANDOM_BLOCKS:
            data = random_blocks(kind, random)
        else:
            data = gguf.quants.quantize(random.normal(0, 1, (ROWS, COLUMNS)).astype(np.float32), kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        expected.append(gguf.quants.dequantize(data, kind).astype(np.float32))
    close(writer)
    (OUT / "types.f32").write_bytes(b"".join(values.tobytes() for values in expected))


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}|\p{{N}}{{1,3}}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
TRAINING = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox doesn't. They'll see what we've done.",
    "In the beginning there was a small tokenizer, and it knew three hundred words and 1234567890 numbers.",
    "Zürich naïve café über straße 12345 67890 (brackets) [more] {braces} HelloWorld camelCase XMLHttpRequest",
    "日本語 テスト 中文 русский текст emoji 🙂 👍 end مرحبا बिल्ली हिन्दी",
    "def main():\n    return x  # a comment\n\n\tif y:\r\n        pass\n",
] * 3
TEXTS = [
    "", " ", "  ", "   a", "a   ", "a  b   c", "\n", "\n\n\n", " \n \n x", "\r\n\r\nx\r", "\t\tx \t y", "\u00a0x\u00a0\u3000y",
    "The quick brown fox", "the fox doesn't, they'll; we've I'm he'd it's DON'T CAN'T y'all", "don\u2019t",
    "1", "12", "123", "1234", "12345678901", "3.14159 1,000,000 x1y22z333", "\u0663\u0664\u0665 \u00bd \u2167",
    "HelloWorld camelCase XMLHttpRequest ÀÉÎ straße ǅ", "e\u0301 \u00e9 A\u030a \u00c5 \u1e9b\u0323", "\ufb01 \u2126",
    "日本語テスト 中文", "русский текст", "مرحبا بالعالم", "हिन्दी बिल्ली", "🙂👍🏽👩‍👩‍👧 x", "\u200b\u200d\ufeff",
    "a\u0000b\u0001\u007f", "<|bos|>x<|end|>", "x <|end|> y", "<|end", "a<tool>b</tool>", "<s>x</s><unk>", "<0x0A>",
    "!!!???...///\\\\", "a/b\n/c//\r\n", "(([[{{}}]]))", "#$%^&*_+=~`|", "def f(x):\n    return x\n", "\u2581x \u2581 y",
    "x" * 300, " " * 70, "ab " * 50,
]
ADDED = [("<|bos|>", True), ("<|end|>", True), ("<tool>", False), ("</tool>", False)]


def byte_level(pre):
    """A tokenizer that cuts text as `pre` of GGUF files says."""
    whole_words = pre in ("llama-bpe", "tekken", "glm4")
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    pattern = {"llama-bpe": LLAMA3, "dbrx": LLAMA3, "glm4": LLAMA3, "qwen2": QWEN2, "stablelm2": QWEN2, "tekken": TEKKEN,
               "qwen35": tokenization_qwen3_5.PRETOKENIZE_REGEX, "gpt-4o": GPT4O, "bloom": BLOOM}.get(pre)
    steps = {"smollm": [pre_tokenizers.Digits(individual_digits=True)],
             "falcon": [pre_tokenizers.Punctuation("contiguous")]}.get(pre, [])
    if pattern:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    if pre == "falcon":
        steps += [pre_tokenizers.Digits(individual_digits=False),
                  pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre in ("qwen2", "qwen35", "olmo"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=520, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text, s in ADDED if s])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text, s in ADDED if not s])
    if pre in ("llama-bpe", "tekken"):
        add_bos(tokenizer, "<|bos|>")
    return tokenizer


def add_bos(tokenizer, bos):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])


def write_byte_level(pre):
    tokenizer = byte_level(pre)
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())]
    added = dict(ADDED)
    writer = gguf.GGUFWriter(OUT / "tokenizers" / f"{pre}.gguf", "none")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + ["[PAD]"])
    writer.add_token_types([{None: 1, True: 3, False: 4}[added.get(token)] for token in tokens] + [5])
    writer.add_token_merges([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.token_to_id("<|bos|>"))
    writer.add_eos_token_id(tokenizer.token_to_id("<|end|>"))
    close(writer)
    return {"with_special": [tokenizer.encode(text).ids for text in TEXTS],
            "without": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]}


def write_gemma4():
    """A tokenizer of transformers' class for Gemma, with the kinds of tokens and the metadata of llama.cpp's converter."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    small = Tokenizer(models.BPE())
    small.normalizer = normalizers.Replace(" ", "\u2581")
    small.train_from_iterator(TRAINING, trainers.BpeTrainer(
        vocab_size=700, show_progress=False,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581", "\n"]))
    model = json.loads(small.to_str())["model"]
    tokenizer = GemmaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])._tokenizer
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text, s in ADDED if not s])
    add_bos(tokenizer, "<bos>")
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())]
    writer = gguf.GGUFWriter(OUT / "tokenizers" / "gemma4.gguf", "none")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types([3 if token in special else 4 if (token, False) in ADDED else 6 if token.startswith("<0x") else 1
                            for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(tokens.index("<bos>"))
    writer.add_eos_token_id(tokens.index("<eos>"))
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(False)  # as older files say; their text begins with it nevertheless
    close(writer)
    return {"with_special": [tokenizer.encode(text).ids for text in TEXTS],
            "without": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]}


def write_sentencepiece():
    """The ids are those of sentencepiece, which knows no special tokens in a text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING * 20), model_writer=model, vocab_size=560, model_type="bpe", byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, minloglevel=2)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(pieces.vocab_size())
    writer = gguf.GGUFWriter(OUT / "tokenizers" / "sentencepiece.gguf", "none")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([pieces.id_to_piece(id) for id in ids])
    writer.add_token_scores([pieces.get_score(id) for id in ids])
    writer.add_token_types([2 if pieces.is_unknown(id) else 3 if pieces.is_control(id) else 6 if pieces.is_byte(id) else 1
                            for id in ids])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    close(writer)
    texts = [text for text in TEXTS if not any(word in text for word in ("<s>", "</s>", "<unk>"))]
    return {"texts": texts, "with_special": [[pieces.bos_id()] + pieces.encode(text) for text in texts],
            "without": [pieces.encode(text) for text in texts]}


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenizers():
    (OUT / "tokenizers").mkdir(exist_ok=True)
    (OUT / "tokenizers" / "texts.json").write_text(json.dumps(TEXTS, indent=0) + "\n")
    cases = {pre: write_byte_level(pre) for pre in (
        "gpt-2", "olmo", "smollm", "llama-bpe", "dbrx", "glm4", "qwen2", "stablelm2", "qwen35", "tekken", "gpt-4o", "falcon",
        "bloom")}
    cases["gemma4"] = write_gemma4()
    cases["sentencepiece"] = write_sentencepiece()
    (OUT / "tokenizers" / "ids.json").write_text(json.dumps(cases) + "\n")


OUT.mkdir(exist_ok=True)
types()
tokenizers()
