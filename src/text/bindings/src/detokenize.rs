//! Decodes one token at a time. The concatenation of the pieces is exactly what the library decodes from all ids at
//! once.
//!
//! The library's decoders see the whole sequence, but nearly all of them are local: they change each token separately,
//! or gather bytes into characters. `Plan` recognizes such chains, and `DecodeStream` runs them as small state
//! machines. Each machine releases text as soon as no later token can change it. A chain that is not recognized (CTC, a
//! pattern over the fused text) keeps everything until the end: late, but correct.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tokenizers::decoders::DecoderWrapper;
use tokenizers::Decoder;

use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

const REPLACEMENT: &str = "\u{fffd}";

/// One step of a decoder chain. Steps before `Fuse` or `ByteLevel` process tokens; steps after them process running
/// text.
#[derive(Clone)]
enum Step {
    /// Changes every token separately.
    EachToken(DecoderWrapper),
    /// The same, but treats the first token differently.
    FirstDiffers(DecoderWrapper),
    /// The same, but treats the last token differently.
    LastDiffers(DecoderWrapper),
    /// No decoder: tokens are joined by a space.
    JoinBySpace,
    ByteFallback,
    Fuse,
    ByteLevel,
    /// After `Fuse`: removes up to `count` characters `content` from the start of the text.
    StripStart {
        content: char,
        count: usize,
    },
}

/// How to run a tokenizer's decoder incrementally. With no steps and `streams == false` it can only run as a whole.
pub struct Plan {
    steps: Vec<Step>,
    streams: bool,
}

impl Plan {
    pub fn new(decoder: Option<&DecoderWrapper>) -> Plan {
        let mut chain = Vec::new();
        match decoder {
            None => return Plan { steps: vec![Step::JoinBySpace], streams: true },
            Some(decoder) => flatten(decoder, &mut chain),
        }
        let mut steps = Vec::with_capacity(chain.len());
        let mut fused = false;
        for decoder in chain {
            match step(decoder, fused) {
                Some(step) => {
                    fused |= matches!(step, Step::Fuse | Step::ByteLevel);
                    steps.push(step);
                }
                None => return Plan { steps: Vec::new(), streams: false },
            }
        }
        Plan { steps, streams: true }
    }

    /// The bytes of a token that stands neither first nor last in its sequence; None if they depend on its neighbours.
    pub fn bytes_within(&self, token: String) -> Option<Vec<u8>> {
        if !self.streams {
            return None;
        }
        let mut tokens = vec![token];
        for step in &self.steps {
            match step {
                Step::EachToken(decoder) => tokens = decoder.decode_chain(tokens).ok()?,
                Step::FirstDiffers(decoder) => {
                    tokens.insert(0, String::new());
                    tokens = decoder.decode_chain(tokens).ok()?.split_off(1);
                }
                Step::LastDiffers(decoder) => {
                    tokens.push(String::new());
                    tokens = decoder.decode_chain(tokens).ok()?;
                    tokens.pop();
                }
                Step::ByteFallback => {
                    if let Some(byte) = byte_of(&tokens.concat()) {
                        return Some(vec![byte]);
                    }
                }
                Step::ByteLevel => {
                    let mut bytes = Vec::new();
                    append_bytes(&tokens.concat(), &mut bytes);
                    return Some(bytes);
                }
                Step::JoinBySpace => return None,
                Step::Fuse | Step::StripStart { .. } => {}
            }
        }
        Some(tokens.concat().into_bytes())
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, out: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().for_each(|d| flatten(d, out)),
        other => out.push(other),
    }
}

fn step(decoder: &DecoderWrapper, fused: bool) -> Option<Step> {
    if fused {
        return match decoder {
            DecoderWrapper::Fuse(_) => Some(Step::Fuse),
            DecoderWrapper::Strip(strip) if strip.stop == 0 => {
                Some(Step::StripStart { content: strip.content, count: strip.start })
            }
            _ => None,
        };
    }
    match decoder {
        DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_) => Some(Step::EachToken(decoder.clone())),
        DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) => Some(Step::FirstDiffers(decoder.clone())),
        DecoderWrapper::BPE(_) => Some(Step::LastDiffers(decoder.clone())),
        DecoderWrapper::ByteFallback(_) => Some(Step::ByteFallback),
        DecoderWrapper::ByteLevel(_) => Some(Step::ByteLevel),
        DecoderWrapper::Fuse(_) => Some(Step::Fuse),
        DecoderWrapper::CTC(_) | DecoderWrapper::Sequence(_) => None,
    }
}

