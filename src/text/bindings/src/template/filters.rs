//! Filters, tests and functions that minijinja lacks or implements differently from jinja2.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{filters, functions, Environment, Error, State};

use super::json::{self, Style};
use super::operators::{check_nesting, holds_scope, BoundMethod};
use super::python::{self, as_float, as_int, is_space, parse_float, parse_int, split_lines, text_of, type_name};
use super::strings::{self, change_case};
use super::{charge, charge_items, fault, Args};

type Result<T> = std::result::Result<T, Error>;
type Filter = fn(Value, Args) -> Result<Value>;

const FILTERS: [(&str, Filter); 31] = [
    ("abs", abs),
    ("batch", batch),
    ("capitalize", |value, args| cased(value, args, "capitalize")),
    ("center", center),
    ("count", length),
    ("d", default),
    ("default", default),
    ("e", escape),
    ("escape", escape),
    ("float", float),
    ("forceescape", escape),
    ("format", format),
    ("indent", indent),
    ("int", int),
    ("items", items),
    ("join", join),
    ("length", length),
    ("lower", |value, args| cased(value, args, "lower")),
    ("replace", replace),
    ("round", round),
    ("slice", slice),
    ("string", string),
    ("striptags", strip_tags),
    ("title", title),
    ("tojson", to_json),
    ("trim", trim),
    ("truncate", truncate),
    ("upper", |value, args| cased(value, args, "upper")),
    ("urlencode", url_encode),
    ("wordcount", word_count),
    ("random", |_, _| Err(fault("a chat template that renders differently each time is refused: 'random'"))),
];

pub fn add_to(environment: &mut Environment<'static>) {
    for (name, filter) in FILTERS {
        environment.add_filter(name, move |value: Value, args: Rest<ValueOrKwargs>| {
            filter(value, Args::new(&args.into_values())?)
        });
    }
    environment.add_filter("map", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        generator(filters::map(state, value, args)?)
    });
    type Test<'a> = Option<Cow<'a, str>>;
    environment.add_filter("select", |state: &mut State, value: Value, test: Test<'_>, args: Rest<ValueOrKwargs>| {
        generator(filters::select(state, value, test, args)?)
    });
    environment.add_filter("reject", |state: &mut State, value: Value, test: Test<'_>, args: Rest<ValueOrKwargs>| {
        generator(filters::reject(state, value, test, args)?)
    });
    environment.add_filter("selectattr", selectattr);
    environment.add_filter("rejectattr", rejectattr);
    environment.add_filter("unique", |state: &State, value: Value, options: Kwargs| {
        generator(filters::unique(state, value, options)?.try_iter()?.collect())
    });
    environment.add_filter("reverse", |value: Value| match value.kind() {
        ValueKind::String => filters::reverse(&value),
        _ => generator(filters::reverse(&value)?.try_iter()?.collect()),
    });
    // Filters of minijinja that jinja2 does not have, so templates do not need them.
    for name in ["zip", "chain", "pprint"] {
        environment.remove_filter(name);
    }
    environment.add_test("callable", |value: Value| value.as_object().is_some_and(|o| o.repr() == ObjectRepr::Plain));
    environment.add_test("sequence", |value: Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | String | Map | Iterable | Undefined)
    });
    environment.add_function("dict", dict);
    environment.add_function("namespace", namespace);
    environment.add_function("joiner", |args: Rest<ValueOrKwargs>| -> Result<Value> {
        let [separator] = Args::new(&args.into_values())?.bind("joiner", ["sep"])?;
        let separator = separator.unwrap_or_else(|| Value::from(", "));
        Ok(Value::from_object(Joiner { separator, used: AtomicBool::new(false) }))
    });
    environment.add_function("cycler", |args: Rest<ValueOrKwargs>| -> Result<Value> {
        if args.is_empty() {
            return Err(fault("at least one item has to be provided"));
        }
        for item in args.iter() {
            check_nesting(item, 1)?;
        }
        Ok(Value::from_object(Cycler { items: args.into_values(), position: AtomicUsize::new(0) }))
    });
    environment.add_function("lipsum", || -> Result<Value> { Err(fault("lipsum() is not available")) });
}

/// The result of filters that Python implements as generators: readable once, without a length, and not a list for
/// tojson.
fn generator(items: Vec<Value>) -> Result<Value> {
    charge_items(items.len())?;
    let items = Value::from(items);
    if holds_scope(&items)? {
        return Err(fault("a filter gives plain values only: no namespaces, loops, macros or functions"));
    }
    Ok(Value::make_one_shot_iterator(items.try_iter()?))
}

