//! Audit log of the API server, the reference for all request counts.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read as _, Seek as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use serde::Deserialize;

/// Maximum delay between an answer and its audit event.
const PATIENCE: Duration = Duration::from_mins(1);

/// Audit log that is still being written.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
    /// Offset from which to read, in bytes.
    from: u64,
}

impl AuditLog {
    /// Creates the reader of a log. The file appears with the first request.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            from: 0,
        }
    }

    /// Returns a reader that skips the current content, so that a long log is not read repeatedly. It
    /// starts at the last incomplete line.
    pub fn from_here(self) -> anyhow::Result<Self> {
        let from = end_of_lines(&self.path)
            .with_context(|| format!("failed to read {}", self.path.display()))?;
        Ok(Self { from, ..self })
    }

    /// Reads all events so far. Skips an incomplete last line.
    pub fn events(&self) -> anyhow::Result<Events> {
        let text = self.text()?;
        Events::parse(&text).with_context(|| format!("failed to read {}", self.path.display()))
    }

    /// Reads the log so far as text. It is empty if there is no file yet.
    pub fn text(&self) -> anyhow::Result<String> {
        match read(&self.path, self.from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            text => text.with_context(|| format!("failed to read {}", self.path.display())),
        }
    }

    /// Reads all events of requests that were answered before this call.
    ///
    /// An event is written slightly after its answer. So this sends a request with a unique name
    /// and waits for its event.
    pub async fn complete(&self, client: &kube::Client) -> anyhow::Result<Events> {
        static MARKS: AtomicU64 = AtomicU64::new(0);
        let mark = MARKS.fetch_add(1, Ordering::Relaxed);
        let uri = format!("/version?mark={}-{mark}", std::process::id());
        let request = http::Request::get(&uri).body(Vec::new())?;
        client.request_text(request).await?;
        let started = tokio::time::Instant::now();
        loop {
            let mut events = self.events()?;
            if events.0.iter().any(|event| event.request_uri == uri) {
                events.0.retain(|event| event.request_uri != uri);
                return Ok(events);
            }
            if started.elapsed() > PATIENCE {
                bail!("{} never showed {uri}", self.path.display());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Audit event of an answered request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    /// For non-resource paths, the HTTP method.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// Authenticated user.
    pub user: User,
    /// Impersonated user.
    pub impersonated_user: Option<User>,
    /// The client's `User-Agent`.
    #[serde(default)]
    pub user_agent: String,
    /// Object of the request.
    pub object_ref: Option<ObjectRef>,
    /// The answer.
    pub response_status: Option<ResponseStatus>,
    /// Time of arrival.
    pub request_received_timestamp: Timestamp,
}

/// A user of an [`Event`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct User {
    /// Name.
    #[serde(default)]
    pub username: String,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// Object of an [`Event`]. Missing values are empty strings.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct ObjectRef {
    /// Plural name of the kind.
    pub resource: String,
    /// Namespace.
    pub namespace: String,
    /// Name; empty for lists and mostly for creates.
    pub name: String,
    /// API group, empty for the core group.
    pub api_group: String,
    /// Version of the API group.
    pub api_version: String,
    /// Subresource such as `status` or `scale`.
    pub subresource: String,
}

/// Answer of an [`Event`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResponseStatus {
    /// HTTP status.
    pub code: u16,
}

impl Event {
    /// Returns whether the request is a dry run.
    pub fn is_dry_run(&self) -> bool {
        let query = self.request_uri.split_once('?').map(|(_, query)| query);
        query.is_some_and(|query| {
            query
                .split('&')
                .any(|pair| pair.split('=').next() == Some("dryRun"))
        })
    }

    /// Returns whether the request is a write, successful or not. Reviews
    /// (`SelfSubjectAccessReview` and the like) do not count, because they are never stored.
    pub fn is_write(&self) -> bool {
        !self.is_dry_run() && self.has_writing_verb() && !self.is_review()
    }