/// The state of one step.
#[derive(Clone)]
enum Machine {
    EachToken(DecoderWrapper),
    FirstDiffers {
        decoder: DecoderWrapper,
        first: bool,
    },
    LastDiffers {
        decoder: DecoderWrapper,
        held: Option<String>,
    },
    JoinBySpace {
        first: bool,
    },
    /// A run of byte tokens becomes characters only if the whole run is valid UTF-8, otherwise one U+FFFD for each
    /// byte. So the run is kept while it can still be valid (`checked` bytes of it are) and is released at once when it
    /// cannot.
    ByteFallback {
        run: Vec<u8>,
        checked: usize,
        broken: bool,
    },
    Fuse,
    /// At most three bytes of an incomplete character.
    ByteLevel {
        pending: Vec<u8>,
    },
    StripStart {
        content: char,
        left: usize,
    },
}

impl Machine {
    fn new(step: &Step) -> Machine {
        match step {
            Step::EachToken(decoder) => Machine::EachToken(decoder.clone()),
            Step::FirstDiffers(decoder) => Machine::FirstDiffers { decoder: decoder.clone(), first: true },
            Step::LastDiffers(decoder) => Machine::LastDiffers { decoder: decoder.clone(), held: None },
            Step::JoinBySpace => Machine::JoinBySpace { first: true },
            Step::ByteFallback => Machine::ByteFallback { run: Vec::new(), checked: 0, broken: false },
            Step::Fuse => Machine::Fuse,
            Step::ByteLevel => Machine::ByteLevel { pending: Vec::new() },
            Step::StripStart { content, count } => Machine::StripStart { content: *content, left: *count },
        }
    }

    /// Processes one token (or piece of text) and appends the text that became final to `out`.
    fn push(&mut self, token: String, out: &mut Vec<String>) -> Result<()> {
        match self {
            Machine::EachToken(decoder) => out.extend(decode_chain(decoder, vec![token])?),
            Machine::FirstDiffers { decoder, first } => {
                if std::mem::take(first) {
                    out.extend(decode_chain(decoder, vec![token])?);
                } else {
                    out.extend(decode_chain(decoder, vec![String::new(), token])?.into_iter().skip(1));
                }
            }
            Machine::LastDiffers { decoder, held } => {
                if let Some(previous) = held.replace(token) {
                    out.extend(decode_chain(decoder, vec![previous, String::new()])?.into_iter().take(1));
                }
            }
            Machine::JoinBySpace { first } => {
                out.push(if std::mem::take(first) { token } else { format!(" {token}") });
            }
            Machine::ByteFallback { run, checked, broken } => match byte_of(&token) {
                Some(byte) => push_byte(byte, run, checked, broken, out),
                None => {
                    end_run(run, checked, broken, out);
                    out.push(token);
                }
            },
            Machine::Fuse => out.push(token),
            Machine::ByteLevel { pending } => {
                append_bytes(&token, pending);
                out.push(take_characters(pending));
            }
            Machine::StripStart { content, left } => {
                let mut rest = token.as_str();
                while *left > 0 && !rest.is_empty() {
                    match rest.strip_prefix(*content) {
                        Some(stripped) => {
                            rest = stripped;
                            *left -= 1;
                        }
                        None => *left = 0,
                    }
                }
                out.push(rest.to_owned());
            }
        }
        Ok(())
    }

