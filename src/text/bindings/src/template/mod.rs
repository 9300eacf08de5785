//! Chat templates on minijinja, set up to render as apply_chat_template of transformers does with jinja2. This includes
//! what transformers adds (raise_exception, strftime_now, its own tojson, the `generation` tag, its preparation of
//! messages), and Python's behaviour where minijinja differs.

mod adapt;
mod filters;
mod json;
mod operators;
mod python;
mod rewrite;
mod strftime;
mod strings;

use std::cell::Cell;
use std::io::Write;
use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value as Json};

pub use adapt::ContentFormat;
use adapt::Reads;

/// Instructions that one rendering may execute: many times what real templates need; about one second.
const FUEL: u64 = 5_000_000;
/// Largest size in bytes of a text and of the result.
const MAX_SIZE: usize = 32 << 20;
/// Bytes that one rendering may allocate for texts and lists, including freed ones. This approximately bounds its
/// memory.
const MAX_BYTES: usize = 256 << 20;
/// Bytes that one rendering may read in searches, comparisons and similar operations, which cost no fuel.
const MAX_WORK: usize = 4 << 30;
/// Largest nesting of values for printing and tojson.
const MAX_DEPTH: usize = 150;
/// Largest size of a template in bytes; the largest in use have about 30,000.
const MAX_SOURCE: usize = 256 << 10;
/// Largest depth of nested macro calls; jinja2 has about the same limit.
const MAX_RECURSION: usize = 200;
const NAME: &str = "chat template";
/// Names of a message's reasoning in requests; templates read the first one.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

thread_local! {
    /// The time for strftime_now during a rendering on this thread: Unix seconds, and the seconds by which local time is
    /// ahead of UTC. Not a template variable, because macros would not see it.
    static NOW: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
    /// The parts of MAX_BYTES and MAX_WORK that are left for the rendering on this thread.
    static BYTES_LEFT: Cell<usize> = const { Cell::new(0) };
    static WORK_LEFT: Cell<usize> = const { Cell::new(0) };
}

/// The message of raise_exception, carried through minijinja's errors.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(crate) fn fault(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

pub(crate) fn exhausted(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::OutOfFuel, message)
}

/// Charges the reading of `bytes` bytes.
pub(crate) fn work(bytes: usize) -> Result<(), Error> {
    match WORK_LEFT.get().checked_sub(bytes) {
        Some(left) => {
            WORK_LEFT.set(left);
            Ok(())
        }
        None => Err(exhausted("takes too much time in searches and comparisons")),
    }
}

/// Charges the creation of a text of `size` bytes.
pub(crate) fn charge(size: usize) -> Result<(), Error> {
    check_size(size)?;
    work(size)?;
    match BYTES_LEFT.get().checked_sub(size) {
        Some(left) => {
            BYTES_LEFT.set(left);
            Ok(())
        }
        None => Err(exhausted(format!("makes more than {} MiB of values", MAX_BYTES >> 20))),
    }
}

/// Charges the creation of a list of `count` values.
pub(crate) fn charge_items(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(std::mem::size_of::<Value>() + 8))
}

/// Error: a text of `size` bytes would be too large.
pub(crate) fn check_size(size: usize) -> Result<(), Error> {
    if size > MAX_SIZE {
        return Err(exhausted(format!("a text is larger than {} MiB", MAX_SIZE >> 20)));
    }
    Ok(())
}

pub(crate) fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(exhausted(format!("values are nested deeper than {MAX_DEPTH}")));
    }
    Ok(())
}

/// Arguments of a function, filter or method.
pub(crate) struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

impl Args {
    pub fn new(args: &[Value]) -> Result<Args, Error> {
        let (positional, named) = match args.split_last() {
            Some((last, rest)) if last.is_kwargs() => {
                let kwargs = Kwargs::try_from(last.clone())?;
                let names: Vec<String> = kwargs.args().map(str::to_owned).collect();
                let named = names.into_iter().map(|name| kwargs.get(&name).map(|value: Value| (name, value)));
                (rest, named.collect::<Result<_, _>>()?)
            }
            _ => (args, Vec::new()),
        };
        Ok(Args { positional: positional.to_vec(), named })
    }

    /// Assigns the arguments to the parameters of `function`.
    pub fn bind<const N: usize>(self, function: &str, parameters: [&str; N]) -> Result<[Option<Value>; N], Error> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return Err(fault(format!("{function}() takes at most {N} arguments, {} given", self.positional.len())));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match parameters.iter().position(|parameter| *parameter == name) {
                Some(i) if bound[i].is_none() => bound[i] = Some(value),
                Some(_) => return Err(fault(format!("{function}() got multiple values for argument '{name}'"))),
                None => return Err(fault(format!("{function}() got an unexpected keyword argument '{name}'"))),
            }
        }
        Ok(bound)
    }
}

/// How one conversation is rendered.
#[derive(Clone, Copy)]
pub struct Options {
    pub add_generation_prompt: bool,
    pub unix_seconds: i64,
    /// Seconds by which local time is ahead of UTC.
    pub utc_offset: i64,
    pub format: ContentFormat,
    /// Merges system messages that the template does not print in their place into their neighbours.
    pub fold_system: bool,
}

/// A compiled template and the special tokens it sees. Shared between threads.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Map<String, Json>,
    /// Found out when it is first needed.
    reads: OnceLock<Reads>,
}

