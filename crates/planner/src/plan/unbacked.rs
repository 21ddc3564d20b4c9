//! Registrations of the release without a Service. Every intercepted request
//! fails, and no apply changes that.

use super::draft::Ctx;
use super::phases::Bracketed;
use pleach_formats::policy::RuntimeObject;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ServiceRef};

/// Warns about Services that a registration references and that exist neither
/// in the release nor in the cluster.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    for (&id, facts) in &ctx.facts {
        for service in &facts.services {
            if !is_missing(ctx, service) {
                continue;
            }
            let message = format!(
                "Service {service}, which it points at, is neither in git nor in the cluster"
            );
            let mut finding = Finding::warning(Kind::Repository, "registration-without-service", message)
                .on(id.clone())
                .hint("add the Service to the files, or remove the registration from them: requests that it intercepts fail until then");
            if let Some(manifest) = ctx.manifests.get(id) {
                finding = finding.at(manifest.origin().clone());
            }
            draft.findings.push(finding);
        }
    }
}

/// Returns whether a Service was not found and nothing will create it.
fn is_missing(ctx: &Ctx<'_>, service: &ServiceRef) -> bool {
    let id = service.id();
    let backend = ctx.observed.backends.get(service);
    let is_absent = backend.is_some_and(|backend| !backend.exists);
    is_absent
        && !ctx.is_desired(&id)
        && !ctx.desired.terms.prior_releases.has_service(&id)
        && !is_made_at_run_time(&ctx.desired.runtime_objects, &id)
}

fn is_made_at_run_time(objects: &[RuntimeObject], id: &ObjectId) -> bool {
    let mut objects = objects.iter();
    objects.any(|one| {
        one.name.as_ref() == Some(&id.name) && one.group_kind().as_ref() == Some(&id.group_kind())
    })
}
