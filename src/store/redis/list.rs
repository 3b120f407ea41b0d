//! Pages of open records, for operators: from the indexes of the shards, in the order of the shards. Within a page the
//! oldest come first.
//!
//! A cursor names the last member that was looked at, with its place in the index, so that records which come and go
//! between two pages neither hide others nor come twice.

use bytes::Bytes;
use redis::Value;

use super::ask::{Limits, Question, ask};
use super::lane::Lane;
use super::topology::shards;
use super::{CLAIMS_FROM, Shared, together};
use crate::record::{RecordId, State, Timestamp, lapse};
use crate::store::{OpenState, Page, Query, StoreError, StoreErrorKind, codec};

const SLICE: usize = 128;
const LARGEST_PAGE: usize = 1000;

/// Where a page ended: shard, score and member.
struct Cursor {
    shard: u8,
    last: Option<(f64, String)>,
}

impl Cursor {
    fn read(text: Option<&str>) -> Result<Cursor, StoreError> {
        let Some(text) = text else { return Ok(Cursor { shard: 0, last: None }) };
        let parsed = || {
            let (shard, rest) = text.split_once('.')?;
            let (score, member) = rest.split_once('.')?;
            let shard = u8::from_str_radix(shard, 16).ok()?;
            let score = score.parse().ok().filter(|score: &f64| score.is_finite())?;
            Some(Cursor { shard, last: Some((score, member.to_owned())) })
        };
        parsed().ok_or_else(|| {
            StoreError::without_effect(StoreErrorKind::BadQuery, "the cursor is not one that this store gave out")
        })
    }

    fn text(shard: u8, score: f64, member: &str) -> String {
        format!("{shard:02x}.{score:.0}.{member}")
    }
}

/// One page.
pub(super) async fn list(shared: &Shared, lane: &Lane, query: &Query) -> Result<Page, StoreError> {
    let limit = query.limit.clamp(1, LARGEST_PAGE);
    let mut cursor = Cursor::read(query.cursor.as_deref())?;
    let mut page = Page::default();
    let sizes = sizes(shared, lane).await?;
    for shard in shards().skip(usize::from(cursor.shard)) {
        let after = cursor.last.take().filter(|_| shard == cursor.shard);
        let Some((now, 1..)) = sizes[usize::from(shard)] else { continue };
        list_shard(shared, lane, query, Place { shard, after, now, limit }, &mut page).await?;
        if page.cursor.is_some() {
            break;
        }
    }
    page.records.sort_by_key(|(_, record)| record.claimed_at);
    Ok(page)
}

/// Of each shard its server's time, and how many records are open.
async fn sizes(shared: &Shared, lane: &Lane) -> Result<Vec<Option<(Timestamp, i64)>>, StoreError> {
    let groups = shared.topology.groups().await;
    let found = together::all(groups.iter().map(|group| sizes_of(shared, lane, group))).await;
    let mut sizes = vec![None; shards().count()];
    for (group, found) in groups.iter().zip(found) {
        let (now, found) = found?;
        for (shard, size) in group.iter().zip(found) {
            sizes[usize::from(*shard)] = Some((now, size));
        }
    }
    Ok(sizes)
}

async fn sizes_of(shared: &Shared, lane: &Lane, group: &[u8]) -> Result<(Timestamp, Vec<i64>), StoreError> {
    let mut commands = redis::pipe();
    commands.cmd("TIME");
    for shard in group {
        commands.cmd("ZCARD").arg(shared.keys.open_of(*shard));
    }
    let mut answers = answers(shared, lane, group[0], commands).await?.into_iter();
    let now = answers.next().and_then(|time| time_of(&time)).ok_or_else(odd_answer)?;
    let sizes = answers.map(|size| if let Value::Int(size) = size { Ok(size) } else { Err(odd_answer()) });
    Ok((now, sizes.collect::<Result<_, _>>()?))
}

struct Place {
    shard: u8,
    after: Option<(f64, String)>,
    now: Timestamp,
    limit: usize,
}

