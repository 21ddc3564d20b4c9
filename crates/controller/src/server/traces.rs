//! OTLP traces over HTTP: one trace per fetch, per rendering of an environment and per reconcile of
//! a release, with the steps as spans.
//!
//! The OpenTelemetry library reads endpoint and headers from its standard variables. Spans that
//! cannot be sent are dropped; the controller never waits for a collector.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use pleach_model::object::ReleaseName;
use pleach_planner::plan::StepId;

use super::DRAIN;
use crate::{ControllerEvent, ReconcileOutcome};
use pleach_engine::sync::events::{EventKind, StepOutcome, SyncEvent, Verb};

/// Variables with the endpoint. Without one of them, traces are disabled.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
/// Name of the service and of the instrumentation scope.
const NAME: &str = "pleach";

/// Converter of controller events to spans.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    reconciles: BTreeMap<ReleaseName, ReconcileSpan>,
}

/// Running reconcile of a release.
#[derive(Debug)]
struct ReconcileSpan {
    span: Context,
    /// Span of the apply phase.
    apply: Option<Context>,
    /// Spans of waiting steps.
    waits: BTreeMap<StepId, Context>,
}

impl Traces {
    /// Creates the exporter from the environment variables. `None` without an endpoint.
    #[expect(
        clippy::disallowed_methods,
        reason = "only checks whether the library is to read them"
    )]
    pub fn from_environment() -> Result<Option<Self>, ExporterBuildError> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if ENDPOINTS.iter().any(is_set) {
            Self::new(None).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Creates an exporter to a URL.
    pub fn to(url: &str) -> Result<Self, ExporterBuildError> {
        Self::new(Some(url))
    }

    fn new(url: Option<&str>) -> Result<Self, ExporterBuildError> {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpJson);
        if let Some(url) = url {
            exporter = exporter.with_endpoint(url);
        }
        let resource = Resource::builder()
            .with_service_name(NAME)
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter.build()?)
            .with_resource(resource.build())
            .build();
        Ok(Self {
            tracer: provider.tracer(NAME),
            provider,
            reconciles: BTreeMap::new(),
        })
    }

    /// Records an event of the controller.
    pub fn process(&mut self, event: &ControllerEvent) {
        match event {
            ControllerEvent::Fetched {
                repository, took, ..
            } => {
                let attributes = [("pleach.repository", repository.clone())];
                let span = self.span("fetch", ago(*took), None, attributes);
                span.span().end();
            }
            ControllerEvent::SourceUnreachable {
                repository,
                message,
            } => {
                let attributes = [("pleach.repository", repository.clone())];
                let span = self.span("fetch", SystemTime::now(), None, attributes);
                span.span().set_status(Status::error(message.clone()));
                span.span().end();
            }
            ControllerEvent::EnvironmentLoaded {
                environment,
                revision,
                took,
                ..
            }
            | ControllerEvent::EnvironmentUnchanged {
                environment,
                revision,
                took: Some(took),
                ..
            } => {
                let attributes = [
                    ("pleach.environment", environment.clone()),
                    ("pleach.revision", revision.clone()),
                ];
                let span = self.span("render", ago(*took), None, attributes);
                span.span().end();
            }
            ControllerEvent::ReconcileStarted { release } => {
                let attributes = [
                    ("pleach.environment", release.environment.clone()),
                    ("pleach.release", release.release.clone()),
                ];
                let reconcile = ReconcileSpan {
                    span: self.span("reconcile", SystemTime::now(), None, attributes),
                    apply: None,
                    waits: BTreeMap::new(),
                };
                self.reconciles.insert(release.clone(), reconcile);
            }
            ControllerEvent::Planned { release, took, .. } => {
                if let Some(reconcile) = self.reconciles.get(release) {
                    let span = self.span("plan", ago(*took), Some(&reconcile.span), []);
                    span.span().end();
                }
            }
            ControllerEvent::ReconcileFinished {
                release,
                revision,
                outcome,
                message,
                ..
            } => {
                if let Some(reconcile) = self.reconciles.remove(release) {
                    reconcile.end(revision, *outcome, message);
                }
            }
            _ => {}
        }
    }

    /// Records an event of a running sync.
    pub fn process_sync(&mut self, event: &SyncEvent) {
        let Some(mut reconcile) = self.reconciles.remove(&event.release) else {
            return;
        };
        match &event.kind {
            EventKind::Phase(Verb::Apply) => {
                reconcile.apply =
                    Some(self.span("apply", SystemTime::now(), Some(&reconcile.span), []));
            }
            EventKind::Waiting(step, state) if !reconcile.waits.contains_key(step) => {
                let parent = reconcile.apply.as_ref().unwrap_or(&reconcile.span);
                let attributes = [("pleach.object", state.object.to_string())];
                let wait = self.span("wait", ago(state.since), Some(parent), attributes);
                reconcile.waits.insert(*step, wait);
            }
            EventKind::Done(step, _, outcome) => {
                if let Some(wait) = reconcile.waits.remove(step) {
                    if let StepOutcome::Failed(failure) = outcome {
                        let message = failure.message.clone();
                        wait.span().set_status(Status::error(message));
                    }
                    wait.span().end();
                }
            }
            EventKind::Finished(_) => reconcile.end_apply(),
            _ => {}
        }
        self.reconciles.insert(event.release.clone(), reconcile);
    }

    /// Sends the remaining spans, with a time-out.
    pub async fn end(self) {
        let ending =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(DRAIN));
        if let Ok(Err(error)) = ending.await {
            tracing::debug!(%error, "failed to send traces");
        }
    }

    fn span<const N: usize>(
        &self,
        name: &'static str,
        since: SystemTime,
        parent: Option<&Context>,
        attributes: [(&'static str, String); N],
    ) -> Context {
        let attributes = attributes.map(|(key, value)| KeyValue::new(key, value));
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(since)
            .with_attributes(attributes);
        let none = Context::new();
        let parent = parent.unwrap_or(&none);
        let span = self.tracer.build_with_context(builder, parent);
        parent.with_span(span)
    }
}

impl ReconcileSpan {
    fn end_apply(&mut self) {
        for wait in std::mem::take(&mut self.waits).into_values() {
            wait.span().end();
        }
        if let Some(apply) = self.apply.take() {
            apply.span().end();
        }
    }

    fn end(mut self, revision: &str, outcome: ReconcileOutcome, message: &str) {
        self.end_apply();
        let span = self.span.span();
        span.set_attribute(KeyValue::new("pleach.revision", revision.to_owned()));
        span.set_attribute(KeyValue::new("pleach.result", outcome.as_str()));
        if matches!(
            outcome,
            ReconcileOutcome::Failed | ReconcileOutcome::Refused
        ) {
            span.set_status(Status::error(message.to_owned()));
        }
        span.end();
    }
}

fn ago(time: Duration) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(time).unwrap_or(now)
}