fn selectattr(
    state: &mut State,
    value: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Value> {
    generator(filters::selectattr(state, value, attribute, test, args)?)
}

fn rejectattr(
    state: &mut State,
    value: Value,
    attribute: Cow<'_, str>,
    test: Option<Cow<'_, str>>,
    args: Rest<ValueOrKwargs>,
) -> Result<Value> {
    generator(filters::rejectattr(state, value, attribute, test, args)?)
}

/// Whether a value refers to other values that an inspection does not reveal.
pub fn refers_to_values(value: &Value) -> bool {
    value.downcast_object_ref::<Cycler>().is_some() || value.downcast_object_ref::<BoundMethod>().is_some()
}

/// Returns "" at first, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, _: &[Value]) -> Result<Value> {
        Ok(if self.used.swap(true, Ordering::Relaxed) { self.separator.clone() } else { Value::from("") })
    }
}

/// Returns its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    position: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let current = self.position.load(Ordering::Relaxed) % self.items.len();
        (key.as_str() == Some("current")).then(|| self.items[current].clone())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, name: &str, _: &[Value]) -> Result<Value> {
        match name {
            "next" => Ok(self.items[self.position.fetch_add(1, Ordering::Relaxed) % self.items.len()].clone()),
            "reset" => {
                self.position.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(fault(format!("'Cycler' object has no attribute '{name}'"))),
        }
    }
}

fn namespace(attributes: Option<ValueOrKwargs>) -> Result<Value> {
    if let Some(map) = attributes.as_ref().filter(|value| value.kind() == ValueKind::Map) {
        for name in map.try_iter()? {
            if name.as_str().is_some_and(|name| name.starts_with('_')) {
                return Err(fault("Chat templates cannot store underscore-prefixed attributes on a namespace"));
            }
        }
    }
    functions::namespace(attributes)
}

fn dict(args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = Args::new(&args.into_values())?;
    let mut entries: Vec<(Value, Value)> = Vec::new();
    for source in args.positional {
        let is_map = source.kind() == ValueKind::Map;
        for item in source.try_iter()? {
            let pair: Vec<Value> =
                if is_map { vec![item.clone(), source.get_item(&item)?] } else { item.try_iter()?.collect() };
            match <[Value; 2]>::try_from(pair) {
                Ok([key, value]) => entries.push((key, value)),
                Err(_) => return Err(fault("dictionary update sequence elements must have length 2")),
            }
        }
    }
    entries.extend(args.named.into_iter().map(|(name, value)| (Value::from(name), value)));
    Ok(Value::from_pairs(entries))
}

fn is_set(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// None if an argument is not given.
fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}

fn defined(value: &Value) -> Result<()> {
    if value.is_undefined() {
        return Err(Error::from(minijinja::ErrorKind::UndefinedError));
    }
    Ok(())
}

fn int_argument(value: Option<Value>, default: i128) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => as_int(&value)
            .ok_or_else(|| fault(format!("'{}' object cannot be interpreted as an integer", type_name(&value)))),
    }
}

/// A width or count from a template, limited so that a text of that size can be made.
fn size_argument(value: Option<Value>, default: i128) -> Result<usize> {
    let size = usize::try_from(int_argument(value, default)?.max(0)).unwrap_or(usize::MAX);
    charge(size)?;
    Ok(size)
}

fn required(value: Option<Value>, filter: &str) -> Result<Value> {
    value.ok_or_else(|| fault(format!("the filter '{filter}' needs another argument")))
}

/// A text derived from `value`; marked as safe if `value` is.
fn like(value: &Value, text: String) -> Value {
    if value.is_safe() {
        Value::from_safe_string(text)
    } else {
        Value::from(text)
    }
}

fn length(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("length", [])?;
    if value.is_undefined() {
        return Ok(Value::from(0));
    }
    match value.len() {
        Some(length) => Ok(Value::from(length)),
        None => Err(fault(format!("object of type '{}' has no len()", type_name(&value)))),
    }
}

fn default(value: Value, args: Args) -> Result<Value> {
    let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
    let replace = value.is_undefined() || (is_set(boolean) && !value.is_true());
    Ok(if replace { default.unwrap_or_else(|| Value::from("")) } else { value })
}

fn string(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("string", [])?;
    if value.kind() == ValueKind::String {
        Ok(value)
    } else {
        Ok(Value::from(text_of(&value)?))
    }
}

fn cased(value: Value, args: Args, name: &str) -> Result<Value> {
    args.bind::<0>(name, [])?;
    Ok(like(&value, change_case(&text_of(&value)?, name)))
}

/// jinja2's own title: a word begins after white space, a hyphen or an opening bracket.
fn title(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("title", [])?;
    let text = text_of(&value)?;
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        let separates = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        if begins && !separates {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        begins = separates;
    }
    Ok(like(&value, out))
}

fn trim(value: Value, args: Args) -> Result<Value> {
    let [chars] = args.bind("trim", ["chars"])?;
    let chars = given(chars).map(|chars| text_of(&chars)).transpose()?;
    let text = text_of(&value)?;
    Ok(like(&value, strings::strip(&text, chars.as_deref(), true, true).to_owned()))
}

