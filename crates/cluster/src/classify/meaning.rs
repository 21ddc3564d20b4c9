//! Consequences of each kind of failure: retry, prediction, listing, exit code and hint.

use pleach_model::finding;
use pleach_planner::observe::{ApiRefusal, Listing, Prediction, Unverified};

use super::{Class, Failed, Verb};
use crate::ApiError;

impl Class {
    /// Returns whether the same request can succeed later without any intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable
            | Self::Interrupted
            | Self::Timeout
            | Self::StaleResourceVersion
            | Self::Conflict
            | Self::WebhookUnavailable(_)
            | Self::ApiUnavailable
            | Self::TooManyRequests
            | Self::ServerTimeout
            | Self::ServerError => true,
            Self::Tls
            | Self::Credentials
            | Self::NotKubernetes
            | Self::Unauthorized
            | Self::Forbidden
            | Self::RbacEscalation { .. }
            | Self::NamespaceTerminating(_)
            | Self::NamespaceMissing(_)
            | Self::RoleMissing(_)
            | Self::KindNotServed
            | Self::NotFound
            | Self::AlreadyExists { .. }
            | Self::FieldConflict(_)
            | Self::PreconditionFailed(_)
            | Self::Immutable(_)
            | Self::Invalid
            | Self::InvalidManifest
            | Self::UnconvertibleVersion(_)
            | Self::RecordedVersion
            | Self::BadRequest
            | Self::TooLarge
            | Self::Unsupported
            | Self::WebhookDenied(_)
            | Self::WebhookNoDryRun(_)
            | Self::PolicyDenied { .. }
            | Self::AdmissionDenied
            | Self::DisruptionBudget(_)
            | Self::SeveralBudgets
            | Self::Expired { .. }
            | Self::Unexpected => false,
        }
    }

    /// Returns whether the server could have executed the failed request.
    pub fn is_unclear(&self) -> bool {
        matches!(
            self,
            Self::Interrupted
                | Self::Timeout
                | Self::NotKubernetes
                | Self::ServerTimeout
                | Self::ServerError
                | Self::Unexpected
        )
    }

    /// Returns whether the transport is allowed to repeat the request by itself. `conditional`
    /// means that the request has a precondition; repeating it would fail again.
    pub(crate) fn may_repeat(&self, verb: Verb, conditional: bool) -> bool {
        if !self.is_retryable() {
            return false;
        }
        match self {
            Self::StaleResourceVersion | Self::Conflict if conditional => false,
            // A diff reports an unavailable webhook at once and does not wait for it.
            Self::WebhookUnavailable(_) if matches!(verb, Verb::DryRun | Verb::Review) => false,
            // A patch is not idempotent. A create is, because its repetition fails with
            // AlreadyExists.
            _ => verb != Verb::Patch || !self.is_unclear(),
        }
    }

    /// Returns the finding kind, which decides the exit code.
    pub fn finding_kind(&self) -> finding::Kind {
        match self {
            Self::Invalid
            | Self::InvalidManifest
            | Self::BadRequest
            | Self::TooLarge
            | Self::RoleMissing(_) => finding::Kind::Repository,
            Self::FieldConflict(_)
            | Self::PreconditionFailed(Failed::Uid | Failed::ResourceVersion | Failed::Test)
            | Self::StaleResourceVersion
            | Self::AlreadyExists { .. }
            | Self::Conflict => finding::Kind::Conflict,
            // Only a planned Recreate is allowed to replace the object. Admission checks refuse the
            // object for all clients.
            Self::Immutable(_)
            | Self::WebhookDenied(_)
            | Self::PolicyDenied { .. }
            | Self::AdmissionDenied
            | Self::DisruptionBudget(_)
            | Self::SeveralBudgets => finding::Kind::Policy,
            Self::Unreachable
            | Self::Tls
            | Self::Interrupted
            | Self::Timeout
            | Self::Credentials
            | Self::NotKubernetes
            | Self::Unauthorized
            | Self::Forbidden
            | Self::RbacEscalation { .. }
            | Self::NamespaceTerminating(_)
            | Self::NamespaceMissing(_)
            | Self::KindNotServed
            | Self::NotFound
            | Self::UnconvertibleVersion(_)
            | Self::RecordedVersion
            | Self::Unsupported
            | Self::WebhookUnavailable(_)
            | Self::WebhookNoDryRun(_)
            | Self::ApiUnavailable
            | Self::TooManyRequests
            | Self::ServerTimeout
            | Self::Expired { .. }
            | Self::ServerError
            | Self::Unexpected => finding::Kind::Cluster,
        }
    }

    /// Returns the next step for the user, if there is an obvious one.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Unreachable => {
                "check the server's address in the kubeconfig and that this machine can reach it"
            }
            Self::Tls => {
                "check certificate-authority and the client certificate in the kubeconfig, and that the address is the server's"
            }
            Self::Timeout => "the server accepts connections but does not answer; try again later",
            Self::Credentials => "log in again, or repair the credentials of the kubeconfig's user",
            Self::NotKubernetes => {
                "another service answers at this address, for example a proxy or a login page"
            }
            Self::Unauthorized => {
                "the server rejects the credentials of this context, which might have expired; log in again"
            }
            Self::Forbidden => {
                "ask for the permission that the message names, or use another context"
            }
            Self::RbacEscalation { .. } => {
                "pleach can grant only permissions that it has: give it the missing rules or the verb escalate"
            }
            Self::KindNotServed => "install its CRD, or put it into an earlier release",
            Self::NamespaceMissing(_) => "put the namespace into the bundle, or create it",
            Self::RoleMissing(_) => "put the role into the bundle, or correct roleRef",
            Self::FieldConflict(_) => {
                "name the manager in `adopt`, or take the field out of the manifest"
            }
            Self::PreconditionFailed(_) | Self::StaleResourceVersion => {
                "the object changed since it was read; run the command again"
            }
            Self::Immutable(_) => {
                "only a new object can have this value; run the command again to plan one"
            }
            Self::WebhookUnavailable(_) => {
                "check why the Service of the webhook has no ready endpoints"
            }
            Self::ApiUnavailable => "check the conditions of the APIServices: one has no backend",
            Self::RecordedVersion => {
                "another client writes the object at another API version; its managedFields name the client and the version"
            }
            Self::SeveralBudgets => "let one PodDisruptionBudget cover the pod",
            Self::TooManyRequests => "the server is overloaded; try again later",
            _ => return None,
        })
    }
}

