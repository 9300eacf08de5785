//! Prepares JSON schemas for llguidance. What it refuses although it forbids nothing is left out, so are texts for
//! people, which the limits of grammars would count, and references are written as it reads them.

use std::collections::{HashMap, HashSet};

use serde_json::{json, Map, Value};

use crate::{Error, Result};

/// White space between the parts of a JSON document. Bounded, because small models like to repeat it without end.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";
/// The formats that llguidance knows. Others are annotations, as draft 2020-12 has it.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// What a schema says for people.
const TEXTS: [&str; 5] = ["title", "description", "$comment", "examples", "default"];

/// What a keyword's value holds.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    /// A schema, or an array of schemas.
    Schemas,
    /// A schema for each name.
    NamedSchemas,
    Other,
}

fn holds(keyword: &str) -> Holds {
    match keyword {
        "items" | "prefixItems" | "additionalItems" | "unevaluatedItems" | "contains" | "additionalProperties"
        | "unevaluatedProperties" | "propertyNames" | "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else"
        | "contentSchema" => Holds::Schemas,
        "properties" | "patternProperties" | "dependentSchemas" | "$defs" | "definitions" => Holds::NamedSchemas,
        _ => Holds::Other,
    }
}

/// Prepares a schema. Error: it is no schema, or says how grammars are to read it.
pub fn prepare(schema: Value) -> Result<Map<String, Value>> {
    let object = match schema {
        Value::Bool(true) => Map::new(),
        Value::Object(object) => object,
        _ => return Err(Error::invalid("expected a JSON schema, which is an object or true")),
    };
    if object.contains_key("x-guidance") {
        return Err(Error::unsupported("this server does not support x-guidance; leave it out"));
    }
    let mut document = Document::new(object);
    document.prepare();
    match document.root {
        Value::Object(object) => Ok(object),
        _ => Err(Error::invalid("expected a JSON schema, which is an object or true")),
    }
}

/// Says how documents are written, and that a document may fit several branches of `oneOf`: vLLM's grammars take it as
/// `anyOf`, too.
pub fn add_style(mut schema: Map<String, Value>, compact: bool) -> Value {
    let mut style = json!({"coerce_one_of": true});
    match compact {
        true => style["whitespace_flexible"] = json!(false),
        false => style["whitespace_pattern"] = json!(WHITE_SPACE),
    }
    schema.insert("x-guidance".to_owned(), style);
    Value::Object(schema)
}

/// Leaves the objects among the documents of a schema. Error: there are none.
pub fn only_objects(schema: &mut Map<String, Value>) -> Result<()> {
    let allows = match schema.get("type") {
        None => true,
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        Some(_) => false,
    };
    if !allows {
        return Err(Error::invalid(format!("expected the type \"object\", found {}", schema["type"])));
    }
    schema.insert("type".to_owned(), json!("object"));
    Ok(())
}

/// An error of llguidance about a schema, with the keyword where it names none.
pub fn explain(message: &str) -> String {
    let keyword = match message {
        _ if message.starts_with("regex parse error") => "`pattern` or `patternProperties`: ",
        _ if message.starts_with("Failed to generate regex for") => {
            "`minimum`, `exclusiveMinimum`, `maximum` or `exclusiveMaximum`: "
        }
        _ if message.starts_with("Unsatisfiable schema: anyOf is empty") => "`anyOf` or `enum`: ",
        _ => "",
    };
    format!("{keyword}{message}")
}

struct Document {
    root: Value,
    /// References whose targets stand where no schema is expected, such as in `components`: not prepared yet.
    outside: Vec<Vec<String>>,
    seen: HashSet<String>,
    /// Targets that llguidance cannot name, with the numbers that they get.
    moved: HashMap<Vec<String>, usize>,
    /// The member of the root that gets these targets.
    room: String,
}

impl Document {
    fn new(object: Map<String, Value>) -> Self {
        let mut room = "moved".to_owned();
        while object.contains_key(&room) {
            room.push('_');
        }
        Document {
            root: Value::Object(object),
            outside: Vec::new(),
            seen: HashSet::new(),
            moved: HashMap::new(),
            room,
        }
    }

    fn prepare(&mut self) {
        let mut root = std::mem::take(&mut self.root);
        let original = root.clone();
        self.walk(&mut root, &original);
        while let Some(path) = self.outside.pop() {
            if let Some(target) = find(&mut root, &path) {
                let mut part = std::mem::take(target);
                self.walk(&mut part, &original);
                if let Some(target) = find(&mut root, &path) {
                    *target = part;
                }
            }
        }
        self.root = root;
        self.move_targets();
    }

    fn walk(&mut self, schema: &mut Value, original: &Value) {
        match schema {
            Value::Array(list) => list.iter_mut().for_each(|item| self.walk(item, original)),
            Value::Object(object) => self.walk_object(object, original),
            _ => {}
        }
    }

