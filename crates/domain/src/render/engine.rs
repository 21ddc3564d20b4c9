//! Templates: `*.j2` through MiniJinja, with everything that could make the
//! result depend on anything but its input taken away.
//!
//! - Undefined values are errors, also in conditions.
//! - Nothing is escaped, and `debug()` and `pprint` do not exist.
//! - `import`, `include` and `extends` see the files under `templates/`, by
//!   their path below it, and nothing else.
//! - A line that holds only a statement or a comment leaves nothing behind, not
//!   even its indentation (`trim_blocks`, `lstrip_blocks`): what one expects of
//!   YAML with loops in it. The last line break of a file is kept.
//! - Instructions, recursion and output are bounded.
//!
//! Errors name the template, the line and the files the values come from; what
//! the values are is never said.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::json;

use super::lines::{self, Lines};
use super::source::is_template;
use super::{filters, formatter};
use crate::finding::{Finding, Kind};
use crate::object::Origin;
use crate::repo::{FileTree, ResolvedEnvironment, ResolvedRelease, TreeKind};

/// Folder of the macros shared by all bundles.
const TEMPLATES: &str = "templates";

/// Instructions of one template, includes and macros counted in.
const FUEL: u64 = 10_000_000;

/// Nesting of calls and includes; an include counts ten.
const RECURSION_LIMIT: usize = 400;

/// How MiniJinja says that the limit is exceeded: there is no kind for it.
const RECURSION_EXCEEDED: &str = "recursion limit exceeded";

/// Bytes that one template may write.
const OUTPUT_LIMIT: usize = 32 << 20;

