//! What single parts of a request cost, without network or medium: key, fingerprint, stored form, rules.
//!
//! `cargo bench --bench parts` (a name behind it takes only those with it). The whole path is measured by `make bench`,
//! the disk store by `cargo bench --bench disk`. `cargo test` runs each once, to see that it works.

#![allow(missing_docs, reason = "criterion's macros make items without any")]
#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use http::Request;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use onceproxy::config::{self, Route, Sources};
use onceproxy::proxy::fingerprint::{BodyAsRead, Policy};
use onceproxy::proxy::key::{from_body, from_head, identify};
use onceproxy::record::{self, Claim, Fingerprint, OnUnknown, RecordId, Response, Slot, Timestamp, Token};
use onceproxy::store::codec;

const NOW: Timestamp = Timestamp(1_700_000_000_000);
const RETENTION: Duration = Duration::from_secs(24 * 3600);

fn route(lines: &str) -> Route {
    let text = format!("[[route]]\nname = \"payments\"\nupstream = \"http://u.example\"\n{lines}\n");
    Route::clone(&config::load(&Sources::text(text)).unwrap().config.routes[0])
}

fn head(field: &str, value: &str) -> Parts {
    let request = Request::post("/v1/charges?operation=8e03978e-40d5-43dd-bc93-6894a57f9324");
    request.header(field, value).header("authorization", "Bearer 0123456789abcdef").body(()).unwrap().into_parts().0
}

fn key(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("key");
    let of_field = route("key = [\"header:Idempotency-Key\"]");
    for (name, value) in [
        ("bare", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("quoted", "\"8e03978e-40d5-43dd-bc93-6894a57f9324\""),
        ("refused", "8e03978e-40d5-43dd-bc93-6894a57f9324, 8e03978e"),
    ] {
        let head = head("idempotency-key", value);
        group.bench_function(name, |bench| bench.iter(|| from_head(&of_field, black_box(&head))));
    }
    let (of_query, plain) = (route("key = [\"query:operation\"]"), head("accept", "*/*"));
    group.bench_function("query", |bench| bench.iter(|| from_head(&of_query, black_box(&plain))));
    let of_body = route("key = [\"json:/data/id\"]");
    let (body, fingerprint) = (json(512), Fingerprint { policy: [0; 4], digest: [0; 32] });
    group.bench_function("json, 512 B", |bench| {
        bench.iter(|| from_body(&of_body, &plain, black_box(Some(&body)), &fingerprint));
    });
    let found = from_body(&of_body, &plain, Some(&body), &fingerprint).unwrap().unwrap();
    group.bench_function("record id", |bench| bench.iter(|| identify(&of_field, &plain, false, black_box(&found))));
    group.finish();
}

/// An object of about so many bytes, with members of the usual kinds.
fn json(length: usize) -> Vec<u8> {
    let mut text = String::from("{\"data\":{\"id\":\"order-1\"},\"lines\":[");
    while text.len() + 80 < length {
        let line = "{\"sku\":\"A-1\",\"count\":3,\"price\":\"19.90\",\"note\":\"caf\\u00e9 \\\"x\\\"\",\"gift\":null},";
        text.push_str(line);
    }
    text.push_str("0]}");
    text.into_bytes()
}

fn form(length: usize) -> Vec<u8> {
    let mut text = String::from("amount=100&currency=eur");
    while text.len() + 40 < length {
        text.push_str(&format!("&metadata%5B{}%5D=caf%C3%A9+au+lait", text.len()));
    }
    text.into_bytes()
}

fn multipart(length: usize) -> Vec<u8> {
    let open = "--boundary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n\r\n";
    let close = "\r\n--boundary--\r\n";
    let content = vec![b'x'; length - open.len() - close.len()];
    [open.as_bytes(), &content, close.as_bytes()].concat()
}

fn fingerprint(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fingerprint");
    type Make = fn(usize) -> Vec<u8>;
    let modes: [(&str, &str, Make); 4] = [
        ("bytes", "application/json", json),
        ("json", "application/json", json),
        ("form", "application/x-www-form-urlencoded", form),
        ("multipart", "multipart/form-data; boundary=boundary", multipart),
    ];
    for (mode, content_type, make) in modes {
        let policy = Policy::of(&route(&format!("fingerprint.body = \"{mode}\"")));
        let head = head(CONTENT_TYPE.as_str(), content_type);
        for length in [512, 64 * 1024] {
            let body = make(length);
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::new(mode, length), &body, |bench, body| {
                bench.iter(|| policy.print(&head, BodyAsRead::Whole(black_box(body), Some(body)), false).unwrap());
            });
        }
    }
    group.finish();
}

fn claim() -> Claim {
    Claim {
        id: RecordId::new("payments".into(), [7; 16]),
        token: Token::from_bytes([1; 16]),
        imprint: Fingerprint { policy: [0; 4], digest: [9; 32] }.into(),
        quoted: false,
        lease: Duration::from_secs(10),
        abandon_after: Duration::from_secs(300),
        on_unknown: OnUnknown::Hold,
        unknown_retention: None,
    }
}

fn response(length: usize) -> Response {
    let fields = [("content-type", "application/json"), ("date", "Tue, 14 Nov 2023 22:13:20 GMT"), ("server", "u")];
    let fields = fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    Response::new(201, fields, [], Some(Bytes::from(vec![b'x'; length])))
}

fn claimed() -> Slot {
    let mut slot = Slot::new(None, false);
    record::claim(&mut slot, &claim(), NOW);
    slot
}

fn completed(length: usize) -> Slot {
    let mut slot = claimed();
    record::complete(&mut slot, &claim(), response(length), RETENTION, NOW);
    slot
}

fn stored_form(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    for length in [1024, 64 * 1024] {
        let record = completed(length).record.unwrap();
        let bytes = Bytes::from(codec::encode(&record));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(BenchmarkId::new("encode", length), |bench| {
            bench.iter(|| codec::encode(black_box(&record)));
        });
        group.bench_function(BenchmarkId::new("decode", length), |bench| {
            bench.iter(|| codec::decode(black_box(bytes.clone())).unwrap());
        });
    }
    group.finish();
}

fn rules(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rules");
    let (claim, response) = (claim(), response(1024));
    let other = Claim { token: Token::from_bytes([2; 16]), ..claim.clone() };
    let each = BatchSize::SmallInput;
    group.bench_function("claim, absent", |bench| {
        bench.iter_batched_ref(|| Slot::new(None, false), |slot| record::claim(slot, &claim, NOW), each);
    });
    group.bench_function("claim, in progress", |bench| {
        bench.iter_batched_ref(claimed, |slot| record::claim(slot, &other, NOW), each);
    });
    group.bench_function("claim, completed", |bench| {
        bench.iter_batched_ref(|| completed(1024), |slot| record::claim(slot, &other, NOW), each);
    });
    group.bench_function("complete", |bench| {
        bench.iter_batched_ref(claimed, |slot| record::complete(slot, &claim, response.clone(), RETENTION, NOW), each);
    });
    group.bench_function("look, completed", |bench| {
        bench.iter_batched_ref(|| completed(1024), |slot| record::look(slot, &claim.imprint, NOW), each);
    });
    group.finish();
}

criterion_group!(parts, key, fingerprint, stored_form, rules);
criterion_main!(parts);
