//! Translates llama.cpp's GBNF to the Lark dialect of llguidance.
//!
//! GBNF works on characters, Lark on terminals that a lexer cuts, longest match first. So everything that is regular
//! becomes one terminal, as large as possible: a grammar without recursion is one regular expression and means exactly
//! the same. In recursive rules each run of regular parts is a terminal. A text is never allowed that GBNF does not
//! allow; where a terminal can swallow the beginning of the next one, fewer are.

use std::collections::HashMap;

use crate::{Error, Result};

const MAX_RULES: usize = 4096;
const MAX_REPETITIONS: u32 = 2000;
/// The most bytes of the translation: rules that are used several times are written several times.
const MAX_OUTPUT: usize = 256 << 10;
/// Bytes of all rules' expressions, which may repeat one another.
const MAX_KEPT: usize = 8 << 20;

#[derive(Clone, Debug)]
enum Node {
    /// A regular expression for one character.
    Character(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Error: names what is wrong, and the line.
pub fn to_lark(source: &str) -> Result<String> {
    let grammar = Parser::new(source).parse()?;
    Writer::new(&grammar)?.write()
}

struct Grammar {
    rules: Vec<Node>,
    root: usize,
}

// ---- Parsing

struct Parser<'a> {
    source: &'a str,
    at: usize,
    names: Vec<String>,
    index: HashMap<String, usize>,
    rules: Vec<Option<Node>>,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl<'a> Parser<'a> {
    fn new(source: &'a str) -> Self {
        Parser { source, at: 0, names: Vec::new(), index: HashMap::new(), rules: Vec::new() }
    }

    fn parse(mut self) -> Result<Grammar> {
        self.skip_space();
        while self.at < self.source.len() {
            self.rule()?;
        }
        let undefined = self.rules.iter().position(Option::is_none);
        if let Some(undefined) = undefined {
            return Err(Error::invalid(format!("GBNF: the rule '{}' is not defined", self.names[undefined])));
        }
        let Some(&root) = self.index.get("root") else {
            return Err(Error::invalid("GBNF: expected a rule named root, found none"));
        };
        Ok(Grammar { rules: self.rules.into_iter().flatten().collect(), root })
    }

    fn rule(&mut self) -> Result<()> {
        let name = self.word();
        if name.is_empty() {
            return self.fail("the name of a rule");
        }
        let index = self.rule_index(&name)?;
        self.skip_space();
        if !self.take("::=") {
            return self.fail("::= after the name of a rule");
        }
        if self.rules[index].is_some() {
            return Err(Error::invalid(format!("GBNF: the rule '{name}' is defined twice")));
        }
        let node = self.alternatives()?;
        self.rules[index] = Some(node);
        Ok(())
    }

    fn alternatives(&mut self) -> Result<Node> {
        let mut all = vec![self.sequence()?];
        while self.take("|") {
            all.push(self.sequence()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Alternatives(all) })
    }

    fn sequence(&mut self) -> Result<Node> {
        let mut parts = Vec::new();
        self.skip_space();
        while let Some(part) = self.element()? {
            let part = self.repetitions(part)?;
            parts.push(part);
            self.skip_space();
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Sequence(parts) })
    }

    /// None at the end of a sequence.
    fn element(&mut self) -> Result<Option<Node>> {
        match self.peek() {
            None | Some('|') | Some(')') => Ok(None),
            Some('"') => self.literal().map(Some),
            Some('[') => self.class().map(Some),
            Some('.') => {
                self.at += 1;
                Ok(Some(Node::Character("(?s:.)".to_owned())))
            }
            Some('(') => {
                self.at += 1;
                let inner = self.alternatives()?;
                if !self.take(")") {
                    return self.fail("a closing )");
                }
                Ok(Some(inner))
            }
            Some('<') | Some('!') => Err(Error::unsupported(format!(
                "GBNF, line {}: this server does not support token references such as <[1]> or !<name>",
                self.line()
            ))),
            Some(c) if is_word(c) => self.reference(),
            Some(_) => self.fail("a literal, a character class, a rule or a group"),
        }
    }

    /// The name of a rule; None if it begins the next rule.
    fn reference(&mut self) -> Result<Option<Node>> {
        let start = self.at;
        let name = self.word();
        let end = self.at;
        self.skip_space();
        if self.source[self.at..].starts_with("::=") {
            self.at = start;
            return Ok(None);
        }
        self.at = end;
        Ok(Some(Node::Rule(self.rule_index(&name)?)))
    }

    fn literal(&mut self) -> Result<Node> {
        self.at += 1;
        let mut characters = Vec::new();
        while !self.take("\"") {
            let c = self.character()?;
            characters.push(Node::Character(escape(c)));
        }
        Ok(if characters.len() == 1 { characters.remove(0) } else { Node::Sequence(characters) })
    }

    fn class(&mut self) -> Result<Node> {
        self.at += 1;
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let mut empty = true;
        while !self.take("]") {
            let first = self.character()?;
            class.push_str(&escape(first));
            empty = false;
            let rest = &self.source[self.at..];
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                let last = self.character()?;
                if last < first {
                    return self.fail("a range of characters in ascending order");
                }
                class.push('-');
                class.push_str(&escape(last));
            }
        }
        if empty {
            return self.fail("at least one character in a class");
        }
        class.push(']');
        Ok(Node::Character(class))
    }

