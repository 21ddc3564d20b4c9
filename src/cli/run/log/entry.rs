//! Log lines of the controller.

use std::time::Duration;

use pleach_model::object::{ObjectId, ReleaseName};

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// A log line. Fields are for programs; the message contains them for people.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry<'a> {
    pub(super) repository: Option<&'a str>,
    pub(super) environment: Option<&'a str>,
    pub(super) release: Option<&'a str>,
    pub(super) commit: Option<&'a str>,
    /// A fixed text, by which lines of one kind are found.
    pub(super) action: &'static str,
    pub(super) object: Option<String>,
    pub(super) seconds: Option<f64>,
    pub(super) message: String,
}

impl<'a> Entry<'a> {
    pub(super) fn new(action: &'static str, message: String) -> Self {
        Self {
            action,
            message,
            ..Self::default()
        }
    }

    pub(super) fn of_repository(
        repository: &'a str,
        action: &'static str,
        message: String,
    ) -> Self {
        Self {
            repository: Some(repository),
            ..Self::new(action, message)
        }
    }

    pub(super) fn of_environment(
        environment: &'a str,
        action: &'static str,
        message: String,
    ) -> Self {
        Self {
            environment: Some(environment),
            ..Self::new(action, message)
        }
    }

    pub(super) fn of_release(name: &'a ReleaseName, action: &'static str, message: String) -> Self {
        Self {
            release: Some(&name.release),
            ..Self::of_environment(&name.environment, action, message)
        }
    }

    pub(super) fn at(self, commit: &'a str) -> Self {
        Self {
            commit: Some(commit),
            ..self
        }
    }

    pub(super) fn on(self, object: &ObjectId) -> Self {
        Self {
            object: Some(object.to_string()),
            ..self
        }
    }

    pub(super) fn took(self, duration: Duration) -> Self {
        // Whole milliseconds.
        let seconds = (duration.as_secs_f64() * 1_000.0).round() / 1_000.0;
        Self {
            seconds: Some(seconds),
            ..self
        }
    }

    pub(super) fn write(self, level: Level) {
        let Self {
            repository,
            environment,
            release,
            commit,
            action,
            object,
            seconds,
            message,
        } = self;
        macro_rules! write {
            ($level:ident) => {
                tracing::$level!(
                    repository,
                    environment,
                    release,
                    commit,
                    action,
                    object,
                    seconds,
                    "{message}"
                )
            };
        }
        match level {
            Level::Debug => write!(debug),
            Level::Info => write!(info),
            Level::Warn => write!(warn),
            Level::Error => write!(error),
        }
    }
}
