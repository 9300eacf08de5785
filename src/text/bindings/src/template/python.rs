//! Python's behaviour for text and numbers: str and repr, `%` and `format`, case, whitespace.

use minijinja::value::{Value, ValueKind};
use minijinja::Error;

use super::{charge, check_depth, check_size, exhausted, fault};

type Result<T> = std::result::Result<T, Error>;

/// str.isspace: Unicode white space and the four separators U+001C to U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// Integers and booleans, as Python's int.
pub fn as_int(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

pub fn as_float(value: &Value) -> Option<f64> {
    if is_float(value) {
        f64::try_from(value.clone()).ok()
    } else {
        as_int(value).map(|value| value as f64)
    }
}

/// Python's name of a value's type, for error messages.
pub fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Seq if value.is_tuple() => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Map => "dict",
        _ => "object",
    }
}

/// str(value), as printed.
pub fn text_of(value: &Value) -> Result<String> {
    let mut out = String::new();
    write_text(value, &mut out)?;
    Ok(out)
}

pub fn write_text(value: &Value, out: &mut String) -> Result<()> {
    match (value.kind(), value.as_str()) {
        (ValueKind::Undefined, _) => Ok(()),
        (_, Some(text)) => {
            charge(text.len())?;
            check_size(out.len() + text.len())?;
            out.push_str(text);
            Ok(())
        }
        _ => {
            let before = out.len();
            write_repr(value, 0, out)?;
            charge(out.len() - before)
        }
    }
}

/// repr(value)
pub fn repr_of(value: &Value) -> Result<String> {
    let mut out = String::new();
    write_repr(value, 0, &mut out)?;
    charge(out.len())?;
    Ok(out)
}

fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<()> {
    check_depth(depth)?;
    check_size(out.len())?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if is_float(value) => out.push_str(&float_repr(as_float(value).unwrap_or_default())),
        ValueKind::String => str_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
            out.push_str(open);
            for (i, item) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, depth + 1, out)?;
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// repr of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0.0" } else { "0.0" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Format characters, which repr escapes in addition to controls, separators and private use.
fn is_format_character(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}'
        | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e00ff}' | '\u{e01f0}'..='\u{10ffff}' | '\u{e000}'..='\u{f8ff}')
}

pub fn str_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' ' => out.push(' '),
            _ if c == quote => {
                out.push('\\');
                out.push(c);
            }
            _ if c.is_control() || is_space(c) || is_format_character(c) => {
                let code = u32::from(c);
                out.push_str(&match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
            _ => out.push(c),
        }
    }
    out.push(quote);
}

/// Appends the title case of a letter that has one; otherwise its upper case, first letter only.
pub fn push_title(c: char, out: &mut String) {
    match c {
        '\u{1c4}'..='\u{1c6}' => out.push('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => out.push('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => out.push('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => out.push('\u{1f2}'),
        'ŉ' => out.push_str("ʼN"),
        '\u{10d0}'..='\u{10ff}' => out.push(c),
        _ => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

pub fn capitalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    if let Some(first) = chars.next() {
        push_title(first, &mut out);
    }
    out.push_str(&chars.as_str().to_lowercase());
    out
}

/// str.title: letters that follow a non-letter.
pub fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        if after_letter {
            out.extend(c.to_lowercase());
        } else {
            push_title(c, &mut out);
        }
        after_letter =
            c.is_uppercase() || c.is_lowercase() || matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}');
    }
    out
}

/// str.splitlines without the line ends.
pub fn split_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        if !matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c' | '\x1d' | '\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            continue;
        }
        lines.push(&text[start..i]);
        start = i + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|&(_, next)| next == '\n') {
            chars.next();
            start += 1;
        }
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

/// int(text, base); None where Python raises an exception.
pub fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match (base, lower.get(..2)) {
        (0 | 16, Some("0x")) => (16, lower[2..].trim_start_matches('_')),
        (0 | 8, Some("0o")) => (8, lower[2..].trim_start_matches('_')),
        (0 | 2, Some("0b")) => (2, lower[2..].trim_start_matches('_')),
        (0, _) => (10, lower.as_str()),
        (2..=36, _) => (base, lower.as_str()),
        _ => return None,
    };
    if digits.is_empty() || digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -value } else { value })
}