    /// One character of a literal or class, which may be escaped.
    fn character(&mut self) -> Result<char> {
        match self.next() {
            None => self.fail("the end of a literal or class"),
            Some('\\') => self.escaped(),
            Some(c) => Ok(c),
        }
    }

    fn escaped(&mut self) -> Result<char> {
        match self.next() {
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('x') => self.code_point(2),
            Some('u') => self.code_point(4),
            Some('U') => self.code_point(8),
            Some(c) if c.is_ascii_punctuation() => Ok(c),
            _ => self.fail("an escape: \\n, \\r, \\t, \\xNN, \\uNNNN, \\UNNNNNNNN, or a punctuation mark"),
        }
    }

    fn code_point(&mut self, digits: usize) -> Result<char> {
        let text = self.source.get(self.at..self.at + digits).unwrap_or_default();
        let all_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = if all_digits { u32::from_str_radix(text, 16).ok().and_then(char::from_u32) } else { None };
        match value {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => self.fail("the hexadecimal number of a character"),
        }
    }

    fn repetitions(&mut self, node: Node) -> Result<Node> {
        let mut node = node;
        loop {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    node = self.counted(node)?;
                    continue;
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), min, max);
        }
    }

    fn counted(&mut self, node: Node) -> Result<Node> {
        self.at += 1;
        let min = self.number()?;
        let max = if self.take(",") { self.number()? } else { min };
        if !self.take("}") || (min.is_none() && max.is_none()) {
            return self.fail("{n}, {n,} or {n,m}");
        }
        let min = min.unwrap_or(0);
        if max.is_some_and(|max| max < min) {
            return self.fail("a largest number of repetitions that is not below the smallest");
        }
        Ok(Node::Repeat(Box::new(node), min, max))
    }

    fn number(&mut self) -> Result<Option<u32>> {
        let rest = &self.source[self.at..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Ok(None);
        }
        let number = rest[..digits].parse::<u32>().ok().filter(|&number| number <= MAX_REPETITIONS);
        if number.is_none() {
            return self.fail(&format!("at most {MAX_REPETITIONS} repetitions"));
        }
        self.at += digits;
        Ok(number)
    }

    fn rule_index(&mut self, name: &str) -> Result<usize> {
        if let Some(&index) = self.index.get(name) {
            return Ok(index);
        }
        if self.names.len() == MAX_RULES {
            return Err(Error::exhausted(format!("GBNF: expected at most {MAX_RULES} rules, found more")));
        }
        self.names.push(name.to_owned());
        self.rules.push(None);
        self.index.insert(name.to_owned(), self.names.len() - 1);
        Ok(self.names.len() - 1)
    }

    fn word(&mut self) -> String {
        let rest = &self.source[self.at..];
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        self.at += end;
        rest[..end].to_owned()
    }

    fn peek(&self) -> Option<char> {
        self.source[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, what: &str) -> bool {
        let found = self.source[self.at..].starts_with(what);
        self.at += if found { what.len() } else { 0 };
        found
    }

    fn skip_space(&mut self) {
        loop {
            let rest = &self.source[self.at..];
            let text = rest.trim_start_matches([' ', '\t', '\r', '\n']);
            self.at += rest.len() - text.len();
            if !text.starts_with('#') {
                return;
            }
            self.at += text.find('\n').unwrap_or(text.len());
        }
    }

    fn line(&self) -> usize {
        self.source[..self.at].matches('\n').count() + 1
    }

    fn fail<T>(&self, expected: &str) -> Result<T> {
        let found: String = self.source[self.at..].chars().take(20).collect();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("{found:?}") };
        Err(Error::invalid(format!("GBNF, line {}: expected {expected}, found {found}", self.line())))
    }
}

