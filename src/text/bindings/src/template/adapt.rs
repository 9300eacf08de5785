//! What a template can read of a conversation, found out by rendering small ones, and the conversion of messages to it.
//!
//! Requests hold the content of a message as a text or as a list of text parts, ids of tool calls of any form, and
//! system messages anywhere. Templates read some of these forms and refuse, misprint or drop the others.

use std::collections::{HashMap, HashSet};

use serde_json::{json, Map, Value as Json};

/// How much of a request a rendering adapts to the template.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// Nothing: what apply_chat_template of transformers does.
    AsGiven,
    /// The form that the template reads for each role.
    Auto,
    /// Texts for all roles.
    Text,
    /// Lists of parts for all roles but that of tools, as in vLLM.
    Parts,
}

/// The forms of content that a template prints for one role.
#[derive(Clone, Copy, Debug)]
struct Forms {
    text: bool,
    /// A list of one part.
    list: bool,
    /// A list of several parts.
    parts: bool,
}

const TEXT_ONLY: Forms = Forms { text: true, list: false, parts: false };

/// The roles whose content templates read in branches of their own.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What a template reads.
#[derive(Debug)]
pub struct Reads {
    roles: HashMap<&'static str, Forms>,
    /// Ids of calls have nine letters and digits.
    short_ids: bool,
    /// A system message behind the first one keeps its place.
    late_system: bool,
}

const QUESTION: &str = "loramuxquestion";
const ANSWER: &str = "loramuxanswer";
const FIRST: &str = "loramuxfirst";
const SECOND: &str = "loramuxsecond";
const SHORT_ID: &str = "loramuxid";
const LONG_ID: &str = "call_loramux-0123456789";

fn part(text: &str) -> Json {
    json!({"type": "text", "text": text})
}

fn message(role: &str, content: impl Into<Json>) -> Json {
    json!({"role": role, "content": content.into()})
}

fn call(id: &str) -> Json {
    json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "loramux_tool", "arguments": {"key": "value"}}}]})
}

fn result(id: &str, content: Json) -> Json {
    json!({"role": "tool", "tool_call_id": id, "name": "loramux_tool", "content": content})
}

fn tools() -> Json {
    json!([{"type": "function", "function": {"name": "loramux_tool", "description": "d", "parameters":
        {"type": "object", "properties": {"key": {"type": "string", "description": "d"}}, "required": ["key"]}}}])
}

/// A conversation whose message of `role` has this content; that of users occurs as the first and the last message.
fn conversation(role: &str, content: Json) -> Json {
    match role {
        "user" => json!([message(role, content.clone()), message("assistant", ANSWER), message(role, content)]),
        "assistant" => json!([message("user", QUESTION), message(role, content), message("user", QUESTION)]),
        "tool" => json!([message("user", QUESTION), call(SHORT_ID), result(SHORT_ID, content)]),
        _ => json!([message(role, content), message("user", QUESTION)]),
    }
}

/// The renderings of a template; empty where it refuses. After a limit is reached nothing is rendered any more.
struct Probe<'a> {
    render: &'a dyn Fn(Map<String, Json>) -> crate::Result<String>,
    exhausted: bool,
}

