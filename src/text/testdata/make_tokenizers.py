#!/usr/bin/env python3
"""Makes the small tokenizers of this folder (tokenizers 0.23). Running it again gives the same bytes."""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
TEXT = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox doesn't.",
    "In the beginning there was a small tokenizer, and it knew three hundred words.",
    "Zürich naïve café über straße 12345 67890 (brackets) [more] {braces}",
    "日本語 テスト 中文 русский текст emoji 🙂 👍 end",
]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=330, show_progress=False, special_tokens=["<|bos|>", "<|end|>"],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens(["<note>", "two words"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))])
    return tokenizer


def sentencepiece():
    """As Llama 2: a metaspace for spaces, byte tokens for everything that is not in the vocabulary."""
    words = "\u2581the \u2581fox \u2581dog \u2581a \u2581 t h e f o x d g a b c z . , \u00e9 \u65e5".split(" ")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + words
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("o", "x"), ("f", "ox"), ("\u2581", "fox"), ("o", "g"),
              ("d", "og"), ("\u2581", "dog"), ("\u2581", "a")]
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in tokens:
                tokens.append(token)
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges,
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def write(name, tokenizer):
    (HERE / name).write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=0) + "\n",
                             encoding="utf-8")


write("byte_level.json", byte_level())
write("sentencepiece.json", sentencepiece())
