//! How many bytes of text one token can stand for. A text with more bytes than a model's length allows can then be
//! refused before it is tokenized.

use tokenizers::models::bpe::BPE;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::{NormalizerWrapper, Replace};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Model, SplitDelimiterBehavior};

/// Canonical composition makes a text shorter by less than this factor, in bytes of UTF-8.
const NFC_FACTOR: usize = 3;

/// The bound: the longest token of the vocabulary, times what the normalizer may shorten. None if a part of the
/// tokenizer may drop text, or join any amount of it in one token: then only tokenizing shows how long a text is.
pub fn max_token_bytes(tokenizer: &tokenizers::Tokenizer) -> Option<usize> {
    let factor = tokenizer.get_normalizer().map_or(Some(1), normalizer_factor)?;
    let keeps_all = tokenizer.get_pre_tokenizer().is_none_or(keeps_text)
        && tokenizer.get_added_tokens_decoder().values().all(|token| !token.lstrip && !token.rstrip);
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
    if !keeps_all || !has_all_bytes(model) {
        return None;
    }
    // The stored form has at least as many bytes as its text: byte-level tokens have one character for each byte.
    let longest = tokenizer.get_vocab(true).keys().map(String::len).max()?;
    Some(longest.saturating_mul(factor))
}

/// By how much the normalizer may shorten a text. None: without limit, or not known.
fn normalizer_factor(normalizer: &NormalizerWrapper) -> Option<usize> {
    match normalizer {
        NormalizerWrapper::Prepend(_) | NormalizerWrapper::ByteLevel(_) => Some(1),
        NormalizerWrapper::NFC(_) => Some(NFC_FACTOR),
        // The one replacement in use by models with such a vocabulary. U+2581 is longer than the space.
        NormalizerWrapper::Replace(replace) => {
            Replace::new(" ", "\u{2581}").is_ok_and(|usual| *replace == usual).then_some(1)
        }
        NormalizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().try_fold(1usize, |product, part| Some(product * normalizer_factor(part)?))
        }
        _ => None,
    }
}

/// True if every character of the text reaches the model.
fn keeps_text(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Metaspace(_) | PreTokenizerWrapper::Digits(_) => true,
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().all(keeps_text),
        _ => false,
    }
}

/// True if the vocabulary has every byte, in one of the two usual forms, so that no text is dropped or joined as
/// unknown.
fn has_all_bytes(model: &BPE) -> bool {
    let byte_level = ByteLevel::alphabet().iter().all(|c| model.token_to_id(&c.to_string()).is_some());
    let fallback = model.byte_fallback && (0..=255u8).all(|b| model.token_to_id(&format!("<0x{b:02X}>")).is_some());
    byte_level || fallback
}
