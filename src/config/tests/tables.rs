//! The table of presets, the senders, and what status lists mean: held against the words of the documentation.

use std::time::Duration;

use super::presets::{PRESETS, SENDERS};
use super::*;

fn only_route(lines: &str) -> Arc<Route> {
    loaded(&route_with(lines)).config.routes[0].clone()
}

/// The lines of `effective` for one route that begin with one of these keys.
fn printed(lines: &str, keys: &[&str]) -> Vec<String> {
    let all = effective(&loaded(&route_with(lines)).config);
    let route = all.split("[[route]]").nth(1).unwrap();
    keys.iter()
        .map(|key| route.lines().find(|line| line.starts_with(&format!("{key} ="))).unwrap_or("-").to_owned())
        .collect()
}

fn assert_presets(key: &str, values: [&str; 3]) {
    for ((preset, _), value) in PRESETS.iter().zip(values) {
        let line = printed(&format!("preset = \"{preset}\""), &[key]).concat();
        assert_eq!(line, format!("{key} = {value}"), "preset {preset}");
    }
}

#[test]
fn presets_differ_as_documented() {
    let methods = r#"["POST", "PUT", "PATCH", "DELETE"]"#;
    assert_presets("methods", [methods, methods, r#"["POST"]"#]);
    let webhook = r#"["header:webhook-id", "header:svix-id", "header:x-github-delivery", "header:x-shopify-event-id", "header:x-amz-sns-message-id", "header:i-twilio-idempotency-token", ["header:ce-source", "header:ce-id"], "header:idempotency-key"]"#;
    let key = r#"["header:idempotency-key", "header:x-idempotency-key"]"#;
    assert_presets("key", [key, key, webhook]);
    assert_presets("key_required", ["false", "true", "false"]);
    assert_presets("max_key_length", ["255"; 3]);
    assert_presets("replay_to", [r#""same-credentials""#, r#""scope""#, r#""scope""#]);
    let operation = r#"["x-http-method-override", "x-method-override", "x-amz-target", "soapaction"]"#;
    assert_presets("fingerprint.headers", [operation; 3]);
    assert_presets("fingerprint.ignore_query", ["[]"; 3]);
    let credentials = r#"["header:authorization", "header:x-api-key", "header:api-key"]"#;
    assert_presets("scope", [credentials, "[]", r#"["host", "path"]"#]);
    assert_presets("fingerprint.body", [r#""bytes""#, r#""bytes""#, r#""ignore""#]);
    assert_presets("on_duplicate", [r#""wait""#; 3]);
    assert_presets("wait_timeout", [r#""30s""#, r#""30s""#, r#""10s""#]);
    let streams = r#"["text/event-stream", "application/x-ndjson", "application/jsonl", "application/json-seq", "multipart/x-mixed-replace"]"#;
    assert_presets("stream_types", [streams; 3]);
    assert_presets("on_unknown", [r#""hold""#, r#""hold""#, r#""resend""#]);
    assert_presets("retention", [r#""1d""#, r#""30d""#, r#""7d""#]);
    assert_presets("unknown_retention", [r#""never""#; 3]);
    assert_presets("timeout", [r#""30s""#, r#""1m""#, r#""30s""#]);
    assert_presets("abandon_after", [r#""5m""#, r#""10m""#, r#""5m""#]);
    assert_presets("lease", [r#""10s""#; 3]);
    assert_presets("max_request_body", [r#""8MiB""#; 3]);
    assert_presets("max_response_body", [r#""1MiB""#; 3]);
    assert_presets("on_store_error", [r#""reject""#; 3]);
    assert_presets("keep_headers", ["[]"; 3]);
    assert_presets("cors_origins", ["[]"; 3]);
    assert_presets("forward_key", [r#""same""#; 3]);
    assert_presets("preserve_host", ["true", "false", "true"]);
    assert_presets("underscores", [r#""drop""#; 3]);
    assert_presets("forwarded", [r#""append""#, r#""drop""#, r#""append""#]);
    assert_presets("connect_timeout", [r#""5s""#; 3]);
    assert_presets("idle_timeout", [r#""4s""#; 3]);
}

/// The statuses from 200 to 599 with this verdict.
fn with_verdict(policy: &StatusPolicy, verdict: Verdict) -> Vec<u16> {
    (200..600).filter(|status| policy.verdict(*status) == verdict).collect()
}

#[test]
fn presets_judge_statuses_as_documented() {
    let not_executed = vec![307, 308, 401, 403, 407, 408, 409, 412, 417, 421, 423, 425, 428, 429, 431];
    let api = only_route("").statuses.clone();
    assert_eq!(with_verdict(&api, Verdict::Release), [not_executed.clone(), vec![503]].concat());
    assert_eq!(with_verdict(&api, Verdict::Unknown), [502, 504]);
    let payment = only_route("preset = \"payment\"").statuses.clone();
    assert_eq!(with_verdict(&payment, Verdict::Release), not_executed);
    assert_eq!(with_verdict(&payment, Verdict::Unknown), (500..600).collect::<Vec<_>>());
    let webhook = only_route("preset = \"webhook\"").statuses.clone();
    assert_eq!(with_verdict(&webhook, Verdict::Record), (200..300).collect::<Vec<_>>());
    let released: Vec<_> = (300..500).chain([500, 501, 503]).collect();
    assert_eq!(with_verdict(&webhook, Verdict::Release), released);
    for policy in [api, payment, webhook] {
        for status in [101, 600, 999] {
            assert_eq!(policy.verdict(status), Verdict::Unknown);
        }
    }
}

#[test]
fn an_exact_status_beats_its_class_in_whatever_list() {
    let policy = only_route("record = [\"404\"]\nrelease = [\"4xx\"]").statuses.clone();
    assert_eq!(policy.verdict(404), Verdict::Record);
    assert_eq!(policy.verdict(400), Verdict::Release);
    let policy = only_route("record = [\"4xx\"]\nrelease = [\"404\"]").statuses.clone();
    assert_eq!(policy.verdict(404), Verdict::Release);
    assert_eq!(policy.verdict(400), Verdict::Record);
}

#[test]
fn a_list_replaces_the_presets_and_its_entries_leave_the_others() {
    let policy = only_route("unknown = [\"429\"]").statuses.clone();
    assert_eq!(policy.verdict(429), Verdict::Unknown);
    assert_eq!(policy.verdict(503), Verdict::Release, "the other entries stay");
    assert_eq!(policy.verdict(502), Verdict::Record, "a status in no list is recorded");
    let policy = only_route("preset = \"payment\"\nrelease = [\"5xx\"]").statuses.clone();
    assert_eq!(policy.verdict(500), Verdict::Release, "the class left the preset's unknown");
    assert_eq!(policy.verdict(429), Verdict::Record, "the preset's list is gone");
}

#[test]
fn both_orders_of_two_own_lists_give_the_same() {
    let one = only_route("record = [\"429\"]\nunknown = [\"4xx\", \"502\"]\nrelease = [\"503\"]");
    let other = only_route("release = [\"503\"]\nunknown = [\"502\", \"4xx\"]\nrecord = [\"429\"]");
    assert!(one.statuses == other.statuses);
    assert_eq!(one.statuses.verdict(429), Verdict::Record);
    assert_eq!(one.statuses.verdict(409), Verdict::Unknown);
}

#[test]
fn every_sender_has_its_key_and_scope() {
    let expected = [
        ("github", r#"["header:x-github-delivery"]"#, r#"["host", "path", "header:x-github-hook-id"]"#),
        ("stripe", r#"["json:/id"]"#, r#"["host", "path"]"#),
        (
            "shopify",
            r#"["header:x-shopify-event-id"]"#,
            r#"["host", "path", "header:x-shopify-shop-domain", "header:x-shopify-topic"]"#,
        ),
        ("standard-webhooks", r#"["header:webhook-id"]"#, r#"["host", "path"]"#),
        ("svix", r#"["header:svix-id", "header:webhook-id"]"#, r#"["host", "path"]"#),
        ("twilio", r#"["header:i-twilio-idempotency-token"]"#, r#"["host", "path"]"#),
        ("aws-sns", r#"["header:x-amz-sns-message-id"]"#, r#"["host", "path", "header:x-amz-sns-topic-arn"]"#),
        ("cloudevents", r#"["header:ce-id", ["json:/source", "json:/id"]]"#, r#"["host", "path", "header:ce-source"]"#),
        ("gitlab", r#"["header:idempotency-key"]"#, r#"["host", "path", "header:x-gitlab-instance"]"#),
        (
            "adyen",
            r#"[["json:/notificationItems/0/NotificationRequestItem/eventCode", "json:/notificationItems/0/NotificationRequestItem/pspReference", "json:/notificationItems/0/NotificationRequestItem/success"]]"#,
            r#"["host", "path"]"#,
        ),
    ];
    assert_eq!(expected.map(|(name, _, _)| name), SENDERS.map(|(name, _)| name));
    for (name, key, scope) in expected {
        let lines = format!("preset = \"webhook\"\nkey_preset = \"{name}\"");
        assert_eq!(printed(&lines, &["key", "scope"]), [format!("key = {key}"), format!("scope = {scope}")], "{name}");
    }
}

#[test]
fn a_scope_of_the_routes_own_replaces_the_senders() {
    let route = only_route("preset = \"webhook\"\nkey_preset = \"shopify\"\nscope = [\"query:shop\"]");
    assert_eq!(route.scope, [ScopePart::Query("shop".into())]);
}

#[test]
fn limits_of_ten_years_and_of_a_gibibyte_can_be_set() {
    let route = only_route("retention = \"3650d\"\nmax_response_body = \"1GiB\"");
    assert_eq!(route.retention, Duration::from_secs(3650 * 86400));
    assert_eq!(route.max_response_body, 1 << 30);
}
