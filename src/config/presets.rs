//! The presets of a route, and the senders of webhooks that `key_preset` names: tables, and nothing else.

use std::time::Duration;

use http::Method;
use http::header::HeaderName;

use super::statuses::Entry::{self, Class, Exact};
use super::statuses::Lists;
use super::{BodyMode, Forwarded, KeySource, OnUnknown, ReplayTo, ScopePart};

/// What a route is for: the defaults of its other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preset {
    /// Calls of an API by many callers.
    Api,
    /// Calls that move money: what is not certain is unknown.
    Payment,
    /// Deliveries that the sender repeats until it sees a 2xx.
    Webhook,
}

/// The words of `preset`.
pub(super) const PRESETS: [(&str, Preset); 3] =
    [("api", Preset::Api), ("payment", Preset::Payment), ("webhook", Preset::Webhook)];

/// The settings in which presets differ.
pub(super) struct Defaults {
    pub(super) methods: Vec<Method>,
    pub(super) key: Vec<KeySource>,
    pub(super) key_required: bool,
    pub(super) scope: Vec<ScopePart>,
    pub(super) replay_to: ReplayTo,
    pub(super) body: BodyMode,
    pub(super) wait_timeout: Duration,
    pub(super) statuses: Lists,
    pub(super) on_unknown: OnUnknown,
    pub(super) retention: Duration,
    pub(super) timeout: Duration,
    pub(super) abandon_after: Duration,
    pub(super) preserve_host: bool,
    pub(super) forwarded: Forwarded,
}

const DAY: u64 = 24 * 3600;

impl Preset {
    /// The preset's column of the table in the documentation.
    pub(super) fn defaults(self) -> Defaults {
        match self {
            Preset::Api => Defaults {
                methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
                key: vec![header("idempotency-key"), header("x-idempotency-key")],
                key_required: false,
                replay_to: ReplayTo::SameCredentials,
                scope: vec![caller("authorization"), caller("x-api-key"), caller("api-key")],
                body: BodyMode::Bytes,
                wait_timeout: Duration::from_secs(30),
                statuses: Lists {
                    record: classes(&[2, 3, 4, 5]),
                    release: [statuses(&NOT_EXECUTED), statuses(&[503])].concat(),
                    unknown: statuses(&[502, 504]),
                },
                on_unknown: OnUnknown::Hold,
                retention: Duration::from_secs(DAY),
                timeout: Duration::from_secs(30),
                abandon_after: Duration::from_secs(300),
                preserve_host: true,
                forwarded: Forwarded::Append,
            },
            Preset::Payment => Defaults {
                key_required: true,
                scope: Vec::new(),
                replay_to: ReplayTo::Scope,
                statuses: Lists {
                    record: classes(&[2, 3, 4]),
                    release: statuses(&NOT_EXECUTED),
                    unknown: classes(&[5]),
                },
                retention: Duration::from_secs(30 * DAY),
                timeout: Duration::from_secs(60),
                abandon_after: Duration::from_secs(600),
                preserve_host: false,
                forwarded: Forwarded::Drop,
                ..Preset::Api.defaults()
            },
            Preset::Webhook => Defaults {
                methods: vec![Method::POST],
                key: vec![
                    header("webhook-id"),
                    header("svix-id"),
                    header("x-github-delivery"),
                    header("x-shopify-event-id"),
                    header("x-amz-sns-message-id"),
                    header("i-twilio-idempotency-token"),
                    KeySource::Joined(vec![header("ce-source"), header("ce-id")]),
                    header("idempotency-key"),
                ],
                replay_to: ReplayTo::Scope,
                // Senders repeat to the same URL, and one event id goes to several.
                scope: vec![ScopePart::Host, ScopePart::Path],
                body: BodyMode::Ignore,
                wait_timeout: Duration::from_secs(10),
                statuses: Lists {
                    record: classes(&[2]),
                    release: [classes(&[3, 4]), statuses(&[500, 501, 503])].concat(),
                    unknown: classes(&[5]),
                },
                on_unknown: OnUnknown::Resend,
                retention: Duration::from_secs(7 * DAY),
                ..Preset::Api.defaults()
            },
        }
    }
}

