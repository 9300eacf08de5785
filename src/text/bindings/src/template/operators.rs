//! Python's operators as functions, with which `rewrite.rs` replaces minijinja's. Each is charged to the rendering's
//! budget.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::filters::integer;
use super::python::{as_float, as_int, is_float, percent, type_name, write_text};
use super::rewrite::PREFIX;
use super::{charge, charge_items, check_depth, exhausted, fault, filters, strings};

type Result<T> = std::result::Result<T, Error>;
type Operator = fn(&[Value]) -> Result<Value>;

const OPERATORS: [(&str, Operator); 17] = [
    ("add", |operands| fold(operands, add)),
    ("sub", |operands| fold(operands, |a, b| arithmetic("-", a, b))),
    ("mul", |operands| fold(operands, multiply)),
    ("div", |operands| fold(operands, |a, b| arithmetic("/", a, b))),
    ("floordiv", |operands| fold(operands, |a, b| arithmetic("//", a, b))),
    ("mod", |operands| fold(operands, modulo)),
    ("pow", |operands| fold(operands, |a, b| arithmetic("**", a, b))),
    ("negative", |operands| negative(&operands[0])),
    ("concat", concat),
    ("compare", compare),
    ("item", |operands| item(&operands[0], &operands[1])),
    ("slice", |operands| slice_input(&operands[0])),
    ("iter", |operands| iterable(&operands[0])),
    ("input", |operands| filter_input(&operands[0])),
    ("keep", |operands| keep(&operands[0])),
    ("keep_attribute", |operands| keep_attribute(&operands[0])),
    ("attribute", |operands| attribute(&operands[0], &operands[1])),
];

pub fn add_to(environment: &mut Environment<'static>) {
    for (name, operator) in OPERATORS {
        environment.add_function(format!("{PREFIX}{name}"), move |operands: Rest<Value>| {
            // The rewriter passes the right number of operands; a template that calls such a function by name may not.
            if operands.len() < if matches!(name, "item" | "compare" | "attribute") { 2 } else { 1 } {
                return Err(Error::from(ErrorKind::MissingArgument));
            }
            operator(&operands)
        });
    }
    environment.add_function(format!("{PREFIX}method"), |state: &mut State, operands: Rest<ValueOrKwargs>| {
        let operands = operands.into_values();
        match &operands[..] {
            [value, name, args @ ..] => call_dict_method(state, value, name.as_str().unwrap_or_default(), args),
            _ => Err(Error::from(ErrorKind::MissingArgument)),
        }
    });
}

fn fold(operands: &[Value], operator: fn(&Value, &Value) -> Result<Value>) -> Result<Value> {
    let mut result = operands[0].clone();
    for operand in &operands[1..] {
        result = operator(&result, operand)?;
    }
    Ok(result)
}

fn defined(value: &Value) -> Result<()> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "an operand is undefined"));
    }
    Ok(())
}

fn unsupported(symbol: &str, a: &Value, b: &Value) -> Error {
    fault(format!("unsupported operand type(s) for {symbol}: '{}' and '{}'", type_name(a), type_name(b)))
}

fn too_large() -> Error {
    exhausted("an integer is too large")
}