impl ChatTemplate {
    pub fn parse(source: &str, special_tokens: &str) -> crate::Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(crate::Error::exhausted(format!(
                "the template has {} bytes; at most {MAX_SOURCE} are read",
                source.len()
            )));
        }
        let special_tokens = parse_object(special_tokens, "the special tokens")?;
        let mut environment = environment().map_err(to_error)?;
        let rewritten = rewrite::rewrite(&preprocess(source), syntax().map_err(to_error)?).map_err(to_error)?;
        environment.add_template_owned(NAME, rewritten).map_err(to_error)?;
        Ok(ChatTemplate { environment, special_tokens, reads: OnceLock::new() })
    }

    pub fn render(&self, context: &str, options: Options) -> crate::Result<String> {
        let mut context = parse_object(context, "the template's variables")?;
        let adapts = options.fold_system || options.format != ContentFormat::AsGiven;
        if let (true, Some(Json::Array(messages))) = (adapts, context.get_mut("messages")) {
            self.reads().adapt(messages, options.format, options.fold_system);
        }
        self.render_variables(context, options)
    }

    fn reads(&self) -> &Reads {
        let options = Options {
            add_generation_prompt: false,
            unix_seconds: 0,
            utc_offset: 0,
            format: ContentFormat::AsGiven,
            fold_system: false,
        };
        self.reads.get_or_init(|| Reads::of(&|variables| self.render_variables(variables, options)))
    }

    fn render_variables(&self, context: Map<String, Json>, options: Options) -> crate::Result<String> {
        let mut variables = self.special_tokens.clone();
        for name in ["messages", "tools", "documents"] {
            variables.insert(name.into(), Json::Null);
        }
        variables.insert("add_generation_prompt".into(), Json::Bool(options.add_generation_prompt));
        variables.extend(context);
        if let Some(Json::Array(messages)) = variables.get_mut("messages") {
            messages.iter_mut().for_each(prepare_message);
        }
        NOW.set((options.unix_seconds, options.utc_offset));
        BYTES_LEFT.set(MAX_BYTES);
        WORK_LEFT.set(MAX_WORK);
        let mut out = Output(Vec::new());
        let template = self.environment.get_template(NAME).map_err(to_error)?;
        match template.render_captured_to(Value::from(Serde(variables)), &mut out) {
            Ok(_) => String::from_utf8(out.0)
                .map_err(|_| crate::Error::invalid("the template printed an incomplete UTF-8 character")),
            Err(error) => Err(to_error(error)),
        }
    }
}

/// An output that refuses to grow beyond MAX_SIZE.
struct Output(Vec<u8>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_SIZE {
            return Err(std::io::Error::other("the result is too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The syntax options that transformers sets.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => {
            charge(text.len())?;
            out.write_str(text).map_err(Error::from)
        }
        None => out.write_str(&python::text_of(value)?).map_err(Error::from),
    });
    environment.set_unknown_method_callback(strings::call_method);
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = python::text_of(&message)?;
        Err(fault("raised by the template").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let (unix_seconds, utc_offset) = NOW.get();
        strftime::format(&format, unix_seconds, utc_offset)
    });
    filters::add_to(&mut environment);
    operators::add_to(&mut environment);
    Ok(environment)
}

/// Normalizes line ends as jinja2 does. Also replaces the tags `{% generation %}` and `{% endgeneration %}`, with which
/// transformers marks the assistant's text and which print nothing. They become a `with` block, which keeps their
/// whitespace control.
fn preprocess(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let body = tag[2..].trim_start_matches(['-', '+']).trim_start();
        let name_length = body.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(body.len());
        let (name, after) = body.split_at(name_length);
        let closes = after.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        let prefix = &tag[..tag.len() - body.len()];
        out.push_str(prefix);
        rest = body;
        let replacement = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        if closes {
            out.push_str(replacement);
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

fn parse_object(text: &str, what: &str) -> crate::Result<Map<String, Json>> {
    match serde_json::from_str(text) {
        Ok(Json::Object(object)) => Ok(object),
        Ok(_) => Err(crate::Error::invalid(format!("{what} must be a JSON object"))),
        Err(error) => Err(crate::Error::invalid(format!("{what} cannot be read as JSON: {error}"))),
    }
}

/// Prepares a message as transformers does: removes keys whose value is null, and provides the reasoning under each
/// name that templates use.
fn prepare_message(message: &mut Json) {
    let Json::Object(fields) = message else { return };
    fields.retain(|_, value| !value.is_null());
    let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() else { return };
    let mut prepared = Map::new();
    prepared.insert("thinking".into(), reasoning.clone());
    prepared.append(fields);
    prepared.insert("reasoning_content".into(), reasoning);
    *fields = prepared;
}

/// The error for the client: the message of raise_exception alone, otherwise the cause and its place.
fn to_error(error: Error) -> crate::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut is_limit = false;
    let mut innermost = &error;
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            return crate::Error::invalid(raised.0.clone());
        }
        if let Some(inner) = current.downcast_ref::<Error>() {
            innermost = inner;
            if matches!(inner.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure) {
                is_limit = true;
            }
        }
        cause = current.source();
    }
    let what = match (innermost.kind(), innermost.detail()) {
        (ErrorKind::OutOfFuel, None) => format!("takes more than {FUEL} steps"),
        (ErrorKind::WriteFailure, _) => format!("the result is larger than {} MiB", MAX_SIZE >> 20),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    let message = match innermost.line().or(error.line()) {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    };
    if is_limit {
        crate::Error::exhausted(message)
    } else {
        crate::Error::invalid(message)
    }
}
