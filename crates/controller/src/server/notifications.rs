//! Outgoing notifications about releases. Each webhook has its own task, so a slow one delays
//! neither another webhook nor the controller.

use std::path::PathBuf;

use pleach_reconciler::config::{Notification, StateChange};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::DRAIN;
use pleach_engine::words;
use pleach_forge::webhook::{Caller, WebhookError};

/// Maximum number of queued notifications per webhook. Further ones are dropped and logged.
const QUEUE: usize = 200;

/// Webhook with its triggers.
#[derive(Debug, Clone)]
pub struct Target {
    /// File with the URL.
    pub address: PathBuf,
    /// Triggers and format.
    pub notification: Notification,
}

/// Sender of state changes to all webhooks.
#[derive(Debug, Default)]
pub struct Notifier {
    targets: Vec<(PathBuf, mpsc::Sender<StateChange>)>,
}

impl Notifier {
    /// Starts a task per webhook. The tasks end some time after `stop`.
    pub fn start(
        targets: Vec<Target>,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> Result<Self, WebhookError> {
        let mut notifier = Self::default();
        if targets.is_empty() {
            return Ok(notifier);
        }
        let caller = Caller::new()?;
        for target in targets {
            let (sender, receiver) = mpsc::channel(QUEUE);
            notifier.targets.push((target.address.clone(), sender));
            let (caller, stop) = (caller.clone(), stop.clone());
            tasks.spawn(async move {
                let drained = async {
                    stop.cancelled().await;
                    tokio::time::sleep(DRAIN).await;
                };
                tokio::select! {
                    () = call(&caller, &target, receiver) => {}
                    () = drained => {}
                }
            });
        }
        Ok(notifier)
    }

    /// Queues a state change for all webhooks.
    pub fn report(&self, change: &StateChange) {
        for (address, sender) in &self.targets {
            if let Err(TrySendError::Full(_)) = sender.try_send(change.clone()) {
                let webhook = address.display();
                tracing::warn!(%webhook, "notification dropped: the queue of the webhook is full");
            }
        }
    }
}

/// Calls a webhook for each received state change, until the channel is closed.
async fn call(caller: &Caller, target: &Target, mut receiver: mpsc::Receiver<StateChange>) {
    let webhook = target.address.display();
    while let Some(change) = receiver.recv().await {
        let (environment, release) = (&change.environment, &change.release);
        let cause = change.cause.as_str();
        let body = match target.notification.body(&change) {
            None => continue,
            Some(Ok(body)) => body,
            Some(Err(finding)) => {
                tracing::warn!(%webhook, %environment, %release, cause, error = %finding.message, "failed to format a notification");
                continue;
            }
        };
        match caller.post(&target.address, &body).await {
            Ok(()) => tracing::debug!(%webhook, %environment, %release, cause, "notified"),
            Err(error) => {
                tracing::warn!(%webhook, %environment, %release, cause, error = %words(&error), "failed to send a notification");
            }
        }
    }
}