/// A sender of webhooks, and where it puts what stays the same when it delivers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Github,
    Stripe,
    Shopify,
    StandardWebhooks,
    Svix,
    Twilio,
    AwsSns,
    CloudEvents,
    Gitlab,
    Adyen,
}

/// The words of `key_preset`.
pub(super) const SENDERS: [(&str, Sender); 10] = [
    ("github", Sender::Github),
    ("stripe", Sender::Stripe),
    ("shopify", Sender::Shopify),
    ("standard-webhooks", Sender::StandardWebhooks),
    ("svix", Sender::Svix),
    ("twilio", Sender::Twilio),
    ("aws-sns", Sender::AwsSns),
    ("cloudevents", Sender::CloudEvents),
    ("gitlab", Sender::Gitlab),
    ("adyen", Sender::Adyen),
];

impl Sender {
    /// Where its key is.
    pub(super) fn key(self) -> Vec<KeySource> {
        match self {
            Sender::Github => vec![header("x-github-delivery")],
            // The event's id; Stripe sends no header field with it.
            Sender::Stripe => vec![json("/id")],
            Sender::Shopify => vec![header("x-shopify-event-id")],
            Sender::StandardWebhooks => vec![header("webhook-id")],
            // Endpoints made since Svix joined Standard Webhooks may get the other name.
            Sender::Svix => vec![header("svix-id"), header("webhook-id")],
            Sender::Twilio => vec![header("i-twilio-idempotency-token")],
            Sender::AwsSns => vec![header("x-amz-sns-message-id")],
            // Binary mode has them in the header, structured mode in the body. An id is unique within its source only. In
            // binary mode the source is in the scope: it is any URI reference, and as part of a key a comma would be refused.
            Sender::CloudEvents => vec![header("ce-id"), KeySource::Joined(vec![json("/source"), json("/id")])],
            Sender::Gitlab => vec![header("idempotency-key")],
            // One payment has several events, and an AUTHORISATION may be reported as failed and later as successful.
            Sender::Adyen => {
                let item = |member| json(&format!("/notificationItems/0/NotificationRequestItem/{member}"));
                vec![KeySource::Joined(vec![item("eventCode"), item("pspReference"), item("success")])]
            }
        }
    }

    /// What must separate its keys besides the preset's scope.
    pub(super) fn scope(self) -> Vec<ScopePart> {
        match self {
            // Every hook and app that listens to an event gets it under one id, each with a payload of its own.
            Sender::Github => vec![caller("x-github-hook-id")],
            // One action in a shop sends one event id under each topic that follows from it.
            Sender::Shopify => vec![caller("x-shopify-shop-domain"), caller("x-shopify-topic")],
            Sender::AwsSns => vec![caller("x-amz-sns-topic-arn")],
            Sender::CloudEvents => vec![caller("ce-source")],
            Sender::Gitlab => vec![caller("x-gitlab-instance")],
            _ => Vec::new(),
        }
    }
}

/// What an API answers before it executes: a redirect that keeps the method, so that the client comes again elsewhere; no
/// leave; a precondition that failed and can be mended; too early, too fast, or to the wrong server.
const NOT_EXECUTED: [u16; 15] = [307, 308, 401, 403, 407, 408, 409, 412, 417, 421, 423, 425, 428, 429, 431];

fn header(name: &'static str) -> KeySource {
    KeySource::Header(HeaderName::from_static(name))
}

fn json(pointer: &str) -> KeySource {
    KeySource::Json(pointer.to_owned())
}

fn caller(name: &'static str) -> ScopePart {
    ScopePart::Header(HeaderName::from_static(name))
}

fn classes(numbers: &[u16]) -> Vec<Entry> {
    numbers.iter().copied().map(Class).collect()
}

fn statuses(numbers: &[u16]) -> Vec<Entry> {
    numbers.iter().copied().map(Exact).collect()
}