/// Longest expression that a message quotes.
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
        while let Some(folder) = folders.pop() {
            // No such folder: an import says that its file does not exist.
            let Ok(entries) = tree.list(&folder) else {
                continue;
            };
            for entry in entries {
                let path = format!("{folder}/{}", entry.name);
                match entry.kind {
                    TreeKind::Folder => folders.push(path),
                    TreeKind::File if is_template(&entry.name) => {
                        let source = tree
                            .read(&path)
                            .map_err(|error| error.to_string())
                            .and_then(|bytes| {
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

/// What a template wrote.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) text: String,
    pub(super) lines: Lines,
}

/// Renders the templates of one release; shared ones are compiled once.
pub(super) struct Engine {
    env: Environment<'static>,
    library: Library,
    context: Value,
    asked: Arc<Mutex<BTreeSet<String>>>,
    values_files: Vec<String>,
}

impl Engine {
    pub(super) fn new(
        library: &Library,
        environment: &ResolvedEnvironment,
        release: &ResolvedRelease,
    ) -> Self {
        let asked = Arc::default();
        Self {
            env: sandbox(library, &asked),
            library: library.clone(),
            context: context(environment, release),
            asked,
            values_files: release.values.files.clone(),
        }
    }

    /// The files under `templates/` that were used, and those that were looked
    /// for in vain.
    pub(super) fn asked(&self) -> BTreeSet<String> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn render(&self, file: &str, source: &str) -> Result<Output, Box<Finding>> {
        let text = self
            .run(file, source)
            .map_err(|error| Box::new(self.finding(file, source, &error)))?;
        let lines = self
            .run(file, &lines::mark(source))
            .map(|marked| Lines::read(&marked, &text))
            .unwrap_or_default();
        Ok(Output { text, lines })
    }

    fn run(&self, file: &str, source: &str) -> Result<String, Error> {
        let mut output = Bounded::default();
        self.env
            .template_from_named_str(file, source)?
            .render_captured_to(self.context.clone(), &mut output)?;
        String::from_utf8(output.0)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "the output is not UTF-8"))
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
                Some("say `cluster.kubernetes` in the environment")
            }
            (ErrorKind::UndefinedError, Some("release.namespace")) => {
                Some("say `namespace` in the release")
            }
            (ErrorKind::UndefinedError, Some("release.version")) => {
                Some("the bundle has no version folders, so no version")
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

fn sandbox(library: &Library, asked: &Arc<Mutex<BTreeSet<String>>>) -> Environment<'static> {
    let mut env = Environment::new();
    // It prints the values of variables into errors, and is on in debug builds.
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
    let asked = Arc::clone(asked);
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
        asked
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

/// What templates see. What is not known is undefined, not null.
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

/// The innermost error that knows its place: of an include within an include
/// the file that is to be corrected.
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

/// The text of the expression an error is about: source, never a value.
/// Of an attribute MiniJinja tells the last dots only; the name before them is
/// taken in.
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
        .filter(|detail| says_no_value(detail, source));
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

/// Whether a detail of MiniJinja can be repeated. It quotes operands of failed
/// arithmetic, and names (of templates, of arguments) that may come from values:
/// those must stand in the source.
fn says_no_value(detail: &str, source: Option<&str>) -> bool {
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

/// Output that ends at a limit instead of taking all memory.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_LIMIT {
            return Err(io::Error::other("the output is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::samples;
    use super::*;
    use crate::repo::MemoryTree;

    const FILE: &str = "manifests/web/v1.0.0/web.yaml.j2";

    fn library(files: &[(&str, &str)]) -> Library {
        Library::read(&MemoryTree::new(
            files
                .iter()
                .map(|(path, text)| ((*path).to_owned(), (*text).to_owned())),
        ))
    }

    fn engine(files: &[(&str, &str)]) -> Engine {
        let values = json!({
            "image": {"tag": "1.0"},
            "flag": true,
            "list": ["a", "b"],
            "password": "hunter2",
            "tiny": 2,
        });
        let release = samples::release("web", &[], values);
        Engine::new(
            &library(files),
            &samples::environment(vec![release.clone()]),
            &release,
        )
    }

    fn render(source: &str) -> Result<String, String> {
        let result = engine(&[
            (
                "templates/web.j2",
                "{% macro labels(name) %}\napp: {{ name }}\nteam: {{ values.team }}\n{% endmacro %}\n",
            ),
            ("templates/ok.j2", "{% macro app(name) -%}\napp: {{ name }}\n{%- endmacro %}\n"),
            ("templates/part.j2", "a: 1\nb: {{ values.missing }}\n"),
            ("templates/broken.j2", "a: 1\n{% if %}\n"),
            ("templates/self.j2", "{% include 'self.j2' %}"),
        ])
        .render(FILE, source);
        match result {
            Ok(output) => Ok(output.text),
            Err(finding) => {
                let text = format!("{finding} [{}]", finding.code);
                let all = format!("{text} {:?}", finding.hint);
                assert!(!all.contains("hunter2"), "{all}");
                Err(text)
            }
        }
    }

    #[rstest]
    #[case("a: {{ values.flag }}\n", "a: true\n")]
    #[case("a: {{ none }}\n", "a: null\n")]
    #[case("a: {{ values.image.tag }}\n", "a: 1.0\n")]
    #[case("a: {{ '<b>&' }}\n", "a: <b>&\n")]
    #[case(
        "{{ release.name }} {{ release.namespace }} {{ release.bundle }} {{ release.version }}",
        "web shop web v1.0.0"
    )]
    #[case("{{ environment.name }} {{ kubernetes }}", "test 1.36")]
    #[case(
        "a:\n  {% for x in values.list %}\n  - {{ x }}\n  {% endfor %}\n",
        "a:\n  - a\n  - b\n"
    )]
    #[case("{# nothing #}\na: 1\n", "a: 1\n")]
    #[case("a: {{ 'x' if false }}\n", "a: \n")]
    #[case("a: {{ values.missing | default(3) }}\n", "a: 3\n")]
    #[case("{% from 'ok.j2' import app %}\n{{ app('x') }}\n", "app: x\n")]
    #[case(
        "{% import 'ok.j2' as ok %}\n{{ ok.app('x') | indent(2, true) }}\n",
        "  app: x\n"
    )]
    #[case("{% include 'nowhere.j2' ignore missing %}\na: 1\n", "a: 1\n")]
    fn templates_give(#[case] source: &str, #[case] expected: &str) {
        assert_eq!(render(source).unwrap(), expected);
    }

    #[rstest]
    #[case(
        "a: 1\nb: {{ values.image.digest }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:2: undefined value in `values.image.digest` \
         [template-undefined]"
    )]
    #[case(
        "{% if values.missing %}{% endif %}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: undefined value in `values.missing` \
         [template-undefined]"
    )]
    #[case(
        "a:\n  {{ values.list }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:2: a list has no text of its own in `values.list` \
         [template-failed]"
    )]
    #[case(
        "a: 1\n\n{% endfor %}\n",
        "manifests/web/v1.0.0/web.yaml.j2:3: syntax error: unknown statement endfor \
         [template-syntax]"
    )]
    #[case(
        "a: {{ values.image.tag | nope }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: unknown filter: filter nope is unknown \
         [template-failed]"
    )]
    #[case(
        "a: {{ debug() }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: unknown function: debug is unknown \
         [template-failed]"
    )]
    #[case(
        "a: 1\n{% include 'part.j2' %}\n",
        "templates/part.j2:2: undefined value in `values.missing` \
         (rendering manifests/web/v1.0.0/web.yaml.j2:2) [template-undefined]"
    )]
    #[case(
        "\n{% include 'broken.j2' %}\n",
        "templates/broken.j2:2: syntax error: unexpected end of block \
         (rendering manifests/web/v1.0.0/web.yaml.j2) [template-syntax]"
    )]
    #[case(
        "{% from 'web.j2' import labels %}\n\n{{ labels('x') }}\n",
        "templates/web.j2:3: undefined value in `values.team` \
         (rendering manifests/web/v1.0.0/web.yaml.j2) [template-undefined]"
    )]
    #[case(
        "{% import 'nowhere.j2' as x %}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: template not found: tried to include \
         non-existing template 'nowhere.j2' [template-missing]"
    )]
    #[case(
        "{% include '../pleach.yaml' %}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: template not found: tried to include non-existing \
         template '../pleach.yaml' [template-missing]"
    )]
    #[case(
        "{% include values.password %}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: template not found in `include values.password` \
         [template-missing]"
    )]
    #[case(
        "{{ values.tiny // 0 }}{{ values.password }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: the operation is not possible with these values in \
         `values.tiny // 0` [template-failed]"
    )]
    #[case(
        "{{ values.password | int }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: invalid float literal in `int` [template-failed]"
    )]
    #[case(
        "{{ values.password.x.y }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: undefined value in `values.password.x.y` \
         [template-undefined]"
    )]
    #[case(
        "{{ values.password | required2 }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: unknown filter: filter required2 is unknown \
         [template-failed]"
    )]
    #[case(
        "{{ values[values.password] }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: undefined value in `values[values.password]` \
         [template-undefined]"
    )]
    #[case(
        "{{ values.tiny ** 100000 * values.tiny ** 900 }}\n",
        "manifests/web/v1.0.0/web.yaml.j2:1: the operation is not possible with these values in \
         `values.tiny ** 100000` [template-failed]"
    )]
    #[case(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "manifests/web/v1.0.0/web.yaml.j2:1: the template needs more than 10000000 instructions \
         [template-limit]"
    )]
    #[case(
        "{% for i in range(400) %}{{ 'x' * 100000 }}{% endfor %}",
        "manifests/web/v1.0.0/web.yaml.j2: the template writes more than 32 MiB [template-limit]"
    )]
    #[case(
        "{% include 'self.j2' %}",
        "templates/self.j2:1: recursion limit exceeded in `include 'self.j2'` \
         (rendering manifests/web/v1.0.0/web.yaml.j2:1) [template-limit]"
    )]
    #[case(
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "manifests/web/v1.0.0/web.yaml.j2:1: recursion limit exceeded in `f(x)` [template-limit]"
    )]
    fn templates_are_refused(#[case] source: &str, #[case] expected: &str) {
        assert_eq!(render(source).unwrap_err(), expected);
    }

    #[test]
    fn what_was_asked_for_is_known_also_when_it_is_missing() {
        let engine = engine(&[("templates/a.j2", ""), ("templates/b.j2", "")]);
        engine
            .render(
                FILE,
                "{% include 'a.j2' %}{% include 'c.j2' ignore missing %}",
            )
            .unwrap();
        assert_eq!(
            engine.asked().into_iter().collect::<Vec<_>>(),
            ["templates/a.j2", "templates/c.j2"]
        );
    }

    #[test]
    fn lines_of_the_output_lead_to_the_template() {
        let source = "{% for x in values.list %}\n---\nname: {{ x }}\n{% endfor %}\nend: 1\n";
        let output = engine(&[]).render(FILE, source).unwrap();
        assert_eq!(output.text, "---\nname: a\n---\nname: b\nend: 1\n");
        let lines: Vec<_> = (1..=5)
            .map(|line| output.lines.template_line(line))
            .collect();
        assert_eq!(lines, [2, 3, 2, 3, 5]);
    }
}