fn add(a: &Value, b: &Value) -> Result<Value> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        charge(left.len() + right.len())?;
        if a.is_safe() || b.is_safe() {
            let escaped = |value: &Value, text: &str| {
                if value.is_safe() {
                    text.to_owned()
                } else {
                    super::filters::escape_text(text)
                }
            };
            return Ok(Value::from_safe_string(escaped(a, left) + &escaped(b, right)));
        }
        return Ok(Value::from([left, right].concat()));
    }
    if a.kind() == ValueKind::Seq && b.kind() == ValueKind::Seq && a.is_tuple() == b.is_tuple() {
        charge_items(a.len().unwrap_or(0) + b.len().unwrap_or(0))?;
        let items: Vec<Value> = a.try_iter()?.chain(b.try_iter()?).collect();
        return Ok(if a.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    arithmetic("+", a, b)
}

fn multiply(a: &Value, b: &Value) -> Result<Value> {
    match (a.kind(), b.kind()) {
        (ValueKind::String | ValueKind::Seq, _) if as_int(b).is_some() => repeat(a, as_int(b).unwrap_or(0)),
        (_, ValueKind::String | ValueKind::Seq) if as_int(a).is_some() => repeat(b, as_int(a).unwrap_or(0)),
        _ => arithmetic("*", a, b),
    }
}

fn repeat(value: &Value, count: i128) -> Result<Value> {
    let count = usize::try_from(count.max(0)).map_err(|_| too_large())?;
    if let Some(text) = value.as_str() {
        charge(text.len().saturating_mul(count))?;
        return Ok(Value::from(text.repeat(count)));
    }
    charge_items(value.len().unwrap_or(0).saturating_mul(count))?;
    let once: Vec<Value> = value.try_iter()?.collect();
    let items: Vec<Value> = once.iter().cloned().cycle().take(once.len() * count).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

fn modulo(a: &Value, b: &Value) -> Result<Value> {
    match a.as_str() {
        Some(format) => Ok(Value::from(percent(format, b)?)),
        None => arithmetic("%", a, b),
    }
}

fn negative(value: &Value) -> Result<Value> {
    defined(value)?;
    match as_int(value) {
        Some(number) => number.checked_neg().map(integer).ok_or_else(too_large),
        None if is_float(value) => Ok(Value::from(-as_float(value).unwrap_or_default())),
        None => Err(fault(format!("bad operand type for unary -: '{}'", type_name(value)))),
    }
}

fn arithmetic(symbol: &str, a: &Value, b: &Value) -> Result<Value> {
    defined(a)?;
    defined(b)?;
    if let (Some(a), Some(b)) = (as_int(a), as_int(b)) {
        if !(symbol == "/" || (symbol == "**" && b < 0)) {
            return of_integers(symbol, a, b)?.map(integer).ok_or_else(too_large);
        }
    }
    match (as_float(a), as_float(b)) {
        (Some(a), Some(b)) => of_floats(symbol, a, b).map(Value::from),
        _ => Err(unsupported(symbol, a, b)),
    }
}

/// None: the result is too large.
fn of_integers(symbol: &str, a: i128, b: i128) -> Result<Option<i128>> {
    if b == 0 && matches!(symbol, "//" | "%") {
        return Err(fault("integer division or modulo by zero"));
    }
    Ok(match symbol {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "//" => a.checked_div(b).map(|quotient| quotient - i128::from(a % b != 0 && (a < 0) != (b < 0))),
        "%" => a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }),
        _ => match u32::try_from(b) {
            Ok(exponent) => a.checked_pow(exponent),
            Err(_) if (-1..=1).contains(&a) => Some(if a < 0 && b % 2 == 0 { 1 } else { a }),
            Err(_) => None,
        },
    })
}

fn of_floats(symbol: &str, a: f64, b: f64) -> Result<f64> {
    if b == 0.0 && matches!(symbol, "/" | "//" | "%") {
        return Err(fault("division by zero"));
    }
    let rest = || {
        let rest = a % b;
        if rest == 0.0 {
            0f64.copysign(b)
        } else if (rest < 0.0) != (b < 0.0) {
            rest + b
        } else {
            rest
        }
    };
    Ok(match symbol {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "%" => rest(),
        "//" => {
            let quotient = (a - rest()) / b;
            let floor = quotient.floor();
            if quotient - floor > 0.5 {
                floor + 1.0
            } else {
                floor
            }
        }
        _ => {
            let power = a.powf(b);
            if a.is_finite() && b.is_finite() && !power.is_finite() {
                return Err(fault("the result of ** is not a float"));
            }
            power
        }
    })
}

fn concat(operands: &[Value]) -> Result<Value> {
    let mut out = String::new();
    for operand in operands {
        write_text(operand, &mut out)?;
    }
    Ok(Value::from(out))
}

