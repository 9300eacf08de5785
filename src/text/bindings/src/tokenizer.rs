//! A Hugging Face tokenizer with the checks that a server needs.

use tokenizers::models::ModelWrapper;
use tokenizers::utils::truncation::{truncate_encodings, TruncationParams};
use tokenizers::{Model, PostProcessor};

use crate::bound;
use crate::detokenize::Plan;
use crate::{Error, Result};

/// Ids are table indices here and in the engine; the largest vocabularies in use have 2^18 entries.
const MAX_VOCAB_SIZE: u32 = 1 << 24;

/// Flags of an id in the id table.
const ID_EXISTS: u8 = 1;
const ID_SPECIAL: u8 = 2;

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Flags of every id below the vocabulary's size.
    ids: Vec<u8>,
    plan: Plan,
    max_token_bytes: Option<usize>,
}

impl Tokenizer {
    pub fn parse(json: &str) -> Result<Self> {
        let mut inner: tokenizers::Tokenizer =
            json.parse().map_err(|e| Error::invalid(format!("cannot read tokenizer.json: {e}")))?;
        if let ModelWrapper::BPE(model) = inner.get_model() {
            if model.dropout.is_some_and(|dropout| dropout > 0.0) {
                return Err(Error::unsupported(
                    "the tokenizer asks for BPE dropout, which encodes at random; set model.dropout to null",
                ));
            }
        }
        // transformers ignores both unless the caller asks for them, and so does loramux: prompts are measured, not
        // truncated.
        inner.with_truncation(None).map_err(|e| Error::invalid(e.to_string()))?;
        inner.with_padding(None);
        let ids = id_table(&inner)?;
        let plan = Plan::new(inner.get_decoder());
        let max_token_bytes = bound::max_token_bytes(&inner);
        Ok(Tokenizer { inner, ids, plan, max_token_bytes })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i32>> {
        let encoding = self
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|e| Error::invalid(format!("cannot encode: {e}")))?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    /// Two texts as one, as the tokenizer's post-processor joins them. `max_tokens`: of which the longer text loses its end
    /// first, as the library truncates them.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        add_special_tokens: bool,
        max_tokens: Option<usize>,
    ) -> Result<Vec<i32>> {
        let failed = |e| Error::invalid(format!("cannot encode: {e}"));
        let first = self.inner.encode_fast(first, false).map_err(failed)?;
        let second = self.inner.encode_fast(second, false).map_err(failed)?;
        let (first, second) = match max_tokens {
            None => (first, Some(second)),
            Some(max_tokens) => {
                let processor = self.inner.get_post_processor().filter(|_| add_special_tokens);
                let added = processor.map_or(0, |processor| processor.added_tokens(true));
                let params = TruncationParams { max_length: max_tokens.saturating_sub(added), ..Default::default() };
                truncate_encodings(first, Some(second), &params).map_err(failed)?
            }
        };
        let encoding = self.inner.post_process(first, second, add_special_tokens).map_err(failed)?;
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String> {
        let mut known = Vec::with_capacity(ids.len());
        for &id in ids {
            self.check_id(id)?;
            known.push(id as u32);
        }
        self.inner.decode(&known, skip_special_tokens).map_err(|e| Error::invalid(format!("cannot decode: {e}")))
    }

    pub fn vocab_size(&self) -> i64 {
        self.ids.len() as i64
    }

    pub fn id_to_token(&self, id: i32) -> Option<String> {
        self.check_id(id).ok()?;
        self.inner.id_to_token(id as u32)
    }

    pub fn token_to_id(&self, token: &str) -> Option<i32> {
        self.inner.token_to_id(token).map(|id| id as i32)
    }

    pub fn is_special(&self, id: i32) -> bool {
        self.flags(id) & ID_SPECIAL != 0
    }

    /// The most bytes of text that one token can stand for; None if there is no such bound.
    pub fn max_token_bytes(&self) -> Option<usize> {
        self.max_token_bytes
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The text that the library passes to its decoder for this id; None if the id is skipped.
    pub fn decoder_input(&self, id: i32, skip_special_tokens: bool) -> Result<Option<String>> {
        self.check_id(id)?;
        let added = self.inner.get_added_vocabulary();
        Ok(added
            .simple_id_to_token(id as u32)
            .or_else(|| self.inner.get_model().id_to_token(id as u32))
            .filter(|token| !skip_special_tokens || !added.is_special_token(token)))
    }

    fn flags(&self, id: i32) -> u8 {
        usize::try_from(id).ok().and_then(|id| self.ids.get(id)).copied().unwrap_or(0)
    }

    fn check_id(&self, id: i32) -> Result<()> {
        if self.flags(id) & ID_EXISTS != 0 {
            return Ok(());
        }
        Err(Error::invalid(format!("token id {id} is not in the vocabulary (ids below {})", self.ids.len())))
    }
}

fn id_table(inner: &tokenizers::Tokenizer) -> Result<Vec<u8>> {
    let vocab = inner.get_vocab(true);
    let added = inner.get_added_tokens_decoder();
    let size = vocab.values().chain(added.keys()).map(|&id| id as u64 + 1).max().unwrap_or(0);
    if size > u64::from(MAX_VOCAB_SIZE) {
        return Err(Error::unsupported(format!(
            "the tokenizer has token id {}; ids must be below {MAX_VOCAB_SIZE}",
            size - 1
        )));
    }
    let mut ids = vec![0u8; size as usize];
    for &id in vocab.values() {
        ids[id as usize] |= ID_EXISTS;
    }
    for (&id, token) in &added {
        ids[id as usize] |= if token.special { ID_EXISTS | ID_SPECIAL } else { ID_EXISTS };
    }
    Ok(ids)
}

/// Oniguruma backtracks; these limits stop a pattern that would run for minutes on a short text. They are process-wide,
/// so set them once before the first pattern is compiled.
pub fn limit_regex_work() {
    // SAFETY: plain setters of the library's global limits, called once before any other use.
    unsafe {
        onig_sys::onig_set_retry_limit_in_match(1_000_000);
        onig_sys::onig_set_retry_limit_in_search(4_000_000);
        onig_sys::onig_set_parse_depth_limit(128);
    }
}
