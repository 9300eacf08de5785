//! Rewrites a template so that every operator becomes a call of a function in `operators.rs`.
//!
//! minijinja's operators differ from Python's in ways that templates can observe (`'%s' % x`, a loop over none, the
//! text of a float in `a ~ b`). They also do not bound how large `a ~ a` can grow. minijinja's parser produces the
//! syntax tree; it also parses the rewritten template. White space control is already applied in the tree, so text is
//! written as string literals, and each statement stays on its line.

use std::fmt::Write;

use minijinja::machinery::ast::{BinOpKind, CallArg, CompareOpKind, Const, Expr, Macro, Stmt, UnaryOpKind};
use minijinja::machinery::{parse, tokenize, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind};

use super::exhausted;
use super::python::is_float;

/// Method names of Python's dictionaries, whatever keys a dictionary has.
pub const DICT_METHODS: [&str; 10] =
    ["get", "items", "keys", "values", "copy", "clear", "pop", "popitem", "setdefault", "update"];

/// The prefix of the functions' names.
pub const PREFIX: &str = "__python_";

/// Largest number of tokens in one tag. minijinja limits the nesting of brackets and tags. But `a.b.c...`, `a|b|c...`
/// and `1 + 1 + ...` make trees as deep as they are long, and these are walked and freed recursively.
const MAX_TAG_TOKENS: usize = 4_000;
/// Each `elif` nests too.
const MAX_ELIFS: usize = 500;

fn check_lengths(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let mut in_tag = 0;
    let mut elifs = 0;
    for token in tokenize(source, false, syntax) {
        let (token, _) = token?;
        in_tag = if matches!(token, Token::VariableStart | Token::BlockStart) { 0 } else { in_tag + 1 };
        elifs += usize::from(in_tag == 1 && matches!(token, Token::Ident("elif")));
        if in_tag > MAX_TAG_TOKENS && !matches!(token, Token::TemplateData(_)) {
            return Err(exhausted(format!("a tag has more than {MAX_TAG_TOKENS} words")));
        }
        if elifs > MAX_ELIFS {
            return Err(exhausted(format!("the template has more than {MAX_ELIFS} elifs")));
        }
    }
    Ok(())
}

pub fn rewrite(source: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    check_lengths(source, syntax.clone())?;
    let tree = parse(source, super::NAME, syntax)?;
    let mut writer = Writer { out: String::with_capacity(source.len() * 2), line: 1 };
    writer.statement(&tree)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    line: usize,
}

type Done = Result<(), Error>;

