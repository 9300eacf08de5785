//! How many patterns one text must match at once. The compiler follows all of them together: each step takes the product
//! of what each pattern may do next, and no limit of llguidance counts within a step.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{calls, schema, Kind};
use crate::{Error, Result};

/// Patterns and formats that one string must match.
const MAX_TOGETHER: usize = 6;
/// The largest product of their weights. A step of as many parts takes a millisecond or less.
const MAX_PRODUCT: u64 = 1024;
/// Patterns in one `patternProperties`: every two of them are compared.
const MAX_PATTERN_PROPERTIES: usize = 16;
/// A format of llguidance's list counts as such a pattern.
const FORMAT_WEIGHT: u64 = 16;
/// Strings that several schemas limit by a pattern, a format or a length; each takes up to half a millisecond.
const MAX_MEETINGS: usize = 200;
/// Schemas and combinations of schemas that are looked at.
const MAX_STEPS: usize = 20_000;

/// How much a grammar combines patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Alone,
    Together,
}

/// Error: one text must match too many patterns.
pub fn check(kind: Kind, text: &str) -> Result<Use> {
    match kind {
        Kind::JsonSchema | Kind::CompactJsonSchema => match serde_json::from_str(text) {
            Ok(root) => check_schema(&Value::Object(schema::prepare(root)?)),
            Err(_) => Ok(Use::Alone),
        },
        Kind::Lark => check_lark(text),
        Kind::ToolCalls => check_lark(&calls::to_lark(text)?),
        Kind::Regex | Kind::Gbnf => Ok(Use::Alone),
    }
}

/// Error: a string of the schema must match too many patterns.
fn check_schema(root: &Value) -> Result<Use> {
    let mut walk = Walk { root, steps: 0, meetings: 0, seen: HashSet::new(), used: Use::Alone };
    walk.visit(vec![(root, 0)])?;
    Ok(walk.used)
}

/// The same of a Lark grammar: of its own intersections (&) and complements (~), and of the schemas within it.
fn check_lark(text: &str) -> Result<Use> {
    let mut used = Use::Alone;
    for (at, _) in text.match_indices("%json") {
        let rest = &text[at + "%json".len()..];
        if let Some(Ok(schema)) = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next() {
            if check_schema(&schema)? == Use::Together {
                used = Use::Together;
            }
        }
    }
    let operators = operators(text);
    if operators == 0 {
        return Ok(used);
    }
    // The largest product of weights with this sum.
    let operands = operators as u64 + 1;
    let each = weight(text).div_ceil(operands);
    if operands as usize > MAX_TOGETHER || each.saturating_pow(operands as u32) > MAX_PRODUCT {
        return Err(Error::exhausted(format!(
            "`&` and `~`: expected at most {} of them, and few alternatives and repetitions beside them, found {operators}",
            MAX_TOGETHER - 1
        )));
    }
    Ok(Use::Together)
}

/// The operators & and ~ outside texts, regular expressions and comments.
fn operators(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut count) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = text[at..].find('\n').map_or(bytes.len(), |n| at + n),
            quote @ (b'"' | b'/') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote && bytes[at] != b'\n' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'&' | b'~' => count += 1,
            _ => {}
        }
        at += 1;
    }
    count
}

/// About how many things a pattern may do next: one, and one more for each alternative and repetition.
fn weight(pattern: &str) -> u64 {
    let bytes = pattern.as_bytes();
    // Without an anchor it may begin anywhere.
    let mut weight = if pattern.starts_with('^') { 1 } else { 2 };
    let (mut at, mut in_set) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'[' => in_set = true,
            b']' => in_set = false,
            b'|' | b'?' | b'*' | b'+' | b'{' if !in_set => weight += 1,
            _ => {}
        }
        at += 1;
    }
    weight
}

/// Looks at every schema in the document, and at those that meet in one value as one.
struct Walk<'a> {
    root: &'a Value,
    steps: usize,
    meetings: usize,
    /// Combinations that were looked at, so that references may be recursive.
    seen: HashSet<Vec<(*const Value, usize)>>,
    used: Use,
}

/// A schema, and how many of its lists of alternatives are decided.
type Part<'a> = (&'a Value, usize);

impl<'a> Walk<'a> {
    /// `schemas` describe the same value.
    fn visit(&mut self, schemas: Vec<Part<'a>>) -> Result<()> {
        let parts = self.expand(schemas);
        let mut key: Vec<(*const Value, usize)> = parts.iter().map(|(part, decided)| (*part as *const _, *decided)).collect();
        key.sort_unstable();
        self.steps += key.len();
        if self.steps > MAX_STEPS {
            return Err(Error::exhausted("`allOf`, `anyOf` and `$ref`: expected fewer combinations of schemas"));
        }
        if !self.seen.insert(key) {
            return Ok(());
        }
        for (at, (part, decided)) in parts.iter().enumerate() {
            let Some((alternatives, decided)) = alternatives(part, *decided) else { continue };
            for alternative in alternatives {
                let mut decision = parts.clone();
                decision[at].1 = decided;
                decision.push((alternative, 0));
                self.visit(decision)?;
            }
            return Ok(());
        }
        let parts: Vec<&'a Value> = parts.into_iter().map(|(part, _)| part).collect();
        self.strings(&parts)?;
        self.children(&parts)
    }

