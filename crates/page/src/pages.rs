//! Pages as HTML.
//!
//! A page is rendered from the board and the permissions of its viewer. Everything is escaped by
//! the template engine, and undefined names are errors.

mod environment;
mod forms;
mod hidden;
mod overview;
mod release;
pub(crate) mod text;
mod waiting;

use std::sync::LazyLock;

use jiff::Timestamp;
use minijinja::syntax::SyntaxConfig;
use minijinja::{
    AutoEscape, Environment as Engine, Output, UndefinedBehavior, Value, context, escape_formatter,
};
use pleach_model::object::{Digest, ReleaseName};
use pleach_model::sanitize::{plain, steers};
use serde::Deserialize;

use crate::board::{Board, State};
use crate::standalone;
use crate::viewer::Viewer;

pub use self::forms::{AuditEntry, SignInForm, audit, outdated, refusal, sign_in};
use self::hidden::Hidden;

/// The stylesheet of all pages.
pub const STYLE: &str = include_str!("style.css");
/// The script of all pages, an ES module.
pub const SCRIPT: &str = include_str!("live.js");
/// Name of the only fragment: the main part of a page.
const FRAGMENT: &str = "main";
/// Maximum number of characters of a search text.
const SEARCH: usize = 200;

/// Templates by name.
const TEMPLATES: [(&str, &str); 17] = [
    ("actions.html.j2", include_str!("templates/actions.html.j2")),
    ("base.html.j2", include_str!("templates/base.html.j2")),
    ("board.html.j2", include_str!("templates/board.html.j2")),
    ("diff.html.j2", include_str!("templates/diff.html.j2")),
    (
        "environment.html.j2",
        include_str!("templates/environment.html.j2"),
    ),
    ("graph.html.j2", include_str!("templates/graph.html.j2")),
    ("history.html.j2", include_str!("templates/history.html.j2")),
    ("login.html.j2", include_str!("templates/login.html.j2")),
    ("macros.html.j2", include_str!("templates/macros.html.j2")),
    ("missing.html.j2", include_str!("templates/missing.html.j2")),
    ("objects.html.j2", include_str!("templates/objects.html.j2")),
    (
        "overview.html.j2",
        include_str!("templates/overview.html.j2"),
    ),
    ("plan.html.j2", include_str!("templates/plan.html.j2")),
    (
        "outdated.html.j2",
        include_str!("templates/outdated.html.j2"),
    ),
    ("refusal.html.j2", include_str!("templates/refusal.html.j2")),
    ("release.html.j2", include_str!("templates/release.html.j2")),
    ("waiting.html.j2", include_str!("templates/waiting.html.j2")),
];

/// Paths of the static files, which contain the digest of their content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assets {
    /// Path of [`STYLE`].
    pub style: String,
    /// Path of [`SCRIPT`].
    pub script: String,
}

static ASSETS: LazyLock<Assets> = LazyLock::new(|| {
    let named = |text: &str, extension: &str| {
        let digest = Digest::of(text.as_bytes()).short();
        format!("/static/{digest}.{extension}")
    };
    Assets {
        style: named(STYLE, "css"),
        script: named(SCRIPT, "js"),
    }
});

impl Assets {
    /// Returns the paths of this version.
    pub fn current() -> &'static Self {
        &ASSETS
    }
}

/// Query of a page. All fields are optional, and a page ignores those of other pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Query {
    /// Text to search for.
    pub q: String,
    /// State to select.
    pub state: String,
    /// Number of the page of a list, from 1.
    pub page: String,
    /// Selected node of a graph.
    pub node: String,
    /// Name of the fragment; empty for the whole page.
    pub fragment: String,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// All environments with their releases.
    Overview {
        /// Text to search for, in lower case.
        search: String,
        /// State to select.
        state: Option<State>,
    },
    /// One environment.
    Environment(String),
    /// One release.
    Release(ReleaseName, Tab),
    /// All releases that wait.
    Waiting,
}

/// Part of the page of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tab {
    /// State, waits, actions and facts.
    Overview,
    /// Stages and steps.
    Plan,
    /// Differences between git and cluster.
    Diff,
    /// Objects.
    Objects {
        /// Text to search for, in lower case.
        search: String,
        /// Number of the page of the list, from 1.
        page: usize,
    },
    /// Last results.
    History,
    /// Picture of the steps.
    Graph {
        /// The step around which a large graph is drawn.
        node: Option<usize>,
    },
}

