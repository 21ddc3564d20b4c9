//! Hints for users about objects that did not become ready.

use pleach_model::object::ReleaseName;
use tokio::time::Instant;

/// Fraction of the wait at its end. An object that changed in it is still progressing.
const LAST_PART: u32 = 4;

/// Facts about a failed wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct WayOut<'a> {
    pub(super) release: &'a ReleaseName,
    /// Reason of a pod that cannot start without a change in git.
    pub(super) stuck: Option<&'static str>,
    /// Whether a verified version is installed, so that git can be reverted to it.
    pub(super) can_roll_back: bool,
    /// Whether the wait was for a deletion.
    pub(super) is_end: bool,
    /// Time of the last observed change of the object.
    pub(super) moved: Instant,
    pub(super) started: Instant,
}

impl WayOut<'_> {
    /// Names the field to fix and the way to revert. Suggests a longer `timeout` only if it can
    /// help.
    pub(super) fn hint(&self) -> String {
        let raise = "raise `timeout` of the release in the environment file";
        if self.is_end {
            return raise.to_owned();
        }
        let fix = match self.stuck {
            Some("CreateContainerConfigError") => {
                "fix the configuration that the container refers to, in git"
            }
            Some(_) => "fix the image in git",
            None if self.still_moves() => {
                return format!("it was still changing: {raise}, then apply again");
            }
            None => "fix the cause in git",
        };
        if self.can_roll_back {
            let release = format!("{}/{}", self.release.environment, self.release.release);
            format!("{fix}, or roll back: pleach rollback {release} && pleach apply {release}")
        } else {
            format!("{fix}, then apply again")
        }
    }

    fn still_moves(&self) -> bool {
        let waited = self.started.elapsed();
        self.moved.elapsed() < waited / LAST_PART && self.moved > self.started
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns the hint after a wait of 100 seconds, with the last change after `moved` seconds.
    async fn hint(moved: u64, change: impl FnOnce(&mut WayOut<'_>)) -> String {
        let release = ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        };
        let started = Instant::now();
        let mut out = WayOut {
            release: &release,
            stuck: None,
            can_roll_back: true,
            is_end: false,
            moved: started + Duration::from_secs(moved),
            started,
        };
        change(&mut out);
        tokio::time::advance(Duration::from_secs(100)).await;
        out.hint()
    }

    #[tokio::test(start_paused = true)]
    async fn more_time_is_advised_only_for_an_object_that_moved() {
        let back = "or roll back: pleach rollback dev/web && pleach apply dev/web";
        assert_eq!(
            hint(10, |_| {}).await,
            format!("fix the cause in git, {back}")
        );
        assert_eq!(
            hint(90, |_| {}).await,
            "it was still changing: raise `timeout` of the release in the environment file, then apply again"
        );
        // More time does not fix an image that cannot be pulled.
        assert_eq!(
            hint(90, |out| out.stuck = Some("ErrImagePull")).await,
            format!("fix the image in git, {back}")
        );
        let hinted = hint(10, |out| out.stuck = Some("CreateContainerConfigError")).await;
        assert!(hinted.starts_with("fix the configuration "), "{hinted}");
        // Before the first verified version, there is nothing to revert to.
        assert_eq!(
            hint(10, |out| out.can_roll_back = false).await,
            "fix the cause in git, then apply again"
        );
        assert_eq!(
            hint(10, |out| out.is_end = true).await,
            "raise `timeout` of the release in the environment file"
        );
    }
}