fn replace(value: Value, args: Args) -> Result<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let old = text_of(&required(old, "replace")?)?;
    let new = text_of(&required(new, "replace")?)?;
    let count = given(count).map(|count| int_argument(Some(count), -1)).transpose()?;
    strings::replace(&text_of(&value)?, &old, &new, count)
}

fn join(value: Value, args: Args) -> Result<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = separator.map_or(Ok(String::new()), |separator| text_of(&separator))?;
    if value.is_undefined() {
        return Ok(Value::from(""));
    }
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        let item = match &attribute {
            Some(attribute) if !attribute.is_none() => at_path(&item, attribute)?,
            _ => item,
        };
        python::write_text(&item, &mut out)?;
    }
    Ok(Value::from(out))
}

/// An attribute of an item by its path, such as "function.name".
fn at_path(item: &Value, path: &Value) -> Result<Value> {
    let Some(path) = path.as_str() else { return item.get_item(path) };
    let mut value = item.clone();
    for part in path.split('.') {
        value = match part.parse::<usize>() {
            Ok(index) => value.get_item(&Value::from(index))?,
            Err(_) => value.get_attr(part)?,
        };
    }
    Ok(value)
}

fn items(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("items", [])?;
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if value.kind() != ValueKind::Map {
        return Err(fault("Can only get item pairs from a mapping."));
    }
    let mut pairs = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        pairs.push(Value::from(Tuple::from(vec![key, item])));
    }
    generator(pairs)
}

/// json.dumps with the options that transformers passes.
fn to_json(value: Value, args: Args) -> Result<Value> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match given(indent) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(size_argument(Some(indent), 0)?),
        }),
    };
    let (item_separator, key_separator) = match given(separators) {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(separators) => match &separators.try_iter()?.collect::<Vec<Value>>()[..] {
            [item, key] => (text_of(item)?, text_of(key)?),
            _ => return Err(fault("separators must be a pair")),
        },
    };
    let style = Style {
        ensure_ascii: is_set(ensure_ascii),
        sort_keys: is_set(sort_keys),
        indent,
        item_separator,
        key_separator,
    };
    Ok(Value::from(json::dump(&value, &style)?))
}

fn indent(value: Value, args: Args) -> Result<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let (first, blank) = (is_set(first), is_set(blank));
    defined(&value)?;
    let Some(text) = value.as_str() else {
        return Err(fault(format!("cannot indent '{}'", type_name(&value))));
    };
    let indention = match width.as_ref().and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => " ".repeat(size_argument(width, 4)?),
    };
    // jinja2 appends a newline, which turns "a\n" into two lines.
    let text = format!("{text}\n");
    let lines = split_lines(&text);
    charge(text.len().saturating_add(indention.len().saturating_mul(lines.len())))?;
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(like(&value, out))
}

fn center(value: Value, args: Args) -> Result<Value> {
    let [width] = args.bind("center", ["width"])?;
    strings::justify(&text_of(&value)?, int_argument(width, 80)?, " ", "center")
}

fn format(value: Value, args: Args) -> Result<Value> {
    let arguments =
        if args.named.is_empty() { Value::from(Tuple::from(args.positional)) } else { Value::from_pairs(args.named) };
    Ok(Value::from(python::percent(&text_of(&value)?, &arguments)?))
}

fn escape(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("escape", [])?;
    if value.is_safe() {
        return Ok(value);
    }
    Ok(Value::from_safe_string(escape_text(&text_of(&value)?)))
}

/// `&<>"'` as markupsafe escapes them.
pub fn escape_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

fn strip_tags(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("striptags", [])?;
    let text = text_of(&value)?;
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find('<') {
        let close = if rest[start..].starts_with("<!--") { "-->" } else { ">" };
        let Some(end) = rest[start..].find(close) else { break };
        out.push_str(&rest[..start]);
        rest = &rest[start + end + close.len()..];
    }
    out.push_str(rest);
    let words: Vec<&str> = out.split(is_space).filter(|word| !word.is_empty()).collect();
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    let text = entities.iter().fold(words.join(" "), |text, (entity, c)| text.replace(entity, c));
    Ok(Value::from(text))
}