/// The operands of `a < b < c` are a, '<', b, '<', c.
fn compare(operands: &[Value]) -> Result<Value> {
    let mut left = &operands[0];
    for pair in operands[1..].chunks_exact(2) {
        let right = &pair[1];
        if !compare_two(left, pair[0].as_str().unwrap_or_default(), right)? {
            return Ok(Value::from(false));
        }
        left = right;
    }
    Ok(Value::from(true))
}

/// A bound on the bytes that a comparison of the value reads.
fn extent(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.len().unwrap_or(0) * 32, str::len)
}

fn compare_two(a: &Value, symbol: &str, b: &Value) -> Result<bool> {
    Ok(match symbol {
        "in" => contains(b, a)?,
        "not in" => !contains(b, a)?,
        "==" | "!=" => {
            super::work(extent(a).min(extent(b)))?;
            (a == b) == (symbol == "==")
        }
        _ => {
            defined(a)?;
            defined(b)?;
            super::work(extent(a).min(extent(b)))?;
            let order = ordering(a, symbol, b)?;
            match symbol {
                "<" => order == Some(Ordering::Less),
                "<=" => order.is_some_and(Ordering::is_le),
                ">" => order == Some(Ordering::Greater),
                _ => order.is_some_and(Ordering::is_ge),
            }
        }
    })
}

/// None: one of the two is not a number (NaN).
fn ordering(a: &Value, symbol: &str, b: &Value) -> Result<Option<Ordering>> {
    if let (Some(a), Some(b)) = (as_int(a), as_int(b)) {
        return Ok(Some(a.cmp(&b)));
    }
    if let (Some(a), Some(b)) = (as_float(a), as_float(b)) {
        return Ok(a.partial_cmp(&b));
    }
    let comparable = match (a.kind(), b.kind()) {
        (ValueKind::String, ValueKind::String) => true,
        (ValueKind::Seq, ValueKind::Seq) => a.is_tuple() == b.is_tuple(),
        _ => false,
    };
    if !comparable {
        return Err(fault(format!(
            "'{symbol}' not supported between instances of '{}' and '{}'",
            type_name(a),
            type_name(b)
        )));
    }
    Ok(Some(a.cmp(b)))
}

fn contains(container: &Value, value: &Value) -> Result<bool> {
    super::work(extent(container))?;
    if let Some(text) = container.as_str() {
        return match value.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => Err(fault(format!("'in <string>' requires string as left operand, not {}", type_name(value)))),
        };
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => Ok(!value.is_undefined() && has_key(container, value)?),
        ValueKind::Seq | ValueKind::Iterable => Ok(container.try_iter()?.any(|item| item == *value)),
        _ => Err(fault(format!("argument of type '{}' is not iterable", type_name(container)))),
    }
}

/// Whether a map has the key, even with an undefined value.
fn has_key(map: &Value, key: &Value) -> Result<bool> {
    match map.as_object() {
        Some(object) => Ok(object.get_value(key).is_some()),
        None => Ok(!map.get_item(key)?.is_undefined()),
    }
}

fn item(value: &Value, key: &Value) -> Result<Value> {
    if let Some(text) = value.as_str() {
        super::work(text.len())?;
    }
    defined(value)?;
    value.get_item(key)
}

/// The input of a slice, charged with what the slice copies at most; minijinja makes the slice.
fn slice_input(value: &Value) -> Result<Value> {
    defined(value)?;
    match value.as_str() {
        Some(text) => charge(text.len() * 5)?,
        None => charge_items(value.len().unwrap_or(0))?,
    }
    Ok(value.clone())
}

fn iterable(value: &Value) -> Result<Value> {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    match value.kind() {
        String => charge_items(value.as_str().map_or(0, str::len))?,
        // The loop needs to know its length.
        Iterable if value.len().is_none() => return Ok(Value::from(value.try_iter()?.collect::<Vec<Value>>())),
        Seq | Map | Iterable | Undefined => {}
        _ => return Err(fault(format!("'{}' object is not iterable", type_name(value)))),
    }
    Ok(value.clone())
}

