//! How large the divisors in a grammar's schemas may be: an automaton of remainders has a state for each, and one that
//! must divide by several numbers has a state for each remainder of their least common multiple.

use crate::{Error, Result};

const KEYWORD: &str = "multipleOf";
/// The largest least common multiple of all divisors in the text, each without its decimal point. An automaton of
/// so many states takes some 50 ms.
const MAX_MULTIPLE: u128 = 10_000;
/// The largest sum of all divisors: each may have an automaton of its own.
const MAX_SUM: u128 = 40_000;

/// Error: the divisors of `multipleOf` are too large. Looks at the text alone, since schemas also stand within grammars.
pub fn check(text: &str) -> Result<()> {
    let text = unescaped(text);
    let (mut multiple, mut sum) = (1u128, 0u128);
    for (at, _) in text.match_indices(KEYWORD) {
        let Some(divisor) = divisor(&text[at + KEYWORD.len()..]) else { continue };
        if divisor <= MAX_MULTIPLE {
            multiple = multiple / gcd(multiple, divisor) * divisor;
        }
        if divisor.max(multiple) > MAX_MULTIPLE {
            return Err(Error::exhausted(format!(
                "`multipleOf`: expected divisors whose least common multiple, without decimal points, is at most \
                 {MAX_MULTIPLE}, found a larger one"
            )));
        }
        sum += divisor;
        if sum > MAX_SUM {
            return Err(Error::exhausted(format!(
                "`multipleOf`: expected divisors whose sum, without decimal points, is at most {MAX_SUM}, found a larger one"
            )));
        }
    }
    Ok(())
}

/// The number after the keyword's quotation mark and colon, without its decimal point; None: there is no positive number.
fn divisor(rest: &str) -> Option<u128> {
    let space = [' ', '\t', '\r', '\n'];
    let number = rest.strip_prefix('"')?.trim_start_matches(space).strip_prefix(':')?.trim_start_matches(space);
    let end = number.find(|c: char| !matches!(c, '0'..='9' | '.' | 'e' | 'E' | '+' | '-')).unwrap_or(number.len());
    let (digits, exponent) = number[..end].split_once(['e', 'E']).unwrap_or((&number[..end], "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = fraction.trim_end_matches('0');
    let value = format!("{whole}{fraction}");
    let value = value.trim_start_matches('0');
    // As many zeros as the exponent adds behind the decimal point.
    let zeros = exponent.trim_start_matches('+').parse::<i64>().unwrap_or(i64::MAX).saturating_sub(fraction.len() as i64);
    if value.is_empty() {
        return None;
    }
    if value.len() > 10 || zeros > 10 {
        return Some(u128::MAX);
    }
    Some(value.parse::<u128>().ok()? * 10u128.pow(zeros.max(0) as u32))
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The text with JSON's escapes of ASCII characters resolved, so that they hide no keyword.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\\u00") {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 4..at + 6).and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(u8::is_ascii);
        plain.push(code.map_or('\\', char::from));
        rest = &rest[at + if code.is_some() { 6 } else { 1 }..];
    }
    plain + rest
}
