//! Answers of GitHub, and of Gitea, which are almost the same.

use pleach_formats::file::ForgeKind;
use serde_json::{Value, json};

use super::{
    ACCOUNT, Answer, Inner, Known, MERGED_AT, Note, PROJECT, Pull, Review, Seen, created, has,
    missing, ok,
};

impl Inner {
    /// Answers a request below a path.
    pub(super) fn as_github(&mut self, seen: &Seen, root: &str) -> Option<Answer> {
        let is_gitea = self.kind == ForgeKind::Gitea;
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        if path == "/api/graphql" && !is_gitea {
            let is_asked = seen.method == "POST" && seen.body["query"] == "{viewer{databaseId}}";
            return is_asked
                .then(|| json!({"data": {"viewer": {"databaseId": ACCOUNT}}}))
                .map(ok);
        }
        let path = path.strip_prefix(root)?;
        if path == "/user" && is_gitea {
            return Some(ok(json!({"id": ACCOUNT, "login": "pleach"})));
        }
        let path = path.strip_prefix(&format!("/repos/{PROJECT}/"))?;
        let parts: Vec<&str> = path.split('/').collect();
        let body = &seen.body;
        match (seen.method.as_str(), parts.as_slice()) {
            ("GET", ["pulls"]) if has(query, "state", "open") => {
                let pulls = self.pulls.iter().filter(|(_, pull)| !pull.is_closed);
                let pulls = pulls.map(|(number, pull)| self.pull_json(*number, pull));
                self.pages(pulls.collect(), query, is_gitea)
            }
            ("GET", ["pulls", number]) => {
                let number = number.parse().ok()?;
                Some(ok(self.pull_json(number, self.pulls.get(&number)?)))
            }
            ("POST", ["pulls"]) => {
                for key in ["title", "head", "base"] {
                    body[key].as_str()?;
                }
                self.opened.push(body.clone());
                let url = format!("https://git.example.org/{PROJECT}/pull/77");
                Some(created(json!({"number": 77, "html_url": url})))
            }
            ("GET", ["commits", commit, "pulls"]) if !is_gitea => {
                let pulls = self.pulls.iter().filter(|(_, pull)| pull.came_as(commit));
                let pulls = pulls.map(|(number, pull)| self.pull_json(*number, pull));
                Some(ok(pulls.collect()))
            }
            ("GET", ["commits", commit, "pull"]) if is_gitea => {
                // Gitea finds only merged pull requests.
                let mut pulls = self.pulls.iter();
                match pulls.find(|(_, pull)| pull.merged_as.as_deref() == Some(*commit)) {
                    Some((number, pull)) => Some(ok(self.pull_json(*number, pull))),
                    None => Some(missing("no such pull request")),
                }
            }
            ("GET", ["issues", number, "comments"]) => {
                let notes = self.notes.get(&number.parse().ok()?);
                let notes = notes.into_iter().flatten().map(note_json).collect();
                if is_gitea {
                    // Gitea ignores pages here.
                    return Some(ok(Value::Array(notes)));
                }
                self.pages(notes, query, false)
            }
            ("POST", ["issues", number, "comments"]) => {
                let note = self.add_note(number.parse().ok()?, ACCOUNT, body["body"].as_str()?);
                Some(created(note_json(&note)))
            }
            ("PATCH", ["issues", "comments", id]) => {
                let note = self.edit(id.parse().ok()?, body["body"].as_str()?)?;
                Some(ok(note_json(&note)))
            }
            ("GET", ["commits", commit, "statuses"] | ["statuses", commit]) => {
                let is_gitea_path = parts[0] == "statuses";
                if is_gitea_path != is_gitea {
                    return None;
                }
                let key = if is_gitea { "status" } else { "state" };
                let known = self
                    .statuses
                    .iter()
                    .rev()
                    .filter(|one| one.commit == *commit);
                let known = known.map(|one| {
                    json!({key: one.state, "context": one.context, "description": one.description})
                });
                self.pages(known.collect(), query, is_gitea)
            }
            ("POST", ["statuses", commit]) => {
                let state = body["state"].as_str()?;
                let is_known = ["pending", "success", "failure", "error"].contains(&state);
                let longest = if is_gitea { 255 } else { 140 };
                let description = body["description"].as_str()?;
                if !is_known || description.chars().count() > longest {
                    return None;
                }
                self.statuses.push(Known {
                    commit: (*commit).to_owned(),
                    context: body["context"].as_str()?.to_owned(),
                    state: state.to_owned(),
                    description: description.to_owned(),
                });
                Some(created(json!({"id": 1})))
            }
            _ => self.consent(&seen.method, &parts, query),
        }
    }

    /// Answers requests for reviews and permissions.
    fn consent(&self, method: &str, parts: &[&str], query: &str) -> Option<Answer> {
        let is_gitea = self.kind == ForgeKind::Gitea;
        match (method, parts) {
            ("GET", ["pulls", number, "reviews"]) => {
                let reviews = self.reviews.get(&number.parse().ok()?);
                let reviews = reviews.into_iter().flatten();
                let reviews = reviews.map(|review| {
                    let Review { author, commit, state } = review;
                    let mut review = json!({
                        "user": {"id": author, "login": login(*author)}, "state": state, "commit_id": commit,
                    });
                    if is_gitea {
                        review["official"] = json!(self.members.contains(author));
                        review["dismissed"] = json!(false);
                    }
                    review
                });
                self.pages(reviews.collect(), query, is_gitea)
            }
            ("GET", ["collaborators", name, "permission"]) => {
                let account: u64 = name.strip_prefix("user-")?.parse().ok()?;
                let is_member = self.members.contains(&account);
                let permission = if is_member { "write" } else { "read" };
                Some(ok(
                    json!({"permission": permission, "user": {"id": account, "login": name}}),
                ))
            }
            _ => None,
        }
    }

    fn pull_json(&self, number: u64, pull: &Pull) -> Value {
        let labels: Vec<Value> = pull
            .labels
            .iter()
            .map(|name| json!({"name": name}))
            .collect();
        json!({
            "number": number,
            "user": {"id": pull.author, "login": login(pull.author)},
            "updated_at": self.updated_at(number),
            "state": if pull.is_closed { "closed" } else { "open" },
            "title": "A change",
            "head": {"sha": pull.head, "ref": "change", "repo": {"id": if pull.is_fork { 2 } else { 1 }}},
            "base": {"sha": "0000", "ref": pull.base_branch, "repo": {"id": 1}},
            "labels": labels,
            "merged_at": pull.merged_as.as_ref().map(|_| MERGED_AT),
            // For an open pull request, this is a test merge.
            "merge_commit_sha": pull.merged_as.as_deref().unwrap_or("0000"),
        })
    }
}

/// Returns the login of an account.
fn login(account: u64) -> String {
    format!("user-{account}")
}

fn note_json(note: &Note) -> Value {
    json!({"id": note.id, "user": {"id": note.author, "login": login(note.author)}, "body": note.body,
        "created_at": "2026-11-02T08:00:00Z", "updated_at": note.changed_at})
}
