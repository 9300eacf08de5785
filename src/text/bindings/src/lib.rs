//! The C interface that `loramux_text.h` documents. Every entry point runs inside `guard`, so no panic of this crate or
//! its dependencies crosses into C++.

// The header documents the requirements on the pointers of each entry point.
#![allow(clippy::missing_safety_doc)]

mod bound;
mod detokenize;
mod grammar;
mod memory;
mod template;
mod tokenizer;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use detokenize::DecodeStream;
use template::{ChatTemplate, ContentFormat};
use tokenizer::Tokenizer;

/// The kind of an error; `loramux_text_status` in the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// The caller's input is wrong.
    Invalid = 1,
    /// A limit of steps, size or depth was reached.
    Exhausted = 2,
    /// Well-formed, but refused by name.
    Unsupported = 3,
    /// A fault of this library: a caught panic.
    Internal = 4,
    /// The process has too little memory now.
    Unavailable = 5,
}

/// The error type of all functions behind the interface.
#[derive(Debug)]
pub struct Error {
    pub status: Status,
    pub message: String,
}

impl Error {
    pub fn invalid(message: impl Into<String>) -> Self {
        Error { status: Status::Invalid, message: message.into() }
    }
    pub fn exhausted(message: impl Into<String>) -> Self {
        Error { status: Status::Exhausted, message: message.into() }
    }
    pub fn unsupported(message: impl Into<String>) -> Self {
        Error { status: Status::Unsupported, message: message.into() }
    }
    pub fn unavailable(message: impl Into<String>) -> Self {
        Error { status: Status::Unavailable, message: message.into() }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Bytes owned by this library until `loramux_text_buffer_free`.
#[repr(C)]
pub struct Buffer {
    data: *mut u8,
    size: usize,
}

impl Buffer {
    const EMPTY: Buffer = Buffer { data: std::ptr::null_mut(), size: 0 };

    fn new(bytes: Vec<u8>) -> Self {
        let bytes = bytes.into_boxed_slice();
        let size = bytes.len();
        Buffer { data: Box::into_raw(bytes) as *mut u8, size }
    }
}

/// Token ids owned by this library until `loramux_text_ids_free`.
#[repr(C)]
pub struct Ids {
    data: *mut i32,
    size: usize,
}

/// Runs `body`; writes its error or its panic message to `error`.
unsafe fn guard(error: *mut Buffer, body: impl FnOnce() -> Result<()>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let what = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown panic");
            Error { status: Status::Internal, message: format!("fault in the text library: {what}") }
        }
    };
    if !error.is_null() {
        *error = Buffer::new(failure.message.into_bytes());
    }
    failure.status
}

/// The `size` items at `data`; C++ may pass a null pointer for an empty slice.
unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

unsafe fn text<'a>(data: *const u8, size: usize, what: &str) -> Result<&'a str> {
    std::str::from_utf8(slice(data, size))
        .map_err(|e| Error::invalid(format!("{what} is not valid UTF-8 (at byte {})", e.valid_up_to())))
}

/// Initialization before anything is parsed. Panics are reported through the error channel; the default hook would also
/// print them on stderr.
fn prepare_process() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|_| {}));
        tokenizer::limit_regex_work();
        memory::set_aside();
    });
}

