/* The C interface of the Rust library in this directory: Hugging Face tokenizers, chat templates, and grammars that
 * constrain what is generated.
 *
 * Ownership: the caller owns a loramux_buffer, loramux_ids or handle that a function fills, and must free it with the
 * matching function below. Inputs are borrowed for the call only, need no terminating zero, and may be null if their
 * size is 0.
 * Errors: functions return a status. Unless it is LORAMUX_TEXT_OK, nothing is written to `out`, and `error` (may be
 * null) receives a message in UTF-8, which the caller frees like any buffer.
 * Threads: handles of tokenizers, templates and grammars may be used from many threads at once; a decode stream or a
 * matcher from one at a time.
 * No panic leaves the library: it is reported as LORAMUX_TEXT_INTERNAL. */
#ifndef LORAMUX_TEXT_BINDINGS_LORAMUX_TEXT_H_
#define LORAMUX_TEXT_BINDINGS_LORAMUX_TEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum loramux_text_status {
  LORAMUX_TEXT_OK = 0,
  LORAMUX_TEXT_INVALID = 1,     /* the input is wrong */
  LORAMUX_TEXT_EXHAUSTED = 2,   /* a limit of steps, size or depth was reached */
  LORAMUX_TEXT_UNSUPPORTED = 3, /* well-formed, but refused by name */
  LORAMUX_TEXT_INTERNAL = 4,    /* a fault of the library */
  LORAMUX_TEXT_UNAVAILABLE = 5  /* the process has too little memory now */
} loramux_text_status;

typedef struct loramux_buffer {
  uint8_t* data; /* UTF-8, not terminated; null only where a function says so */
  size_t size;
} loramux_buffer;

typedef struct loramux_ids {
  int32_t* data;
  size_t size;
} loramux_ids;

typedef struct loramux_tokenizer loramux_tokenizer;
typedef struct loramux_decode_stream loramux_decode_stream;
typedef struct loramux_template loramux_template;
typedef struct loramux_grammars loramux_grammars;
typedef struct loramux_grammar loramux_grammar;
typedef struct loramux_matcher loramux_matcher;

/* The library keeps memory aside, of which each of its own allocations that fails gives up a part. This gives up a part
 * for an allocation elsewhere that failed. False: nothing is left. May be called on any thread. */
bool loramux_text_give_up_memory(void);

/* Free what a function of this library returned. */
void loramux_text_buffer_free(loramux_buffer buffer);
void loramux_text_ids_free(loramux_ids ids);

/* Parses the text of a tokenizer.json. Ignores its truncation and padding. */
loramux_text_status loramux_tokenizer_parse(const uint8_t* json, size_t json_size, loramux_tokenizer** out,
                                            loramux_buffer* error);
void loramux_tokenizer_free(loramux_tokenizer* tokenizer);
/* Error: `text` is not valid UTF-8. */
loramux_text_status loramux_tokenizer_encode(const loramux_tokenizer* tokenizer, const uint8_t* text, size_t text_size,
                                             bool add_special_tokens, loramux_ids* out, loramux_buffer* error);
/* Encodes two texts as one, as the tokenizer's post-processor joins them. With more than `max_tokens` tokens, the
 * longer text loses its end first; 0: nothing is cut. Error: as above. */
loramux_text_status loramux_tokenizer_encode_pair(const loramux_tokenizer* tokenizer, const uint8_t* first,
                                                  size_t first_size, const uint8_t* second, size_t second_size,
                                                  bool add_special_tokens, size_t max_tokens, loramux_ids* out,
                                                  loramux_buffer* error);
/* Error: an id outside the vocabulary. */
loramux_text_status loramux_tokenizer_decode(const loramux_tokenizer* tokenizer, const int32_t* ids, size_t ids_size,
                                             bool skip_special_tokens, loramux_buffer* out, loramux_buffer* error);
/* One more than the largest id. */
int64_t loramux_tokenizer_vocab_size(const loramux_tokenizer* tokenizer);
/* The most bytes of text that one token can stand for; 0: there is no such bound. */
size_t loramux_tokenizer_max_token_bytes(const loramux_tokenizer* tokenizer);
/* A null buffer if there is no such id. */
loramux_buffer loramux_tokenizer_id_to_token(const loramux_tokenizer* tokenizer, int32_t id);
/* -1 if there is no such token. */
int32_t loramux_tokenizer_token_to_id(const loramux_tokenizer* tokenizer, const uint8_t* token, size_t token_size);
/* Whether the id is an added token marked special. */
bool loramux_tokenizer_is_special(const loramux_tokenizer* tokenizer, int32_t id);

/* Decodes one sequence token by token. The stream keeps the tokenizer alive. Returns null if memory is short. */
loramux_decode_stream* loramux_decode_stream_new(const loramux_tokenizer* tokenizer, bool skip_special_tokens);
void loramux_decode_stream_free(loramux_decode_stream* stream);
/* Returns the text that became final with this token. Error: an id outside the vocabulary; it changes nothing. */
loramux_text_status loramux_decode_stream_push(loramux_decode_stream* stream, int32_t id, loramux_buffer* out,
                                               loramux_buffer* error);
