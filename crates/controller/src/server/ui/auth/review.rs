//! Permissions of users, by `SubjectAccessReview` on `releases.pleach.dev`.
//!
//! The API server can answer for resources that are not installed, so this works without the CRD.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_cluster::{Access, OwnCluster, Retry, Subject};
use pleach_model::object::{Digest, ReleaseName, canonical_json};
use pleach_page::viewer::{Permissions, Verb};
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};

use super::{DEADLINE, Identity, Unanswered};

/// How long an answer is used for pages.
const KNOWN_FOR: Duration = Duration::from_mins(1);
/// Largest number of such answers.
const MOST_KNOWN: usize = 65_536;
/// Time of a page for reviews of releases. It shows those that are known by then.
const BUDGET: Duration = Duration::from_secs(3);
/// Number of concurrent reviews of a page.
const CONCURRENCY: usize = 16;

/// A release that exists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnownRelease {
    /// Environment and release.
    pub name: ReleaseName,
    /// Namespace of the state. `None` for a Release, which is cluster-scoped.
    pub namespace: Option<String>,
}

/// Whether an answer from the last minute is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// For pages.
    LastMinute,
    /// For actions.
    Now,
}

/// Reviews of permissions, with their recent answers.
pub(super) struct Reviews {
    own: OwnCluster,
    known: Mutex<HashMap<Question, (bool, Instant)>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    user: Digest,
    verb: Verb,
    namespace: Option<String>,
    /// `None`: all releases in the namespace, or everywhere.
    name: Option<String>,
}

