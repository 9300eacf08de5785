//! The functions of `loramux_text.h` about grammars.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use super::{Environment, Grammar, Kind, SequenceMatcher};
use crate::tokenizer::Tokenizer;
use crate::{guard, memory, prepare_process, slice, text, Buffer, Status};

unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(handle))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn loramux_grammars_new(
    tokenizer: *const Arc<Tokenizer>,
    eos: *const i32,
    eos_size: usize,
    out: *mut *mut Arc<Environment>,
    error: *mut Buffer,
) -> Status {
    prepare_process();
    guard(error, || {
        *out = Box::into_raw(Box::new(Arc::new(Environment::new(&*tokenizer, slice(eos, eos_size))?)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_grammars_free(grammars: *mut Arc<Environment>) {
    free(grammars);
}

#[no_mangle]
pub unsafe extern "C" fn loramux_grammars_vocab_size(grammars: *const Arc<Environment>) -> usize {
    (*grammars).vocab_size()
}

#[no_mangle]
pub unsafe extern "C" fn loramux_grammar_compile(
    grammars: *const Arc<Environment>,
    kind: Kind,
    source: *const u8,
    source_size: usize,
    max_milliseconds: u64,
    out: *mut *mut Grammar,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        memory::check()?;
        let compiled = (*grammars).compile(kind, text(source, source_size, "the grammar")?, Duration::from_millis(max_milliseconds))?;
        *out = Box::into_raw(Box::new(compiled));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_grammar_free(grammar: *mut Grammar) {
    free(grammar);
}

#[no_mangle]
pub unsafe extern "C" fn loramux_grammar_bytes(grammar: *const Grammar) -> usize {
    (*grammar).bytes()
}

#[no_mangle]
pub unsafe extern "C" fn loramux_matcher_new(
    grammar: *const Grammar,
    out: *mut *mut SequenceMatcher,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        *out = Box::into_raw(Box::new((*grammar).matcher()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_matcher_free(matcher: *mut SequenceMatcher) {
    free(matcher);
}

#[no_mangle]
pub unsafe extern "C" fn loramux_matcher_mask(
    matcher: *mut SequenceMatcher,
    words: *mut u32,
    word_count: usize,
    error: *mut Buffer,
) -> Status {
    guard(error, || {
        let words = if word_count == 0 { &mut [] } else { std::slice::from_raw_parts_mut(words, word_count) };
        (*matcher).mask(words)
    })
}

#[no_mangle]
pub unsafe extern "C" fn loramux_matcher_accept(matcher: *mut SequenceMatcher, id: i32, error: *mut Buffer) -> Status {
    guard(error, || (*matcher).accept(id))
}
