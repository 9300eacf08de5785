//! Python's methods of strings, lists and dictionaries.

use std::collections::HashSet;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::python::{self, as_int, is_space, type_name};
use super::{charge, charge_items, fault, work, Args};

type Result<T> = std::result::Result<T, Error>;

/// Called for every method that minijinja does not know; its strings have no methods of their own.
pub fn call_method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value> {
    if let Some(text) = value.as_str() {
        work(text.len())?;
        return string_method(text, name, Args::new(args)?);
    }
    match value.kind() {
        ValueKind::Seq if name == "index" => {
            let [wanted] = Args::new(args)?.bind(name, ["value"])?;
            let wanted = required(wanted, name)?;
            match value.try_iter()?.position(|item| item == wanted) {
                Some(i) => Ok(Value::from(i)),
                None => Err(fault(format!("{} is not in list", python::repr_of(&wanted)?))),
            }
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// A method of a dictionary.
pub fn dict_method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value> {
    let items = match name {
        "copy" => return Ok(value.clone()),
        "get" => return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
        "items" | "keys" | "values" => value.try_iter()?,
        _ => return Err(fault(format!("access to attribute '{name}' of 'dict' object is unsafe."))),
    };
    Args::new(args)?.bind::<0>(name, [])?;
    charge_items(value.len().unwrap_or(0))?;
    let mut entries = Vec::new();
    for key in items {
        entries.push(match name {
            "keys" => key,
            "values" => value.get_item(&key)?,
            _ => Value::from(Tuple::from(vec![key.clone(), value.get_item(&key)?])),
        });
    }
    Ok(Value::from_object(View(entries)))
}

/// The result of `dict.items()` and similar methods: iterable and of known length, but not a list.
#[derive(Debug)]
struct View(Vec<Value>);

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.clone())
    }
}

fn required(value: Option<Value>, function: &str) -> Result<Value> {
    value.ok_or_else(|| fault(format!("{function}() needs another argument")))
}

/// An argument that must be text.
fn text_of(value: &Value, function: &str) -> Result<String> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(fault(format!("{function}() argument must be str, not {}", type_name(value)))),
    }
}

fn optional_text(value: Option<Value>, function: &str) -> Result<Option<String>> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => text_of(&value, function).map(Some),
    }
}

fn optional_int(value: Option<Value>, function: &str) -> Result<Option<i128>> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => as_int(&value).map(Some).ok_or_else(|| {
            fault(format!("{function}(): '{}' object cannot be interpreted as an integer", type_name(&value)))
        }),
    }
}

