//! Checks parsed expressions and rewrites them into the tree that is evaluated.
//!
//! The CEL crate evaluates some constructs differently from the API server. The rewrite restores
//! the meaning that the API server gives them. Reading a field of a value without fields is an
//! error instead of `false`. Loops are bounded.

use std::collections::BTreeSet;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue,
    MapEntryExpr, MapExpr, SelectExpr, operators,
};
use kube_cel::cel::common::types::CelInt;
use kube_cel::cel::{ExecutionError, IdedExpr, Value};

use super::{CompileError, FUNCTIONS, TICK};

/// Maximum nesting depth of expressions.
const DEEPEST: usize = 100;

/// Maximum nesting depth of loops.
const LOOPS: usize = 3;

/// A tree that is ready for evaluation.
pub(super) struct Checked {
    pub(super) tree: IdedExpr,
    /// Names that the expression uses.
    pub(super) names: BTreeSet<String>,
}

/// Checks a parsed tree and reports all problems at once.
pub(super) fn check(tree: IdedExpr, names: &[&str]) -> Result<Checked, CompileError> {
    let mut walk = Walk {
        known: names,
        used: BTreeSet::new(),
        bound: Vec::new(),
        depth: 0,
        loops: 0,
        problems: Vec::new(),
    };
    let tree = walk.rewrite(tree);
    if walk.problems.is_empty() {
        let names = walk.used;
        return Ok(Checked { tree, names });
    }
    walk.problems.dedup();
    Err(CompileError(walk.problems))
}

struct Walk<'a> {
    known: &'a [&'a str],
    used: BTreeSet<String>,
    /// Variables of the enclosing loops.
    bound: Vec<String>,
    depth: usize,
    loops: usize,
    problems: Vec<String>,
}

impl Walk<'_> {
    fn rewrite(&mut self, node: IdedExpr) -> IdedExpr {
        if self.depth >= DEEPEST {
            self.problems.push("it is nested too deeply".to_owned());
            return IdedExpr::default();
        }
        self.depth += 1;
        let expr = match node.expr {
            Expr::Ident(name) => self.name(name),
            Expr::Literal(literal) => Expr::Literal(literal),
            Expr::Select(select) => self.field(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => Expr::List(ListExpr {
                elements: self.all(list.elements),
                optional_indices: list.optional_indices,
            }),
            Expr::Map(map) => Expr::Map(MapExpr {
                entries: map
                    .entries
                    .into_iter()
                    .filter_map(|entry| self.entry(entry))
                    .collect(),
            }),
            Expr::Comprehension(each) => Expr::Comprehension(Box::new(self.each(*each))),
            Expr::Struct(_) | Expr::Unspecified => {
                self.problems.push("messages are not supported".to_owned());
                Expr::Unspecified
            }
        };
        self.depth -= 1;
        IdedExpr { id: node.id, expr }
    }

    fn all(&mut self, nodes: Vec<IdedExpr>) -> Vec<IdedExpr> {
        nodes.into_iter().map(|node| self.rewrite(node)).collect()
    }

    fn name(&mut self, name: String) -> Expr {
        if !self.bound.contains(&name) {
            if self.known.contains(&name.as_str()) {
                self.used.insert(name.clone());
            } else {
                self.problems.push(format!(
                    "unknown name `{name}`; known names: {}",
                    self.known.join(", ")
                ));
            }
        }
        Expr::Ident(name)
    }

    /// Rewrites a field access to an index. The crate returns `false` for a field of a value
    /// without fields, but an error for an index.
    fn field(&mut self, select: SelectExpr) -> Expr {
        let operand = self.rewrite(*select.operand);
        if select.test {
            return Expr::Select(SelectExpr {
                operand: Box::new(operand),
                ..select
            });
        }
        let key = LiteralValue::String(select.field.as_str().into());
        let key = IdedExpr {
            id: operand.id,
            expr: Expr::Literal(key),
        };
        Expr::Call(CallExpr {
            func_name: operators::INDEX.to_owned(),
            target: None,
            args: vec![operand, key],
        })
    }

    fn call(&mut self, call: CallExpr) -> Expr {
        let name = &call.func_name;
        let qualified = call.target.as_ref().and_then(|target| match &target.expr {
            Expr::Ident(prefix) => Some(format!("{prefix}.{name}")),
            _ => None,
        });
        let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
        let is_qualified = qualified.is_some_and(|name| exists(&name));
        if !is_operator && !is_qualified && !exists(name) {
            self.problems.push(format!("there is no function `{name}`"));
        }
        let target = match call.target {
            Some(target) if !is_qualified => Some(Box::new(self.rewrite(*target))),
            target => target,
        };
        Expr::Call(CallExpr {
            target,
            args: self.all(call.args),
            func_name: call.func_name,
        })
    }

    fn entry(&mut self, entry: IdedEntryExpr) -> Option<IdedEntryExpr> {
        let EntryExpr::MapEntry(pair) = entry.expr else {
            self.problems.push("messages are not supported".to_owned());
            return None;
        };
        let pair = MapEntryExpr {
            key: self.rewrite(pair.key),
            value: self.rewrite(pair.value),
            optional: pair.optional,
        };
        Some(IdedEntryExpr {
            id: entry.id,
            expr: EntryExpr::MapEntry(pair),
        })
    }

    /// Rewrites a loop, which is the expansion of macros such as `all` and `map`.
    fn each(&mut self, each: ComprehensionExpr) -> ComprehensionExpr {
        let iter_range = self.rewrite(each.iter_range);
        let accu_init = self.rewrite(each.accu_init);
        let collects = matches!(accu_init.expr, Expr::List(_));
        self.loops += 1;
        if self.loops > LOOPS {
            self.problems
                .push(format!("loops are nested deeper than {LOOPS} levels"));
        }
        let outside = self.bound.len();
        self.bound
            .extend([each.iter_var.clone(), each.accu_var.clone()]);
        self.bound.extend(each.iter_var2.clone());
        let go_on = self.rewrite(each.loop_cond);
        let loop_step = self.rewrite(each.loop_step);
        let result = self.rewrite(each.result);
        self.bound.truncate(outside);
        self.loops -= 1;
        ComprehensionExpr {
            loop_cond: tick(go_on, collects.then_some(each.accu_var.as_str())),
            iter_range,
            accu_init,
            loop_step,
            result,
            ..each
        }
    }
}

/// Wraps a loop condition so that it also counts the step.
fn tick(go_on: IdedExpr, collected: Option<&str>) -> IdedExpr {
    let node = |expr| IdedExpr { id: go_on.id, expr };
    let collected = match collected {
        Some(name) => node(Expr::Call(CallExpr {
            func_name: "size".to_owned(),
            target: None,
            args: vec![node(Expr::Ident(name.to_owned()))],
        })),
        None => node(Expr::Literal(LiteralValue::Int(CelInt::from(0_i64)))),
    };
    IdedExpr {
        id: go_on.id,
        expr: Expr::Call(CallExpr {
            func_name: TICK.to_owned(),
            target: None,
            args: vec![go_on, collected],
        }),
    }
}

/// Returns whether a function exists. A call without arguments yields `UndeclaredReference` only
/// for an unknown function.
fn exists(name: &str) -> bool {
    let call = IdedExpr {
        id: 0,
        expr: Expr::Call(CallExpr {
            func_name: name.to_owned(),
            target: None,
            args: Vec::new(),
        }),
    };
    let answer = FUNCTIONS.with(|functions| Value::resolve(&call, functions));
    !matches!(answer, Err(ExecutionError::UndeclaredReference(_)))
}
