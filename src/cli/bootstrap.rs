//! `pleach bootstrap`.

mod access;
mod args;
mod bundle;
mod credentials;
mod files;
mod follow;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use bytes::Bytes;
use jiff::Timestamp;
use pleach_cluster::{Cluster, ResourcePath};
use pleach_config::FileChanges;
use pleach_config::restore::unified;
use pleach_engine::planning::{Options, Planned, Predecessors};
use pleach_engine::sync::Claim;
use pleach_engine::sync::state::{self, Search};
use pleach_git::GitError;
use pleach_git::fetch::Fetch;
use pleach_git::mirror::{Mirror, Reader};
use pleach_git::remote::Remote;
use pleach_model::object::{ReleaseName, yaml};
use pleach_model::tree::{FileTree, MemoryTree};
use pleach_state::inventory::{ReleaseSummary, RunOutcome, SyncRequest, UserRequests};
use tokio::task::spawn_blocking;

use super::apply::{ApplyOutput, Outcome};
use super::error::{CliError, Kind};
use super::format::status::short;
use super::lease::person;
use super::load::Settings;
use super::session::{Session, connect, ensure_whole, failed, finish};
use super::verdict::Verdict;
use super::{Context, Exit, Target, Ui, format, mask};
pub(crate) use args::BootstrapArgs;
use args::Output;
use bundle::EMBEDDED;
use credentials::Credentials;
use files::{ENVIRONMENT, NAME, SECRET, Wish};
use follow::Expected;

/// Repository with the credentials of our connections.
#[derive(Clone)]
struct Origin {
    remote: Remote,
    /// CA certificates of the server, besides those of the machine.
    authorities: Option<Bytes>,
}

/// Branch as fetched, with the changes of this run.
struct Branch {
    reader: Reader,
    /// Changed files. Empty if the branch has everything.
    changes: FileChanges,
    /// Commit of the branch. `None` in an empty repository.
    head: Option<String>,
    /// Commit with the changes: a new one, or that of the branch.
    commit: String,
    /// Changed files, one per line, for the summary.
    summary: String,
    /// Contents of the changes.
    details: String,
}

/// Release of the controller, planned at the commit.
struct Installation {
    ctx: Context,
    session: Session,
    target: Target,
    name: ReleaseName,
    expected: Expected,
    /// Whether a controller follows the release and applies the commit itself.
    is_followed: bool,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: BootstrapArgs) -> Result<Exit, CliError> {
    if ctx.names_repository() {
        return Err(CliError::usage(
            "bootstrap reads the repository at --url: omit --repo and --revision",
        ));
    }
    let requested = args.requested()?;
    let credentials = Credentials::read(&args)?;
    let settings = &ctx.settings;
    let connecting = connect(settings.kubeconfig.clone(), settings.context.clone());
    let cluster = finish(&ctx.cancel, connecting).await??;
    let identity = finish(&ctx.cancel, access::identify(&cluster)).await??;
    args.ensure_intended_cluster(cluster.server(), &identity.facts.id)?;
    finish(&ctx.cancel, access::review(&cluster, &args.namespace)).await??;
    let place = settings
        .context
        .as_deref()
        .unwrap_or_else(|| cluster.server());
    let line = format!(
        "cluster {place}, id {}, Kubernetes {}; your account has the permissions that are needed",
        identity.facts.id, identity.version
    );
    report(ui, &args, &line);
    let origin = Origin {
        remote: Remote {
            url: args.url.clone(),
            auth: credentials.auth.clone(),
            keys: None,
        },
        authorities: credentials.authorities(),
    };
    let wish = requested.wish(&args, &credentials, &identity.facts);
    let branch = branch(ui, ctx, &origin, &wish).await?;
    let line = if branch.changes.is_empty() {
        format!(
            "commit {} of {} has the bundle",
            short(&branch.commit),
            args.branch
        )
    } else {
        format!("commit {}", branch.summary)
    };
    report(ui, &args, &line);
    let installation = installation(ui, ctx, &args, &branch, &identity.facts.id).await?;
    let plan = match installation.plan(ui).await? {
        Some(planned) => format::plan::text(&planned.plan, &BTreeMap::new()),
        None => String::new(),
    };
    if args.is_dry() {
        show(ui, &args, &credentials, &branch, &installation, &plan)?;
        return Ok(Exit::DONE);
    }
    if args.push_to.is_some() && branch.changes.is_empty() {
        ui.status("nothing to push: run the command again without --push-to");
        return Ok(Exit::DONE);
    }
    consent(ui, ctx, &args, &branch, &plan, cluster.server()).await?;
    if !branch.changes.is_empty() {
        push(&origin, &branch, &args).await?;
        let to = args.push_to.as_ref().unwrap_or(&args.branch);
        print_now(
            ui,
            format_args!("pushed {} to {to} of {}", short(&branch.commit), args.url),
        );
    }
    if let Some(to) = &args.push_to {
        ui.status(format_args!(
            "merge {to} into {}, and run the command again without --push-to",
            args.branch
        ));
        return Ok(Exit::DONE);
    }
    credentials.write(&cluster, &args.namespace).await?;
    print_now(
        ui,
        format_args!(
            "secret {}/{SECRET} ({} keys)",
            args.namespace,
            credentials.keys()
        ),
    );
    let claim = args.lock.claim();
    Box::pin(installation.install(ui, &args.branch, claim)).await
}

