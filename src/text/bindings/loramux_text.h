/* The C interface of the Rust library in this folder: Hugging Face tokenizers, and chat templates.
 *
 * Ownership: a function that fills a loramux_buffer, loramux_ids or handle gives it to the caller, who frees it with
 * the matching function below. Inputs are borrowed for the call only, need no terminating zero, and may be null when
 * their size is 0.
 * Errors: functions return a status; unless it is LORAMUX_TEXT_OK, nothing is written to `out`, and `error` (may be
 * null) receives a message in UTF-8, to be freed like any buffer.
 * Threads: handles of tokenizers and templates may be used from many threads at once; a decode stream from one.
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
  LORAMUX_TEXT_INTERNAL = 4     /* a fault of the library */
} loramux_text_status;

typedef struct loramux_buffer {
  uint8_t* data; /* UTF-8, not terminated; null means "nothing" where a function says so */
  size_t size;
} loramux_buffer;

typedef struct loramux_ids {
  int32_t* data;
  size_t size;
} loramux_ids;

typedef struct loramux_tokenizer loramux_tokenizer;
typedef struct loramux_decode_stream loramux_decode_stream;
typedef struct loramux_template loramux_template;

void loramux_text_buffer_free(loramux_buffer buffer);
void loramux_text_ids_free(loramux_ids ids);

/* Parses the text of a tokenizer.json. Its truncation and padding are ignored. */
loramux_text_status loramux_tokenizer_parse(const uint8_t* json, size_t json_size, loramux_tokenizer** out,
                                            loramux_buffer* error);
void loramux_tokenizer_free(loramux_tokenizer* tokenizer);
loramux_text_status loramux_tokenizer_encode(const loramux_tokenizer* tokenizer, const uint8_t* text, size_t text_size,
                                             bool add_special_tokens, loramux_ids* out, loramux_buffer* error);
/* An id outside the vocabulary is an error. */
loramux_text_status loramux_tokenizer_decode(const loramux_tokenizer* tokenizer, const int32_t* ids, size_t ids_size,
                                             bool skip_special_tokens, loramux_buffer* out, loramux_buffer* error);
/* One more than the greatest id. */
int64_t loramux_tokenizer_vocab_size(const loramux_tokenizer* tokenizer);
/* A null buffer if there is no such id. */
loramux_buffer loramux_tokenizer_id_to_token(const loramux_tokenizer* tokenizer, int32_t id);
/* -1 if there is no such token. */
int32_t loramux_tokenizer_token_to_id(const loramux_tokenizer* tokenizer, const uint8_t* token, size_t token_size);
bool loramux_tokenizer_is_special(const loramux_tokenizer* tokenizer, int32_t id);

/* Decodes one sequence token by token. The stream keeps the tokenizer alive by itself. Null if memory is short. */
loramux_decode_stream* loramux_decode_stream_new(const loramux_tokenizer* tokenizer, bool skip_special_tokens);
void loramux_decode_stream_free(loramux_decode_stream* stream);
/* The text that became certain with this token. An id outside the vocabulary is an error and changes nothing. */
loramux_text_status loramux_decode_stream_push(loramux_decode_stream* stream, int32_t id, loramux_buffer* out,
                                               loramux_buffer* error);
/* The rest of the text, at the end of the sequence. */
loramux_text_status loramux_decode_stream_finish(loramux_decode_stream* stream, loramux_buffer* out,
                                                 loramux_buffer* error);

/* Compiles a chat template. `special_tokens` is a JSON object of variables that every rendering sees. */
loramux_text_status loramux_template_parse(const uint8_t* source, size_t source_size, const uint8_t* special_tokens,
                                           size_t special_tokens_size, loramux_template** out, loramux_buffer* error);
void loramux_template_free(loramux_template* chat_template);
/* Renders with the variables of the JSON object `context`, as transformers' apply_chat_template does.
 * `unix_seconds` is what strftime_now reads, in UTC. A call of raise_exception(m) fails with the message m. */
loramux_text_status loramux_template_render(const loramux_template* chat_template, const uint8_t* context,
                                            size_t context_size, bool add_generation_prompt, int64_t unix_seconds,
                                            loramux_buffer* out, loramux_buffer* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
