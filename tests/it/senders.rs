//! The senders that `key_preset` names, with deliveries as each documents them: what stays the same when one event is
//! delivered again, what changes then, and what tells two events apart.
//!
//! A delivery that comes again has another signature, time and attempt; it runs once. Another event, or the same id from
//! another shop, topic or hook, runs too: a preset that takes two events for one swallows the second.

use crate::support::{Request, Store, World};

/// A delivery to the endpoint, with these fields.
fn delivery(fields: &[(&str, &str)], body: &str) -> Request {
    let request = Request::new("POST", "/hook").body(body);
    fields.iter().fold(request, |request, (name, value)| request.field(name, value))
}

/// Sends one event as often as its sender would, and then others, each once.
async fn delivered(sender: &str, same: &[Request], others: &[Request]) {
    let world = World::with(Store::Memory, &format!("preset = \"webhook\"\n key_preset = \"{sender}\"")).await;
    for (n, request) in same.iter().enumerate() {
        let answer = world.send(request).await;
        if n == 0 {
            answer.assert_executed(201)
        } else {
            answer.assert_replay(201)
        };
        assert_eq!(answer.field("Cache-Status").map(|status| status.contains("unprotected")), Some(false));
    }
    assert_eq!(world.executions(), 1, "{sender}: one event");
    for (n, other) in others.iter().enumerate() {
        world.send(other).await.assert_executed(201);
        assert_eq!(world.executions(), n + 2, "{sender}: another event");
    }
    for other in others {
        world.send(other).await.assert_replay(201);
    }
}

