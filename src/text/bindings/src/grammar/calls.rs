//! Grammars of answers that must call tools.

use serde_json::{json, Map, Value};

use super::schema;
use crate::{Error, Result};

/// The line of the grammar that has the schema of the first call. Each call has two lines.
const FIRST_SCHEMA: usize = 4;
const LINES_OF_CALL: usize = 2;

/// Writes {"calls": [{"name", "before", "schema", "after"}], "first", "between", "last"} as a grammar: one of the calls
/// or, if `between` is no null, several. Their arguments are objects that meet `schema`; null: any. Error: a schema has
/// no such objects.
pub fn to_lark(text: &str) -> Result<String> {
    let demand: Value = serde_json::from_str(text).map_err(|e| Error::invalid(format!("not a JSON document: {e}")))?;
    let calls = demand["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    if calls.is_empty() {
        return Err(Error::invalid("expected calls"));
    }
    let more = match &demand["between"] {
        Value::Null => String::new(),
        between => format!(" ({} call)*", literal(between)),
    };
    let mut lark = format!("start: {} call{more} {}\n", literal(&demand["first"]), literal(&demand["last"]));
    let names: Vec<String> = (0..calls.len()).map(|i| format!("call_{i}")).collect();
    lark += &format!("call: {}\n", names.join(" | "));
    for (i, call) in calls.iter().enumerate() {
        let arguments = arguments(&call["schema"])
            .map_err(|e| Error { status: e.status, message: describe(&call["name"], &e.message) })?;
        lark += &format!("call_{i}: {} arguments_{i} {}\n", literal(&call["before"]), literal(&call["after"]));
        lark += &format!("arguments_{i}: %json {arguments}\n");
    }
    Ok(lark)
}

/// An error of that grammar, said of the tool instead of the grammar's lines.
pub fn explain(text: &str, message: &str) -> String {
    let demand: Value = serde_json::from_str(text).unwrap_or_default();
    let calls = demand["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let place = message.strip_prefix("at ").and_then(|rest| rest.split_once("): "));
    let line = place.and_then(|(at, _)| at.split_once('(')).and_then(|(line, _)| line.parse::<usize>().ok());
    let (Some((_, rest)), Some(line)) = (place, line) else {
        return match calls {
            [only] => describe(&only["name"], &schema::explain(message)),
            _ => format!("the parameters of all tools together: {message}"),
        };
    };
    // The library shows the lines from two before that one on.
    let shown = rest.rfind(&format!("\n{:>4} | ", line.saturating_sub(2).max(1))).unwrap_or(rest.len());
    let what = rest[..shown].trim_start_matches("failed to compile JSON schema: ");
    let call = line.checked_sub(FIRST_SCHEMA).and_then(|line| calls.get(line / LINES_OF_CALL));
    describe(call.map_or(&Value::Null, |call| &call["name"]), &schema::explain(what))
}

fn describe(name: &Value, what: &str) -> String {
    format!("the parameters of the tool {name}: {what}")
}

fn arguments(parameters: &Value) -> Result<Value> {
    let parameters = match parameters {
        Value::Null => Value::Object(Map::new()),
        other => other.clone(),
    };
    let mut schema = schema::prepare(parameters)?;
    schema::only_objects(&mut schema)?;
    Ok(schema::add_style(schema, false))
}

/// A text in the grammar; nothing, if it is empty.
fn literal(text: &Value) -> String {
    match text.as_str() {
        None | Some("") => String::new(),
        Some(text) => json!(text).to_string(),
    }
}