fn string_method(text: &str, name: &str, args: Args) -> Result<Value> {
    match name {
        "lower" | "upper" | "casefold" | "title" | "capitalize" | "swapcase" => {
            args.bind::<0>(name, [])?;
            charge(text.len() * 3)?;
            Ok(Value::from(change_case(text, name)))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = optional_text(chars, name)?;
            Ok(Value::from(strip(text, chars.as_deref(), name != "rstrip", name != "lstrip")))
        }
        "split" | "rsplit" => {
            let [separator, limit] = args.bind(name, ["sep", "maxsplit"])?;
            let separator = optional_text(separator, name)?;
            let limit = optional_int(limit, name)?.unwrap_or(-1);
            split(text, separator.as_deref(), limit, name == "rsplit")
        }
        "splitlines" => {
            let [keep_ends] = args.bind(name, ["keepends"])?;
            let lines = python::split_lines(text);
            let keep_ends = keep_ends.is_some_and(|keep| keep.is_true());
            texts(lines.iter().enumerate().map(|(i, line)| {
                if !keep_ends {
                    return *line;
                }
                let start = line.as_ptr() as usize - text.as_ptr() as usize;
                let end = lines.get(i + 1).map_or(text.len(), |next| next.as_ptr() as usize - text.as_ptr() as usize);
                &text[start..end]
            }))
        }
        "startswith" | "endswith" => {
            let [affix, start, end] = args.bind(name, ["prefix", "start", "end"])?;
            let affix = required(affix, name)?;
            let text = window(text, optional_int(start, name)?, optional_int(end, name)?).map_or("", |(_, w)| w);
            let matches = |affix: &Value| -> Result<bool> {
                let affix = text_of(affix, name)?;
                Ok(if name == "startswith" { text.starts_with(&affix) } else { text.ends_with(&affix) })
            };
            if !affix.is_tuple() {
                return matches(&affix).map(Value::from);
            }
            for affix in affix.try_iter()? {
                if matches(&affix)? {
                    return Ok(Value::from(true));
                }
            }
            Ok(Value::from(false))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [needle, start, end] = args.bind(name, ["sub", "start", "end"])?;
            let needle = text_of(&required(needle, name)?, name)?;
            let window = window(text, optional_int(start, name)?, optional_int(end, name)?);
            search(text, &needle, window, name)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let old = text_of(&required(old, name)?, name)?;
            let new = text_of(&required(new, name)?, name)?;
            replace(text, &old, &new, optional_int(count, name)?)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(name, ["prefix"])?;
            let affix = text_of(&required(affix, name)?, name)?;
            let rest = if name == "removeprefix" { text.strip_prefix(&affix) } else { text.strip_suffix(&affix) };
            Ok(Value::from(rest.unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(name, ["sep"])?;
            let separator = text_of(&required(separator, name)?, name)?;
            if separator.is_empty() {
                return Err(fault("empty separator"));
            }
            charge(text.len())?;
            let found = if name == "partition" { text.find(&*separator) } else { text.rfind(&*separator) };
            let parts = match found {
                Some(i) => [&text[..i], &*separator, &text[i + separator.len()..]],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())))
        }
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            let mut out = String::new();
            for (i, item) in required(items, name)?.try_iter()?.enumerate() {
                let item = item.as_str().ok_or_else(|| {
                    fault(format!("sequence item {i}: expected str instance, {} found", type_name(&item)))
                })?;
                charge(item.len() + text.len())?;
                if i > 0 {
                    out.push_str(text);
                }
                out.push_str(item);
            }
            Ok(Value::from(out))
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"])?;
            let width = optional_int(width, name)?.ok_or_else(|| fault(format!("{name}() needs another argument")))?;
            let fill = optional_text(fill, name)?.unwrap_or_else(|| " ".into());
            justify(text, width, &fill, name)
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"])?;
            let size = usize::try_from(optional_int(size, name)?.unwrap_or(8).max(0)).unwrap_or(usize::MAX);
            expand_tabs(text, size)
        }
        "format" | "format_map" => format(text, args),
        _ if name.starts_with("is") => {
            args.bind::<0>(name, [])?;
            is_kind(text, name).map(Value::from).ok_or_else(|| Error::from(ErrorKind::UnknownMethod))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

pub fn change_case(text: &str, name: &str) -> String {
    match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "casefold" => text.replace('ß', "ss").to_lowercase(),
        "title" => python::title(text),
        "capitalize" => python::capitalize(text),
        _ => {
            let mut out = String::with_capacity(text.len());
            for c in text.chars() {
                if c.is_uppercase() {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
            }
            out
        }
    }
}

/// str.strip; without `chars` it strips white space.
pub fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let set: Option<HashSet<char>> = chars.map(|chars| chars.chars().collect());
    let inside = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(&c));
    let text = if start { text.trim_start_matches(inside) } else { text };
    if end {
        text.trim_end_matches(inside)
    } else {
        text
    }
}

/// The part of the text between `start` and `end` (in characters, negative from the end), and its offset in bytes. None
/// if `start` lies beyond the end of the text.
fn window(text: &str, start: Option<i128>, end: Option<i128>) -> Option<(usize, &str)> {
    if start.is_none() && end.is_none() {
        return Some((0, text));
    }
    let length = text.chars().count() as i128;
    let clamp = |bound: i128| if bound < 0 { bound.saturating_add(length).max(0) } else { bound };
    let start = clamp(start.unwrap_or(0));
    let end = clamp(end.unwrap_or(length)).min(length);
    if start > length || end < start {
        return None;
    }
    let offset = |position: i128| text.char_indices().nth(position as usize).map_or(text.len(), |(i, _)| i);
    let (from, to) = (offset(start), offset(end));
    Some((from, &text[from..to]))
}