/// Releases that a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope<'r> {
    /// All releases.
    All,
    /// All releases with state in this namespace.
    Namespace(&'r str),
    /// One release.
    Release(&'r KnownRelease),
}

impl Question {
    fn new(user: Digest, verb: Verb, scope: Scope<'_>) -> Self {
        let (namespace, name) = match scope {
            Scope::All => (None, None),
            Scope::Namespace(namespace) => (Some(namespace.to_owned()), None),
            Scope::Release(release) => (release.namespace.clone(), Some(release.name.to_string())),
        };
        Self {
            user,
            verb,
            namespace,
            name,
        }
    }
}

impl Reviews {
    pub(super) fn new(own: OwnCluster) -> Self {
        Self {
            own,
            known: Mutex::default(),
        }
    }

    /// Returns whether a user is allowed to use a verb on a release.
    pub(super) async fn may(
        &self,
        user: &Identity,
        verb: Verb,
        release: &KnownRelease,
        freshness: Freshness,
    ) -> Result<bool, Unanswered> {
        let question = Question::new(digest(user), verb, Scope::Release(release));
        let asking = async {
            match freshness {
                Freshness::LastMinute => self.ask(user, question).await,
                Freshness::Now => self.ask_now(user, question).await,
            }
        };
        timeout(DEADLINE, asking)
            .await
            .map_err(|_| Unanswered::Late)?
    }

    /// Returns the permissions of a user for a page: which of the releases the user sees, and all
    /// verbs on the release of the page. If the reviews of the other releases take too long, the
    /// rest of them is not seen.
    pub(super) async fn permissions(
        &self,
        user: &Identity,
        known: &[KnownRelease],
        of_page: Option<&ReleaseName>,
    ) -> Result<Permissions, Unanswered> {
        let end = Instant::now() + BUDGET;
        let asking = self.ask_about_page(user, known, of_page);
        let mut permissions = timeout(DEADLINE, asking)
            .await
            .map_err(|_| Unanswered::Late)??;
        if !permissions.everywhere.contains(&Verb::Get) {
            self.ask_about_releases(user, known, (&mut permissions, end))
                .await?;
        }
        Ok(permissions)
    }

    /// Returns the verbs on all releases, and those on the release of the page.
    async fn ask_about_page(
        &self,
        user: &Identity,
        known: &[KnownRelease],
        of_page: Option<&ReleaseName>,
    ) -> Result<Permissions, Unanswered> {
        let of_page = known.iter().find(|release| of_page == Some(&release.name));
        let mut permissions = Permissions::default();
        let scopes = [Some(Scope::All), of_page.map(Scope::Release)];
        for scope in scopes.into_iter().flatten() {
            let verbs = Verb::ALL.into_iter();
            let verbs = verbs.filter(|verb| !permissions.everywhere.contains(verb));
            let user_digest = digest(user);
            let asking = verbs.map(|verb| {
                let question = Question::new(user_digest, verb, scope);
                async move { Ok((verb, self.ask(user, question).await?)) }
            });
            let asking: Vec<_> = asking.collect();
            let answers = stream::iter(asking).buffer_unordered(CONCURRENCY);
            let answers: Vec<(Verb, bool)> = answers.try_collect().await?;
            let allowed = answers.into_iter().filter(|(_, is_allowed)| *is_allowed);
            let allowed: BTreeSet<Verb> = allowed.map(|(verb, _)| verb).collect();
            match scope {
                Scope::Release(release) if !allowed.is_empty() => {
                    permissions.releases.insert(release.name.clone(), allowed);
                }
                Scope::Release(_) | Scope::Namespace(_) => {}
                Scope::All => permissions.everywhere = allowed,
            }
        }
        Ok(permissions)
    }

    /// Adds the releases that the user sees, and the number of those without an answer at the end.
    /// Namespaces with several releases are asked about as a whole first.
    async fn ask_about_releases(
        &self,
        user: &Identity,
        known: &[KnownRelease],
        (permissions, end): (&mut Permissions, Instant),
    ) -> Result<(), Unanswered> {
        let mut namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        for namespace in known.iter().filter_map(|one| one.namespace.as_deref()) {
            *namespaces.entry(namespace).or_default() += 1;
        }
        namespaces.retain(|_, count| *count > 1);
        let scopes = namespaces.into_keys().map(Scope::Namespace).collect();
        let (seen, _) = self.ask_all(user, scopes, end).await?;
        let (mut visible, mut rest) = (Vec::new(), Vec::new());
        for release in known {
            let namespace = release.namespace.as_deref().map(Scope::Namespace);
            if namespace.is_some_and(|namespace| seen.contains(&namespace)) {
                visible.push(Scope::Release(release));
            } else {
                rest.push(Scope::Release(release));
            }
        }
        let (seen, unreviewed) = self.ask_all(user, rest, end).await?;
        visible.extend(seen);
        for scope in visible {
            if let Scope::Release(release) = scope {
                let verbs = permissions.releases.entry(release.name.clone());
                verbs.or_default().insert(Verb::Get);
            }
        }
        permissions.is_partial = unreviewed > 0;
        Ok(())
    }

    /// Returns the scopes that the user is allowed to read, and the number of those without an
    /// answer at the end.
    async fn ask_all<'r>(
        &self,
        user: &Identity,
        scopes: Vec<Scope<'r>>,
        end: Instant,
    ) -> Result<(Vec<Scope<'r>>, usize), Unanswered> {
        let user_digest = digest(user);
        let mut seen = Vec::new();
        let mut asking = Vec::new();
        for scope in scopes {
            let question = Question::new(user_digest, Verb::Get, scope);
            match self.answer(&question) {
                Some(true) => seen.push(scope),
                Some(false) => {}
                None => asking.push(async move {
                    Ok::<_, Unanswered>((scope, self.ask_now(user, question).await?))
                }),
            }
        }
        let mut left = asking.len();
        let mut answers = stream::iter(asking).buffer_unordered(CONCURRENCY);
        while let Ok(Some(answer)) = timeout_at(end, answers.next()).await {
            let (scope, is_allowed) = answer?;
            left -= 1;
            if is_allowed {
                seen.push(scope);
            }
        }
        Ok((seen, left))
    }

    /// Returns the answer of the last minute.
    fn answer(&self, question: &Question) -> Option<bool> {
        let known = self.known().get(question).copied();
        let (is_allowed, at) = known?;
        (at.elapsed() < KNOWN_FOR).then_some(is_allowed)
    }

    async fn ask(&self, user: &Identity, question: Question) -> Result<bool, Unanswered> {
        match self.answer(&question) {
            Some(is_allowed) => Ok(is_allowed),
            None => self.ask_now(user, question).await,
        }
    }

    async fn ask_now(&self, user: &Identity, question: Question) -> Result<bool, Unanswered> {
        let subject = Subject {
            user: &user.name,
            groups: &user.groups,
            extra: &user.extra,
        };
        let access = Access {
            verb: question.verb.as_str(),
            group: "pleach.dev",
            resource: "releases",
            subresource: None,
            namespace: question.namespace.as_deref(),
            name: question.name.as_deref(),
        };
        let cluster = self.own.cluster().await.map_err(Unanswered::Failed)?;
        let cluster = cluster.clone().with_retry(Retry::never());
        let asked = cluster.may(&subject, &access).await;
        let is_allowed = asked.map_err(Unanswered::Failed)?;
        self.remember(question, is_allowed);
        Ok(is_allowed)
    }

    fn remember(&self, question: Question, is_allowed: bool) {
        let now = Instant::now();
        let mut known = self.known();
        if known.len() >= MOST_KNOWN {
            known.retain(|_, (_, at)| now.duration_since(*at) < KNOWN_FOR);
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(question, (is_allowed, now));
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Question, (bool, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the digest of everything that decides about permissions.
fn digest(user: &Identity) -> Digest {
    let Identity {
        name,
        groups,
        extra,
    } = user;
    Digest::of(&canonical_json(&json!([name, groups, extra])))
}