/* Returns the text that loramux_decode_stream_finish would return now. Takes time that grows with this text. */
loramux_text_status loramux_decode_stream_held(const loramux_decode_stream* stream, loramux_buffer* out,
                                               loramux_buffer* error);
/* Returns the remaining text at the end of the sequence. */
loramux_text_status loramux_decode_stream_finish(loramux_decode_stream* stream, loramux_buffer* out,
                                                 loramux_buffer* error);

/* Compiles a chat template. `special_tokens` is a JSON object of variables that every rendering sees. */
loramux_text_status loramux_template_parse(const uint8_t* source, size_t source_size, const uint8_t* special_tokens,
                                           size_t special_tokens_size, loramux_template** out, loramux_buffer* error);
void loramux_template_free(loramux_template* chat_template);
/* The form in which a template gets the content of messages. In all but the first, ids of tool calls become what the
 * template accepts. */
typedef enum loramux_content_format {
  LORAMUX_CONTENT_AS_GIVEN = 0,
  LORAMUX_CONTENT_AUTO = 1, /* texts or lists of parts: for each role what the template prints */
  LORAMUX_CONTENT_TEXT = 2,
  LORAMUX_CONTENT_PARTS = 3 /* lists, but for results of tools */
} loramux_content_format;

typedef struct loramux_render_options {
  bool add_generation_prompt;
  bool fold_system;        /* merges system messages that the template does not print in their place into others */
  uint32_t content_format; /* loramux_content_format */
  int64_t unix_seconds;    /* the time that strftime_now returns */
  int64_t utc_offset;      /* seconds by which local time, in which it returns it, is ahead of UTC */
} loramux_render_options;

/* Renders with the variables of the JSON object `context`, as apply_chat_template of transformers does. A call of
 * raise_exception(m) fails with message m. */
loramux_text_status loramux_template_render(const loramux_template* chat_template, const uint8_t* context,
                                            size_t context_size, const loramux_render_options* options,
                                            loramux_buffer* out, loramux_buffer* error);

/* The language of a grammar. */
typedef enum loramux_grammar_kind {
  LORAMUX_GRAMMAR_JSON_SCHEMA = 0,         /* JSON documents that a schema describes, with up to 40 white spaces */
  LORAMUX_GRAMMAR_COMPACT_JSON_SCHEMA = 1, /* the same without white space */
  LORAMUX_GRAMMAR_REGEX = 2,               /* texts that match from end to end */
  LORAMUX_GRAMMAR_LARK = 3,
  LORAMUX_GRAMMAR_GBNF = 4,      /* llama.cpp's */
  LORAMUX_GRAMMAR_TOOL_CALLS = 5 /* calls of tools; bindings/src/grammar/calls.rs has the form */
} loramux_grammar_kind;

/* Makes what all grammars over a tokenizer's tokens share. `eos` are the tokens that end a text. Errors: there is none;
 * the tokens have no bytes of their own. */
loramux_text_status loramux_grammars_new(const loramux_tokenizer* tokenizer, const int32_t* eos, size_t eos_size,
                                         loramux_grammars** out, loramux_buffer* error);
void loramux_grammars_free(loramux_grammars* grammars);
/* One more than the largest token id that a mask can allow. */
size_t loramux_grammars_vocab_size(const loramux_grammars* grammars);

/* Compiles. A grammar does not need its loramux_grammars any more. Errors: the source is wrong, too large or too
 * complex, or uses what is not supported; it takes more of the processor's time than `max_milliseconds`. The thread
 * that compiles then sleeps and keeps its memory until the process ends, as it can be stopped in no other way. */
loramux_text_status loramux_grammar_compile(const loramux_grammars* grammars, loramux_grammar_kind kind,
                                            const uint8_t* source, size_t source_size, uint64_t max_milliseconds,
                                            loramux_grammar** out, loramux_buffer* error);
void loramux_grammar_free(loramux_grammar* grammar);
/* About how many bytes it takes. */
size_t loramux_grammar_bytes(const loramux_grammar* grammar);

/* A matcher follows one sequence. It does not need its grammar any more. */
loramux_text_status loramux_matcher_new(const loramux_grammar* grammar, loramux_matcher** out, loramux_buffer* error);
void loramux_matcher_free(loramux_matcher* matcher);
/* Sets the bit of each token that may follow (bit id % 32 of word id / 32), clears the others. Where the text must end,
 * these are the tokens that end it. Error: the grammar is stuck, or too complex here. */
loramux_text_status loramux_matcher_mask(loramux_matcher* matcher, uint32_t* words, size_t word_count,
                                         loramux_buffer* error);
/* Takes the next token. Error: it may not follow. */
loramux_text_status loramux_matcher_accept(loramux_matcher* matcher, int32_t id, loramux_buffer* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