fn search(text: &str, needle: &str, window: Option<(usize, &str)>, name: &str) -> Result<Value> {
    if name == "count" {
        let count = match window {
            None => 0,
            Some((_, window)) if needle.is_empty() => window.chars().count() + 1,
            Some((_, window)) => window.matches(needle).count(),
        };
        return Ok(Value::from(count));
    }
    let found = window.and_then(|(offset, window)| {
        let found = if name.starts_with('r') { window.rfind(needle) } else { window.find(needle) };
        found.map(|i| text[..offset + i].chars().count())
    });
    match found {
        Some(position) => Ok(Value::from(position)),
        None if name.ends_with("index") => Err(fault("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

pub fn replace(text: &str, old: &str, new: &str, count: Option<i128>) -> Result<Value> {
    let limit = usize::try_from(count.unwrap_or(-1)).unwrap_or(usize::MAX);
    let matches = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    charge(text.len().saturating_add(matches.min(limit).saturating_mul(new.len())))?;
    Ok(Value::from(text.replacen(old, new, limit)))
}

fn texts<'t>(parts: impl Iterator<Item = &'t str>) -> Result<Value> {
    let mut items = Vec::new();
    for part in parts {
        charge(part.len() + 32)?;
        items.push(Value::from(part));
    }
    Ok(Value::from(items))
}

fn split(text: &str, separator: Option<&str>, limit: i128, from_end: bool) -> Result<Value> {
    let limit = usize::try_from(limit).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let Some(separator) = separator else {
        return split_space(text, limit, from_end);
    };
    if separator.is_empty() {
        return Err(fault("empty separator"));
    }
    if from_end {
        let mut parts: Vec<&str> = Vec::new();
        for part in text.rsplitn(limit, separator) {
            parts.push(part);
        }
        return texts(parts.into_iter().rev());
    }
    texts(text.splitn(limit, separator))
}

/// Splits at runs of white space; beyond the limit, the last part keeps the rest.
fn split_space(text: &str, limit: usize, from_end: bool) -> Result<Value> {
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_end { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        if parts.len() + 1 == limit {
            parts.push(rest);
            break;
        }
        if from_end {
            let start = rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(i, c)| i + c.len_utf8());
            parts.push(&rest[start..]);
            rest = &rest[..start];
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..end]);
            rest = &rest[end..];
        }
    }
    if from_end {
        parts.reverse();
    }
    texts(parts.into_iter())
}

pub fn justify(text: &str, width: i128, fill: &str, name: &str) -> Result<Value> {
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(fault("The fill character must be exactly one character long"));
    };
    let length = text.chars().count();
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let missing = width.saturating_sub(length);
    charge(text.len().saturating_add(missing.saturating_mul(4)))?;
    let (before, after, fill) = match name {
        "ljust" => (0, missing, fill),
        "rjust" => (missing, 0, fill),
        "zfill" => (missing, 0, '0'),
        // CPython puts the odd character on the left only if the width is odd.
        _ => {
            let left = missing / 2 + (missing & width & 1);
            (left, missing - left, fill)
        }
    };
    let sign = usize::from(name == "zfill" && text.starts_with(['+', '-']));
    let mut out = String::with_capacity(text.len() + missing);
    out.push_str(&text[..sign]);
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(&text[sign..]);
    out.extend(std::iter::repeat_n(fill, after));
    Ok(Value::from(out))
}

fn expand_tabs(text: &str, size: usize) -> Result<Value> {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                charge(spaces)?;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

pub fn format(text: &str, args: Args) -> Result<Value> {
    let attribute = |value: &Value, name: &str, is_item: bool| {
        if !is_item {
            return value.get_attr(name);
        }
        let key = name.parse::<i64>().map_or_else(|_| Value::from(name), Value::from);
        value.get_item(&key)
    };
    let mut lookup = |name: &str| {
        let found = match name.parse::<usize>() {
            Ok(index) => args.positional.get(index),
            Err(_) => args.named.iter().find(|(n, _)| **n == *name).map(|(_, value)| value),
        };
        found.cloned().ok_or_else(|| fault(format!("the format string asks for '{name}', which is not given")))
    };
    let out = python::format_fields(text, &mut lookup, &attribute)?;
    Ok(Value::from(out))
}

/// str.isdigit and similar methods; None for any other name.
fn is_kind(text: &str, name: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let cased = |c: char| c.is_lowercase() || c.is_uppercase();
    Some(match name {
        "isascii" => text.is_ascii(),
        "isspace" => all(is_space),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "islower" => text.chars().any(cased) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(cased) && !text.chars().any(char::is_lowercase),
        "istitle" => text.chars().any(cased) && python::title(text) == text,
        "isidentifier" => {
            let begins = text.chars().next().is_some_and(|c| !c.is_numeric());
            begins && text.chars().all(|c| c == '_' || c.is_alphanumeric())
        }
        _ => return None,
    })
}
