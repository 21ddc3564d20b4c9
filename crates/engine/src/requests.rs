//! Requests of users for releases, as commands and the web page write them.

use jiff::{SignedDuration, Timestamp};
use pleach_cluster::Cluster;
use pleach_model::object::ReleaseName;
use pleach_state::inventory::{Store, Suspension, SyncRequest, UserRequests};

use crate::planning::agent;
use crate::sync::{SyncError, state};

/// A request of a user for a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserRequest {
    /// Stop the controller for the release.
    Suspend(Suspension),
    /// End a suspension.
    Resume,
    /// Sync the release now.
    Sync(SyncRequest),
    /// Withdraw a request for a sync.
    WithdrawSync,
}

/// Error of a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is zero or negative.
    #[error("needs a positive duration")]
    NotPositive,
    /// It ends after the last representable time.
    #[error("is too long")]
    TooLong,
}

/// Returns a suspension that starts now. Without a duration it lasts until the release is resumed.
pub fn suspension(
    duration: Option<SignedDuration>,
    reason: String,
    by: String,
    now: Timestamp,
) -> Result<Suspension, DurationError> {
    let until = match duration {
        Some(duration) if !duration.is_positive() => return Err(DurationError::NotPositive),
        Some(duration) => Some(
            now.checked_add(duration)
                .map_err(|_| DurationError::TooLong)?,
        ),
        None => None,
    };
    Ok(Suspension {
        until,
        reason,
        by,
        at: Some(now),
    })
}

impl UserRequest {
    /// Writes the request beside the record, and returns all requests of the release. `None` if
    /// there is no such release.
    pub async fn write(
        &self,
        cluster: &Cluster,
        name: &ReleaseName,
        store: &Store,
    ) -> Result<Option<UserRequests>, SyncError> {
        let cluster = cluster.clone().with_user_agent(&agent(Some(name)));
        state::order(&cluster, name, store, |requests| self.change(requests)).await
    }

    fn change(&self, requests: &mut UserRequests) {
        match self {
            Self::Suspend(suspension) => requests.suspend = Some(suspension.clone()),
            Self::Resume => requests.suspend = None,
            Self::Sync(request) => requests.sync = Some(request.clone()),
            Self::WithdrawSync => requests.sync = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_ends_after_its_duration() {
        let now = Timestamp::UNIX_EPOCH;
        let of = |duration: Option<SignedDuration>| {
            let suspension = suspension(duration, "r".to_owned(), "ann".to_owned(), now);
            suspension.map(|suspension| suspension.until.map(Timestamp::as_second))
        };
        for (duration, expected) in [
            (None, Ok(None)),
            (Some(SignedDuration::from_hours(2)), Ok(Some(7200))),
            (Some(SignedDuration::ZERO), Err(DurationError::NotPositive)),
            (
                Some(SignedDuration::from_secs(-1)),
                Err(DurationError::NotPositive),
            ),
            (Some(SignedDuration::MAX), Err(DurationError::TooLong)),
        ] {
            assert_eq!(of(duration), expected, "{duration:?}");
        }
    }

    #[test]
    fn requests_change_only_their_own_field() {
        let suspension = suspension(
            None,
            "r".to_owned(),
            "ann".to_owned(),
            Timestamp::UNIX_EPOCH,
        );
        let suspension = suspension.unwrap();
        let sync = SyncRequest {
            at: Timestamp::UNIX_EPOCH,
            by: "ann".to_owned(),
            override_window: false,
            after_fetch: false,
            nodes: false,
        };
        let mut requests = UserRequests::default();
        UserRequest::Suspend(suspension.clone()).change(&mut requests);
        UserRequest::Sync(sync.clone()).change(&mut requests);
        let both = (requests.suspend.as_ref(), requests.sync.as_ref());
        assert_eq!(both, (Some(&suspension), Some(&sync)));
        UserRequest::Resume.change(&mut requests);
        assert_eq!(
            (requests.suspend.as_ref(), requests.sync.as_ref()),
            (None, Some(&sync))
        );
        UserRequest::WithdrawSync.change(&mut requests);
        assert_eq!(requests, UserRequests::default());
    }
}
