//! Constrained decoding: which tokens may follow, so that the text matches a grammar. A wrapper of llguidance with the
//! limits that a server needs.

mod calls;
mod gbnf;
mod interface;
mod multiples;
mod patterns;
mod schema;

use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::memory::TimeLimit;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// The language of a grammar; `loramux_grammar_kind` in the header.
#[repr(C)]
#[allow(dead_code)] // C++ makes the values
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    JsonSchema = 0,
    CompactJsonSchema = 1,
    Regex = 2,
    Lark = 3,
    Gbnf = 4,
    ToolCalls = 5,
}

/// The most bytes of a grammar's text; of a schema's without what it says for people.
const MAX_TEXT: usize = 128 << 10;
/// The most bytes of the text of schemas with that.
const MAX_SCHEMAS: usize = 1 << 20;
/// The most nested brackets in a regular expression or grammar. JSON has a limit of its own (serde_json's 128).
const MAX_NESTING: usize = 128;
/// The most marks ?, *, + and, outside JSON, {. Memory and time of what can be left out grow with the square.
const MAX_QUANTIFIERS: usize = 2000;
/// The most bytes of a compiled grammar. Every sequence takes as much.
const MAX_BYTES: usize = 8 << 20;
/// The compiler and what it calls are recursive.
const COMPILER_STACK: usize = 64 << 20;
/// Between two looks whether the time has passed.
const LOOK: Duration = Duration::from_millis(10);
/// The most bytes of a token that the tree of tokens can hold. A longer one is never allowed.
const MAX_TOKEN_BYTES: usize = 1000;
/// The most characters of an error that is shown to a client.
const MAX_MESSAGE: usize = 400;

/// What all grammars of a tokenizer share.
pub struct Environment {
    factory: ParserFactory,
    vocab_size: usize,
}

