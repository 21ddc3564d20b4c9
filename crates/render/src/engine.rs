//! Template engine: renders `*.j2` files with MiniJinja in a sandbox, so that the result depends
//! only on the input.
//!
//! - Undefined values are errors, also in conditions.
//! - Nothing is escaped, and `debug()` and `pprint` do not exist.
//! - `import`, `include` and `extends` can read only files under `templates/`, by their path below
//!   it.
//! - A line with only a statement or a comment produces no output, not even its indentation
//!   (`trim_blocks`, `lstrip_blocks`). The last line break of a file is kept.
//! - Instructions, recursion and output are limited.
//!
//! Errors name the template, the line and the values files, but never quote values.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::json;

use super::source::is_template;
use super::source_map::{Copied, Lines};
use super::{filters, formatter};
use pleach_config::{ResolvedEnvironment, ResolvedRelease};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use pleach_model::tree::{FileTree, MOST_BYTES, MOST_ENTRIES, TreeKind, is_too_deep};

/// Folder of the shared macros.
const TEMPLATES: &str = "templates";

/// Instruction limit per template, including includes and macros.
const FUEL: u64 = 10_000_000;

/// Limit for nested calls and includes. An include counts as ten.
const RECURSION_LIMIT: usize = 400;

/// MiniJinja's message if the limit is exceeded. It has no error kind.
const RECURSION_EXCEEDED: &str = "recursion limit exceeded";

/// Maximum output of a template, in bytes.
const OUTPUT_LIMIT: usize = 32 << 20;

/// Maximum length of an expression that a message quotes.
const EXPRESSION_LENGTH: usize = 80;

/// The files under `templates/`, read once per environment.
#[derive(Debug, Clone, Default)]
pub(super) struct Library {
    sources: Arc<BTreeMap<String, Result<String, String>>>,
}

impl Library {
    pub(super) fn read(tree: &dyn FileTree) -> Self {
        let mut sources = BTreeMap::new();
        let mut folders = vec![TEMPLATES.to_owned()];
        let (mut met, mut bytes_read) = (0, 0);
        while let Some(folder) = folders.pop() {
            // Without the folder, an import reports that its file does not exist.
            let Ok(entries) = tree.list(&folder) else {
                continue;
            };
            for entry in entries {
                met += 1;
                // An import of a skipped file reports that it does not exist.
                if met > MOST_ENTRIES || bytes_read > MOST_BYTES {
                    break;
                }
                let path = format!("{folder}/{}", entry.name);
                match entry.kind {
                    // Imports cannot reach deeper folders.
                    TreeKind::Folder if is_too_deep(&path) => {}
                    TreeKind::Folder => folders.push(path),
                    TreeKind::File if is_template(&entry.name) => {
                        let source = tree
                            .read(&path)
                            .map_err(|error| error.to_string())
                            .and_then(|bytes| {
                                bytes_read += bytes.len();
                                String::from_utf8(bytes.into())
                                    .map_err(|_| format!("{path} is not UTF-8"))
                            });
                        sources.insert(path, source);
                    }
                    TreeKind::File | TreeKind::Link | TreeKind::Submodule => {}
                }
            }
        }
        Self {
            sources: Arc::new(sources),
        }
    }
}

/// Output of a template.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) text: String,
    pub(super) lines: Lines,
}

/// Renders the templates of one release. Shared templates are compiled once.
pub(super) struct Engine {
    env: Environment<'static>,
    library: Library,
    context: Value,
    requested: Arc<Mutex<BTreeSet<String>>>,
    values_files: Vec<String>,
}

impl Engine {
    pub(super) fn new(
        library: &Library,
        environment: &ResolvedEnvironment,
        release: &ResolvedRelease,
    ) -> Self {
        let requested = Arc::default();
        Self {
            env: sandbox(library, &requested),
            library: library.clone(),
            context: context(environment, release),
            requested,
            values_files: release.values.files.clone(),
        }
    }

    /// Creates an engine for a single message, with its own context and without shared files.
    pub(super) fn of_message(context: &serde_json::Value) -> Self {
        let (library, requested) = (Library::default(), Arc::default());
        Self {
            env: sandbox(&library, &requested),
            library,
            context: Value::from(Serde(context)),
            requested,
            values_files: Vec::new(),
        }
    }