/// float(text); None where Python raises an exception.
pub fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let unsigned = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let is_word = matches!(unsigned.as_str(), "inf" | "infinity" | "nan");
    if !is_word && !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// round(value, digits): ties to even, exact in decimal.
pub fn round(value: f64, digits: i128) -> f64 {
    if !value.is_finite() || digits > 320 {
        return value;
    }
    if digits >= 0 {
        return format!("{:.*}", digits as usize, value).parse().unwrap_or(value);
    }
    if digits < -310 {
        return 0.0;
    }
    let scale = 10f64.powi(-digits as i32);
    let scaled = (value / scale).round_ties_even() * scale;
    if scaled.is_finite() {
        scaled
    } else {
        value
    }
}

/// The layout of a number or text: the part of a conversion between `%` or `:` and the type.
#[derive(Clone)]
struct Layout {
    fill: char,
    /// '<', '>', '^' or '=' (after the sign)
    align: char,
    plus: Option<char>,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
}

/// Templates choose widths and precisions; a larger one is an error, not an allocation.
const MAX_WIDTH: usize = 10_000;

fn pad(sign: &str, body: &str, layout: &Layout, out: &mut String) -> Result<()> {
    check_size(out.len() + layout.width + sign.len() + body.len())?;
    let length = sign.chars().count() + body.chars().count();
    let missing = layout.width.saturating_sub(length);
    let fill = |count: usize, out: &mut String| out.extend(std::iter::repeat_n(layout.fill, count));
    let (before, between, after) = match layout.align {
        '<' => (0, 0, missing),
        '^' => (missing / 2, 0, missing - missing / 2),
        '=' => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    fill(before, out);
    out.push_str(sign);
    fill(between, out);
    out.push_str(body);
    fill(after, out);
    Ok(())
}

fn group_thousands(digits: &str, separator: char) -> String {
    let split = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(split);
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out + rest
}

fn float_digits(value: f64, kind: char, precision: Option<usize>, alternate: bool) -> String {
    let value = value.abs();
    if !value.is_finite() {
        let word = if value.is_nan() { "nan" } else { "inf" };
        return if kind.is_uppercase() { word.to_uppercase() } else { word.into() };
    }
    let precision = precision.unwrap_or(6);
    let text = match kind.to_ascii_lowercase() {
        'e' => exponent_form(&format!("{value:.precision$e}")),
        'g' => {
            let precision = precision.max(1);
            let scientific = format!("{value:.*e}", precision - 1);
            let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
            let trim = |text: String| {
                if alternate || !text.contains('.') {
                    text
                } else {
                    text.trim_end_matches('0').trim_end_matches('.').to_owned()
                }
            };
            if exponent < -4 || exponent >= precision as i32 {
                let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
                exponent_form(&format!("{}e{exponent}", trim(digits.to_owned())))
            } else {
                trim(format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
            }
        }
        '%' => format!("{:.*}%", precision, value * 100.0),
        _ => format!("{value:.precision$}"),
    };
    if kind.is_uppercase() {
        text.to_uppercase()
    } else {
        text
    }
}

/// 1e5 -> 1e+05
fn exponent_form(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn int_digits(value: i128, kind: char, alternate: bool) -> String {
    let value = value.unsigned_abs();
    match (kind, alternate) {
        ('x', false) => format!("{value:x}"),
        ('x', true) => format!("{value:#x}"),
        ('X', false) => format!("{value:X}"),
        ('X', true) => format!("0X{value:X}"),
        ('o', false) => format!("{value:o}"),
        ('o', true) => format!("{value:#o}"),
        ('b', false) => format!("{value:b}"),
        ('b', true) => format!("{value:#b}"),
        _ => value.to_string(),
    }
}

fn write_number(value: &Value, kind: char, layout: &Layout, out: &mut String) -> Result<()> {
    let (negative, mut digits) = match kind {
        'd' | 'x' | 'X' | 'o' | 'b' => {
            let value = match value {
                value if kind == 'd' && is_float(value) => as_float(value).unwrap_or_default() as i128,
                value => as_int(value).ok_or_else(|| {
                    fault(format!("%{kind} format: a real number is required, not {}", type_name(value)))
                })?,
            };
            let mut digits = int_digits(value, kind, layout.alternate);
            if let Some(precision) = layout.precision {
                digits = format!("{digits:0>precision$}");
            }
            (value < 0, digits)
        }
        _ => {
            let value =
                as_float(value).ok_or_else(|| fault(format!("must be real number, not {}", type_name(value))))?;
            (value.is_sign_negative() && !value.is_nan(), float_digits(value, kind, layout.precision, layout.alternate))
        }
    };
    if let Some(separator) = layout.grouping {
        digits = group_thousands(&digits, separator);
    }
    let sign = match (negative, layout.plus) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    pad(sign, &digits, layout, out)
}

/// `format % arguments`
pub fn percent(format: &str, arguments: &Value) -> Result<String> {
    let positional: Vec<Value> =
        if arguments.is_tuple() { arguments.try_iter()?.collect() } else { vec![arguments.clone()] };
    let mut next = 0;
    let mut take = || {
        next += 1;
        positional.get(next - 1).cloned().ok_or_else(|| fault("not enough arguments for format string"))
    };
    let mut named = false;
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            out.push('%');
            continue;
        }
        let mut layout =
            Layout { fill: ' ', align: '>', plus: None, alternate: false, width: 0, grouping: None, precision: None };
        let mut value = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|&c| c != ')').collect();
            if arguments.kind() != ValueKind::Map {
                return Err(fault("format requires a mapping"));
            }
            let found = arguments.get_attr(&name)?;
            if found.is_undefined() {
                return Err(fault(format!("KeyError: '{name}'")));
            }
            value = Some(found);
            named = true;
        }
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => layout.align = '<',
                '+' => layout.plus = Some('+'),
                ' ' => layout.plus = layout.plus.or(Some(' ')),
                '0' if layout.align != '<' => {
                    layout.fill = '0';
                    layout.align = '=';
                }
                '#' => layout.alternate = true,
                _ => {}
            }
        }
        let mut number = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| -> Result<usize> {
            if chars.next_if_eq(&'*').is_some() {
                return width(as_int(&take()?));
            }
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            if digits.is_empty() {
                Ok(0)
            } else {
                width(digits.parse().ok())
            }
        };
        layout.width = number(&mut chars)?;
        if chars.next_if_eq(&'.').is_some() {
            layout.precision = Some(number(&mut chars)?);
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let Some(kind) = chars.next() else { return Err(fault("incomplete format")) };
        let value = match value {
            Some(value) => value,
            None => take()?,
        };
        write_conversion(&value, kind, layout, &mut out)?;
    }
    if !named && next < positional.len() && arguments.kind() != ValueKind::Map {
        return Err(fault("not all arguments converted during string formatting"));
    }
    Ok(out)
}