/// Charges the input of a filter, because a filter may turn it into a list (of characters, for text).
fn filter_input(value: &Value) -> Result<Value> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => charge_items(value.len().unwrap_or(1))?,
        _ => super::work(extent(value))?,
    }
    Ok(value.clone())
}

/// Whether the value is a dictionary. Namespaces and loops are maps too, but their attributes are their items.
fn is_dict(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    let type_name = object.type_name();
    object.repr() == ObjectRepr::Map && !type_name.ends_with("Namespace") && !type_name.contains("Loop")
}

/// `dict.items` without a call.
#[derive(Debug)]
pub struct BoundMethod {
    receiver: Value,
    name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value> {
        strings::dict_method(state, &self.receiver, &self.name, args)
    }
}

/// `value.name` for a name of a dictionary method: Python finds the method before the key.
fn attribute(value: &Value, name: &Value) -> Result<Value> {
    let name = name.as_str().unwrap_or_default();
    defined(value)?;
    if !is_dict(value) {
        return value.get_attr(name);
    }
    keep(value)?;
    Ok(Value::from_object(BoundMethod { receiver: value.clone(), name: name.to_owned() }))
}

fn call_dict_method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value> {
    if is_dict(value) {
        return strings::dict_method(state, value, name, args);
    }
    defined(value)?;
    value.call_method(state, name, args)
}

/// A value to be stored in a variable. Its nesting is limited, because printing and freeing it are recursive.
fn keep(value: &Value) -> Result<Value> {
    check_nesting(value, 0)?;
    Ok(value.clone())
}

/// A value to be stored in an attribute of a namespace. The attribute can be assigned later, so the value must not lead
/// back to the namespace: a cycle would never be freed. A chain of macros, which hold the variables around them, would
/// be unbounded.
fn keep_attribute(value: &Value) -> Result<Value> {
    if holds_scope(value)? {
        return Err(fault("a namespace holds plain values only: no namespaces, loops, macros or functions"));
    }
    Ok(value.clone())
}

/// Whether the value contains a namespace, a loop or a macro. Also checks its nesting.
pub fn holds_scope(value: &Value) -> Result<bool> {
    fn find(value: &Value) -> Result<bool> {
        match value.kind() {
            ValueKind::Map if !is_dict(value) => return Ok(true),
            // A macro; it holds the variables around it.
            ValueKind::Plain => return Ok(true),
            ValueKind::Map => {
                for key in value.try_iter()? {
                    if find(&value.get_item(&key)?)? {
                        return Ok(true);
                    }
                }
            }
            // A view of a dictionary. A value that can be read only once was checked when it was made.
            ValueKind::Iterable if value.len().is_none() => {}
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    if find(&item)? {
                        return Ok(true);
                    }
                }
            }
            _ => {}
        }
        Ok(false)
    }
    check_nesting(value, 0)?;
    find(value)
}

/// Checks the nesting of a value inside `depth` lists and dictionaries. A value that can be read only once, or that
/// refers to hidden values, is not allowed inside them, because its depth is unknown.
pub fn check_nesting(value: &Value, depth: usize) -> Result<()> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Seq => {
            super::work(16 * value.len().unwrap_or(0))?;
            for item in value.try_iter()? {
                check_nesting(&item, depth + 1)?;
            }
        }
        ValueKind::Map => {
            super::work(64 * value.len().unwrap_or(0))?;
            for key in value.try_iter()? {
                check_nesting(&key, depth + 1)?;
                check_nesting(&value.get_item(&key)?, depth + 1)?;
            }
        }
        ValueKind::Iterable if depth > 0 && value.len().is_none() => {
            return Err(fault(
                "the values that a filter generates must become a list before they are put into another value",
            ));
        }
        ValueKind::Plain if depth > 0 && filters::refers_to_values(value) => {
            return Err(fault("a cycler or a method cannot be put into another value"));
        }
        _ => {}
    }
    Ok(())
}
