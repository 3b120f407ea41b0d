//! `[route.verify]`: how the sender of webhooks signs what it sends, and the secrets that prove it.
//!
//! A sender is named (`preset`), or its HMAC is spelled out (`hmac`). The named ones but Twilio are such HMACs too, so that
//! what verifies them knows no sender. Secrets stay where they are: a file or a variable is named, never the secret.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use http::header::HeaderName;
use secrecy::SecretString;
use toml::Value;
use toml::de::DeValue;

use super::Environment;
use super::mistakes::{Origin, Wrong, wrong};
use super::signed::{print_template, template};
use super::tree::Section;
use super::values::{at_least, choice, choice_of_names, field_name, word};

/// What a route demands of webhooks.
#[derive(Clone, Debug)]
pub struct Verify {
    /// How the sender signs.
    pub scheme: Scheme,
    /// The sender, if it was named.
    pub(super) signer: Option<Signer>,
    /// One of these must have signed. At least one; several while they rotate.
    pub secrets: Vec<SecretSource>,
    /// How far the time under the signature may be from now, to either side, where there is one. Default 5 min.
    pub tolerance: Duration,
}

impl Verify {
    /// The files that have secrets.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.secrets.iter().filter_map(|secret| match secret {
            SecretSource::File(path) => Some(path.as_path()),
            SecretSource::Variable { .. } => None,
        })
    }
}

/// How a sender signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// By an HMAC over the body, and what else is in its template.
    Hmac(Box<Hmac>),
    /// Twilio's way: over the URL that it called, and the form's parameters or a digest of the body.
    Twilio {
        /// The scheme, the host and what else stands before the target of requests in the URL as the sender knows it;
        /// `None` where that is what requests say.
        url: Option<String>,
    },
}

/// A signature by HMAC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hmac {
    /// The field with the signature, or with several.
    pub header: HeaderName,
    /// The hash. Default SHA-256.
    pub algorithm: Algorithm,
    /// How the signature is written. Default hex.
    pub encoding: Encoding,
    /// What stands before a signature; other entries of the field are other signatures. Default nothing.
    pub prefix: String,
    /// What stands between entries of the field; `None` where it has one. Default none.
    pub separator: Option<String>,
    /// What is signed. Default the body.
    pub signed: Vec<SignedPart>,
    /// Where the time is. Default nowhere.
    pub time: Option<TimeOf>,
    /// The field with the id that is signed. Default none.
    pub id_header: Option<HeaderName>,
    /// How a secret is written. Default as text.
    pub secret_encoding: SecretEncoding,
}

/// The hash of an HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// How a signature is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Hexadecimal digits of either case.
    Hex,
    /// Base64 with its padding.
    Base64,
}

/// How a secret is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretEncoding {
    /// The text is the key.
    Text,
    /// Hexadecimal digits.
    Hex,
    /// Base64; `whsec_` may stand before it.
    Base64,
}

/// A piece of what is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignedPart {
    /// These characters.
    Text(String),
    /// The body as it came.
    Body,
    /// The time as it came.
    Timestamp,
    /// The id as it came.
    Id,
}

/// Where the time of a delivery is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeOf {
    /// In a field of its own.
    Header(HeaderName),
    /// In the field of the signature, in the entry that begins like this.
    Entry(String),
}

/// Where a secret is.
#[derive(Clone, Debug)]
pub enum SecretSource {
    /// In a file, which is read again when it changes.
    File(PathBuf),
    /// In a variable of the environment.
    Variable {
        /// Its name.
        name: String,
        /// What it held when the settings were read.
        value: SecretString,
    },
}

/// A sender by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    Github,
    Stripe,
    Shopify,
    StandardWebhooks,
    Svix,
    Slack,
    Twilio,
}

/// The words of `verify.preset`.
pub(super) const SIGNERS: [(&str, Signer); 7] = [
    ("github", Signer::Github),
    ("stripe", Signer::Stripe),
    ("shopify", Signer::Shopify),
    ("standard-webhooks", Signer::StandardWebhooks),
    ("svix", Signer::Svix),
    ("slack", Signer::Slack),
    ("twilio", Signer::Twilio),
];
const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("sha256", Algorithm::Sha256),
    ("sha1", Algorithm::Sha1),
    ("sha384", Algorithm::Sha384),
    ("sha512", Algorithm::Sha512),
];
const ENCODINGS: [(&str, Encoding); 2] = [("hex", Encoding::Hex), ("base64", Encoding::Base64)];
const SECRET_ENCODINGS: [(&str, SecretEncoding); 3] =
    [("text", SecretEncoding::Text), ("hex", SecretEncoding::Hex), ("base64", SecretEncoding::Base64)];