    /// Returns the HTTP status of the answer, or 0 if it is unknown.
    pub fn code(&self) -> u16 {
        self.response_status
            .as_ref()
            .map_or(0, |status| status.code)
    }

    fn has_writing_verb(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }

    fn is_review(&self) -> bool {
        self.object_ref.as_ref().is_some_and(|object| {
            matches!(
                object.api_group.as_str(),
                "authorization.k8s.io" | "authentication.k8s.io"
            )
        })
    }
}

/// Formats an event as one line: `patch apps deployments team-a/web 200 (dry run)`.
impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ", self.verb)?;
        if let Some(object) = &self.object_ref {
            if !object.api_group.is_empty() {
                write!(out, "{} ", object.api_group)?;
            }
            out.write_str(&object.resource)?;
            if !object.subresource.is_empty() {
                write!(out, "/{}", object.subresource)?;
            }
            match (object.namespace.as_str(), object.name.as_str()) {
                ("", name) => write!(out, " {name}")?,
                (namespace, name) => write!(out, " {namespace}/{name}")?,
            }
        } else {
            out.write_str(&self.request_uri)?;
        }
        write!(out, " {}", self.code())?;
        if self.is_dry_run() {
            out.write_str(" (dry run)")?;
        }
        Ok(())
    }
}

/// Events in the order of their answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Events(pub Vec<Event>);

impl Events {
    fn parse(text: &str) -> anyhow::Result<Self> {
        // Skip an incomplete line.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines().enumerate();
        let events = lines.map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("line {} is no event", index + 1))
        });
        Ok(Self(events.collect::<Result<_, _>>()?))
    }

    /// Returns the events whose `User-Agent` starts with the text.
    #[must_use]
    pub fn by_agent(&self, prefix: &str) -> Self {
        self.filter(|event| event.user_agent.starts_with(prefix))
    }

    /// Returns the events of requests that arrived at `time` or later.
    #[must_use]
    pub fn since(&self, time: Timestamp) -> Self {
        self.filter(|event| event.request_received_timestamp >= time)
    }

    /// Returns the events in a namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        self.filter(|event| {
            let object = event.object_ref.as_ref();
            object.is_some_and(|object| object.namespace == namespace)
        })
    }

    /// Returns the writes, successful or not.
    #[must_use]
    pub fn writes(&self) -> Self {
        self.filter(Event::is_write)
    }

    /// Returns the dry runs.
    #[must_use]
    pub fn dry_runs(&self) -> Self {
        self.filter(Event::is_dry_run)
    }

    /// Returns the events for which `keep` returns `true`.
    #[must_use]
    pub fn filter(&self, keep: impl Fn(&Event) -> bool) -> Self {
        Self(self.0.iter().filter(|event| keep(event)).cloned().collect())
    }

    /// Counts the events.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for event in &self.0 {
            *summary.verbs.entry(event.verb.clone()).or_default() += 1;
            if event.is_dry_run() {
                summary.dry_runs += 1;
            } else if event.is_write() {
                summary.writes += 1;
            } else {
                summary.reads += 1;
            }
        }
        summary
    }
}

/// Formats the events, one per line.
impl fmt::Display for Events {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|event| writeln!(out, "{event}"))
    }
}

/// Numbers of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Reads.
    pub reads: usize,
    /// Requests with a `dryRun` parameter.
    pub dry_runs: usize,
    /// Writes, successful or not.
    pub writes: usize,
    /// All requests by verb.
    pub verbs: BTreeMap<String, usize>,
}

/// Returns the offset after the last complete line, because a line can be written in several parts.
/// Returns 0 if there is no file yet.
fn end_of_lines(path: &Path) -> io::Result<u64> {
    let mut file = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        file => file?,
    };
    let mut end = file.seek(io::SeekFrom::End(0))?;
    let mut byte = [0];
    while end > 0 {
        file.seek(io::SeekFrom::Start(end - 1))?;
        file.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        end -= 1;
    }
    Ok(end)
}

