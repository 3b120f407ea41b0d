//! The connections of one purpose (claims, bodies, upkeep) of one core: one to the server, or one to each server that is
//! needed.
//!
//! On one server that is for good, the way there costs nothing. Elsewhere each operation asks the directory anew, because
//! the master may have changed.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::directory::{Directory, Lost};
use super::link::Link;
use super::server::Server;
use super::topology::Topology;
use crate::alarm::Alarms;

/// The connections of one purpose. Opened when they are first used.
pub(super) enum Lane {
    /// To the one server that there is.
    One(Link),
    /// To whichever servers the directory names.
    Changing(Links),
}

impl Lane {
    /// A lane on which nothing is open yet.
    pub(super) fn new(topology: &Topology) -> Lane {
        match topology {
            Topology::One(server) => Lane::One(Link::new(Arc::clone(server))),
            Topology::Changing(directory) => Lane::Changing(Links {
                directory: Arc::clone(directory),
                open: Mutex::default(),
                alarms: Alarms::default(),
            }),
        }
    }

    /// The way to a shard's records.
    pub(super) fn to_shard(&self, shard: u8) -> Route<'_> {
        match self {
            Lane::One(link) => Route::Fixed(link),
            Lane::Changing(links) => Route::Shard(links, shard),
        }
    }

    /// The link to this server.
    pub(super) fn to_server(&self, server: &Arc<Server>) -> Held<'_> {
        match self {
            Lane::One(link) => Held::Lent(link),
            Lane::Changing(links) => Held::Own(links.to(server)),
        }
    }
}

/// One link to each server.
pub(super) struct Links {
    directory: Arc<Directory>,
    open: Mutex<Vec<Arc<Link>>>,
    alarms: Alarms,
}

impl Links {
    /// Who knows where the shards are.
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The link to whichever server has this shard now.
    pub(super) async fn to_shard(&self, shard: u8) -> Result<Arc<Link>, Lost> {
        self.directory.server_of(shard).await.map(|server| self.to(&server))
    }

    /// The link to this server. Those to servers that were left are dropped on the way.
    pub(super) fn to(&self, server: &Arc<Server>) -> Arc<Link> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = open.iter().find(|link| Arc::ptr_eq(link.server(), server)) {
            return Arc::clone(link);
        }
        open.retain(|link| !link.server().is_left());
        let link = Arc::new(Link::new(Arc::clone(server)));
        open.push(Arc::clone(&link));
        link
    }
}

/// The way of one question.
#[derive(Clone, Copy)]
pub(super) enum Route<'a> {
    /// To this server, whatever happens.
    Fixed(&'a Link),
    /// To whichever server has this shard at each try.
    Shard(&'a Links, u8),
}

impl<'a> Route<'a> {
    /// What bounds the waits for answers that come this way.
    pub(super) fn alarms(self) -> &'a Alarms {
        match self {
            Route::Fixed(link) => link.alarms(),
            Route::Shard(links, _) => &links.alarms,
        }
    }
}

/// A link for the time of one try.
pub(super) enum Held<'a> {
    /// It belongs to the lane.
    Lent(&'a Link),
    /// It may be dropped from the lane meanwhile.
    Own(Arc<Link>),
}

impl Deref for Held<'_> {
    type Target = Link;

    fn deref(&self) -> &Link {
        match self {
            Held::Lent(link) => link,
            Held::Own(link) => link,
        }
    }
}

/// How many connections carry claims that wait for replicas: one that is not waiting is there for the next claim.
const WAITING_LANES: usize = 2;

/// Claims that wait hold up what comes behind them, so nothing else goes by their connections.
pub(super) struct WaitingLanes {
    lanes: [Lane; WAITING_LANES],
    under_way: [AtomicUsize; WAITING_LANES],
}

/// Counts one claim on its lane.
pub(super) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WaitingLanes {
    /// Lanes on which nothing is open yet.
    pub(super) fn new(topology: &Topology) -> WaitingLanes {
        WaitingLanes { lanes: std::array::from_fn(|_| Lane::new(topology)), under_way: Default::default() }
    }

    /// The lane with the fewest claims.
    pub(super) fn pick(&self) -> (&Lane, UnderWay<'_>) {
        let (lane, count) = self
            .lanes
            .iter()
            .zip(&self.under_way)
            .min_by_key(|(_, count)| count.load(Ordering::Relaxed))
            .expect("there is more than none");
        count.fetch_add(1, Ordering::Relaxed);
        (lane, UnderWay(count))
    }
}