impl Page {
    /// Returns the page at a path. `None` if there is none.
    pub fn at(path: &str, query: &Query) -> Option<Self> {
        let search: String = query.q.trim().chars().take(SEARCH).collect();
        let search = search.to_lowercase();
        let mut parts = path.strip_prefix('/')?.split('/');
        let page = match (parts.next()?, parts.next()) {
            ("", None) => Self::Overview {
                search,
                state: State::ALL.into_iter().find(|one| one.key() == query.state),
            },
            ("waiting", None) => Self::Waiting,
            ("environments", Some(name)) if !name.is_empty() => Self::Environment(name.to_owned()),
            ("releases", Some(environment)) => {
                let release = parts.next().filter(|name| !name.is_empty())?;
                let name = ReleaseName {
                    environment: environment.to_owned(),
                    release: release.to_owned(),
                };
                Self::Release(name, Tab::at(parts.next(), search, query)?)
            }
            _ => return None,
        };
        parts.next().is_none().then_some(page)
    }

    /// Returns the path of the page, without its query.
    pub fn path(&self) -> String {
        match self {
            Self::Overview { .. } => "/".to_owned(),
            Self::Environment(name) => format!("/environments/{name}"),
            Self::Release(name, tab) => {
                let ReleaseName {
                    environment,
                    release,
                } = name;
                format!("/releases/{environment}/{release}{}", tab.path())
            }
            Self::Waiting => "/waiting".to_owned(),
        }
    }

    /// Returns the name of the page in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Overview { .. } => "overview",
            Self::Environment(_) => "environment",
            Self::Release(_, tab) => tab.kind(),
            Self::Waiting => "waiting",
        }
    }

    /// Returns the number of the last change that the page shows. `None` if the viewer is not
    /// allowed to see the page, or it does not exist.
    pub fn version(&self, board: &Board, viewer: &Viewer) -> Option<u64> {
        match self {
            Self::Overview { .. } | Self::Waiting => {
                let environments = board.visible_environments(viewer);
                let versions = environments
                    .map(|(_, environment)| board.version_of_environment(environment, viewer));
                Some(versions.max().unwrap_or_default())
            }
            Self::Environment(name) => {
                let environment = board.environments.get(name)?;
                let is_visible = environment.is_visible(name, viewer);
                is_visible.then(|| board.version_of_environment(environment, viewer))
            }
            Self::Release(name, _) => {
                let (environment, release) = board.visible(name, viewer)?;
                Some(board.version_of_release(environment, release))
            }
        }
    }
}

impl Tab {
    fn at(name: Option<&str>, search: String, query: &Query) -> Option<Self> {
        Some(match name {
            None => Self::Overview,
            Some("plan") => Self::Plan,
            Some("diff") => Self::Diff,
            Some("objects") => Self::Objects {
                search,
                page: query.page.parse().unwrap_or(1).max(1),
            },
            Some("history") => Self::History,
            Some("graph") => Self::Graph {
                node: query.node.parse().ok(),
            },
            Some(_) => return None,
        })
    }

    /// Returns the path below that of the release.
    fn path(&self) -> &'static str {
        match self {
            Self::Overview => "",
            Self::Plan => "/plan",
            Self::Diff => "/diff",
            Self::Objects { .. } => "/objects",
            Self::History => "/history",
            Self::Graph { .. } => "/graph",
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Overview => "release",
            Self::Plan => "plan",
            Self::Diff => "diff",
            Self::Objects { .. } => "objects",
            Self::History => "history",
            Self::Graph { .. } => "graph",
        }
    }
}

/// Facts of a request.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The user.
    pub viewer: &'a Viewer,
    /// Present time.
    pub now: Timestamp,
    /// Prefix of digests. It differs after each start of the controller.
    pub epoch: &'a str,
}

/// A template failed; this is a bug.
#[derive(Debug, thiserror::Error)]
#[error("failed to render the page {page}; this is a bug")]
pub struct RenderError {
    /// Name of the page.
    page: &'static str,
    #[source]
    source: minijinja::Error,
}

impl RenderError {
    pub(crate) fn new(page: &'static str, source: minijinja::Error) -> Self {
        Self { page, source }
    }
}

/// Returns the digest of a page: it changes whenever the page does. `None` as in [`render`].
pub fn digest(board: &Board, page: &Page, request: &Request<'_>) -> Option<String> {
    let version = page.version(board, request.viewer)?;
    Some(format!("{}-{version}", request.epoch))
}