fn truncate(value: Value, args: Args) -> Result<Value> {
    let [length, kill_words, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let length = int_argument(length, 255)?;
    let leeway = int_argument(given(leeway), 5)?;
    let end = end.map_or(Ok("...".to_owned()), |end| text_of(&end))?;
    let text = text_of(&value)?;
    let end_length = end.chars().count() as i128;
    if length < end_length || leeway < 0 {
        return Err(fault(format!("expected length >= {end_length} and leeway >= 0")));
    }
    if text.chars().count() as i128 <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let cut: String = text.chars().take((length - end_length) as usize).collect();
    let kept = if is_set(kill_words) { &cut } else { cut.rsplit_once(' ').map_or(cut.as_str(), |(kept, _)| kept) };
    Ok(Value::from(format!("{kept}{end}")))
}

fn word_count(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("wordcount", [])?;
    let text = text_of(&value)?;
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    Ok(Value::from(text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count()))
}

fn url_encode(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("urlencode", [])?;
    let pairs = match value.kind() {
        ValueKind::Map => items(value, Args { positional: Vec::new(), named: Vec::new() })?,
        ValueKind::Seq | ValueKind::Iterable => value,
        _ => return Ok(Value::from(quote(&text_of(&value)?, "/"))),
    };
    let mut parts = Vec::new();
    for pair in pairs.try_iter()? {
        match &pair.try_iter()?.collect::<Vec<Value>>()[..] {
            [key, value] => parts.push(format!("{}={}", quote(&text_of(key)?, ""), quote(&text_of(value)?, ""))),
            _ => return Err(fault("urlencode takes pairs")),
        }
    }
    Ok(Value::from(parts.join("&")))
}

/// Percent-encodes everything except letters, digits, `_.-~` and `safe`.
fn quote(text: &str, safe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if byte.is_ascii_alphanumeric() || "_.-~".contains(c) || (byte.is_ascii() && safe.contains(c)) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn of_float(number: f64) -> Option<i128> {
    (number.is_finite() && number.abs() < 1e38).then_some(number.trunc() as i128)
}

/// Integers in the smallest representation, as minijinja compares and prints them.
pub fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn abs(value: Value, args: Args) -> Result<Value> {
    args.bind::<0>("abs", [])?;
    defined(&value)?;
    match (as_int(&value), as_float(&value)) {
        (Some(number), _) if number > i128::MIN => Ok(integer(number.abs())),
        (None, Some(number)) => Ok(Value::from(number.abs())),
        _ => Err(fault(format!("bad operand type for abs(): '{}'", type_name(&value)))),
    }
}

fn int(value: Value, args: Args) -> Result<Value> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    let base = u32::try_from(int_argument(base, 10)?).unwrap_or(1);
    defined(&value)?;
    let number = match value.as_str() {
        Some(text) => parse_int(text, base).or_else(|| parse_float(text).and_then(of_float)),
        None => as_int(&value).or_else(|| as_float(&value).and_then(of_float)),
    };
    Ok(number.map(integer).or(default).unwrap_or_else(|| Value::from(0)))
}

fn float(value: Value, args: Args) -> Result<Value> {
    let [default] = args.bind("float", ["default"])?;
    defined(&value)?;
    let number = match value.as_str() {
        Some(text) => parse_float(text),
        None => as_float(&value),
    };
    Ok(number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

fn round(value: Value, args: Args) -> Result<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = int_argument(precision, 0)?;
    defined(&value)?;
    let Some(number) = as_float(&value) else {
        return Err(fault(format!("type {} doesn't define __round__ method", type_name(&value))));
    };
    let scale = 10f64.powi(i32::try_from(precision).unwrap_or(0).clamp(-300, 300));
    match method.as_ref().and_then(Value::as_str) {
        None | Some("common") => Ok(match as_int(&value) {
            Some(number) if precision >= 0 => integer(number),
            Some(_) => integer(python::round(number, precision) as i128),
            None => Value::from(python::round(number, precision)),
        }),
        Some("ceil") => Ok(Value::from((number * scale).ceil() / scale)),
        Some("floor") => Ok(Value::from((number * scale).floor() / scale)),
        _ => Err(fault("method must be common, ceil or floor")),
    }
}

fn batch(value: Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let count = size_argument(Some(required(count, "batch")?), 0)?.max(1);
    let items: Vec<Value> = value.try_iter()?.collect();
    let mut rows = Vec::new();
    for chunk in items.chunks(count) {
        let mut row = chunk.to_vec();
        if let Some(fill) = given(fill.clone()) {
            charge_items(count)?;
            row.resize(count, fill);
        }
        rows.push(Value::from(row));
    }
    generator(rows)
}

fn slice(value: Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let count = size_argument(Some(required(count, "slice")?), 0)?;
    if count == 0 {
        return Err(fault("integer division or modulo by zero"));
    }
    charge_items(count)?;
    let items: Vec<Value> = value.try_iter()?.collect();
    let (each, extra) = (items.len() / count, items.len() % count);
    let mut rows = Vec::new();
    let mut start = 0;
    for i in 0..count {
        let end = start + each + usize::from(i < extra);
        let mut row = items[start..end].to_vec();
        row.extend(given(fill.clone()).filter(|_| i >= extra));
        rows.push(Value::from(row));
        start = end;
    }
    generator(rows)
}