/// Asks for the consent of the user.
async fn consent(
    ui: &mut Ui,
    ctx: &Context,
    args: &BootstrapArgs,
    branch: &Branch,
    plan: &str,
    server: &str,
) -> Result<(), CliError> {
    let details = format!("{}\n{plan}", branch.details);
    let question = args.question(!branch.changes.is_empty(), server);
    let asking = ui.confirm_with_details(&question, &details, args.yes, &ctx.cancel);
    if asking.await? {
        return Ok(());
    }
    Err(CliError::new(Kind::Failed, "declined; nothing was written"))
}

/// Prints a line of the result. With `-o yaml`, only the objects are the result.
fn report(ui: &mut Ui, args: &BootstrapArgs, line: &str) {
    match args.output {
        Output::Text => print_now(ui, line),
        Output::Yaml => ui.status(line),
    }
}

/// Prints a line of the result at once, because the next step can take long.
fn print_now(ui: &mut Ui, line: impl Display) {
    ui.print(line);
    // Errors of the stream are reported at the end.
    drop(ui.out().flush());
}

/// Fetches the branch and builds the commit, without a push.
async fn branch(
    ui: &mut Ui,
    ctx: &Context,
    origin: &Origin,
    wish: &Wish<'_>,
) -> Result<Branch, CliError> {
    let (there, name) = (origin.clone(), wish.branch.to_owned());
    let fetching = spawn_blocking(move || {
        let authorities = there.authorities;
        let carrier = |order: &Fetch| order.execute_trusting(authorities.as_deref());
        Mirror::new(there.remote).fetch_by(&carrier, |branch| branch == name)
    });
    let fetched = finish(&ctx.cancel, fetching).await?;
    let fetched = fetched.map_err(|error| CliError::new(Kind::Failed, error))??;
    let head = fetched.heads.get(wish.branch);
    if let Some(why) = fetched.behind.get(wish.branch) {
        return Err(CliError::new(Kind::Repository, why.clone()));
    }
    if head.is_none() && !fetched.branches.is_empty() {
        let message = format!("{} has no branch {}", wish.url, wish.branch);
        let known = format!("it has {}", fetched.branches.join(", "));
        return Err(CliError::new(Kind::Repository, message).hint(known));
    }
    let tree: Box<dyn FileTree> = match head {
        Some(head) => Box::new(fetched.reader.tree(head)?),
        None => Box::new(MemoryTree::new(Vec::<(String, Vec<u8>)>::new())),
    };
    let changed = files::changes(&*tree, &EMBEDDED, wish).map_err(|findings| {
        let message = format!("branch {} of {} cannot be used", wish.branch, wish.url);
        CliError::from_findings(message, findings)
    })?;
    ui.findings(&changed.findings);
    let files = changed.files;
    let commit = match head {
        Some(head) if files.is_empty() => head.clone(),
        head => {
            let message = message(tree.read(ENVIRONMENT).is_ok());
            fetched
                .reader
                .commit(head.map(String::as_str), &files, &message)?
        }
    };
    Ok(Branch {
        summary: summary(&*tree, &files),
        details: details(&*tree, &files),
        head: head.cloned(),
        reader: fetched.reader,
        changes: files,
        commit,
    })
}

