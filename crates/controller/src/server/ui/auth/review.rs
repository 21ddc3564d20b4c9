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
use tokio::time::{Instant, timeout};

use super::{DEADLINE, Identity, Unanswered};

/// How long an answer is used for pages.
const KNOWN_FOR: Duration = Duration::from_mins(1);
/// Largest number of such answers.
const MOST_KNOWN: usize = 16_384;
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
    /// `None`: all releases.
    name: Option<String>,
}

impl Reviews {
    pub(super) fn new(own: OwnCluster) -> Self {
        Self {
            own,
            known: Mutex::default(),
        }
    }

    /// Returns whether a user is allowed to use a verb on a release; `None`: on all of them.
    pub(super) async fn may(
        &self,
        user: &Identity,
        verb: Verb,
        release: Option<&KnownRelease>,
        freshness: Freshness,
    ) -> Result<bool, Unanswered> {
        let asking = self.ask(user, verb, release, freshness);
        timeout(DEADLINE, asking)
            .await
            .map_err(|_| Unanswered::Late)?
    }

    /// Returns the permissions of a user for a page: which of the releases the user sees, and all
    /// verbs on the release of the page.
    pub(super) async fn permissions(
        &self,
        user: &Identity,
        known: &[KnownRelease],
        of_page: Option<&ReleaseName>,
    ) -> Result<Permissions, Unanswered> {
        let asking = self.ask_for_page(user, known, of_page);
        timeout(DEADLINE, asking)
            .await
            .map_err(|_| Unanswered::Late)?
    }

    async fn ask_for_page(
        &self,
        user: &Identity,
        known: &[KnownRelease],
        of_page: Option<&ReleaseName>,
    ) -> Result<Permissions, Unanswered> {
        let all = Verb::ALL.map(|verb| (verb, None));
        let everywhere = self.allowed(user, all.to_vec()).await?;
        let everywhere: BTreeSet<Verb> = everywhere.into_iter().map(|(verb, _)| verb).collect();
        let questions = known.iter().flat_map(|release| {
            let is_of_page = of_page == Some(&release.name);
            let verbs = Verb::ALL.into_iter();
            verbs
                .filter(move |verb| *verb == Verb::Get || is_of_page)
                .map(move |verb| (verb, Some(release)))
        });
        let questions = questions.filter(|(verb, _)| !everywhere.contains(verb));
        let mut releases: BTreeMap<ReleaseName, BTreeSet<Verb>> = BTreeMap::new();
        for (verb, release) in self.allowed(user, questions.collect()).await? {
            if let Some(release) = release {
                releases
                    .entry(release.name.clone())
                    .or_default()
                    .insert(verb);
            }
        }
        Ok(Permissions {
            everywhere,
            releases,
        })
    }

    /// Returns the questions with the answer yes.
    async fn allowed<'r>(
        &self,
        user: &Identity,
        questions: Vec<(Verb, Option<&'r KnownRelease>)>,
    ) -> Result<Vec<(Verb, Option<&'r KnownRelease>)>, Unanswered> {
        let asking = questions.into_iter().map(|(verb, release)| async move {
            let is_allowed = self.ask(user, verb, release, Freshness::LastMinute).await?;
            Ok::<_, Unanswered>(is_allowed.then_some((verb, release)))
        });
        let asking: Vec<_> = asking.collect();
        stream::iter(asking)
            .buffer_unordered(CONCURRENCY)
            .try_filter_map(|answer| std::future::ready(Ok(answer)))
            .try_collect()
            .await
    }

    async fn ask(
        &self,
        user: &Identity,
        verb: Verb,
        release: Option<&KnownRelease>,
        freshness: Freshness,
    ) -> Result<bool, Unanswered> {
        let question = Question {
            user: digest(user),
            verb,
            namespace: release.and_then(|release| release.namespace.clone()),
            name: release.map(|release| release.name.to_string()),
        };
        if freshness == Freshness::LastMinute {
            let known = self.known().get(&question).copied();
            if let Some((is_allowed, at)) = known
                && at.elapsed() < KNOWN_FOR
            {
                return Ok(is_allowed);
            }
        }
        let subject = Subject {
            user: &user.name,
            groups: &user.groups,
            extra: &user.extra,
        };
        let access = Access {
            verb: verb.as_str(),
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