async fn list_shard(
    shared: &Shared,
    lane: &Lane,
    query: &Query,
    place: Place,
    page: &mut Page,
) -> Result<(), StoreError> {
    let claims_from = CLAIMS_FROM.to_string();
    let overdue = (CLAIMS_FROM + place.now.0).to_string();
    // A claim whose lease is over stands among the claimed until the sweep comes, but is shown as unknown.
    let (mut least, most) = match query.state {
        None => ("-inf".to_owned(), "+inf".to_owned()),
        Some(OpenState::Unknown) => ("-inf".to_owned(), overdue),
        Some(OpenState::Claimed) => (claims_from, "+inf".to_owned()),
    };
    if let Some((score, _)) = place.after.as_ref().filter(|(score, _)| {
        query.state != Some(OpenState::Claimed) || *score > least.parse().unwrap_or(f64::NEG_INFINITY)
    }) {
        least = format!("{score:.0}");
    }
    let mut offset = 0;
    loop {
        let mut commands = redis::pipe();
        commands.cmd("ZRANGEBYSCORE").arg(shared.keys.open_of(place.shard)).arg(&least).arg(&most);
        commands.arg("WITHSCORES").arg("LIMIT").arg(offset).arg(SLICE);
        let answer = answers(shared, lane, place.shard, commands).await?.into_iter().next().ok_or_else(odd_answer)?;
        let members = members_with_scores(answer)?;
        let is_last = members.len() < SLICE;
        offset += members.len();
        let fresh = members.into_iter().filter(|(member, score)| {
            place.after.as_ref().is_none_or(|(last, name)| (*score, member.as_str()) > (*last, name.as_str()))
        });
        let named = fresh.filter_map(|(member, score)| Some((member.parse::<RecordId>().ok()?, member, score)));
        let wanted: Vec<_> =
            named.filter(|(id, ..)| query.route.as_deref().is_none_or(|route| route == id.route())).collect();
        if take_records(shared, lane, query, &place, wanted, page).await? || is_last {
            return Ok(());
        }
    }
}

/// Reads these records into the page; says whether it is full.
async fn take_records(
    shared: &Shared,
    lane: &Lane,
    query: &Query,
    place: &Place,
    wanted: Vec<(RecordId, String, f64)>,
    page: &mut Page,
) -> Result<bool, StoreError> {
    if wanted.is_empty() {
        return Ok(false);
    }
    let mut commands = redis::pipe();
    for (id, ..) in &wanted {
        commands.cmd("GET").arg(shared.keys.record(id));
    }
    let values = answers(shared, lane, place.shard, commands).await?;
    for ((id, member, score), value) in wanted.into_iter().zip(values) {
        let Value::BulkString(value) = value else { continue };
        let mut record = match codec::decode(Bytes::from(value)) {
            Ok(record) => record,
            Err(error) => {
                // The rest of the list is still of use to the operator; asking for this one says what is wrong.
                tracing::warn!(record = %id, %error, "an open record cannot be read and is not listed");
                continue;
            }
        };
        if record.expires_at().is_some_and(|at| at <= place.now) || !record.is_open() {
            continue;
        }
        lapse(&mut record, place.now);
        let state = if matches!(record.state, State::Claimed { .. }) { OpenState::Claimed } else { OpenState::Unknown };
        if query.state.is_some_and(|wanted| wanted != state) {
            continue;
        }
        page.records.push((id, record));
        if page.records.len() == place.limit {
            page.cursor = Some(Cursor::text(place.shard, score, &member));
            return Ok(true);
        }
    }
    Ok(false)
}

async fn answers(shared: &Shared, lane: &Lane, shard: u8, commands: redis::Pipeline) -> Result<Vec<Value>, StoreError> {
    match ask(lane.to_shard(shard), &Question::Commands(commands), Limits::new(shared.timeout)).await? {
        Value::Array(answers) => Ok(answers),
        _ => Err(odd_answer()),
    }
}

/// The moment in the answer to TIME.
pub(super) fn time_of(answer: &Value) -> Option<Timestamp> {
    let Value::Array(parts) = answer else { return None };
    let number = |part: Option<&Value>| match part {
        Some(Value::BulkString(digits)) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    Some(Timestamp(number(parts.first())? * 1000 + number(parts.get(1))? / 1000))
}

fn members_with_scores(answer: Value) -> Result<Vec<(String, f64)>, StoreError> {
    let Value::Array(parts) = answer else { return Err(odd_answer()) };
    let texts: Option<Vec<String>> = parts
        .into_iter()
        .map(|part| match part {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            _ => None,
        })
        .collect();
    let texts = texts.ok_or_else(odd_answer)?;
    texts.chunks_exact(2).map(|pair| Ok((pair[0].clone(), pair[1].parse().map_err(|_| odd_answer())?))).collect()
}

fn odd_answer() -> StoreError {
    StoreError::without_effect(StoreErrorKind::Broken, "Redis answered with something that is not understood")
}