impl Environment {
    /// `eos` are the tokens that end a text. Error: the tokenizer's tokens have no bytes of their own.
    pub fn new(tokenizer: &Tokenizer, eos: &[i32]) -> Result<Self> {
        let eos: Vec<u32> = eos.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        let Some(&last) = eos.iter().max() else {
            return Err(Error::unsupported("the model has no end-of-sequence token, so a grammar could never end"));
        };
        let vocab_size = (tokenizer.vocab_size() as usize).max(last as usize + 1);
        let words = (0..vocab_size as i32).map(|id| word(tokenizer, id)).collect::<Result<Vec<_>>>()?;
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, eos[0]), &words).with_eos_tokens(&eos);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices).map_err(|e| invalid(&e))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let environment = Environment { factory, vocab_size };
        environment.compile_here(Kind::Regex, "a")?;
        // With its first grammar, llguidance installs a hook that writes a backtrace for each panic, which takes long.
        std::panic::set_hook(Box::new(|_| {}));
        Ok(environment)
    }

    /// One more than the largest token id that a mask can allow.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Compiles on a thread with a deep stack. Error: the text is wrong, not supported, or too complex, or it takes more
    /// than `most` of the processor's time.
    pub fn compile(self: &Arc<Self>, kind: Kind, text: &str, most: Duration) -> Result<Grammar> {
        check_size(text, if is_json(kind) { MAX_SCHEMAS } else { MAX_TEXT })?;
        let (environment, text, (send, receive)) = (self.clone(), text.to_owned(), mpsc::sync_channel(1));
        let time = Arc::new(TimeLimit::new(most));
        let limit = time.clone();
        std::thread::Builder::new()
            .stack_size(COMPILER_STACK)
            .spawn(move || {
                let compiled = limit.run(|| {
                    if patterns::check(kind, &text)? == patterns::Use::Together && TimeLimit::none_left() {
                        return Err(Error::exhausted("it combines patterns, and too many such grammars took too long"));
                    }
                    environment.compile_here(kind, &text)
                });
                let _ = send.send(compiled);
            })
            .map_err(|e| Error::unavailable(format!("cannot start a thread to compile a grammar: {e}")))?;
        loop {
            match receive.recv_timeout(LOOK) {
                Ok(compiled) => return compiled,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Error::invalid("the grammar's compiler failed on it")),
                Err(mpsc::RecvTimeoutError::Timeout) if time.passed() => {
                    return Err(Error::exhausted(format!("compiling it takes more than {} ms", most.as_millis())))
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn compile_here(&self, kind: Kind, text: &str) -> Result<Grammar> {
        let parser = self.factory.create_parser(grammar(kind, text)?).map_err(|e| refused(kind, text, &e))?;
        let lexer_bytes = parser.parser.lexer_stats().num_bytes;
        if lexer_bytes > MAX_BYTES {
            return Err(Error::exhausted(format!("compiled, it takes {lexer_bytes} bytes; at most {MAX_BYTES} are allowed")));
        }
        let mut prototype = Matcher::new(Ok(parser));
        // Fills the caches that every matcher starts with.
        prototype.compute_mask_or_eos().map_err(|e| invalid(&e))?;
        Ok(Grammar { prototype: Mutex::new(prototype), bytes: lexer_bytes + 16 * text.len() + (16 << 10) })
    }
}

/// A compiled grammar.
pub struct Grammar {
    prototype: Mutex<Matcher>,
    bytes: usize,
}

impl Grammar {
    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn matcher(&self) -> SequenceMatcher {
        let prototype = self.prototype.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        SequenceMatcher { matcher: prototype.deep_clone() }
    }
}

/// The state of one sequence.
pub struct SequenceMatcher {
    matcher: Matcher,
}

impl SequenceMatcher {
    /// Sets the bits of the tokens that may follow, and clears the others. At the end of the text these are the
    /// end-of-sequence tokens. Error: the grammar is stuck.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(0);
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| invalid(&e))?;
        let allowed = mask.as_slice();
        let count = allowed.len().min(words.len());
        words[..count].copy_from_slice(&allowed[..count]);
        Ok(())
    }

    /// Error: the grammar does not allow the token here.
    pub fn accept(&mut self, id: i32) -> Result<()> {
        let id = u32::try_from(id).map_err(|_| Error::invalid(format!("token id {id} is negative")))?;
        self.matcher.consume_token(id).map_err(|e| invalid(&e))
    }
}

/// The bytes of a token, as llguidance writes them: special tokens have a mark before their name. Empty: never allowed.
fn word(tokenizer: &Tokenizer, id: i32) -> Result<Vec<u8>> {
    let Ok(Some(token)) = tokenizer.decoder_input(id, false) else {
        return Ok(Vec::new());
    };
    let bytes = if tokenizer.is_special(id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], token.as_bytes()].concat()
    } else {
        tokenizer.plan().bytes_within(token).ok_or_else(|| {
            Error::unsupported("the text of this tokenizer's tokens depends on their neighbours (its decoder)")
        })?
    };
    Ok(if bytes.len() > MAX_TOKEN_BYTES { Vec::new() } else { bytes })
}

/// No grammar may take more than some ten milliseconds to compile or a few for a token, or more than some 16 MB.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 300_000,
        step_lexer_fuel: 100_000,
        max_lexer_states: 8_000,
        max_grammar_size: 250_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Whether a grammar's text is a JSON document.
fn is_json(kind: Kind) -> bool {
    matches!(kind, Kind::JsonSchema | Kind::CompactJsonSchema | Kind::ToolCalls)
}

fn check_size(text: &str, most: usize) -> Result<()> {
    if text.len() > most {
        return Err(Error::exhausted(format!("expected at most {most} bytes, found {}", text.len())));
    }
    Ok(())
}

/// Checks what the compiler is to read.
fn check_text(text: &str, json: bool) -> Result<()> {
    check_size(text, MAX_TEXT)?;
    if text.contains('\0') {
        return Err(Error::invalid("expected text without a zero byte"));
    }
    check_quantifiers(text, json)?;
    multiples::check(text)?;
    if !json && nesting(text) > MAX_NESTING {
        return Err(Error::exhausted(format!("expected brackets nested at most {MAX_NESTING} deep, found more")));
    }
    Ok(())
}

