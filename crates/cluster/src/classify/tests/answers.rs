//! Tests of the conclusions from an answer: retries, predictions and messages.

use rstest::rstest;

use super::*;

#[test]
fn an_expired_list_may_bring_a_fresh_token() {
    let status = from(&json!({"kind": "Status", "code": 410, "reason": "Expired",
        "metadata": {"continue": "fresh"}, "message": EXPIRED}));
    assert_eq!(
        of(Verb::List, "Pod", 410, &status),
        Class::Expired {
            continue_token: Some("fresh".to_owned())
        }
    );
}

#[rstest]
// Waiting does not fix a failed precondition.
#[case(Class::StaleResourceVersion, Verb::Apply, true, false)]
#[case(Class::StaleResourceVersion, Verb::Apply, false, true)]
#[case(Class::Conflict, Verb::Patch, true, false)]
// A patch is not idempotent.
#[case(Class::Timeout, Verb::Patch, false, false)]
#[case(Class::Interrupted, Verb::Patch, false, false)]
#[case(Class::Unreachable, Verb::Patch, false, true)]
#[case(Class::TooManyRequests, Verb::Patch, true, true)]
#[case(Class::Timeout, Verb::Apply, false, true)]
#[case(Class::Timeout, Verb::Create, false, true)]
#[case(Class::Timeout, Verb::Delete, true, true)]
// A diff reports an unavailable webhook at once.
#[case(Class::WebhookUnavailable(String::new()), Verb::DryRun, false, false)]
#[case(Class::WebhookUnavailable(String::new()), Verb::Review, false, false)]
#[case(Class::WebhookUnavailable(String::new()), Verb::Apply, false, true)]
#[case(Class::Forbidden, Verb::Get, false, false)]
#[case(Class::PreconditionFailed(Failed::Uid), Verb::Delete, true, false)]
fn repetitions(
    #[case] class: Class,
    #[case] verb: Verb,
    #[case] conditional: bool,
    #[case] expected: bool,
) {
    assert_eq!(class.may_repeat(verb, conditional), expected);
}

fn refused(verb: Verb, http: u16, reason: &str, message: &str) -> ApiError {
    let status = status(http, reason, message);
    let question = Question {
        verb,
        kind: "ConfigMap",
    };
    classify(question, http, Some(status), String::new(), None)
}

fn plain(http: u16, text: &str) -> ApiError {
    let question = Question {
        verb: Verb::DryRun,
        kind: "ConfigMap",
    };
    classify(question, http, None, text.to_owned(), None)
}

#[test]
fn predictions_name_the_unverified_part() {
    let unverified = |error: &ApiError| match error.prediction() {
        Some(Prediction::Unverified(why)) => why,
        other => panic!("{other:?}"),
    };
    let down = refused(Verb::DryRun, 500, "InternalError", WEBHOOK_NO_ENDPOINTS);
    assert_eq!(
        unverified(&down),
        Unverified::Webhook(WEBHOOK_NO_ENDPOINTS.to_owned())
    );
    let recorded = refused(Verb::DryRun, 500, "", PRUNED);
    assert_eq!(
        unverified(&recorded),
        Unverified::Recorded(PRUNED.to_owned())
    );
    assert_eq!(recorded.class.finding_kind(), Kind::Cluster);
    let missing = plain(404, "404 page not found");
    assert_eq!(unverified(&missing), Unverified::KindMissing);
    assert_eq!(missing.listing(), Listing::NotServed);
    let dead = plain(503, "service unavailable");
    assert_eq!(unverified(&dead), Unverified::ApiStale);
    assert_eq!(
        dead.listing(),
        Listing::Failed("service unavailable".to_owned())
    );
}

#[test]
fn refusals_keep_the_servers_words() {
    let error = refused(Verb::DryRun, 500, "", TYPED);
    let Some(Prediction::Refused(refusal)) = error.prediction() else {
        panic!("not refused");
    };
    assert_eq!((refusal.code, refusal.message.as_str()), (500, TYPED));
    assert_eq!(error.class.finding_kind(), Kind::Repository);
}

#[test]
fn a_failed_observation_predicts_nothing() {
    for (http, reason) in [(401, "Unauthorized"), (429, "TooManyRequests")] {
        let error = refused(Verb::DryRun, http, reason, "no");
        assert!(error.prediction().is_none(), "{http}");
    }
    let error = refused(Verb::List, 403, "Forbidden", BY_USER);
    assert_eq!(error.listing(), Listing::Forbidden(BY_USER.to_owned()));
}

#[test]
fn evictions_are_refused_for_now_or_for_good() {
    let question = Question {
        verb: Verb::Delete,
        kind: "Pod",
    };
    let of = |http: u16, status: &Value| {
        classify(question, http, Some(from(status)), String::new(), None).class
    };
    let cause = "The disruption budget app needs 3 healthy pods and has 3 currently";
    let refused = json!({"kind": "Status", "code": 429, "reason": "TooManyRequests",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": cause}]}});
    assert_eq!(of(429, &refused), Class::DisruptionBudget(cause.to_owned()));
    let overloaded = json!({"kind": "Status", "code": 429, "reason": "TooManyRequests",
        "message": "too many requests"});
    assert_eq!(of(429, &overloaded), Class::TooManyRequests);
    let several = json!({"kind": "Status", "code": 500, "reason": "InternalError",
        "message": "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."});
    assert_eq!(of(500, &several), Class::SeveralBudgets);
}

#[test]
fn messages_about_secrets_come_without_values() {
    let status = from(&json!({"kind": "Status", "code": 422, "reason": "Invalid",
        "message": "Secret \"db\" is invalid: data[k]: Invalid value: \"hunter2\": field is immutable",
        "details": {"causes": [{"field": "data", "reason": "FieldValueInvalid",
            "message": "Invalid value: \"hunter2\": field is immutable when `immutable` is set"}]}}));
    let question = Question {
        verb: Verb::Apply,
        kind: "Secret",
    };
    let mask = Mask::default();
    let error = classify(question, 422, Some(status), String::new(), Some(&mask));
    assert!(matches!(error.class, Class::Immutable(_)));
    assert!(!format!("{error:?} {error}").contains("hunter2"), "{error}");
    assert!(error.message.starts_with("Secret \"db\" is invalid"));
}