const SECOND: Duration = Duration::from_secs(1);
const TOLERANCE: Duration = Duration::from_secs(300);

impl Signer {
    /// Whether the id of a delivery is under its signature, where the `key_preset` of the same name looks for it.
    pub(super) fn signs_id(self) -> bool {
        matches!(self, Signer::Stripe | Signer::StandardWebhooks | Signer::Svix)
    }

    /// How it signs, by its own documentation.
    fn scheme(self, url: Option<String>) -> Scheme {
        Scheme::Hmac(Box::new(match self {
            Signer::Twilio => return Scheme::Twilio { url },
            Signer::Github => Hmac { prefix: "sha256=".into(), ..Hmac::of("x-hub-signature-256") },
            Signer::Shopify => Hmac { encoding: Encoding::Base64, ..Hmac::of("x-shopify-hmac-sha256") },
            Signer::Stripe => Hmac {
                prefix: "v1=".into(),
                separator: Some(",".into()),
                signed: vec![SignedPart::Timestamp, SignedPart::Text(".".into()), SignedPart::Body],
                time: Some(TimeOf::Entry("t=".into())),
                ..Hmac::of("stripe-signature")
            },
            Signer::Slack => Hmac {
                prefix: "v0=".into(),
                signed: vec![
                    SignedPart::Text("v0:".into()),
                    SignedPart::Timestamp,
                    SignedPart::Text(":".into()),
                    SignedPart::Body,
                ],
                time: Some(TimeOf::Header(HeaderName::from_static("x-slack-request-timestamp"))),
                ..Hmac::of("x-slack-signature")
            },
            Signer::StandardWebhooks => standard("webhook-signature", "webhook-timestamp", "webhook-id"),
            Signer::Svix => standard("svix-signature", "svix-timestamp", "svix-id"),
        }))
    }
}

/// Standard Webhooks, by the names of its fields.
fn standard(signature: &'static str, timestamp: &'static str, id: &'static str) -> Hmac {
    let dot = || SignedPart::Text(".".into());
    Hmac {
        encoding: Encoding::Base64,
        prefix: "v1,".into(),
        separator: Some(" ".into()),
        signed: vec![SignedPart::Id, dot(), SignedPart::Timestamp, dot(), SignedPart::Body],
        time: Some(TimeOf::Header(HeaderName::from_static(timestamp))),
        id_header: Some(HeaderName::from_static(id)),
        secret_encoding: SecretEncoding::Base64,
        ..Hmac::of(signature)
    }
}

impl Hmac {
    fn of(header: &'static str) -> Hmac {
        Hmac::in_field(HeaderName::from_static(header))
    }

    /// SHA-256 over the body, in hex.
    fn in_field(header: HeaderName) -> Hmac {
        Hmac {
            header,
            algorithm: Algorithm::Sha256,
            encoding: Encoding::Hex,
            prefix: String::new(),
            separator: None,
            signed: vec![SignedPart::Body],
            time: None,
            id_header: None,
            secret_encoding: SecretEncoding::Text,
        }
    }
}

impl Scheme {
    /// Whether a time is under the signature.
    fn has_time(&self) -> bool {
        matches!(self, Scheme::Hmac(hmac) if hmac.time.is_some())
    }
}

/// Reads `[route.verify]`; `None` where the route demands nothing.
pub(super) fn read(route: &mut Section<'_>, environment: &Environment) -> Option<Verify> {
    let is_written = route.has("verify");
    let mut section = route.section("verify");
    // Something else than a section is reported already, and stands nowhere.
    let is_given = is_written && section.head != Origin::BuiltIn;
    let signer = section.text("preset", choice_of_names(&SIGNERS)).map(|located| located.value);
    let is_spelled = section.has("hmac");
    let spelled = hmac(&mut section, is_spelled);
    let secrets = secrets(&mut section, environment);
    let tolerance = section.text("tolerance", at_least(SECOND)).map(|located| located.value);
    let url = section.text("url", public_url).map(|located| located.value);
    let scheme = signer.map(|signer| signer.scheme(url)).or(spelled.map(|hmac| Scheme::Hmac(Box::new(hmac))));
    if is_given {
        if secrets.is_empty() && !section.has("secrets") {
            let right = "add secrets = [{ file = \"/run/secrets/NAME\" }]";
            section.mistake("secrets", wrong("without a secret nothing can be verified", right));
        }
        contradictions(&section, signer, scheme.as_ref());
    }
    section.finish();
    Some(Verify { scheme: scheme.filter(|_| is_given)?, signer, secrets, tolerance: tolerance.unwrap_or(TOLERANCE) })
}