impl Probe<'_> {
    fn render(&mut self, messages: Json, with_tools: bool) -> String {
        if self.exhausted {
            return String::new();
        }
        let mut variables = Map::new();
        variables.insert("messages".into(), messages);
        if with_tools {
            variables.insert("tools".into(), tools());
        }
        match (self.render)(variables) {
            Ok(text) => text,
            Err(error) => {
                self.exhausted = matches!(error.status, crate::Status::Exhausted);
                String::new()
            }
        }
    }

    /// The forms of a role. A form is read if the template prints its texts as it prints them of the other form, and
    /// not the list as data. Requests with and without tools may take different branches: both count.
    fn forms(&mut self, role: &str) -> Forms {
        let mut forms = Forms { text: false, list: true, parts: true };
        let mut any = false;
        for with_tools in [false, true] {
            let text = self.render(conversation(role, FIRST.into()), with_tools);
            let list = self.render(conversation(role, json!([part(FIRST)])), with_tools);
            let several = self.render(conversation(role, json!([part(FIRST), part(SECOND)])), with_tools);
            let wanted = if role == "user" { 2 } else { 1 };
            let prints = |rendered: &str, marker: &str| rendered.matches(marker).count() >= wanted;
            let reads_text = prints(&text, FIRST);
            let reads_list = prints(&list, FIRST) && !shows_data(&list, &text);
            if !reads_text && !reads_list {
                continue; // such as a template that has no such role, or needs variables
            }
            any = true;
            forms.text |= reads_text;
            forms.list &= reads_list;
            forms.parts &= prints(&several, FIRST) && prints(&several, SECOND) && !shows_data(&several, &text);
        }
        if any && !self.exhausted {
            forms
        } else {
            TEXT_ONLY
        }
    }

    fn short_ids(&mut self) -> bool {
        let with_id = |id: &str| json!([message("user", QUESTION), call(id), result(id, FIRST.into())]);
        !self.render(with_id(SHORT_ID), true).is_empty() && self.render(with_id(LONG_ID), true).is_empty()
    }

    /// Whether the template prints a later system message where it stands, and not as it prints one of users.
    fn late_system(&mut self) -> bool {
        let with = |role: &str| {
            json!([
                message("system", QUESTION),
                message("user", QUESTION),
                message("assistant", ANSWER),
                message("user", QUESTION),
                message(role, FIRST)
            ])
        };
        let rendered = self.render(with("system"), false);
        let in_place = rendered.rfind(QUESTION) < rendered.find(FIRST);
        in_place && rendered.matches(FIRST).count() == 1 && rendered != self.render(with("user"), false)
    }
}

/// True if the rendering shows the keys of parts, and the other does not.
fn shows_data(rendered: &str, other: &str) -> bool {
    ["'text'", "\"text\""].iter().any(|key| rendered.matches(key).count() > other.matches(key).count())
}

impl Reads {
    /// `render` renders the template with these variables, without a generation prompt.
    pub fn of(render: &dyn Fn(Map<String, Json>) -> crate::Result<String>) -> Reads {
        let mut probe = Probe { render, exhausted: false };
        let roles = ROLES.iter().map(|role| (*role, probe.forms(role))).collect();
        Reads { roles, short_ids: probe.short_ids(), late_system: probe.late_system() }
    }

    /// Adapts messages. `fold_system`: merges system messages that the template does not print in their place into
    /// their neighbours; otherwise they stay, and the template may refuse them.
    pub fn adapt(&self, messages: &mut Vec<Json>, format: ContentFormat, fold_system: bool) {
        if fold_system {
            merge_leading_system(messages);
        }
        if fold_system && !self.late_system {
            fold_late_system(messages);
        }
        for message in messages.iter_mut() {
            let Json::Object(fields) = message else { continue };
            let role = fields.get("role").and_then(Json::as_str).unwrap_or("").to_owned();
            let forms = match format {
                ContentFormat::AsGiven => continue,
                ContentFormat::Auto => self.roles.get(role.as_str()).copied().unwrap_or(TEXT_ONLY),
                ContentFormat::Parts if role != "tool" => Forms { text: false, list: true, parts: true },
                ContentFormat::Text | ContentFormat::Parts => TEXT_ONLY,
            };
            if let Some(content) = fields.get_mut("content") {
                adapt_content(content, forms);
            }
        }
        if self.short_ids && format != ContentFormat::AsGiven {
            shorten_ids(messages);
        }
    }
}

fn text_of(part: &Json) -> &str {
    part.get("text").and_then(Json::as_str).unwrap_or("")
}