fn check_quantifiers(text: &str, json: bool) -> Result<()> {
    let bytes = text.as_bytes();
    let repeats = |at: usize| match bytes[at] {
        b'?' | b'*' | b'+' => true,
        b'{' => !json && is_count(&bytes[..at], &bytes[at + 1..]),
        _ => false,
    };
    let count = (0..bytes.len()).filter(|at| repeats(*at)).count();
    if count > MAX_QUANTIFIERS {
        return Err(Error::exhausted(format!("expected at most {MAX_QUANTIFIERS} repetitions, found {count}")));
    }
    Ok(())
}

/// Whether a brace between these bytes may begin a count such as `{2,3}`: no object of JSON, and no character `\x{e9}`.
fn is_count(before: &[u8], after: &[u8]) -> bool {
    let first = after.iter().find(|byte| !byte.is_ascii_whitespace());
    if !matches!(first, Some(b'0'..=b'9' | b',')) {
        return false;
    }
    let Some((b'x' | b'u' | b'U', rest)) = before.split_last() else { return true };
    rest.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
}

/// The deepest nesting of brackets of any kind. Brackets in texts count too.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn grammar(kind: Kind, text: &str) -> Result<TopLevelGrammar> {
    if !is_json(kind) {
        check_text(text, false)?;
    }
    match kind {
        Kind::JsonSchema => Ok(TopLevelGrammar::from_json_schema(schema(text, false)?)),
        Kind::CompactJsonSchema => Ok(TopLevelGrammar::from_json_schema(schema(text, true)?)),
        Kind::Regex => Ok(TopLevelGrammar::from_regex(text)),
        Kind::Lark => Ok(TopLevelGrammar::from_lark(text.to_owned())),
        Kind::Gbnf => {
            let lark = gbnf::to_lark(text)?;
            check_quantifiers(&lark, false)?;
            Ok(TopLevelGrammar::from_lark(lark))
        }
        Kind::ToolCalls => {
            let lark = calls::to_lark(text)?;
            check_text(&lark, true)?;
            Ok(TopLevelGrammar::from_lark(lark))
        }
    }
}

/// Parses a schema, and adds how its documents are written.
fn schema(text: &str, compact: bool) -> Result<Value> {
    multiples::check(text)?; // a number that is out of JSON's range is one of them
    let parsed: Value = serde_json::from_str(text).map_err(|e| Error::invalid(format!("not a JSON document: {e}")))?;
    let prepared = schema::prepare(parsed)?;
    check_text(&Value::Object(prepared.clone()).to_string(), true)?;
    Ok(schema::add_style(prepared, compact))
}

/// The error of the compiler. Of a schema it names the keyword, where llguidance does not.
fn refused(kind: Kind, text: &str, error: &dyn std::fmt::Display) -> Error {
    let message = error.to_string();
    let message = plain(&message);
    invalid(&match kind {
        Kind::Regex | Kind::Lark | Kind::Gbnf => message.to_owned(),
        Kind::ToolCalls => calls::explain(text, message),
        Kind::JsonSchema | Kind::CompactJsonSchema => schema::explain(message),
    })
}

/// A message of the library without what only its programmers need.
fn plain(message: &str) -> &str {
    match message.split("\n<").next().unwrap_or_default().trim() {
        "NoExtensionBias" => "no text can follow",
        shown if shown.starts_with("panic:") => "the compiler of grammars failed on it",
        shown => shown,
    }
}

/// The beginning of a message that may be long.
fn invalid(error: &dyn std::fmt::Display) -> Error {
    let message = error.to_string();
    let shown = plain(&message);
    let mut text: String = shown.chars().take(MAX_MESSAGE).collect();
    if shown.chars().count() > MAX_MESSAGE {
        text.push_str("...");
    }
    Error::invalid(text)
}