fn contradictions(section: &Section<'_>, signer: Option<Signer>, scheme: Option<&Scheme>) {
    match (section.has("preset"), section.has("hmac")) {
        (true, true) => {
            let what = wrong("`preset` and `hmac` both say how the sender signs", "keep one of them");
            section.mistake("hmac", what);
        }
        (false, false) => {
            let right = "set preset = \"github\" or another sender, or spell it out under [route.verify.hmac]";
            section.mistake("preset", wrong("it is not said how the sender signs", right));
        }
        _ => {}
    }
    if section.has("tolerance") && scheme.is_some_and(|scheme| !scheme.has_time()) {
        let what = wrong("this sender signs no time, so a delivery has no age", "take it out");
        section.mistake("tolerance", what);
    }
    if section.has("url") && signer != Some(Signer::Twilio) && section.has("preset") | section.has("hmac") {
        section.mistake("url", wrong("only Twilio signs the URL", "take it out"));
    }
}

fn hmac(verify: &mut Section<'_>, is_given: bool) -> Option<Hmac> {
    let mut section = verify.section("hmac");
    let header = section.text("header", field_name).map(|located| located.value);
    if is_given && header.is_none() && !section.has("header") {
        let right = "add header = \"X-Signature\", the field that the sender puts it in";
        section.mistake("header", wrong("it is not said where the signature is", right));
    }
    let usual = Hmac::of("x-signature");
    let time_header = section.text("timestamp_header", field_name).map(|located| TimeOf::Header(located.value));
    let time_entry = section.text("timestamp_prefix", affix).map(|located| TimeOf::Entry(located.value));
    let hmac = Hmac {
        algorithm: section.text("algorithm", choice(&ALGORITHMS)).map_or(usual.algorithm, |located| located.value),
        encoding: section.text("encoding", choice(&ENCODINGS)).map_or(usual.encoding, |located| located.value),
        prefix: section.text("prefix", affix).map_or(usual.prefix, |located| located.value),
        separator: section.text("separator", affix).map(|located| located.value),
        signed: section.text("signed", template).map_or(usual.signed, |located| located.value),
        time: time_header.or(time_entry),
        id_header: section.text("id_header", field_name).map(|located| located.value),
        secret_encoding: section
            .text("secret_encoding", choice(&SECRET_ENCODINGS))
            .map_or(usual.secret_encoding, |located| located.value),
        header: header.clone().unwrap_or(usual.header),
    };
    if is_given {
        of_parts(&section, &hmac);
    }
    section.finish();
    header.map(|_| hmac)
}

/// What is signed and where it is must fit together.
fn of_parts(section: &Section<'_>, hmac: &Hmac) {
    let mistake = |key: &str, what: &str, right: &str| section.mistake(key, wrong(what, right));
    let (times, ids) = (["timestamp_header", "timestamp_prefix"], section.has("id_header"));
    let signs = |part: &SignedPart| hmac.signed.contains(part);
    match times.map(|key| section.has(key)) {
        [true, true] => {
            mistake("timestamp_prefix", "`timestamp_header` says where the time is too", "keep one of them");
        }
        [false, false] if signs(&SignedPart::Timestamp) => {
            mistake("signed", "it is not said where {timestamp} is", "add timestamp_header, or timestamp_prefix");
        }
        [_, true] if hmac.separator.is_none() => {
            let right = "add separator, such as \",\"";
            mistake("timestamp_prefix", "the field of the signature has one entry, which is the signature", right);
        }
        given if given.contains(&true) && !signs(&SignedPart::Timestamp) => {
            let key = times[usize::from(given[1])];
            mistake(key, "a time that is not signed proves nothing", "put {timestamp} into `signed`, or take it out");
        }
        _ => {}
    }
    if ids && !signs(&SignedPart::Id) {
        mistake("id_header", "an id that is not signed proves nothing", "put {id} into `signed`, or take it out");
    }
    if !ids && signs(&SignedPart::Id) {
        mistake("signed", "it is not said where {id} is", "add id_header");
    }
}

/// Parses what stands before or between signatures in their field.
fn affix(text: &str) -> Result<String, Wrong> {
    if !text.is_empty() && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(wrong(format!("{text:?} cannot stand in a field"), "write visible ASCII characters, or take it out"))
}

/// Where a secret is, before the environment was asked.
#[derive(PartialEq, Eq)]
enum Place {
    File(String),
    Variable(String),
}