/// The parts of a list as one text: vLLM joins those that are not empty by line breaks.
fn joined(parts: &[Json]) -> String {
    parts.iter().map(text_of).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

fn adapt_content(content: &mut Json, forms: Forms) {
    match content {
        Json::String(text) if !forms.text && forms.list => *content = Json::Array(vec![part(text)]),
        Json::Array(parts) => {
            let reads = if parts.len() > 1 { forms.parts } else { forms.list && !parts.is_empty() };
            if reads {
                return;
            }
            let text = joined(parts);
            *content = if forms.text || !forms.list { Json::String(text) } else { Json::Array(vec![part(&text)]) };
        }
        _ => {}
    }
}

/// Adds a text to the beginning or the end of a message's content, behind or before an empty line.
fn add_text(message: &mut Json, text: &str, at_end: bool) {
    let join = |old: &str| match (old.is_empty(), at_end) {
        (true, _) => text.to_owned(),
        (false, true) => format!("{old}\n\n{text}"),
        (false, false) => format!("{text}\n\n{old}"),
    };
    match message.get_mut("content") {
        Some(Json::String(old)) => *old = join(old),
        Some(Json::Array(parts)) => {
            let end = if at_end { parts.last_mut() } else { parts.first_mut() };
            match end {
                Some(end) => *end = part(&join(text_of(end))),
                None => parts.push(part(text)),
            }
        }
        _ => {}
    }
}

fn role_of(message: &Json) -> &str {
    message.get("role").and_then(Json::as_str).unwrap_or("")
}

/// The text of a message.
fn content_text(message: &Json) -> String {
    match message.get("content") {
        Some(Json::Array(parts)) => joined(parts),
        other => other.and_then(Json::as_str).unwrap_or("").to_owned(),
    }
}

/// Makes one system message of those at the beginning.
fn merge_leading_system(messages: &mut Vec<Json>) {
    while messages.len() > 1 && role_of(&messages[0]) == "system" && role_of(&messages[1]) == "system" {
        let text = content_text(&messages.remove(1));
        add_text(&mut messages[0], &text, true);
    }
}

/// Merges each later system message into the user's message or the result of a tool before it, or else into the user's
/// message that follows. Only the end of a growing conversation changes, so its beginning stays in the cache.
fn fold_late_system(messages: &mut Vec<Json>) {
    let mut folded: Vec<Json> = Vec::with_capacity(messages.len());
    let mut pending = String::new(); // behind an answer of the assistant
    for (i, mut message) in std::mem::take(messages).into_iter().enumerate() {
        let role = role_of(&message).to_owned();
        if i > 0 && role == "system" {
            let text = content_text(&message);
            match folded.last_mut() {
                Some(last) if pending.is_empty() && matches!(role_of(last), "user" | "tool") => {
                    add_text(last, &text, true);
                }
                _ if pending.is_empty() => pending = text,
                _ => pending = format!("{pending}\n\n{text}"),
            }
            continue;
        }
        // The results of a call stand next to it.
        if !pending.is_empty() && role != "tool" {
            let text = std::mem::take(&mut pending);
            match folded.last_mut() {
                Some(last) if role_of(last) == "tool" => add_text(last, &text, true),
                _ if role == "user" => add_text(&mut message, &text, false),
                _ => folded.push(self::message("user", text)),
            }
        }
        folded.push(message);
    }
    match folded.last_mut() {
        _ if pending.is_empty() => {}
        Some(last) if role_of(last) == "tool" => add_text(last, &pending, true),
        _ => folded.push(message("user", pending)),
    }
    *messages = folded;
}

fn is_short(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Gives calls and their results ids of nine letters and digits in place of others. An id becomes the same one in each
/// request, so the beginning of a growing conversation stays in the cache.
fn shorten_ids(messages: &mut [Json]) {
    let mut taken: HashSet<String> = HashSet::new();
    each_id(messages, |id| {
        if is_short(id) {
            taken.insert(id.clone());
        }
    });
    let mut renamed: HashMap<String, String> = HashMap::new();
    each_id(messages, |id| {
        if is_short(id) {
            return;
        }
        let short = renamed.entry(id.clone()).or_insert_with(|| {
            let mut hash = fnv(id.as_bytes());
            while !taken.insert(nine_characters(hash)) {
                hash = hash.wrapping_add(1);
            }
            nine_characters(hash)
        });
        id.clone_from(short);
    });
}

fn each_id(messages: &mut [Json], mut visit: impl FnMut(&mut String)) {
    for message in messages {
        if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
            for call in calls {
                if let Some(Json::String(id)) = call.get_mut("id") {
                    visit(id);
                }
            }
        }
        if let Some(Json::String(id)) = message.get_mut("tool_call_id") {
            visit(id);
        }
    }
}

/// FNV-1a, and a last mixing of its bits.
fn fnv(bytes: &[u8]) -> u64 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn nine_characters(mut bits: u64) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digit = |_| {
        let digit = DIGITS[(bits % 62) as usize];
        bits /= 62;
        char::from(digit)
    };
    (0..9).map(digit).collect()
}