    fn walk_object(&mut self, schema: &mut Map<String, Value>, original: &Value) {
        let conditional = schema.contains_key("if") && (schema.contains_key("then") || schema.contains_key("else"));
        let contains = schema.contains_key("contains");
        schema.retain(|keyword, value| match keyword.as_str() {
            "if" | "then" | "else" => conditional,
            "minContains" | "maxContains" => contains,
            _ => !TEXTS.contains(&keyword.as_str()) && !is_idle(keyword, value),
        });
        for (keyword, value) in schema.iter_mut() {
            match (holds(keyword), &mut *value) {
                (Holds::Schemas, value) => self.walk(value, original),
                (Holds::NamedSchemas, Value::Object(named)) => {
                    named.values_mut().for_each(|inner| self.walk(inner, original));
                }
                (Holds::Other, Value::String(reference)) if keyword == "$ref" => self.refer(reference, original),
                _ => {}
            }
        }
    }

    /// Writes a reference within the document as llguidance reads it: without escapes, to members without slashes.
    fn refer(&mut self, reference: &mut String, original: &Value) {
        let Some(pointer) = reference.strip_prefix("#/") else { return };
        let escaped = pointer.contains(['%', '~']);
        let path: Vec<String> = match escaped {
            true => pointer.split('/').map(unescape).collect(),
            false => pointer.split('/').map(str::to_owned).collect(),
        };
        if get(original, &path).is_none() {
            return;
        }
        if self.seen.insert(reference.clone()) && !within_schemas(&path, original) {
            self.outside.push(path.clone());
        }
        if !escaped {
            return;
        }
        if path.iter().any(|part| part.contains(['/', '%', '~'])) {
            let next = self.moved.len();
            let number = *self.moved.entry(path).or_insert(next);
            *reference = format!("#/{}/{number}", self.room);
        } else {
            *reference = format!("#/{}", path.join("/"));
        }
    }

    /// The innermost first: a target that is moved may hold one that was.
    fn move_targets(&mut self) {
        let mut moved: Vec<(Vec<String>, usize)> = std::mem::take(&mut self.moved).into_iter().collect();
        moved.sort_by_key(|(path, number)| (std::cmp::Reverse(path.len()), *number));
        let mut targets = Map::new();
        for (path, number) in moved {
            if let Some(target) = find(&mut self.root, &path) {
                let reference = json!({"$ref": format!("#/{}/{number}", self.room)});
                targets.insert(number.to_string(), std::mem::replace(target, reference));
            }
        }
        if let (Value::Object(root), false) = (&mut self.root, targets.is_empty()) {
            root.insert(self.room.clone(), Value::Object(targets));
        }
    }
}

/// Whether a keyword forbids nothing: programs write null for what is absent, and defaults as they stand.
fn is_idle(keyword: &str, value: &Value) -> bool {
    let empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    match keyword {
        "const" | "type" => false,
        _ if value.is_null() => true,
        "uniqueItems" | "not" => *value == false,
        "unevaluatedItems" | "unevaluatedProperties" => *value == true || empty(value),
        "propertyNames" => *value == true || empty(value) || *value == json!({"type": "string"}),
        "dependencies" | "dependentRequired" | "dependentSchemas" => empty(value),
        "format" => value.as_str().is_some_and(|name| !FORMATS.contains(&name)),
        "$recursiveAnchor" | "$dynamicAnchor" => true,
        _ => false,
    }
}

/// A part of a JSON pointer in a URI's fragment; itself, if its escapes are none.
fn unescape(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    let text = String::from_utf8(bytes).unwrap_or_else(|_| part.to_owned());
    text.replace("~1", "/").replace("~0", "~")
}

/// Whether the way to a part leads through keywords that hold schemas alone, so that the part was prepared with them.
fn within_schemas(path: &[String], root: &Value) -> bool {
    let mut here = Some(root);
    let mut parts = path.iter();
    while let Some(part) = parts.next() {
        let value = here.and_then(|value| step(value, part));
        here = match (holds(part), value) {
            (Holds::NamedSchemas, Some(named)) => parts.next().and_then(|name| step(named, name)),
            (Holds::Schemas, Some(list @ Value::Array(_))) => parts.next().and_then(|index| step(list, index)),
            (Holds::Schemas, value) => value,
            _ => return false,
        };
    }
    here.is_some()
}

fn step<'a>(value: &'a Value, part: &str) -> Option<&'a Value> {
    match value {
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        Value::Object(object) => object.get(part),
        _ => None,
    }
}

fn get<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(root, |value, part| step(value, part))
}

fn find<'a>(root: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(root, |value, part| match value {
        Value::Array(list) => list.get_mut(part.parse::<usize>().ok()?),
        Value::Object(object) => object.get_mut(part),
        _ => None,
    })
}