/// Returns the commit message.
fn message(is_upgrade: bool) -> String {
    let version = EMBEDDED.version;
    if is_upgrade {
        format!("Upgrade the controller to pleach {version}\n")
    } else {
        format!("Install the controller of pleach {version}\n")
    }
}

/// Lists the changed files, with a version folder as one entry.
fn summary(tree: &dyn FileTree, files: &FileChanges) -> String {
    let folder = format!("{}/{}/", bundle::FOLDER, EMBEDDED.version);
    let mut entries: Vec<String> = Vec::new();
    for path in files.keys() {
        let sign = if tree.read(path).is_ok() { '~' } else { '+' };
        let shown = if path.starts_with(&folder) {
            &folder
        } else {
            path
        };
        let entry = format!("{sign} {shown}");
        if entries.last() != Some(&entry) {
            entries.push(entry);
        }
    }
    let count = files.len();
    format!("{}   ({count} files)", entries.join("   "))
}

/// Formats the changes: the contents of new files, and differences of the others.
fn details(tree: &dyn FileTree, files: &FileChanges) -> String {
    let mut text = String::new();
    let is_new = |path: &String| tree.read(path).is_err();
    for (path, content) in files.iter().filter(|(path, _)| is_new(path)) {
        let content = content.as_deref().unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "--- /dev/null\n+++ b/{path}");
        for line in String::from_utf8_lossy(content).lines() {
            let _ = writeln!(text, "+{line}");
        }
    }
    let changed: FileChanges = files
        .iter()
        .filter(|(path, _)| !is_new(path))
        .map(|(path, content)| (path.clone(), content.clone()))
        .collect();
    text.push_str(&unified(tree, &changed, true));
    text
}

/// Pushes the commit to the branch, or to a new one.
async fn push(origin: &Origin, branch: &Branch, args: &BootstrapArgs) -> Result<(), CliError> {
    let (there, reader, commit) = (origin.clone(), branch.reader.clone(), branch.commit.clone());
    let (name, expected) = match &args.push_to {
        Some(name) => (name.clone(), None),
        None => (args.branch.clone(), branch.head.clone()),
    };
    let pushing = spawn_blocking(move || {
        let authorities = there.authorities.as_deref();
        let expected = expected.as_deref();
        there
            .remote
            .push(&reader, &commit, &name, expected, authorities)
    });
    let pushed = pushing.await;
    let pushed = pushed.map_err(|error| CliError::new(Kind::Failed, error))?;
    pushed.map_err(|error| {
        if let (GitError::Moved { .. }, Some(to)) = (&error, &args.push_to) {
            let message = format!(
                "branch {to} of {} exists already; nothing was pushed",
                args.url
            );
            return CliError::new(Kind::Conflict, message)
                .hint("merge it if it has this commit, or choose another name for --push-to");
        }
        let is_refusal = matches!(error, GitError::PushRefused { .. });
        let error = CliError::from(error).hint("the cluster is unchanged");
        if is_refusal && args.push_to.is_none() {
            return error.hint("if the branch is protected: --push-to BRANCH pushes a new branch; merge it, and run the command again");
        }
        error
    })
}