fn refused<T>(what: &str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::SyntaxError, format!("'{what}' has no place in a chat template")))
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Begins a tag on its original line.
    fn open(&mut self, tag: &str, line: usize) {
        self.put(tag);
        while self.line < line {
            self.out.push('\n');
            self.line += 1;
        }
        self.put(" ");
    }

    fn tag(&mut self, words: &str) {
        self.put("{% ");
        self.put(words);
        self.put(" %}");
    }

    fn block(&mut self, body: &[Stmt<'_>], end: &str) -> Done {
        body.iter().try_for_each(|statement| self.statement(statement))?;
        self.tag(end);
        Ok(())
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Done {
        match statement {
            Stmt::Template(node) => node.children.iter().try_for_each(|child| self.statement(child))?,
            Stmt::EmitRaw(node) => {
                self.put("{{ ");
                self.text(node.raw);
                self.put(" }}");
            }
            Stmt::EmitExpr(node) => {
                self.open("{{", node.span().start_line.into());
                self.expr(&node.expr)?;
                self.put(" }}");
            }
            Stmt::IfCond(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("if ");
                self.condition(&node.expr, &node.true_body, &node.false_body)?;
            }
            Stmt::ForLoop(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("for ");
                self.target(&node.target)?;
                self.put(" in ");
                self.call("iter", &[&node.iter])?;
                if let Some(filter) = &node.filter_expr {
                    self.put(" if ");
                    self.expr(filter)?;
                }
                self.put(if node.recursive { " recursive %}" } else { " %}" });
                if node.else_body.is_empty() {
                    return self.block(&node.body, "endfor");
                }
                self.block(&node.body, "else")?;
                self.block(&node.else_body, "endfor")?;
            }
            Stmt::Set(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("set ");
                self.target(&node.target)?;
                self.put(" = ");
                let is_attribute = matches!(node.target, Expr::GetAttr(_));
                self.call(if is_attribute { "keep_attribute" } else { "keep" }, &[&node.expr])?;
                self.put(" %}");
            }
            Stmt::SetBlock(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("set ");
                self.target(&node.target)?;
                if let Some(filter) = &node.filter {
                    self.put(" | ");
                    self.block_filter(filter)?;
                }
                self.put(" %}");
                self.block(&node.body, "endset")?;
            }
            Stmt::FilterBlock(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("filter ");
                self.block_filter(&node.filter)?;
                self.put(" %}");
                self.block(&node.body, "endfilter")?;
            }
            Stmt::WithBlock(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("with ");
                for (i, (target, value)) in node.assignments.iter().enumerate() {
                    self.put(if i > 0 { ", " } else { "" });
                    self.target(target)?;
                    self.put(" = ");
                    self.call("keep", &[value])?;
                }
                self.put(" %}");
                self.block(&node.body, "endwith")?;
            }
            // In a single template a block is equivalent to its body.
            Stmt::Block(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("with %}");
                self.block(&node.body, "endwith")?;
            }
            Stmt::Macro(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("macro ");
                self.put(node.name);
                self.signature(node)?;
                self.put(" %}");
                self.block(&node.body, "endmacro")?;
            }
            Stmt::CallBlock(node) => {
                self.open("{%", node.span().start_line.into());
                self.put("call");
                self.signature(&node.macro_decl)?;
                self.put(" ");
                self.expr(&node.call.expr)?;
                self.arguments(&node.call.args)?;
                self.put(" %}");
                self.block(&node.macro_decl.body, "endcall")?;
            }
            Stmt::Break(_) => self.tag("break"),
            Stmt::Continue(_) => self.tag("continue"),
            Stmt::AutoEscape(_) => return refused("autoescape"),
            Stmt::Do(_) => return refused("do"),
            Stmt::Import(_) | Stmt::FromImport(_) => return refused("import"),
            Stmt::Extends(_) => return refused("extends"),
            Stmt::Include(_) => return refused("include"),
        }
        Ok(())
    }

    /// The rest of an `if` with its `elif`s, which the parser nests.
    fn condition(&mut self, test: &Expr<'_>, then: &[Stmt<'_>], otherwise: &[Stmt<'_>]) -> Done {
        self.expr(test)?;
        self.put(" %}");
        then.iter().try_for_each(|statement| self.statement(statement))?;
        match otherwise {
            [] => {
                self.tag("endif");
                Ok(())
            }
            [Stmt::IfCond(node)] => {
                self.open("{%", node.span().start_line.into());
                self.put("elif ");
                self.condition(&node.expr, &node.true_body, &node.false_body)
            }
            _ => {
                self.tag("else");
                self.block(otherwise, "endif")
            }
        }
    }

    fn signature(&mut self, node: &Macro<'_>) -> Done {
        self.put("(");
        let first_default = node.args.len() - node.defaults.len();
        for (i, argument) in node.args.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.target(argument)?;
            if i >= first_default {
                self.put("=");
                self.expr(&node.defaults[i - first_default])?;
            }
        }
        self.put(")");
        Ok(())
    }

    fn target(&mut self, target: &Expr<'_>) -> Done {
        match target {
            Expr::Var(node) => self.put(node.id),
            Expr::GetAttr(node) => {
                self.target(&node.expr)?;
                self.put(".");
                self.put(node.name);
            }
            Expr::Tuple(node) => self.targets(&node.items)?,
            Expr::List(node) => self.targets(&node.items)?,
            _ => return refused("an assignment to this"),
        }
        Ok(())
    }

    fn targets(&mut self, targets: &[Expr<'_>]) -> Done {
        self.put("(");
        for target in targets {
            self.target(target)?;
            self.put(", ");
        }
        self.put(")");
        Ok(())
    }

    /// Filters without a value: those applied to the body of a block.
    fn block_filter(&mut self, filter: &Expr<'_>) -> Done {
        let Expr::Filter(node) = filter else { return refused("a block filtered by this") };
        if let Some(inner) = &node.expr {
            self.block_filter(inner)?;
            self.put(" | ");
        }
        self.put(node.name);
        if node.args.is_empty() {
            Ok(())
        } else {
            self.arguments(&node.args)
        }
    }

    /// Writes a call of the function `name` of `operators.rs`.
    fn call(&mut self, name: &str, operands: &[&Expr<'_>]) -> Done {
        self.put(PREFIX);
        self.put(name);
        self.put("(");
        for (i, operand) in operands.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.expr(operand)?;
        }
        self.put(")");
        Ok(())
    }

    fn expr(&mut self, expr: &Expr<'_>) -> Done {
        match expr {
            Expr::Var(node) => self.put(node.id),
            Expr::Const(node) => self.constant(node)?,
            Expr::List(node) => self.items("[", &node.items, "]")?,
            Expr::Tuple(node) if node.items.is_empty() => self.put("()"),
            Expr::Tuple(node) => self.items("(", &node.items, ",)")?,
            Expr::Map(node) => {
                self.put("{");
                for (key, value) in node.keys.iter().zip(&node.values) {
                    self.expr(key)?;
                    self.put(": ");
                    self.expr(value)?;
                    self.put(", ");
                }
                self.put("}");
            }
            Expr::UnaryOp(node) => match node.op {
                UnaryOpKind::Neg => self.call("negative", &[&node.expr])?,
                UnaryOpKind::Not => {
                    self.put("(not ");
                    self.expr(&node.expr)?;
                    self.put(")");
                }
            },
            Expr::BinOp(node) => self.binary(node.op, expr)?,
            Expr::Compare(node) => {
                let rest: Vec<_> = node.ops.iter().map(|operand| (operand.op, &operand.expr)).collect();
                self.compare(&node.expr, &rest)?;
            }
            Expr::IfExpr(node) => {
                self.put("(");
                self.expr(&node.true_expr)?;
                self.put(" if ");
                self.expr(&node.test_expr)?;
                if let Some(otherwise) = &node.false_expr {
                    self.put(" else ");
                    self.expr(otherwise)?;
                }
                self.put(")");
            }
            Expr::Filter(node) => {
                let Some(value) = &node.expr else { return refused("a filter of nothing") };
                self.put("(");
                self.put(PREFIX);
                self.put("input(");
                self.kept(value)?;
                self.put(")|");
                self.put(node.name);
                if !node.args.is_empty() {
                    self.arguments(&node.args)?;
                }
                self.put(")");
            }
            Expr::Test(node) => {
                self.put("(");
                self.expr(&node.expr)?;
                self.put(" is ");
                self.put(node.name);
                if !node.args.is_empty() {
                    self.arguments(&node.args)?;
                }
                self.put(")");
            }
            Expr::GetAttr(node) if DICT_METHODS.contains(&node.name) => {
                self.call("attribute", &[&node.expr])?;
                self.name_operand(node.name);
                self.put(")");
            }
            Expr::GetAttr(node) => {
                self.expr(&node.expr)?;
                self.put(".");
                self.put(node.name);
            }
            Expr::GetItem(node) => self.call("item", &[&node.expr, &node.subscript_expr])?,
            Expr::Slice(node) => {
                self.call("slice", &[&node.expr])?;
                self.put("[");
                for (i, part) in [&node.start, &node.stop, &node.step].into_iter().enumerate() {
                    self.put(if i > 0 { ":" } else { "" });
                    if let Some(part) = part {
                        self.expr(part)?;
                    }
                }
                self.put("]");
            }
            Expr::Call(node) => match &node.expr {
                Expr::GetAttr(method) if DICT_METHODS.contains(&method.name) => {
                    self.call("method", &[&method.expr])?;
                    self.name_operand(method.name);
                    for argument in &node.args {
                        self.put(", ");
                        self.argument(argument)?;
                    }
                    self.put(")");
                }
                callee => {
                    self.expr(callee)?;
                    self.arguments(&node.args)?;
                }
            },
        }
        Ok(())
    }

    /// Turns `f(x)` into `f(x, "name"`.
    fn name_operand(&mut self, name: &str) {
        self.out.pop();
        self.put(", \"");
        self.put(name);
        self.put("\"");
    }

    fn items(&mut self, open: &str, items: &[Expr<'_>], close: &str) -> Done {
        self.put(open);
        for (i, item) in items.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.expr(item)?;
        }
        self.put(close);
        Ok(())
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) -> Done {
        self.put("(");
        for (i, argument) in arguments.iter().enumerate() {
            self.put(if i > 0 { ", " } else { "" });
            self.argument(argument)?;
        }
        self.put(")");
        Ok(())
    }

    fn argument(&mut self, argument: &CallArg<'_>) -> Done {
        let value = match argument {
            CallArg::Pos(value) => value,
            CallArg::Kwarg(name, value) => {
                self.put(name);
                self.put("=");
                value
            }
            CallArg::PosSplat(value) => {
                self.put("*");
                value
            }
            CallArg::KwargSplat(value) => {
                self.put("**");
                value
            }
        };
        self.kept(value)
    }

    /// Literals are checked before a macro or filter can nest them deeper and deeper.
    fn kept(&mut self, value: &Expr<'_>) -> Done {
        match value {
            Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => self.call("keep", &[value]),
            _ => self.expr(value),
        }
    }

    fn binary(&mut self, op: BinOpKind, expr: &Expr<'_>) -> Done {
        let name = match op {
            BinOpKind::Add => "add",
            BinOpKind::Sub => "sub",
            BinOpKind::Mul => "mul",
            BinOpKind::Div => "div",
            BinOpKind::FloorDiv => "floordiv",
            BinOpKind::Rem => "mod",
            BinOpKind::Pow => "pow",
            BinOpKind::Concat => "concat",
            BinOpKind::ScAnd => " and ",
            BinOpKind::ScOr => " or ",
            BinOpKind::Eq => return self.compare_two(CompareOpKind::Eq, expr),
            BinOpKind::Ne => return self.compare_two(CompareOpKind::Ne, expr),
            BinOpKind::Lt => return self.compare_two(CompareOpKind::Lt, expr),
            BinOpKind::Lte => return self.compare_two(CompareOpKind::Lte, expr),
            BinOpKind::Gt => return self.compare_two(CompareOpKind::Gt, expr),
            BinOpKind::Gte => return self.compare_two(CompareOpKind::Gte, expr),
            BinOpKind::In => return self.compare_two(CompareOpKind::In, expr),
        };
        // a + b + c becomes one call with three operands, because long chains are common and must not nest.
        let mut operands = Vec::new();
        let mut left = expr;
        while let Expr::BinOp(node) = left {
            if std::mem::discriminant(&node.op) != std::mem::discriminant(&op) {
                break;
            }
            operands.push(&node.right);
            left = &node.left;
        }
        operands.push(left);
        operands.reverse();
        if !matches!(op, BinOpKind::ScAnd | BinOpKind::ScOr) {
            return self.call(name, &operands);
        }
        self.put("(");
        for (i, operand) in operands.into_iter().enumerate() {
            self.put(if i > 0 { name } else { "" });
            self.expr(operand)?;
        }
        self.put(")");
        Ok(())
    }

    fn compare_two(&mut self, op: CompareOpKind, expr: &Expr<'_>) -> Done {
        match expr {
            Expr::BinOp(node) => self.compare(&node.left, &[(op, &node.right)]),
            _ => refused("this comparison"),
        }
    }

    /// `a < b < c` becomes `compare(a, '<', b, '<', c)`.
    fn compare(&mut self, first: &Expr<'_>, rest: &[(CompareOpKind, &Expr<'_>)]) -> Done {
        self.put(PREFIX);
        self.put("compare(");
        self.expr(first)?;
        for (op, operand) in rest {
            self.put(match op {
                CompareOpKind::Eq => ", '==', ",
                CompareOpKind::Ne => ", '!=', ",
                CompareOpKind::Lt => ", '<', ",
                CompareOpKind::Lte => ", '<=', ",
                CompareOpKind::Gt => ", '>', ",
                CompareOpKind::Gte => ", '>=', ",
                CompareOpKind::In => ", 'in', ",
                CompareOpKind::NotIn => ", 'not in', ",
            });
            self.expr(operand)?;
        }
        self.put(")");
        Ok(())
    }

    fn constant(&mut self, node: &Const) -> Done {
        let value = &node.value;
        match value.kind() {
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::None => self.put("none"),
            ValueKind::Bool => self.put(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if is_float(value) => {
                let number = f64::try_from(value.clone())?;
                // The Debug format prints digits that read back; infinity has none.
                let text = if number.is_infinite() { "1e999".to_owned() } else { format!("{number:?}") };
                self.put(&text);
            }
            ValueKind::Number => self.put(&value.to_string()),
            _ => return refused("this constant"),
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => {
                    self.out.push('\\');
                    self.out.push(c);
                }
                // A newline stays a newline, so that line numbers do not change.
                '\n' => {
                    self.out.push('\n');
                    self.line += 1;
                }
                c if c.is_control() => {
                    let _ = write!(self.out, "\\u{:04x}", u32::from(c));
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