    /// Renders a template without a source map.
    pub(super) fn render_text(&self, file: &str, source: &str) -> Result<String, Box<Finding>> {
        self.run(file, source)
            .map(|(text, _)| text)
            .map_err(|error| Box::new(self.finding(file, source, &error)))
    }

    /// Returns the requested files under `templates/`, including missing ones.
    pub(super) fn requested(&self) -> BTreeSet<String> {
        self.requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn render(&self, file: &str, source: &str) -> Result<Output, Box<Finding>> {
        let (text, copies) = self
            .run(file, source)
            .map_err(|error| Box::new(self.finding(file, source, &error)))?;
        let lines = Lines::of(source, &text, &copies);
        Ok(Output { text, lines })
    }

    /// Renders a template. Also returns which parts of the output are copied from the template's
    /// text.
    fn run(&self, file: &str, source: &str) -> Result<(String, Vec<Copied>), Error> {
        let mut output = Bounded {
            source,
            bytes: Vec::with_capacity(source.len()),
            copies: Vec::new(),
        };
        self.env
            .template_from_named_str(file, source)?
            .render_captured_to(self.context.clone(), &mut output)?;
        let text = String::from_utf8(output.bytes)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "the output is not UTF-8"))?;
        Ok((text, output.copies))
    }

    fn finding(&self, file: &str, source: &str, error: &Error) -> Finding {
        let inner = innermost(error);
        let name = inner.name().unwrap_or(file);
        let inner_source = if name == file {
            Some(source)
        } else {
            self.library
                .sources
                .get(name)
                .and_then(|source| source.as_deref().ok())
        };
        let expression = inner_source.and_then(|source| expression(source, inner));
        let mut message = describe(inner, inner_source, expression);
        if name != file {
            message.push_str(" (rendering ");
            let line = if error.name() == Some(file) {
                error.line().unwrap_or(0)
            } else {
                0
            };
            message.push_str(&Origin::new(file, line).to_string());
            message.push(')');
        }
        let finding = Finding::error(Kind::Repository, code(inner), message)
            .at(Origin::new(name, inner.line().unwrap_or(0)));
        match self.hint(inner, expression) {
            Some(hint) => finding.hint(hint),
            None => finding,
        }
    }

    fn hint(&self, error: &Error, expression: Option<&str>) -> Option<String> {
        let files = (!self.values_files.is_empty())
            .then(|| format!("values are read from {}", self.values_files.join(", ")));
        let advice = match (error.kind(), expression) {
            (ErrorKind::UndefinedError, Some("kubernetes")) => {
                Some("set `cluster.kubernetes` in the environment")
            }
            (ErrorKind::UndefinedError, Some("release.namespace")) => {
                Some("set `namespace` in the release")
            }
            (ErrorKind::UndefinedError, Some("release.version")) => {
                Some("the bundle has no version folders, so there is no version")
            }
            (ErrorKind::UndefinedError, _) => {
                Some("give it a value, or use `| default(…)` or `is defined`")
            }
            (ErrorKind::TemplateNotFound, _) => {
                Some("names are paths below templates/, such as `web.j2`, without `..`")
            }
            (ErrorKind::SyntaxError, _) => return None,
            _ if error
                .detail()
                .is_some_and(|d| d.ends_with(formatter::NO_TEXT)) =>
            {
                Some("write it with `| toyaml` or `| tojson`")
            }
            _ => None,
        };
        match (advice, files) {
            (Some(advice), Some(files)) => Some(format!("{advice}; {files}")),
            (Some(advice), None) => Some(advice.to_owned()),
            (None, files) => files,
        }
    }
}

fn sandbox(library: &Library, requested: &Arc<Mutex<BTreeSet<String>>>) -> Environment<'static> {
    let mut env = Environment::new();
    // Debug mode copies the values of variables into errors. It is on by default in debug builds.
    env.set_debug(false);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_formatter(formatter::format);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION_LIMIT);
    let mut syntax = SyntaxConfig::builder();
    syntax
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true);
    if let Ok(syntax) = syntax.build() {
        env.set_syntax(syntax);
    }
    env.remove_global("debug");
    env.remove_filter("pprint");
    filters::install(&mut env);
    env.set_path_join_callback(|name, _| format!("{TEMPLATES}/{name}").into());
    let library = library.clone();
    let requested = Arc::clone(requested);
    env.set_loader(move |path| {
        let leaves = path.contains('\\')
            || path
                .split('/')
                .any(|segment| matches!(segment, "" | "." | ".."));
        if leaves {
            return Err(Error::new(
                ErrorKind::TemplateNotFound,
                "imports are paths below templates/ without `.`, `..` and a leading `/`",
            ));
        }
        requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(path.to_owned());
        match library.sources.get(path) {
            None => Ok(None),
            Some(Ok(source)) => Ok(Some(source.clone())),
            Some(Err(reason)) => Err(Error::new(ErrorKind::InvalidOperation, reason.clone())),
        }
    });
    env
}