/// Loads the release at the commit.
async fn installation(
    ui: &mut Ui,
    ctx: &Context,
    args: &BootstrapArgs,
    branch: &Branch,
    id: &str,
) -> Result<Installation, CliError> {
    let place = branch.reader.place();
    let ctx = Context {
        settings: Settings {
            repo: Some(place.folder().to_owned()),
            revision: Some(branch.commit.clone()),
            kubeconfig: ctx.settings.kubeconfig.clone(),
            context: ctx.settings.context.clone(),
            key_namespace: None,
        },
        cancel: ctx.cancel.clone(),
        engines: std::sync::Arc::clone(&ctx.engines),
    };
    let target = Target {
        environment: NAME.to_owned(),
        release: Some(NAME.to_owned()),
    };
    let options = Options {
        verify: false,
        wait: true,
        review: true,
        nodes_behind: false,
        prune: true,
        predecessors: Predecessors::ComeFirst,
    };
    let opening = Session::open_to_apply(ui, &ctx, &target, options, Some(id.to_owned()));
    let session = Box::pin(opening).await?;
    let name = ReleaseName {
        environment: NAME.to_owned(),
        release: NAME.to_owned(),
    };
    let search = session.search();
    let reading = follow::read(&session.cluster, &name, &search);
    let recorded = session.finish(reading).await??;
    let followed = recorded.as_ref().and_then(|one| one.followed.as_ref());
    let is_followed = followed.is_some_and(|following| !following.is_stale(Timestamp::now()));
    // Without a pod, nothing would apply the commit.
    let is_followed = is_followed
        && session
            .finish(is_running(&session.cluster, &args.namespace))
            .await??;
    if let Some(release) = recorded.as_ref().filter(|_| is_followed) {
        ensure_served(release, args)?;
    }
    let record = recorded.as_ref().and_then(|one| one.record.as_ref().ok());
    let before = record.and_then(|record| record.installed.as_ref());
    let is_new = !branch.changes.is_empty() && !args.is_dry();
    Ok(Installation {
        expected: Expected {
            pushed: is_new.then(|| branch.commit.clone()),
            before: before.map(|attempt| attempt.revision.clone()),
        },
        ctx,
        session,
        target,
        name,
        is_followed,
    })
}

/// Refuses a running controller that would not apply the commit.
fn ensure_served(release: &ReleaseSummary, args: &BootstrapArgs) -> Result<(), CliError> {
    let target = release.target();
    if let Some(suspension) = release.user_requests.suspended(Timestamp::now()) {
        let message = format!(
            "release {target} is {}; nothing was written",
            suspension.words()
        );
        return Err(CliError::new(Kind::Policy, message)
            .hint(format!("end the suspension first: pleach resume {target}")));
    }
    let followed = release.followed.as_ref();
    let source = followed.map_or("", |following| following.branch.as_str());
    if source.is_empty() || source.starts_with(&format!("{} of ", args.branch)) {
        return Ok(());
    }
    let message = format!(
        "the controller in this cluster follows branch {source}, not {}; nothing was written",
        args.branch
    );
    Err(CliError::new(Kind::Policy, message)
        .hint("use the --branch of the first run, or uninstall the controller first"))
}

/// Returns whether a pod of the controller is ready.
async fn is_running(cluster: &Cluster, namespace: &str) -> Result<bool, CliError> {
    let deployments = ResourcePath::namespaced("apps/v1", "Deployment", "deployments");
    let deployment = cluster.get(&deployments, Some(namespace), NAME).await?;
    let ready = deployment
        .as_ref()
        .and_then(|one| one["status"]["readyReplicas"].as_u64());
    Ok(ready.is_some_and(|ready| ready > 0))
}

impl Installation {
    /// Plans the release, and refuses it like an apply.
    async fn plan(&self, ui: &mut Ui) -> Result<Option<Planned>, CliError> {
        let subjects = self.session.subjects(ui, &self.ctx, &self.target).await?;
        let Some(subject) = subjects.first() else {
            return Ok(None);
        };
        let planned = self.session.plan_for(ui, subject).await?;
        // The reason has already been shown.
        let planned = planned.map_err(|error| {
            CliError::new(
                error.kind(),
                format!("release {} cannot be planned", self.name),
            )
        })?;
        Verdict(&planned.plan).ensure_allowed()?;
        ensure_whole(&planned)?;
        Ok(Some(planned))
    }