    /// The schemas with those that they refer to and those in their `allOf`, each once.
    fn expand(&self, schemas: Vec<Part<'a>>) -> Vec<Part<'a>> {
        let (mut parts, mut todo, mut seen) = (Vec::new(), schemas, HashSet::new());
        // What is decided comes first, so that it is not begun again.
        todo.sort_by_key(|(_, decided)| *decided);
        while let Some((schema, decided)) = todo.pop() {
            if !seen.insert(schema as *const Value) {
                continue;
            }
            parts.push((schema, decided));
            if let Some(Value::Array(all)) = schema.get("allOf") {
                todo.splice(0..0, all.iter().map(|one| (one, 0)));
            }
            if let Some(Value::String(name)) = schema.get("$ref") {
                todo.splice(0..0, self.resolve(name).map(|one| (one, 0)));
            }
        }
        parts
    }

    fn resolve(&self, name: &str) -> Option<&'a Value> {
        let pointer = name.strip_prefix('#')?.replace("%25", "%");
        self.root.pointer(&pointer)
    }

    /// Error: too many patterns for one string.
    fn strings(&mut self, parts: &[&'a Value]) -> Result<()> {
        const KEYWORDS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
        let limited = parts.iter().filter(|part| KEYWORDS.iter().any(|keyword| part.get(*keyword).is_some()));
        if limited.count() > 1 {
            self.meetings += 1;
        }
        if self.meetings > MAX_MEETINGS {
            return Err(Error::exhausted(format!(
                "`allOf` and `anyOf`: expected at most {MAX_MEETINGS} strings that several schemas limit, found more"
            )));
        }
        let mut weights = Vec::new();
        for part in parts {
            if let Some(Value::String(pattern)) = part.get("pattern") {
                weights.push(weight(pattern));
            }
            if part.get("format").is_some() {
                weights.push(FORMAT_WEIGHT);
            }
        }
        self.together(&weights, MAX_TOGETHER, "`pattern` and `format`: expected at most 6 that one string must match")
    }

    fn together(&mut self, weights: &[u64], most: usize, expected: &str) -> Result<()> {
        if weights.len() < 2 {
            return Ok(());
        }
        self.used = Use::Together;
        let product = weights.iter().fold(1u64, |product, weight| product.saturating_mul(*weight));
        if weights.len() > most || product > MAX_PRODUCT {
            return Err(Error::exhausted(format!(
                "{expected}, with few alternatives and repetitions, found {} with {product} combinations; at most \
                 {MAX_PRODUCT} are allowed",
                weights.len()
            )));
        }
        Ok(())
    }

    /// The schemas of what lies within a value that all `parts` describe.
    fn children(&mut self, parts: &[&'a Value]) -> Result<()> {
        let mut by_name: HashMap<&'a str, Vec<&'a Value>> = HashMap::new();
        for part in parts {
            for (name, schema) in part.get("properties").and_then(Value::as_object).into_iter().flatten() {
                by_name.entry(name).or_default().push(schema);
            }
        }
        let others = |name: &str| -> Vec<&'a Value> {
            let without = parts.iter().filter(|part| part.get("properties").is_none_or(|own| own.get(name).is_none()));
            without.filter_map(|part| part.get("additionalProperties")).collect()
        };
        let mut groups: Vec<Vec<&'a Value>> = Vec::new();
        for (name, mut schemas) in by_name {
            schemas.extend(others(name));
            groups.push(schemas);
        }
        for keyword in ["items", "additionalProperties"] {
            groups.push(parts.iter().filter_map(|part| part.get(keyword)).filter(|schema| schema.is_object()).collect());
        }
        for part in parts {
            for list in ["prefixItems", "items"] {
                groups.extend(part.get(list).and_then(Value::as_array).into_iter().flatten().map(|schema| vec![schema]));
            }
        }
        self.names(parts, &mut groups)?;
        groups.into_iter().filter(|group| !group.is_empty()).try_for_each(|group| {
            self.visit(group.into_iter().map(|schema| (schema, 0)).collect())
        })
    }

    /// The patterns of names. Every two of them must not meet, and a name of no property meets none of them.
    fn names(&mut self, parts: &[&'a Value], groups: &mut Vec<Vec<&'a Value>>) -> Result<()> {
        let mut weights = Vec::new();
        for part in parts {
            for (pattern, schema) in part.get("patternProperties").and_then(Value::as_object).into_iter().flatten() {
                weights.push(weight(pattern));
                groups.push(vec![schema]);
            }
        }
        weights.sort_unstable_by(|a, b| b.cmp(a));
        if weights.len() > MAX_PATTERN_PROPERTIES {
            return Err(Error::exhausted(format!(
                "`patternProperties`: expected at most {MAX_PATTERN_PROPERTIES} patterns for one object, found {}",
                weights.len()
            )));
        }
        weights.truncate(2);
        self.together(&weights, 2, "`patternProperties`: expected patterns")
    }
}

/// The next list of alternatives of a schema, and how many are decided after it.
fn alternatives(schema: &Value, decided: usize) -> Option<(&Vec<Value>, usize)> {
    const KEYWORDS: [&str; 2] = ["anyOf", "oneOf"];
    let found = KEYWORDS.iter().enumerate().skip(decided).find_map(|(at, keyword)| Some((schema.get(*keyword)?.as_array()?, at + 1)));
    found.filter(|(list, _)| !list.is_empty())
}
