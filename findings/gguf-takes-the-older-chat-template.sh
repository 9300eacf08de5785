#!/usr/bin/env bash
# A folder with two chat templates: transformers takes chat_template.jinja, gguf takes that of tokenizer_config.json.
#
# Versions    transformers 5.24.0, jinja2 3.1.6, gguf 0.19.0
# Behaviour   save_pretrained writes chat_template.jinja. Older folders have `chat_template` in tokenizer_config.json, and
#             copies that were fine-tuned or repaired have both. transformers then uses the .jinja file. gguf's
#             SpecialVocab, by which llama.cpp's converter writes tokenizer.chat_template, uses the other one.
# Why         The GGUF file of a model asks in another format than the one that the model was trained or evaluated with.
#             Nothing fails: answers get worse.
# What to do  Compare both before a conversion, and delete the stale one.
# Seen        transformers "NEW hi", gguf "OLD {{ messages[0].content }}"
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6 gguf==0.19.0
check <<'EOF2'
import json, pathlib
from gguf import SpecialVocab
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")), unk_token="<unk>")
tokenizer.chat_template = "NEW {{ messages[0].content }}"
tokenizer.save_pretrained("model")
seen("files", sorted(p.name for p in pathlib.Path("model").iterdir()), ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"])
path = pathlib.Path("model/tokenizer_config.json")
path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": "OLD {{ messages[0].content }}"}))

chat = [{"role": "user", "content": "hi"}]
seen("transformers", AutoTokenizer.from_pretrained("model").apply_chat_template(chat, tokenize=False), "NEW hi")
seen("gguf", SpecialVocab(pathlib.Path("model")).chat_template, "OLD {{ messages[0].content }}")
EOF2
