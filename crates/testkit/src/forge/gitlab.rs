//! Answers of GitLab.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    ACCOUNT, Answer, Inner, Known, MERGED_AT, Note, PROJECT, Pull, Seen, created, has, missing, ok,
};

impl Inner {
    /// Answers a request.
    pub(super) fn as_gitlab(&mut self, seen: &Seen) -> Option<Answer> {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let path = path.strip_prefix("/api/v4")?;
        if path == "/user" {
            return Some(ok(json!({"id": ACCOUNT, "username": "pleach"})));
        }
        let project = PROJECT.replace('/', "%2F");
        let path = path.strip_prefix(&format!("/projects/{project}/"))?;
        let parts: Vec<&str> = path.split('/').collect();
        let body = &seen.body;
        match (seen.method.as_str(), parts.as_slice()) {
            ("GET", ["merge_requests"]) if has(query, "state", "opened") => {
                let pulls = self.pulls.iter().filter(|(_, pull)| !pull.is_closed);
                let pulls = pulls.map(|(number, pull)| self.request_json(*number, pull));
                self.pages(pulls.collect(), query, false)
            }
            ("GET", ["merge_requests", number]) => {
                let number = number.parse().ok()?;
                Some(ok(self.request_json(number, self.pulls.get(&number)?)))
            }
            ("GET", ["repository", "commits", commit, "merge_requests"]) => {
                let pulls = self.pulls.iter().filter(|(_, pull)| pull.came_as(commit));
                let pulls = pulls.map(|(number, pull)| self.request_json(*number, pull));
                Some(ok(pulls.collect()))
            }
            ("POST", ["merge_requests"]) => {
                for key in ["title", "source_branch", "target_branch"] {
                    body[key].as_str()?;
                }
                self.opened.push(body.clone());
                let url = format!("https://git.example.org/{PROJECT}/-/merge_requests/77");
                Some(created(json!({"iid": 77, "web_url": url})))
            }
            ("GET", ["merge_requests", number, "notes"]) if has(query, "sort", "asc") => {
                let notes = self.notes.get(&number.parse().ok()?);
                let notes = notes.into_iter().flatten().map(note_json).collect();
                self.pages(notes, query, false)
            }
            ("GET", ["members", "all", account]) => {
                let account: u64 = account.parse().ok()?;
                if !self.members.contains(&account) {
                    return Some(missing("404 Not found"));
                }
                Some(ok(
                    json!({"id": account, "state": "active", "access_level": 30}),
                ))
            }
            ("POST", ["merge_requests", number, "notes"]) => {
                let note = self.add_note(number.parse().ok()?, ACCOUNT, body["body"].as_str()?);
                Some(created(note_json(&note)))
            }
            ("PUT", ["merge_requests", _, "notes", id]) => {
                let note = self.edit(id.parse().ok()?, body["body"].as_str()?)?;
                Some(ok(note_json(&note)))
            }
            ("GET", ["repository", "commits", commit, "statuses"]) => {
                let mut newest: BTreeMap<&str, &Known> = BTreeMap::new();
                for one in self.statuses.iter().filter(|one| one.commit == *commit) {
                    newest.insert(&one.context, one);
                }
                let known = newest.values().map(|one| {
                    json!({"name": one.context, "status": one.state, "description": one.description})
                });
                self.pages(known.collect(), query, false)
            }
            ("POST", ["statuses", commit]) => {
                let state = body["state"].as_str()?;
                let context = body["name"].as_str()?;
                let is_known = ["pending", "running", "success", "failed", "canceled"];
                if !is_known.contains(&state) {
                    return None;
                }
                let of_commit = |one: &&Known| one.commit == *commit && one.context == context;
                if self
                    .statuses
                    .iter()
                    .rev()
                    .find(of_commit)
                    .is_some_and(|one| one.state == state)
                {
                    let message = format!(
                        "Cannot transition status via :enqueue from :{state} (Reason(s): Status cannot transition via \"enqueue\")"
                    );
                    return Some((StatusCode::BAD_REQUEST, json!({"message": message}), None));
                }
                self.statuses.push(Known {
                    commit: (*commit).to_owned(),
                    context: context.to_owned(),
                    state: state.to_owned(),
                    description: body["description"].as_str()?.to_owned(),
                });
                Some(created(json!({"id": 1})))
            }
            _ => None,
        }
    }

    fn request_json(&self, number: u64, pull: &Pull) -> Value {
        json!({
            "id": number + 5000,
            "iid": number,
            "state": if pull.is_closed { "merged" } else { "opened" },
            "title": "A change",
            "author": {"id": pull.author},
            "updated_at": self.updated_at(number),
            "sha": pull.head,
            "source_branch": "change",
            "target_branch": pull.base_branch,
            "source_project_id": if pull.is_fork { 2 } else { 1 },
            "target_project_id": 1,
            "labels": pull.labels,
            "merge_commit_sha": pull.merged_as,
            "squash_commit_sha": null,
            "merged_at": pull.merged_as.as_ref().map(|_| MERGED_AT),
        })
    }
}

fn note_json(note: &Note) -> Value {
    json!({"id": note.id, "author": {"id": note.author}, "body": note.body, "system": false,
        "created_at": "2026-11-02T08:00:00Z", "updated_at": note.changed_at})
}
