//! Sentinels: who is the master.
//!
//! Each names the one it knows together with the epoch of the configuration; the highest epoch of those who answered
//! counts, so that a sentinel that was cut off does not lead back to a master of before.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{Found, everywhere, gather, refusal, text};
use crate::config::store::{Place, Sentinels};
use crate::store::OpenError;
use crate::store::redis::link::Link;
use crate::store::redis::server::{Access, Server};

/// The sentinels.
pub(super) struct Guide {
    master: String,
    links: Vec<Arc<Link>>,
}

impl Guide {
    /// Connects to nobody yet.
    pub(super) fn new(config: &Sentinels, access: &Access) -> Result<Guide, OpenError> {
        let access = Arc::new(access.to_sentinels(config)?);
        let link = |place: &Place| Ok(Arc::new(Link::new(Arc::new(Server::new(place.clone(), Arc::clone(&access))?))));
        let links = config.places.iter().map(link).collect::<Result<_, OpenError>>()?;
        Ok(Guide { master: config.master.clone(), links })
    }

    /// Asks all of them.
    pub(super) async fn find(&self, patience: Duration) -> Result<Found, String> {
        let question = || {
            let mut commands = redis::pipe();
            // While a failover ends, only the first names the new master; only the second says the epoch.
            commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
            commands.cmd("SENTINEL").arg("MASTER").arg(&self.master);
            commands
        };
        let (answers, failures) = gather(&self.links, question, patience, |_, answer| read(answer)).await;
        let newest = answers.into_iter().max_by_key(|(epoch, _)| *epoch);
        match newest {
            Some((epoch, place)) => Ok(Found { epoch, owners: everywhere(&place) }),
            None => Err(format!("no sentinel names the master {:?}: {}", self.master, failures.join("; "))),
        }
    }
}

fn read(answer: &[Value]) -> Result<(u64, Place), String> {
    if let Some(refusal) = refusal(answer) {
        return Err(refusal);
    }
    let [address, master] = answer else { return Err("an answer that is not understood".into()) };
    let Value::Array(address) = address else { return Err("it knows no master of this name".into()) };
    let host = address.first().and_then(text).ok_or("an address that is not understood")?;
    let port =
        address.get(1).and_then(text).and_then(|port| port.parse().ok()).ok_or("a port that is not understood")?;
    let fields: Vec<_> = match master {
        Value::Array(fields) => fields.iter().map(text).collect(),
        Value::Map(fields) => fields.iter().flat_map(|(name, value)| [text(name), text(value)]).collect(),
        _ => Vec::new(),
    };
    let epoch = fields.chunks_exact(2).find(|pair| pair[0].as_deref() == Some("config-epoch"));
    let epoch = epoch.and_then(|pair| pair[1].as_deref()?.parse().ok()).unwrap_or(0);
    Ok((epoch, Place { host, port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn reads_the_master_and_the_epoch() {
        let master = ["name", "main", "ip", "10.0.0.1", "config-epoch", "7", "quorum", "2"].map(bulk);
        let answer = [Value::Array(vec![bulk("10.0.0.2"), bulk("6380")]), Value::Array(master.to_vec())];
        assert_eq!(read(&answer), Ok((7, Place { host: "10.0.0.2".into(), port: 6380 })));
        assert!(read(&[Value::Nil, Value::Nil]).is_err());
    }
}
