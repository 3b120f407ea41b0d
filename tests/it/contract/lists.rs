//! The operator's list of open records: filters, pages, order.

use super::*;
use onceproxy::store::{OpenState, Page, Query, StoreErrorKind};

pub(super) async fn rules(pair: &Pair) {
    only_open_records_of_the_route_are_listed(pair).await;
    pages_hold_each_record_once_oldest_first(pair).await;
    a_lapsed_claim_is_listed_as_unknown(pair).await;
    what_ended_is_no_longer_listed(pair).await;
    a_cursor_of_no_page_is_the_askers_mistake(pair).await;
}

/// A route that no other run of the suite has.
fn fresh_route() -> String {
    format!("list-{}", Token::new())
}

async fn all(pair: &Pair, query: Query) -> Vec<(RecordId, Record)> {
    let mut found = Vec::new();
    let mut query = query;
    loop {
        let Page { records, cursor } = pair.two.list(&query).await.unwrap();
        assert!(records.len() <= query.limit, "{} records on a page of {}", records.len(), query.limit);
        found.extend(records);
        query.cursor = cursor;
        if query.cursor.is_none() {
            return found;
        }
    }
}

fn of_route(route: &str, state: Option<OpenState>) -> Query {
    Query { state, route: Some(route.to_owned()), limit: 100, cursor: None }
}

async fn only_open_records_of_the_route_are_listed(pair: &Pair) {
    let route = fresh_route();
    let claimed = pair.granted(claim_of(fresh_id_on(&route))).await;
    let doubted = pair.granted(claim_of(fresh_id_on(&route))).await;
    pair.one.doubt(&doubted, Reason::Timeout, Some(&response("odd"))).await.unwrap();
    let completed = pair.granted(claim_of(fresh_id_on(&route))).await;
    pair.one.complete(&completed, &response("x"), LONG).await.unwrap();
    pair.granted(claim_of(fresh_id_on(&fresh_route()))).await;
    let entry = async |claim: &Claim| (claim.id.clone(), pair.existing(&claim.id).await);
    let (claimed, doubted) = (entry(&claimed).await, entry(&doubted).await);
    let mut found = all(pair, of_route(&route, None)).await;
    found.sort_by_key(|(id, _)| *id != claimed.0);
    assert_eq!(found, [claimed.clone(), doubted.clone()]);
    assert_eq!(all(pair, of_route(&route, Some(OpenState::Claimed))).await, [claimed]);
    assert_eq!(all(pair, of_route(&route, Some(OpenState::Unknown))).await, [doubted]);
}

async fn pages_hold_each_record_once_oldest_first(pair: &Pair) {
    let route = fresh_route();
    let mut ids = Vec::new();
    for _ in 0..23 {
        ids.push(pair.granted(claim_of(fresh_id_on(&route))).await.id);
    }
    for limit in [1, 5, 23, 24] {
        let found = all(pair, Query { limit, ..of_route(&route, None) }).await;
        let times: Vec<_> = found.iter().map(|(_, record)| record.claimed_at).collect();
        let mut found: Vec<_> = found.into_iter().map(|(id, _)| id.to_string()).collect();
        let mut expected: Vec<_> = ids.iter().map(ToString::to_string).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "pages of {limit}");
        if limit == 24 {
            assert!(times.is_sorted(), "not oldest first: {times:?}");
        }
    }
}

async fn a_lapsed_claim_is_listed_as_unknown(pair: &Pair) {
    let route = fresh_route();
    let claim = pair.granted(Claim { lease: MOMENT, ..claim_of(fresh_id_on(&route)) }).await;
    let found = until("the lapsed claim is among the unknown", async || {
        all(pair, of_route(&route, Some(OpenState::Unknown))).await.pop()
    })
    .await;
    assert_eq!(found, (claim.id.clone(), pair.existing(&claim.id).await));
    assert_eq!(all(pair, of_route(&route, Some(OpenState::Claimed))).await, []);
}

async fn what_ended_is_no_longer_listed(pair: &Pair) {
    let route = fresh_route();
    let released = pair.granted(claim_of(fresh_id_on(&route))).await;
    pair.one.release(&released).await.unwrap();
    let completed = pair.granted(claim_of(fresh_id_on(&route))).await;
    pair.one.complete(&completed, &response("x"), LONG).await.unwrap();
    let forgotten = pair.granted(claim_of(fresh_id_on(&route))).await;
    pair.one.forget(&forgotten.id, forgotten.token, true).await.unwrap();
    let expiring = Claim { unknown_retention: Some(MOMENT), lease: MOMENT, ..claim_of(fresh_id_on(&route)) };
    pair.granted(Claim { abandon_after: MOMENT, ..expiring.clone() }).await;
    pair.until_absent(&expiring.id).await;
    assert_eq!(all(pair, of_route(&route, None)).await, []);
}

async fn a_cursor_of_no_page_is_the_askers_mistake(pair: &Pair) {
    for cursor in ["x", "zz.1.x", "00.inf.r:00", "99999999999999999999.r:00"] {
        let query = Query { limit: 1, cursor: Some(cursor.to_owned()), ..Query::default() };
        let error = pair.one.list(&query).await.unwrap_err();
        assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::BadQuery, false), "{cursor}: {error}");
    }
}