impl ApiError {
    /// Returns the refusal in the server's words.
    pub fn refusal(&self) -> ApiRefusal {
        ApiRefusal {
            code: self.status.unwrap_or_default(),
            reason: self.reason.clone(),
            message: self.message.clone(),
        }
    }

    /// Returns the prediction for the object after a failed dry run. `None` if the observation
    /// itself failed and gives no information about the object.
    pub fn prediction(&self) -> Option<Prediction> {
        Some(match &self.class {
            Class::FieldConflict(fields) => Prediction::Conflict {
                fields: fields.clone(),
                forced: None,
                refused: None,
                immutable: Vec::new(),
            },
            Class::Immutable(fields) => Prediction::Immutable {
                fields: fields.clone(),
                refused: None,
            },
            Class::NamespaceMissing(name) | Class::NamespaceTerminating(name) => {
                Prediction::Unverified(Unverified::NamespaceMissing(name.clone()))
            }
            Class::KindNotServed => Prediction::Unverified(Unverified::KindMissing),
            Class::ApiUnavailable => Prediction::Unverified(Unverified::ApiStale),
            Class::WebhookUnavailable(_) | Class::WebhookNoDryRun(_) => {
                Prediction::Unverified(Unverified::Webhook(self.message.clone()))
            }
            Class::RecordedVersion => {
                Prediction::Unverified(Unverified::Recorded(self.message.clone()))
            }
            Class::Forbidden
            | Class::RbacEscalation { .. }
            | Class::RoleMissing(_)
            | Class::NotFound
            | Class::AlreadyExists { .. }
            | Class::PreconditionFailed(_)
            | Class::StaleResourceVersion
            | Class::Conflict
            | Class::Invalid
            | Class::InvalidManifest
            | Class::UnconvertibleVersion(_)
            | Class::BadRequest
            | Class::TooLarge
            | Class::Unsupported
            | Class::WebhookDenied(_)
            | Class::PolicyDenied { .. }
            | Class::AdmissionDenied
            | Class::DisruptionBudget(_)
            | Class::SeveralBudgets => Prediction::Refused(self.refusal()),
            Class::Unreachable
            | Class::Tls
            | Class::Interrupted
            | Class::Timeout
            | Class::Credentials
            | Class::NotKubernetes
            | Class::Unauthorized
            | Class::TooManyRequests
            | Class::ServerTimeout
            | Class::Expired { .. }
            | Class::ServerError
            | Class::Unexpected => return None,
        })
    }

    /// Returns the conclusion from a failed LIST about existing objects.
    pub fn listing(&self) -> Listing {
        match self.class {
            Class::KindNotServed => Listing::NotServed,
            Class::Forbidden => Listing::Forbidden(self.message.clone()),
            _ => Listing::Failed(self.message.clone()),
        }
    }
}