#[no_mangle]
pub unsafe extern "C" fn loramux_text_buffer_free(buffer: Buffer) {
    if !buffer.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer.data, buffer.size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn loramux_text_ids_free(ids: Ids) {
    if !ids.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_parse(
    json: *const u8,
    json_size: usize,
    out: *mut *mut Arc<Tokenizer>,
    error: *mut Buffer,
) -> Status {
    prepare_process();
    guard(error, || {
        let tokenizer = Tokenizer::parse(text(json, json_size, "the tokenizer")?)?;
        *out = Box::into_raw(Box::new(Arc::new(tokenizer)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_free(tokenizer: *mut Arc<Tokenizer>) {
    if !tokenizer.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(tokenizer))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_encode(
    tokenizer: *const Arc<Tokenizer>,
    input: *const u8,
    input_size: usize,
    add_special_tokens: bool,
    out: *mut Ids,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        memory::check()?;
        let ids = (*tokenizer).encode(text(input, input_size, "the text to encode")?, add_special_tokens)?;
        let ids = ids.into_boxed_slice();
        let size = ids.len();
        *out = Ids { data: Box::into_raw(ids) as *mut i32, size };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_encode_pair(
    tokenizer: *const Arc<Tokenizer>,
    first: *const u8,
    first_size: usize,
    second: *const u8,
    second_size: usize,
    add_special_tokens: bool,
    max_tokens: usize,
    out: *mut Ids,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        memory::check()?;
        let first = text(first, first_size, "the first text to encode")?;
        let second = text(second, second_size, "the second text to encode")?;
        let max_tokens = Some(max_tokens).filter(|&max_tokens| max_tokens > 0);
        let ids = (*tokenizer).encode_pair(first, second, add_special_tokens, max_tokens)?;
        let ids = ids.into_boxed_slice();
        let size = ids.len();
        *out = Ids { data: Box::into_raw(ids) as *mut i32, size };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_decode(
    tokenizer: *const Arc<Tokenizer>,
    ids: *const i32,
    ids_size: usize,
    skip_special_tokens: bool,
    out: *mut Buffer,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        memory::check()?;
        *out = Buffer::new((*tokenizer).decode(slice(ids, ids_size), skip_special_tokens)?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_vocab_size(tokenizer: *const Arc<Tokenizer>) -> i64 {
    (*tokenizer).vocab_size()
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_max_token_bytes(tokenizer: *const Arc<Tokenizer>) -> usize {
    (*tokenizer).max_token_bytes().unwrap_or(0)
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_id_to_token(tokenizer: *const Arc<Tokenizer>, id: i32) -> Buffer {
    catch_unwind(AssertUnwindSafe(|| (*tokenizer).id_to_token(id)))
        .ok()
        .flatten()
        .map_or(Buffer::EMPTY, |token| Buffer::new(token.into_bytes()))
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_token_to_id(
    tokenizer: *const Arc<Tokenizer>,
    token: *const u8,
    token_size: usize,
) -> i32 {
    catch_unwind(AssertUnwindSafe(|| {
        std::str::from_utf8(slice(token, token_size)).ok().and_then(|token| (*tokenizer).token_to_id(token))
    }))
    .ok()
    .flatten()
    .unwrap_or(-1)
}

#[no_mangle]
pub unsafe extern "C" fn loramux_tokenizer_is_special(tokenizer: *const Arc<Tokenizer>, id: i32) -> bool {
    (*tokenizer).is_special(id)
}

#[no_mangle]
pub unsafe extern "C" fn loramux_decode_stream_new(
    tokenizer: *const Arc<Tokenizer>,
    skip_special_tokens: bool,
) -> *mut DecodeStream {
    catch_unwind(AssertUnwindSafe(|| {
        Box::into_raw(Box::new(DecodeStream::new((*tokenizer).clone(), skip_special_tokens)))
    }))
    .unwrap_or(std::ptr::null_mut())
}

#[no_mangle]
pub unsafe extern "C" fn loramux_decode_stream_free(stream: *mut DecodeStream) {
    if !stream.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(stream))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn loramux_decode_stream_push(
    stream: *mut DecodeStream,
    id: i32,
    out: *mut Buffer,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        *out = Buffer::new((*stream).push(id)?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_decode_stream_held(
    stream: *const DecodeStream,
    out: *mut Buffer,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        *out = Buffer::new((*stream).held()?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_decode_stream_finish(
    stream: *mut DecodeStream,
    out: *mut Buffer,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        *out = Buffer::new((*stream).finish()?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_template_parse(
    source: *const u8,
    source_size: usize,
    special_tokens: *const u8,
    special_tokens_size: usize,
    out: *mut *mut ChatTemplate,
    error: *mut Buffer,
) -> Status {
    prepare_process();
    guard(error, || {
        let source = text(source, source_size, "the template")?;
        let special_tokens = text(special_tokens, special_tokens_size, "the special tokens")?;
        *out = Box::into_raw(Box::new(ChatTemplate::parse(source, special_tokens)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(template))));
    }
}

/// `loramux_render_options` of the header.
#[repr(C)]
pub struct RenderOptions {
    add_generation_prompt: bool,
    fold_system: bool,
    content_format: u32,
    unix_seconds: i64,
    utc_offset: i64,
}

#[no_mangle]
pub unsafe extern "C" fn loramux_template_render(
    template: *const ChatTemplate,
    context: *const u8,
    context_size: usize,
    options: *const RenderOptions,
    out: *mut Buffer,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        memory::check()?;
        let context = text(context, context_size, "the template's variables")?;
        let options = &*options;
        let options = template::Options {
            add_generation_prompt: options.add_generation_prompt,
            unix_seconds: options.unix_seconds,
            utc_offset: options.utc_offset,
            format: match options.content_format {
                0 => ContentFormat::AsGiven,
                1 => ContentFormat::Auto,
                2 => ContentFormat::Text,
                _ => ContentFormat::Parts,
            },
            fold_system: options.fold_system,
        };
        let rendered = (*template).render(context, options)?;
        *out = Buffer::new(rendered.into_bytes());
        Ok(())
    })
}