    /// Applies the release, unless its controller does, and waits for the controller.
    async fn install(&self, ui: &mut Ui, branch: &str, claim: Claim) -> Result<Exit, CliError> {
        let cluster = self.session.cluster_for(&self.name);
        let search = self.session.search();
        // The namespace was created since the first plan. A running controller applies the commit.
        if !self.is_followed
            && let Some(planned) = self.plan(ui).await.map_err(|error| {
                error.hint(
                "the commit and the Secret are written; fix the cause, and run the command again",
            )
            })?
        {
            let mut outcome = Outcome::new("apply", ApplyOutput::Text, claim);
            let executing = outcome.execute(ui, &self.ctx, &cluster, planned);
            let ending = Box::pin(executing).await;
            if !matches!(ending, Some(RunOutcome::Deployed | RunOutcome::Unchanged)) {
                self.explain(ui, &search).await;
                return Ok(outcome.finish(ui));
            }
        }
        // Only a fetch from now on proves that the controller has valid credentials.
        self.request_sync(&cluster).await?;
        let waiting = follow::wait(ui, &cluster, &self.name, &search, &self.expected);
        let commit = finish(&self.ctx.cancel, waiting).await??;
        ui.print(format_args!(
            "follows {}/{} is at {branch} {}, as seen by the controller itself",
            self.name.environment,
            self.name.release,
            short(&commit)
        ));
        Ok(Exit::DONE)
    }

    /// Asks the controller to fetch now, instead of at its next poll.
    async fn request_sync(&self, cluster: &Cluster) -> Result<(), CliError> {
        let request = SyncRequest {
            at: Timestamp::now(),
            by: person(),
            override_window: false,
            after_fetch: true,
            nodes: false,
        };
        let change = |requests: &mut UserRequests| requests.sync = Some(request.clone());
        let store = &self.session.loaded.environment.store;
        let written = state::order(cluster, &self.name, store, change).await;
        written
            .map(drop)
            .map_err(|error| failed("write the requests for", &self.name, error))
    }

    /// Shows the problem that the controller reports, after a failed apply.
    async fn explain(&self, ui: &mut Ui, search: &Search) {
        let read = follow::read(&self.session.cluster, &self.name, search).await;
        let release = read.ok().flatten();
        let progress = follow::progress(release.as_ref(), &self.expected, Timestamp::now());
        if let follow::Progress::Trouble(message) = progress {
            ui.error(&follow::trouble(&message));
        }
    }
}

/// Prints everything that the command would write.
fn show(
    ui: &mut Ui,
    args: &BootstrapArgs,
    credentials: &Credentials,
    branch: &Branch,
    installation: &Installation,
    plan: &str,
) -> Result<(), CliError> {
    let secret = credentials.masked(&args.namespace);
    let namespace = credentials::namespace(&args.namespace);
    if args.output == Output::Text {
        ui.print(branch.details.trim_end());
        ui.print(yaml::emit_all([&namespace, &secret]).trim_end());
        ui.print(plan);
        ui.status("nothing was written (--dry-run)");
        return Ok(());
    }
    for line in branch.details.lines() {
        ui.print(format_args!("# {line}"));
    }
    ui.print(format_args!(
        "---\n{}",
        yaml::emit_all([&namespace, &secret]).trim_end()
    ));
    let loaded = &installation.session.loaded;
    let mut masker = mask::masker(&mask::run_key()?, loaded.all());
    for (_, rendered) in &loaded.rendered {
        for manifest in &rendered.manifests {
            let object = masker.object(manifest.value(), &manifest.secrecy());
            ui.print(format::manifests::document(manifest, object).trim_end());
        }
    }
    Ok(())
}
