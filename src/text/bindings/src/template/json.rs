//! json.dumps as the tojson filter of transformers calls it: no HTML escaping, key order kept.

use minijinja::value::{Value, ValueKind};
use minijinja::Error;

use super::python::{as_float, float_repr, is_float, type_name};
use super::{charge, check_depth, check_size, fault};

type Result<T> = std::result::Result<T, Error>;

/// The options of json.dumps.
pub struct Style {
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    /// The indentation of one level; None: everything on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
}

pub fn dump(value: &Value, style: &Style) -> Result<String> {
    let mut out = String::new();
    write(value, style, 0, &mut out)?;
    charge(out.len())?;
    Ok(out)
}

fn write(value: &Value, style: &Style, level: usize, out: &mut String) -> Result<()> {
    check_depth(level)?;
    check_size(out.len())?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if is_float(value) => out.push_str(&float_text(as_float(value).unwrap_or_default())),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(('[', ']'), items.len(), style, level, out, |i, out| write(&items[i], style, level + 1, out))?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_items(('{', '}'), keys.len(), style, level, out, |i, out| {
                write_key(&keys[i], style, out)?;
                out.push_str(&style.key_separator);
                write(&value.get_item(&keys[i])?, style, level + 1, out)
            })?;
        }
        _ => return Err(fault(format!("Object of type {} is not JSON serializable", type_name(value)))),
    }
    Ok(())
}

fn write_items(
    brackets: (char, char),
    count: usize,
    style: &Style,
    level: usize,
    out: &mut String,
    mut item: impl FnMut(usize, &mut String) -> Result<()>,
) -> Result<()> {
    out.push(brackets.0);
    for i in 0..count {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(style, level + 1, out)?;
        item(i, out)?;
    }
    if count > 0 {
        new_line(style, level, out)?;
    }
    out.push(brackets.1);
    Ok(())
}

fn write_key(key: &Value, style: &Style, out: &mut String) -> Result<()> {
    if let Some(text) = key.as_str() {
        write_string(text, style.ensure_ascii, out);
        return Ok(());
    }
    if !matches!(key.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number) {
        return Err(fault(format!("keys must be str, int, float, bool or None, not {}", type_name(key))));
    }
    out.push('"');
    write(key, style, 0, out)?;
    out.push('"');
    Ok(())
}

fn new_line(style: &Style, level: usize, out: &mut String) -> Result<()> {
    if let Some(indent) = &style.indent {
        check_size(out.len() + indent.len() * level)?;
        out.push('\n');
        for _ in 0..level {
            out.push_str(indent);
        }
    }
    Ok(())
}

fn float_text(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 {
            "Infinity".into()
        } else {
            "-Infinity".into()
        }
    } else {
        float_repr(value)
    }
}

fn write_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            _ if c < ' ' || (ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}