    /// Appends the text held back, at the end of the sequence.
    fn finish(&mut self, out: &mut Vec<String>) -> Result<()> {
        match self {
            Machine::LastDiffers { decoder, held } => {
                if let Some(last) = held.take() {
                    out.extend(decode_chain(decoder, vec![last])?);
                }
            }
            Machine::ByteFallback { run, checked, broken } => end_run(run, checked, broken, out),
            Machine::ByteLevel { pending } if !pending.is_empty() => {
                pending.clear();
                out.push(REPLACEMENT.to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}

fn decode_chain(decoder: &DecoderWrapper, tokens: Vec<String>) -> Result<Vec<String>> {
    decoder.decode_chain(tokens).map_err(|e| Error::invalid(format!("cannot decode: {e}")))
}

/// The byte of a token such as `<0x61>`.
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

fn push_byte(byte: u8, run: &mut Vec<u8>, checked: &mut usize, broken: &mut bool, out: &mut Vec<String>) {
    if *broken {
        out.push(REPLACEMENT.to_owned());
        return;
    }
    run.push(byte);
    match std::str::from_utf8(&run[*checked..]) {
        Ok(_) => *checked = run.len(),
        Err(e) if e.error_len().is_none() => *checked += e.valid_up_to(),
        Err(_) => {
            out.extend(run.drain(..).map(|_| REPLACEMENT.to_owned()));
            *broken = true;
        }
    }
}

fn end_run(run: &mut Vec<u8>, checked: &mut usize, broken: &mut bool, out: &mut Vec<String>) {
    let bytes = std::mem::take(run);
    if !bytes.is_empty() {
        let count = bytes.len();
        match String::from_utf8(bytes) {
            Ok(text) => out.push(text),
            Err(_) => out.extend(std::iter::repeat_n(REPLACEMENT.to_owned(), count)),
        }
    }
    *checked = 0;
    *broken = false;
}

/// The byte-level alphabet of GPT-2: printable bytes map to themselves, the others to characters from U+0100 on.
fn byte_alphabet() -> &'static HashMap<char, u8> {
    static ALPHABET: OnceLock<HashMap<char, u8>> = OnceLock::new();
    ALPHABET.get_or_init(|| {
        let mut next = 0x100;
        (0..=255u8)
            .map(|byte| match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
                _ => {
                    next += 1;
                    (char::from_u32(next - 1).unwrap_or(REPLACEMENT.chars().next().unwrap()), byte)
                }
            })
            .collect()
    })
}

/// The bytes of a token, or its own UTF-8 if it has a character outside the alphabet (added tokens).
fn append_bytes(token: &str, out: &mut Vec<u8>) {
    let alphabet = byte_alphabet();
    let start = out.len();
    for c in token.chars() {
        match alphabet.get(&c) {
            Some(&byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Takes the complete characters, and U+FFFD for bytes that cannot become one, as `String::from_utf8_lossy` does.
fn take_characters(pending: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(pending.len());
    let mut rest = pending.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(e) => {
                let (valid, after) = rest.split_at(e.valid_up_to());
                // `valid_up_to` reported these bytes as valid.
                text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                rest = after;
                match e.error_len() {
                    Some(length) => {
                        text.push_str(REPLACEMENT);
                        rest = &rest[length..];
                    }
                    None => break,
                }
            }
        }
    }
    *pending = rest.to_vec();
    text
}

/// Incremental decoding of one sequence.
#[derive(Clone)]
pub struct DecodeStream {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    machines: Vec<Machine>,
    /// All ids, if the plan cannot stream.
    kept_ids: Vec<i32>,
}

impl DecodeStream {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        let machines = tokenizer.plan().steps.iter().map(Machine::new).collect();
        DecodeStream { tokenizer, skip_special_tokens, machines, kept_ids: Vec::new() }
    }

    pub fn push(&mut self, id: i32) -> Result<String> {
        let token = self.tokenizer.decoder_input(id, self.skip_special_tokens)?;
        if !self.tokenizer.plan().streams {
            self.kept_ids.push(id);
            return Ok(String::new());
        }
        match token {
            Some(token) => run(&mut self.machines, vec![token]),
            None => Ok(String::new()),
        }
    }

    /// The text that `finish` would return now.
    pub fn held(&self) -> Result<String> {
        self.clone().finish()
    }

    pub fn finish(&mut self) -> Result<String> {
        if !self.tokenizer.plan().streams {
            return self.tokenizer.decode(&std::mem::take(&mut self.kept_ids), self.skip_special_tokens);
        }
        let mut text = String::new();
        for i in 0..self.machines.len() {
            let mut rest = Vec::new();
            self.machines[i].finish(&mut rest)?;
            text.push_str(&run(&mut self.machines[i + 1..], rest)?);
        }
        Ok(text)
    }
}

/// Passes tokens through a chain of machines.
fn run(machines: &mut [Machine], mut tokens: Vec<String>) -> Result<String> {
    for machine in machines {
        let mut out = Vec::with_capacity(tokens.len());
        for token in tokens {
            machine.push(token, &mut out)?;
        }
        tokens = out;
    }
    Ok(tokens.concat())
}