/// A character as a regular expression, in a class and outside.
fn escape(c: char) -> String {
    if c.is_ascii_alphanumeric() || c == '_' {
        c.to_string()
    } else {
        format!("\\x{{{:X}}}", c as u32)
    }
}

// ---- Writing

struct Writer<'a> {
    grammar: &'a Grammar,
    /// By rule: it reaches no recursive rule, so that it is a regular expression.
    regular: Vec<bool>,
    /// By rule: it is regular and matches the empty text.
    nullable: Vec<bool>,
    /// By rule: the expression of a regular one, once it is known.
    expressions: Vec<Option<String>>,
    terminals: Vec<String>,
    known: HashMap<String, String>,
    size: usize,
    kept: usize,
}

impl<'a> Writer<'a> {
    fn new(grammar: &'a Grammar) -> Result<Self> {
        let count = grammar.rules.len();
        let mut writer = Writer {
            grammar,
            regular: vec![false; count],
            nullable: vec![false; count],
            expressions: vec![None; count],
            terminals: Vec::new(),
            known: HashMap::new(),
            size: 0,
            kept: 0,
        };
        for rule in regular_rules(grammar) {
            writer.regular[rule] = true;
            writer.nullable[rule] = writer.nullable(&grammar.rules[rule]);
        }
        Ok(writer)
    }

    fn write(mut self) -> Result<String> {
        let root = self.grammar.root;
        let mut rules = vec![format!("start: {}", self.reference(root)?)];
        for index in 0..self.grammar.rules.len() {
            if !self.regular[index] {
                let body = self.expression(&self.grammar.rules[index])?;
                self.grow(body.len())?;
                rules.push(format!("r{index}: {body}"));
            }
        }
        rules.append(&mut self.terminals);
        Ok(rules.join("\n") + "\n")
    }

    fn reference(&mut self, rule: usize) -> Result<String> {
        if self.regular[rule] {
            let expression = self.regex_of_rule(rule)?;
            return self.terminal(expression, self.nullable[rule]);
        }
        Ok(format!("r{rule}"))
    }

    /// A node of a recursive rule in Lark.
    fn expression(&mut self, node: &Node) -> Result<String> {
        if self.is_regular(node) {
            let regex = self.regex(node)?;
            return self.terminal(regex, self.nullable(node));
        }
        match node {
            Node::Rule(index) => self.reference(*index),
            Node::Sequence(parts) => self.sequence(parts),
            Node::Alternatives(options) => self.alternatives(options),
            Node::Repeat(inner, min, max) => Ok(format!("({}){}", self.expression(inner)?, count(*min, *max))),
            Node::Character(_) => unreachable!("a character is regular"),
        }
    }

    /// Adjacent regular parts are one terminal.
    fn sequence(&mut self, parts: &[Node]) -> Result<String> {
        let mut written = Vec::new();
        let mut rest = parts;
        while !rest.is_empty() {
            let regular = rest.iter().take_while(|part| self.is_regular(part)).count();
            if regular > 0 {
                written.push(self.expression(&Node::Sequence(rest[..regular].to_vec()))?);
            } else {
                written.push(self.expression(&rest[0])?);
            }
            rest = &rest[regular.max(1)..];
        }
        Ok(format!("({})", written.join(" ")))
    }

    fn alternatives(&mut self, options: &[Node]) -> Result<String> {
        let (regular, others): (Vec<&Node>, Vec<&Node>) = options.iter().partition(|option| self.is_regular(option));
        let mut written = Vec::new();
        if !regular.is_empty() {
            written.push(self.expression(&Node::Alternatives(regular.into_iter().cloned().collect()))?);
        }
        for other in others {
            written.push(self.expression(other)?);
        }
        Ok(format!("({})", written.join(" | ")))
    }