fn width(value: Option<i128>) -> Result<usize> {
    match value.and_then(|value| usize::try_from(value).ok()) {
        Some(value) if value <= MAX_WIDTH => Ok(value),
        _ => Err(exhausted(format!("a format's width or precision must be between 0 and {MAX_WIDTH}"))),
    }
}

fn write_conversion(value: &Value, kind: char, mut layout: Layout, out: &mut String) -> Result<()> {
    let text = match kind {
        'd' | 'i' | 'u' => return write_number(value, 'd', &layout, out),
        'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => return write_number(value, kind, &layout, out),
        's' => text_of(value)?,
        'r' | 'a' => repr_of(value)?,
        'c' => match (value.as_str(), as_int(value)) {
            (Some(text), _) if text.chars().count() == 1 => text.to_string(),
            (_, Some(code)) => u32::try_from(code)
                .ok()
                .and_then(char::from_u32)
                .map(String::from)
                .ok_or_else(|| fault("%c arg not in range"))?,
            _ => return Err(fault("%c requires int or char")),
        },
        _ => return Err(fault(format!("unsupported format character '{kind}'"))),
    };
    layout.fill = ' ';
    if layout.align == '=' {
        layout.align = '>';
    }
    let text = match layout.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    };
    pad("", &text, &layout, out)
}