#[tokio::test]
async fn github_keeps_the_id_of_a_delivery_that_is_redelivered() {
    let event = |id: &str, hook: &str| {
        let fields = [
            ("X-GitHub-Delivery", id),
            ("X-GitHub-Hook-ID", hook),
            ("X-GitHub-Event", "pull_request"),
            ("X-GitHub-Hook-Installation-Target-Type", "integration"),
            ("Content-Type", "application/json"),
        ];
        delivery(&fields, r#"{"action":"opened","number":2}"#)
    };
    let (first, second) = ("72d3162e-cc78-11e3-81ab-4c9367dc0958", "0b989ba4-242f-11e5-81e1-c7b6966d2516");
    // Two apps of one repository get the same event under the same id, each with a payload of its own.
    let others = [event(second, "292430182"), event(first, "292430999")];
    delivered("github", &[event(first, "292430182"), event(first, "292430182")], &others).await;
}

#[tokio::test]
async fn stripe_signs_each_attempt_anew() {
    let event = |id: &str, time: &str| {
        let body = format!(
            r#"{{"id":"{id}","object":"event","type":"charge.succeeded","data":{{"object":{{"id":"ch_1"}}}}}}"#
        );
        let signature = format!("t={time},v1={}", "5f".repeat(32));
        delivery(&[("Stripe-Signature", &signature), ("Content-Type", "application/json; charset=utf-8")], &body)
    };
    let same = [event("evt_1NG8Du2eZvKYlo2C", "1795974456"), event("evt_1NG8Du2eZvKYlo2C", "1795978056")];
    delivered("stripe", &same, &[event("evt_1NG8Du2eZvKYlo2D", "1795974456")]).await;
}

#[tokio::test]
async fn shopify_sends_one_event_under_each_topic_that_follows_from_it() {
    let event = |id: &str, shop: &str, topic: &str, attempt: &str| {
        let fields = [
            ("X-Shopify-Event-Id", id),
            ("X-Shopify-Webhook-Id", attempt),
            ("X-Shopify-Shop-Domain", shop),
            ("X-Shopify-Topic", topic),
            ("X-Shopify-Hmac-Sha256", "XWmrwMey6OsLMeiZKwP4FppHH3cmAiiJJAweH5Jo4bM="),
            ("Content-Type", "application/json"),
        ];
        delivery(&fields, r#"{"id":820982911946154508}"#)
    };
    let (id, shop) = ("98880550-7158-44d4-b7cd-2c97c8a091b5", "one.myshopify.com");
    let same = [event(id, shop, "orders/create", "a"), event(id, shop, "orders/create", "b")];
    let others = [
        event(id, shop, "orders/paid", "c"),
        event(id, "two.myshopify.com", "orders/create", "d"),
        event("98880550-7158-44d4-b7cd-2c97c8a091b6", shop, "orders/create", "e"),
    ];
    delivered("shopify", &same, &others).await;
}

/// A message as the specification of Standard Webhooks has it, under these names.
fn standard(prefix: &str, id: &str, time: &str) -> Request {
    let named = ["id", "timestamp", "signature"].map(|part| format!("{prefix}-{part}"));
    let fields =
        [(&*named[0], id), (&*named[1], time), (&*named[2], "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=")];
    delivery(&fields, r#"{"type":"contact.created"}"#)
}

#[tokio::test]
async fn standard_webhooks_keep_the_id_and_change_the_time() {
    let same =
        [standard("webhook", "msg_27UH4WbU6Z5A", "1795974456"), standard("webhook", "msg_27UH4WbU6Z5A", "1795978056")];
    delivered("standard-webhooks", &same, &[standard("webhook", "msg_27UH4WbU6Z5B", "1795974456")]).await;
}

#[tokio::test]
async fn svix_has_a_name_of_its_own_and_the_standard_one() {
    let same = [standard("svix", "msg_p5jXN8AQM9LW", "1795974456"), standard("svix", "msg_p5jXN8AQM9LW", "1795978056")];
    let others =
        [standard("svix", "msg_p5jXN8AQM9LX", "1795974456"), standard("webhook", "msg_p5jXN8AQM9LY", "1795974456")];
    delivered("svix", &same, &others).await;
}

#[tokio::test]
async fn twilio_repeats_its_token_and_signs_the_form() {
    let event = |token: &str, status: &str| {
        let fields = [
            ("I-Twilio-Idempotency-Token", token),
            ("X-Twilio-Signature", "0/KCTR6DLpKmkAf8muzZqo1nDgQ="),
            ("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8"),
        ];
        delivery(&fields, &format!("MessageSid=SM1&MessageStatus={status}"))
    };
    let token = "9c4bbd8b-3ae9-4a1e-9e2e-5f4ad7a3e1a0";
    let other = event("9c4bbd8b-3ae9-4a1e-9e2e-5f4ad7a3e1a1", "delivered");
    delivered("twilio", &[event(token, "sent"), event(token, "sent")], &[other]).await;
}

#[tokio::test]
async fn aws_sns_keeps_the_id_of_a_message_and_sends_json_as_text() {
    let event = |id: &str, topic: &str| {
        let arn = format!("arn:aws:sns:us-west-2:123456789012:{topic}");
        let fields = [
            ("x-amz-sns-message-type", "Notification"),
            ("x-amz-sns-message-id", id),
            ("x-amz-sns-topic-arn", &arn),
            ("x-amz-sns-subscription-arn", &format!("{arn}:2bcfbf39-05c3-41de-beaa-fcfcc21c8f55")),
            ("Content-Type", "text/plain; charset=UTF-8"),
        ];
        delivery(&fields, &format!(r#"{{"Type":"Notification","MessageId":"{id}","Message":"hello"}}"#))
    };
    let id = "165545c9-2a5c-472c-8df2-7ff2be2b3b1b";
    let others = [event("165545c9-2a5c-472c-8df2-7ff2be2b3b1c", "Orders"), event(id, "Refunds")];
    delivered("aws-sns", &[event(id, "Orders"), event(id, "Orders")], &others).await;
}

#[tokio::test]
async fn cloudevents_in_the_header_are_told_apart_by_id_and_source() {
    let event = |source: &str, id: &str| {
        let fields = [
            ("ce-specversion", "1.0"),
            ("ce-type", "com.example.object.deleted"),
            ("ce-source", source),
            ("ce-id", id),
            ("Content-Type", "application/json"),
        ];
        delivery(&fields, "{}")
    };
    // A source is any URI reference, and those may have commas. Quotation marks and spaces come percent-encoded.
    let others = [event("/shops/a", "A235"), event("/shops/b", "A234"), event("/shops/a,b;c='%22d%22'", "A234")];
    delivered("cloudevents", &[event("/shops/a", "A234"), event("/shops/a", "A234")], &others).await;
}

#[tokio::test]
async fn cloudevents_in_the_body_are_told_apart_by_id_and_source() {
    let event = |source: &str, id: &str| {
        let body = format!(
            r#"{{"specversion":"1.0","type":"com.example.deleted","source":"{source}","id":"{id}","data":{{}}}}"#
        );
        delivery(&[("Content-Type", "application/cloudevents+json; charset=utf-8")], &body)
    };
    let others = [event("/shops/a", "A235"), event("/shops/b", "A234"), event("/shops/a,b", "A234")];
    delivered("cloudevents", &[event("/shops/a", "A234"), event("/shops/a", "A234")], &others).await;
}

#[tokio::test]
async fn gitlab_keeps_its_key_when_a_request_is_resent() {
    let event = |key: &str, instance: &str, request: &str| {
        let fields = [
            ("Idempotency-Key", key),
            ("X-Gitlab-Instance", instance),
            ("X-Gitlab-Webhook-UUID", request),
            ("X-Gitlab-Event-UUID", "13792a34-cac6-4fda-95a8-c58e00a3954e"),
            ("X-Gitlab-Event", "Push Hook"),
            ("Content-Type", "application/json"),
        ];
        delivery(&fields, r#"{"object_kind":"push"}"#)
    };
    let (key, instance) = ("f5e57ae6-5ef2-4d4e-8b1b-6d9a5f9e7f00", "https://gitlab.example.com");
    // One push sets off two hooks, and both have the event's UUID.
    let others =
        [event("f5e57ae6-5ef2-4d4e-8b1b-6d9a5f9e7f01", instance, "c"), event(key, "https://git.example.org", "d")];
    delivered("gitlab", &[event(key, instance, "a"), event(key, instance, "b")], &others).await;
}

#[tokio::test]
async fn adyen_repeats_an_event_under_its_code_reference_and_success() {
    let event = |code: &str, reference: &str, success: &str| {
        let item = format!(
            r#"{{"eventCode":"{code}","pspReference":"{reference}","success":"{success}","eventDate":"2026-11-29T17:00:00+01:00","amount":{{"currency":"EUR","value":1999}}}}"#
        );
        let body = format!(r#"{{"live":"false","notificationItems":[{{"NotificationRequestItem":{item}}}]}}"#);
        delivery(&[("Content-Type", "application/json; charset=utf-8")], &body)
    };
    let same =
        [event("AUTHORISATION", "7914073381342284", "false"), event("AUTHORISATION", "7914073381342284", "false")];
    // A payment that was refused may be authorised later, under the same reference.
    let others = [
        event("AUTHORISATION", "7914073381342284", "true"),
        event("CAPTURE", "7914073381342284", "true"),
        event("AUTHORISATION", "7914073381342285", "false"),
    ];
    delivered("adyen", &same, &others).await;
}

#[tokio::test]
async fn a_failed_delivery_of_any_sender_runs_again() {
    let world = World::with(Store::Memory, "preset = \"webhook\"\n key_preset = \"github\"").await;
    let event = delivery(&[("X-GitHub-Delivery", "72d3162e"), ("X-GitHub-Hook-ID", "1")], "{}");
    world.upstream.next(crate::support::reply(500));
    world.send(&event).await.assert_executed(500);
    world.send(&event).await.assert_executed(201);
    world.send(&event).await.assert_replay(201);
}