fn read(path: &Path, from: u64) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    file.seek(io::SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    // The end can be half a character. It is cut off with its line.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, uri: &str, group: &str, agent: &str) -> String {
        format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete","requestURI":"{uri}","verb":"{verb}","user":{{"username":"throwaway-admin","groups":["system:masters"]}},"sourceIPs":["127.0.0.1"],"userAgent":"{agent}","objectRef":{{"resource":"deployments","namespace":"team-a","name":"web","apiGroup":"{group}","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":200}},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z","stageTimestamp":"2026-01-02T03:04:05.678999Z","annotations":{{}}}}"#
        )
    }

    #[track_caller]
    fn check(verb: &str, uri: &str, group: &str, is_write: bool, is_dry_run: bool) {
        let events = Events::parse(&format!("{}\n", line(verb, uri, group, "x"))).unwrap();
        let event = &events.0[0];
        assert_eq!(event.is_write(), is_write, "{event}");
        assert_eq!(event.is_dry_run(), is_dry_run, "{event}");
    }

    #[test]
    fn writes_and_dry_runs() {
        check("patch", "/x?fieldManager=pleach", "apps", true, false);
        check("patch", "/x?a=b&dryRun=All", "apps", false, true);
        check("deletecollection", "/x", "", true, false);
        check("list", "/x?limit=500", "apps", false, false);
        check("create", "/x", "authorization.k8s.io", false, false);
        check("get", "/dryRun", "apps", false, false);
    }

    #[test]
    fn half_a_line_is_left_for_the_next_time() {
        let whole = line("get", "/x", "apps", "pleach/0.1.0");
        for end in ["", "{\"kind\":\"Ev"] {
            let events = Events::parse(&format!("{whole}\n{end}")).unwrap();
            assert_eq!(events.0.len(), 1, "{end}");
        }
        assert_eq!(Events::parse(&whole).unwrap(), Events::default());
    }

    #[test]
    fn a_broken_line_is_named() {
        let text = format!("{}\nbroken\n", line("get", "/x", "", "x"));
        let error = Events::parse(&text).unwrap_err();
        assert_eq!(error.to_string(), "line 2 is no event");
    }

    #[test]
    fn counts_by_client() {
        let text = [
            line("list", "/x", "apps", "pleach/0.1.0"),
            line("patch", "/x?dryRun=All", "apps", "pleach/0.1.0"),
            line("patch", "/x", "apps", "pleach/0.1.0"),
            line("delete", "/x", "apps", "kubectl/v1.36.3"),
        ]
        .join("\n");
        let events = Events::parse(&(text + "\n")).unwrap();
        let summary = events.by_agent("pleach/").summary();
        assert_eq!((summary.reads, summary.dry_runs, summary.writes), (1, 1, 1));
        assert_eq!(summary.verbs["patch"], 2);
        assert_eq!(
            events.dry_runs().to_string(),
            "patch apps deployments team-a/web 200 (dry run)\n"
        );
    }

    #[test]
    fn a_log_that_is_not_there_yet_is_empty() {
        let log = AuditLog::new("/nowhere/audit.log");
        assert_eq!(log.events().unwrap(), Events::default());
        assert_eq!(log.from_here().unwrap().text().unwrap(), "");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a folder of the test's own")]
    fn a_reader_starts_at_the_line_that_is_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (old, new) = (line("get", "/x", "", "old"), line("get", "/x", "", "new"));
        let (start, end) = new.split_at(100);
        std::fs::write(&path, format!("{old}\n{start}")).unwrap();
        let log = AuditLog::new(&path).from_here().unwrap();
        assert_eq!(log.events().unwrap(), Events::default());
        std::fs::write(&path, format!("{old}\n{start}{end}\n")).unwrap();
        let events = log.events().unwrap();
        assert_eq!(events.0.len(), 1);
        assert_eq!(events.0[0].user_agent, "new");
    }
}