/// str.format. `lookup` returns the value of a field's name (empty or digits for positional fields) without attributes.
pub fn format_fields(
    format: &str,
    lookup: &mut dyn FnMut(&str) -> Result<Value>,
    attribute: &dyn Fn(&Value, &str, bool) -> Result<Value>,
) -> Result<String> {
    let mut out = String::new();
    let mut rest = format;
    let mut automatic = 0usize;
    while let Some(i) = rest.find(['{', '}']) {
        out.push_str(&rest[..i]);
        let brace = &rest[i..i + 1];
        rest = &rest[i + 1..];
        if rest.starts_with(brace) {
            out.push_str(brace);
            rest = &rest[1..];
            continue;
        }
        let Some(end) = rest.find('}').filter(|_| brace == "{") else {
            return Err(fault(format!("Single '{brace}' encountered in format string")));
        };
        let field = &rest[..end];
        rest = &rest[end + 1..];
        if field.contains('{') {
            return Err(fault("nested fields in a format string are not supported"));
        }
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (path, conversion) = field.split_once('!').unwrap_or((field, ""));
        let name_end = path.find(['.', '[']).unwrap_or(path.len());
        let mut value = if name_end == 0 {
            automatic += 1;
            lookup(&(automatic - 1).to_string())?
        } else {
            lookup(&path[..name_end])?
        };
        let mut parts = &path[name_end..];
        while !parts.is_empty() {
            let is_item = parts.starts_with('[');
            let body = &parts[1..];
            let end = body.find(if is_item { [']', ']'] } else { ['.', '['] }).unwrap_or(body.len());
            value = attribute(&value, &body[..end], is_item)?;
            parts = &body[(end + usize::from(is_item)).min(body.len())..];
        }
        let value = match conversion {
            "" => value,
            "r" | "a" => Value::from(repr_of(&value)?),
            "s" => Value::from(text_of(&value)?),
            _ => return Err(fault(format!("Unknown conversion specifier '{conversion}'"))),
        };
        format_value(&value, spec, &mut out)?;
    }
    out.push_str(rest);
    Ok(out)
}

fn format_value(value: &Value, spec: &str, out: &mut String) -> Result<()> {
    if spec.is_empty() {
        return write_text(value, out);
    }
    let mut chars = spec.chars().peekable();
    let mut layout =
        Layout { fill: ' ', align: '\0', plus: None, alternate: false, width: 0, grouping: None, precision: None };
    let mut ahead = chars.clone();
    let (first, second) = (ahead.next(), ahead.next());
    if let (Some(fill), Some(align @ ('<' | '>' | '^' | '='))) = (first, second) {
        layout.fill = fill;
        layout.align = align;
        chars = ahead;
    } else if let Some(align @ ('<' | '>' | '^' | '=')) = first {
        layout.align = align;
        chars.next();
    }
    layout.plus = chars.next_if(|c| matches!(c, '+' | '-' | ' ')).filter(|c| *c != '-');
    layout.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && layout.align == '\0' {
        layout.fill = '0';
        layout.align = '=';
    }
    let mut digits = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    layout.width = if digits.is_empty() { 0 } else { width(digits.parse().ok())? };
    layout.grouping = chars.next_if(|c| matches!(c, ',' | '_'));
    if chars.next_if_eq(&'.').is_some() {
        let digits: String = std::iter::from_fn(|| chars.next_if(char::is_ascii_digit)).collect();
        layout.precision = Some(width(digits.parse().ok())?);
    }
    let kind = chars.next();
    if chars.next().is_some() {
        return Err(fault("Invalid format specifier"));
    }
    let is_whole = as_int(value).is_some();
    let is_number = is_whole || is_float(value);
    if layout.align == '\0' {
        layout.align = if is_number { '>' } else { '<' };
    }
    match kind {
        None | Some('d' | 'n') if is_whole => write_number(value, 'd', &layout, out),
        Some(kind @ ('x' | 'X' | 'o' | 'b')) if is_whole => write_number(value, kind, &layout, out),
        Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) if is_number => write_number(value, kind, &layout, out),
        None if is_number && layout.precision.is_some() => write_number(value, 'g', &layout, out),
        None if is_number => {
            let number = as_float(value).unwrap_or_default();
            let digits = float_repr(number.abs());
            let sign = if number.is_sign_negative() { "-" } else { "" };
            pad(sign, &digits, &layout, out)
        }
        None | Some('s') if !is_number => {
            let text = text_of(value)?;
            let text = match layout.precision {
                Some(precision) => text.chars().take(precision).collect(),
                None => text,
            };
            pad("", &text, &layout, out)
        }
        kind => Err(fault(format!(
            "Unknown format code '{}' for object of type '{}'",
            kind.unwrap_or(' '),
            type_name(value)
        ))),
    }
}
