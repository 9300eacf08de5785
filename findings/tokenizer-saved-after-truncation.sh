#!/usr/bin/env bash
# A tokenizer that is saved after a call with `truncation=True` cuts every prompt of whoever reads its tokenizer.json.
#
# Versions    transformers 5.24.0, tokenizers 0.23.3
# Behaviour   A call with truncation=True, max_length=N and padding leaves both in the fast tokenizer, and save_pretrained
#             writes them into tokenizer.json. AutoTokenizer overrides them in each call, so the trainer never sees it.
#             tokenizers' own Tokenizer.from_file keeps them: longer texts lose their end without a word, shorter ones
#             get padding tokens.
# Why         Trainers tokenize with truncation and then save the tokenizer beside the adapter. A server that reads
#             tokenizer.json with the tokenizers library answers to the beginning of the prompt.
# What to do  Take truncation and padding off after the load: no_truncation() and no_padding().
# Seen        6 tokens by AutoTokenizer, 3 by Tokenizer.from_file; 1 token becomes 3
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 tokenizers==0.23.3
check <<'EOF2'
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, **{w: i + 2 for i, w in enumerate("abcdef")}}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
trained = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")
trained(["a b c d"], truncation=True, max_length=3, padding="max_length")   # as a trainer prepares its data
trained.save_pretrained("adapter")

seen("AutoTokenizer, six words", AutoTokenizer.from_pretrained("adapter")("a b c d e f")["input_ids"], [2, 3, 4, 5, 6, 7])
raw = Tokenizer.from_file("adapter/tokenizer.json")
seen("Tokenizer.from_file, six words", raw.encode("a b c d e f").ids, [2, 3, 4])
seen("Tokenizer.from_file, one word", raw.encode("a").ids, [2, 1, 1])
raw.no_truncation()
raw.no_padding()
seen("without both", raw.encode("a b c d e f").ids, [2, 3, 4, 5, 6, 7])
EOF2