/// Reads `secrets`. No message shows what stands there: it may be a secret.
fn secrets(section: &mut Section<'_>, environment: &Environment) -> Vec<SecretSource> {
    let places = section.read("secrets", |value| {
        let right = "write [{ file = \"/run/secrets/NAME\" }], or [{ env = \"NAME\" }]";
        let entries = value.as_array().ok_or_else(|| wrong("this is not a list of places of secrets", right))?;
        let mut places = Vec::new();
        for entry in entries.iter() {
            let entry = entry.get_ref();
            if entry.as_table().is_some_and(|entry| entry.contains_key("file") && entry.contains_key("env")) {
                return Err(wrong("an entry says by `file` and by `env` where a secret is", "keep one of them"));
            }
            let place = place(entry).ok_or_else(|| {
                let right = format!("do not write the secret here; {right}");
                wrong("an entry does not say where a secret is", right)
            })?;
            if places.contains(&place) {
                return Err(wrong("a secret is named twice", "name it once"));
            }
            places.push(place);
        }
        if places.is_empty() { Err(wrong("the list is empty, so nothing can be verified", right)) } else { Ok(places) }
    });
    let places = places.map(|located| located.value).unwrap_or_default();
    let found = places.into_iter().filter_map(|place| match place {
        Place::File(path) => Some(SecretSource::File(path.into())),
        Place::Variable(name) => match environment.other(&name) {
            Some(value) => Some(SecretSource::Variable { name, value: value.into() }),
            None => {
                let what = format!("the variable {name} of the environment is not set, or not UTF-8");
                section.mistake("secrets", wrong(what, "set it, or name a file"));
                None
            }
        },
    });
    found.collect()
}

fn place(entry: &DeValue<'_>) -> Option<Place> {
    let mut members = entry.as_table()?.iter();
    let ((key, value), None) = (members.next()?, members.next()) else { return None };
    let text = value.get_ref().as_str().filter(|text| !text.is_empty())?.to_owned();
    match key.get_ref().as_ref() {
        "file" => Some(Place::File(text)),
        "env" if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') => Some(Place::Variable(text)),
        _ => None,
    }
}

/// Parses what stands before the target in the URL that the sender calls.
fn public_url(text: &str) -> Result<String, Wrong> {
    let right = "write it as the sender has it, such as \"https://hooks.example.com\"";
    let uri: Uri = text.parse().map_err(|_| wrong("this is not a URL", right))?;
    let has_host = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if !matches!(uri.scheme_str(), Some("http" | "https")) || !has_host {
        return Err(wrong("this is not a URL with http:// or https:// and a host", right));
    }
    if uri.query().is_some() || text.contains('#') {
        return Err(wrong("the query is each request's own", right));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// The settings as a file would have them: each key and its value.
pub(super) fn print(verify: &Verify) -> Vec<(&'static str, Value)> {
    let mut lines: Vec<(&'static str, Value)> = Vec::new();
    match (verify.signer, &verify.scheme) {
        (Some(signer), _) => lines.push(("verify.preset", word(&SIGNERS, &signer).into())),
        (None, Scheme::Hmac(hmac)) => print_hmac(hmac, &mut lines),
        (None, Scheme::Twilio { .. }) => {}
    }
    let place = |secret: &SecretSource| {
        let (key, value) = match secret {
            SecretSource::File(path) => ("file", path.display().to_string()),
            SecretSource::Variable { name, .. } => ("env", name.clone()),
        };
        Value::Table(toml::Table::from_iter([(key.to_owned(), value.into())]))
    };
    lines.push(("verify.secrets", verify.secrets.iter().map(place).collect::<Vec<_>>().into()));
    if verify.scheme.has_time() {
        lines.push(("verify.tolerance", super::values::print_duration(verify.tolerance).into()));
    }
    if let Scheme::Twilio { url: Some(url) } = &verify.scheme {
        lines.push(("verify.url", url.as_str().into()));
    }
    lines
}

fn print_hmac(hmac: &Hmac, lines: &mut Vec<(&'static str, Value)>) {
    let mut line = |key, value: &str| lines.push((key, value.into()));
    line("verify.hmac.header", hmac.header.as_str());
    line("verify.hmac.algorithm", word(&ALGORITHMS, &hmac.algorithm));
    line("verify.hmac.encoding", word(&ENCODINGS, &hmac.encoding));
    if !hmac.prefix.is_empty() {
        line("verify.hmac.prefix", &hmac.prefix);
    }
    if let Some(separator) = &hmac.separator {
        line("verify.hmac.separator", separator);
    }
    line("verify.hmac.signed", &print_template(&hmac.signed));
    match &hmac.time {
        Some(TimeOf::Header(name)) => line("verify.hmac.timestamp_header", name.as_str()),
        Some(TimeOf::Entry(prefix)) => line("verify.hmac.timestamp_prefix", prefix),
        None => {}
    }
    if let Some(name) = &hmac.id_header {
        line("verify.hmac.id_header", name.as_str());
    }
    line("verify.hmac.secret_encoding", word(&SECRET_ENCODINGS, &hmac.secret_encoding));
}