/// Builds the variables of templates. Unknown facts are undefined, not null.
fn context(environment: &ResolvedEnvironment, release: &ResolvedRelease) -> Value {
    let mut context = json!({
        "values": release.values.merged,
        "release": {"name": release.name.release, "bundle": release.bundle},
        "environment": {"name": environment.name},
    });
    if let Some(namespace) = &release.namespace {
        context["release"]["namespace"] = json!(namespace);
    }
    if let Some(version) = &release.version {
        context["release"]["version"] = json!(version);
    }
    if let Some(kubernetes) = &environment.cluster.kubernetes {
        context["kubernetes"] = json!(kubernetes);
    }
    Value::from(Serde(&context))
}

/// Returns the innermost error with a location. For nested includes, this is the file to correct.
fn innermost(error: &Error) -> &Error {
    let mut found = error;
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        if let Some(inner) = source.downcast_ref::<Error>()
            && inner.name().is_some()
        {
            found = inner;
        }
        next = source.source();
    }
    found
}

/// Returns the source text of the expression that an error is about, never a value. For attributes,
/// MiniJinja reports only the last part, so the name before it is added.
fn expression<'a>(source: &'a str, error: &Error) -> Option<&'a str> {
    let range = error.range()?;
    let mut start = range.start;
    if source.get(range.clone())?.starts_with('.') {
        start = source[..start]
            .trim_end_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
            .len();
    }
    let text = source.get(start..range.end)?.trim();
    let short = text.len() <= EXPRESSION_LENGTH && !text.is_empty() && !text.contains('\n');
    short.then_some(text)
}

fn code(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => "template-syntax",
        ErrorKind::UndefinedError => "template-undefined",
        ErrorKind::TemplateNotFound => "template-missing",
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => "template-limit",
        _ if error.detail() == Some(RECURSION_EXCEEDED) => "template-limit",
        _ => "template-failed",
    }
}

fn describe(error: &Error, source: Option<&str>, expression: Option<&str>) -> String {
    let detail = error
        .detail()
        .filter(|detail| is_missing_value(detail, source));
    let what = match error.kind() {
        ErrorKind::UndefinedError => "undefined value".to_owned(),
        ErrorKind::OutOfFuel => format!("the template needs more than {FUEL} instructions"),
        ErrorKind::WriteFailure => {
            format!("the template writes more than {} MiB", OUTPUT_LIMIT >> 20)
        }
        ErrorKind::InvalidOperation => detail
            .unwrap_or("the operation is not possible with these values")
            .to_owned(),
        kind => match detail {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    match (error.kind(), expression) {
        (ErrorKind::UndefinedError | ErrorKind::InvalidOperation, Some(expression)) => {
            format!("{what} in `{expression}`")
        }
        (ErrorKind::TemplateNotFound, Some(expression)) if detail.is_none() => {
            format!("{what} in `{expression}`")
        }
        _ => what,
    }
}

/// Returns whether a detail of MiniJinja can be quoted. Details can contain operands, or template
/// and argument names that come from values. Names must therefore occur in the source.
fn is_missing_value(detail: &str, source: Option<&str>) -> bool {
    if detail.starts_with("unable to calculate") || detail.starts_with("failed to sort") {
        return false;
    }
    let quoted = detail.split(['"', '\'', '`']).skip(1).step_by(2);
    source.is_some_and(|source| {
        quoted
            .into_iter()
            .all(|text| source.contains(text.trim_start_matches("templates/")))
    })
}

/// Writer that fails at the output limit.
struct Bounded<'a> {
    /// Source text of the template.
    source: &'a str,
    bytes: Vec<u8>,
    copies: Vec<Copied>,
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.bytes.len();
        if at + bytes.len() > OUTPUT_LIMIT {
            return Err(io::Error::other("the output is too long"));
        }
        self.copies.extend(Copied::find(self.source, at, bytes));
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