/// Renders a page, or its fragment. `None` if the viewer is not allowed to see the page, or it does
/// not exist.
pub fn render(
    board: &Board,
    (page, query): (&Page, &Query),
    request: &Request<'_>,
) -> Result<Option<String>, RenderError> {
    let is_fragment = match query.fragment.as_str() {
        "" => false,
        FRAGMENT => true,
        _ => return Ok(None),
    };
    let Some(digest) = digest(board, page, request) else {
        return Ok(None);
    };
    let content = match page {
        Page::Overview { search, state } => {
            Some(overview::content(board, (search, *state), request))
        }
        Page::Environment(name) => environment::content(board, name, request),
        Page::Release(name, tab) => release::content(board, (name, tab), request),
        Page::Waiting => Some(waiting::content(board, request)),
    };
    let Some(content) = content else {
        return Ok(None);
    };
    let path = page.path();
    let frame = context! {
        is_fragment,
        digest,
        here => here(&path, query),
        scope => path,
        script => &Assets::current().script,
    };
    let environment = match page {
        Page::Environment(name) => Some(name.as_str()),
        Page::Release(name, _) => Some(name.environment.as_str()),
        Page::Overview { .. } | Page::Waiting => None,
    };
    let hidden = Hidden::of(board, request.viewer, environment);
    let html = content.render(page.kind(), frame, request)?;
    Ok(Some(hidden.in_html(html)))
}

/// Renders the page for an address that has none, or that the viewer is not allowed to see. It has
/// no live updates.
pub fn missing(request: &Request<'_>) -> Result<String, RenderError> {
    let content = Content {
        template: "missing.html.j2",
        title: "Not found".to_owned(),
        section: "",
        values: context! {},
    };
    let frame = context! {
        is_fragment => false,
        digest => "",
        here => "/",
        scope => "/",
        script => "",
    };
    content.render("missing", frame, request)
}

/// Content of the main part of a page.
struct Content {
    /// Name of its template.
    template: &'static str,
    /// Title of the page.
    title: String,
    /// Section of the navigation.
    section: &'static str,
    /// Values of the template.
    values: Value,
}

impl Content {
    fn render(
        self,
        page: &'static str,
        frame: Value,
        request: &Request<'_>,
    ) -> Result<String, RenderError> {
        let Self {
            template,
            title,
            section,
            values,
        } = self;
        let values = context! {
            title,
            section,
            now => text::moment(request.now),
            user => request.viewer.name.as_deref().map(crate::facts::text),
            style => &Assets::current().style,
            ..context! { ..frame, ..values }
        };
        let failed = |source| RenderError { page, source };
        let engine = ENGINE.as_ref().map_err(|error| failed(clone(error)))?;
        let template = engine.get_template(template).map_err(failed)?;
        template.render(values).map_err(failed)
    }
}

pub(crate) static ENGINE: LazyLock<Result<Engine<'static>, minijinja::Error>> =
    LazyLock::new(|| {
        let mut engine = Engine::new();
        engine.set_undefined_behavior(UndefinedBehavior::Strict);
        engine.set_auto_escape_callback(|_| AutoEscape::Html);
        engine.set_formatter(format);
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        engine.set_syntax(syntax.build()?);
        for (name, template) in TEMPLATES.into_iter().chain(standalone::TEMPLATES) {
            engine.add_template(name, template)?;
        }
        Ok(engine)
    });

/// Writes a value as HTML. Invisible characters, and those that reorder text, are shown as escapes,
/// wherever the text comes from.
fn format(
    out: &mut Output<'_>,
    state: &mut minijinja::State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    let is_hidden = |character| !matches!(character, '\n' | '\t') && steers(character);
    match value.as_str() {
        Some(text) if text.contains(is_hidden) => {
            escape_formatter(out, state, &Value::from(plain(text)))
        }
        _ => escape_formatter(out, state, value),
    }
}

pub(crate) fn clone(error: &minijinja::Error) -> minijinja::Error {
    minijinja::Error::new(error.kind(), error.to_string())
}

/// Returns the address of a page with its query, for the refresh link.
fn here(path: &str, query: &Query) -> String {
    let Query {
        q,
        state,
        page,
        node,
        fragment: _,
    } = query;
    let fields = [("q", q), ("state", state), ("page", page), ("node", node)];
    let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let fields = fields.map(|(name, value)| format!("{name}={}", text::encoded(value)));
    let fields: Vec<String> = fields.collect();
    if fields.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", fields.join("&"))
    }
}