    /// Terminals match at least one character; an optional one may be left out.
    fn terminal(&mut self, regex: String, nullable: bool) -> Result<String> {
        let name = match self.known.get(&regex) {
            Some(name) => name.clone(),
            None => {
                self.grow(regex.len())?;
                let name = format!("T{}", self.terminals.len());
                let definition = match (regex.is_empty(), nullable) {
                    (true, _) => None,
                    (false, true) => Some(format!("{name}: /{regex}/ & /(?s:.)+/")),
                    (false, false) => Some(format!("{name}: /{regex}/")),
                };
                let Some(definition) = definition else {
                    return Ok("\"\"".to_owned());
                };
                self.terminals.push(definition);
                self.known.insert(regex, name.clone());
                name
            }
        };
        Ok(if nullable { format!("({name})?") } else { name })
    }

    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Character(_) => true,
            Node::Rule(index) => self.regular[*index],
            Node::Sequence(parts) | Node::Alternatives(parts) => parts.iter().all(|part| self.is_regular(part)),
            Node::Repeat(inner, ..) => self.is_regular(inner),
        }
    }

    /// REQUIRES: the node is regular.
    fn nullable(&self, node: &Node) -> bool {
        match node {
            Node::Character(_) => false,
            Node::Rule(index) => self.nullable[*index],
            Node::Sequence(parts) => parts.iter().all(|part| self.nullable(part)),
            Node::Alternatives(options) => options.iter().any(|option| self.nullable(option)),
            Node::Repeat(inner, min, _) => *min == 0 || self.nullable(inner),
        }
    }

    fn regex_of_rule(&mut self, rule: usize) -> Result<String> {
        if let Some(known) = &self.expressions[rule] {
            return Ok(known.clone());
        }
        let expression = self.regex(&self.grammar.rules[rule])?;
        self.kept += expression.len();
        if self.kept > MAX_KEPT {
            return Err(too_large());
        }
        self.expressions[rule] = Some(expression.clone());
        Ok(expression)
    }

    fn regex(&mut self, node: &Node) -> Result<String> {
        let text = match node {
            Node::Character(regex) => regex.clone(),
            Node::Rule(index) => self.regex_of_rule(*index)?,
            Node::Sequence(parts) => self.regexes(parts)?.concat(),
            Node::Alternatives(options) => format!("(?:{})", self.regexes(options)?.join("|")),
            Node::Repeat(inner, min, max) => format!("(?:{}){}", self.regex(inner)?, count(*min, *max)),
        };
        if text.len() > MAX_OUTPUT {
            return Err(too_large());
        }
        Ok(text)
    }

    fn regexes(&mut self, nodes: &[Node]) -> Result<Vec<String>> {
        let mut all = Vec::with_capacity(nodes.len());
        let mut size = 0;
        for node in nodes {
            let regex = self.regex(node)?;
            size += regex.len();
            if size > MAX_OUTPUT {
                return Err(too_large());
            }
            all.push(regex);
        }
        Ok(all)
    }

    fn grow(&mut self, bytes: usize) -> Result<()> {
        self.size += bytes;
        if self.size > MAX_OUTPUT {
            return Err(too_large());
        }
        Ok(())
    }
}

fn too_large() -> Error {
    Error::exhausted(format!("GBNF: expected a grammar of at most {MAX_OUTPUT} bytes with its rules written out, found more"))
}

fn count(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

fn references(node: &Node, out: &mut Vec<usize>) {
    match node {
        Node::Character(_) => {}
        Node::Rule(index) => out.push(*index),
        Node::Sequence(parts) | Node::Alternatives(parts) => parts.iter().for_each(|part| references(part, out)),
        Node::Repeat(inner, ..) => references(inner, out),
    }
}

/// The rules that can be written as a regular expression, each after the rules that it uses. Takes, again and again,
/// the rules that use only such rules; what is left is recursive or uses what is.
fn regular_rules(grammar: &Grammar) -> Vec<usize> {
    let count = grammar.rules.len();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut open = vec![0usize; count];
    for (index, rule) in grammar.rules.iter().enumerate() {
        let mut used = Vec::new();
        references(rule, &mut used);
        open[index] = used.len();
        used.into_iter().for_each(|other| users[other].push(index));
    }
    let mut regular: Vec<usize> = (0..count).filter(|&index| open[index] == 0).collect();
    let mut next = 0;
    while next < regular.len() {
        for &user in &users[regular[next]] {
            open[user] -= 1;
            if open[user] == 0 {
                regular.push(user);
            }
        }
        next += 1;
    }
    regular
}
