//! What was recorded comes back byte for byte, by whichever operation.

use super::*;
use onceproxy::record::LookReply;

pub(super) async fn rules(pair: &Pair) {
    every_response_comes_back_as_it_was(pair).await;
    a_doubted_answer_comes_back_as_it_was(pair).await;
}

fn responses() -> Vec<Response> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let headers: Vec<(&[u8], &[u8])> =
        vec![(b"x-b", b"2"), (b"x-a", &every_byte), (b"x-b", b""), (b"X-Case", b"Kept"), (b"x-b", b"2")];
    let trailers: Vec<(&[u8], &[u8])> = vec![(b"checksum", b"\xff"), (b"checksum", b"")];
    let mut noise = 1_u64;
    let mut mebibyte = Vec::with_capacity(1 << 20);
    while mebibyte.len() < 1 << 20 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        mebibyte.extend_from_slice(&noise.to_be_bytes());
    }
    let sized = |size: usize| Some(Bytes::from(mebibyte[..size].to_vec()));
    let full = |status, body| Response::new(status, headers.clone(), trailers.clone(), body);
    vec![
        full(201, Some(Bytes::from(every_byte.clone()))),
        full(200, Some(Bytes::new())),
        full(200, None),
        Response::new(204, [], [], Some(Bytes::new())),
        Response::new(599, [], [], None),
        full(200, sized(64 * 1024 - 1)),
        full(200, sized(64 * 1024)),
        full(200, sized(64 * 1024 + 1)),
        full(200, sized(1 << 20)),
    ]
}

async fn every_response_comes_back_as_it_was(pair: &Pair) {
    for response in responses() {
        let claim = pair.claimed().await;
        assert_eq!(pair.one.complete(&claim, &response, LONG).await.unwrap(), CompleteReply::Stored);
        assert_eq!(replayed(pair.duplicate(&claim).await).response, response);
        let looked = pair.two.look(&claim.id, &claim.imprint).await.unwrap();
        assert!(matches!(looked, LookReply::Taken(Taken::Completed(replay)) if replay.response == response));
        let again = pair.two.complete(&claim, &super::response("other"), LONG).await.unwrap();
        assert!(matches!(again, CompleteReply::Already(replay) if replay.response == response));
        let record = pair.existing(&claim.id).await;
        assert_eq!(record.original_status(), Some(response.status()));
        assert!(matches!(record.state, State::Completed { response: kept, .. } if kept == response));
    }
}

async fn a_doubted_answer_comes_back_as_it_was(pair: &Pair) {
    for response in responses() {
        let claim = pair.claimed().await;
        pair.one.doubt(&claim, Reason::Status, Some(&response)).await.unwrap();
        let record = pair.existing(&claim.id).await;
        assert_eq!(record.original_status(), Some(response.status()));
        assert!(matches!(record.state, State::Unknown { response: Some(kept), .. } if kept == response));
    }
}
