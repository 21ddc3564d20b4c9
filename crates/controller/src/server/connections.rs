//! Selection of the connections to serve at the limits.
//!
//! An idle connection is closed in favor of a new one: of the same peer at the limit per peer, and
//! of any peer at the total limit. So clients that connect and send nothing cannot block other
//! clients.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_util::sync::CancellationToken;

use super::Limits;

/// Open connections, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    requests: Requests,
    end: CancellationToken,
}

/// Counter of running requests of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests(Arc<AtomicUsize>);

/// Guard of a running request. Dropping it ends the request.
#[derive(Debug)]
pub(super) struct RunningRequest(Requests);

/// Connection to serve.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) id: u64,
    pub(super) requests: Requests,
    /// Cancelled when another connection replaces this one.
    pub(super) end: CancellationToken,
}

impl Requests {
    pub(super) fn start(&self) -> RunningRequest {
        self.0.fetch_add(1, Ordering::Relaxed);
        RunningRequest(self.clone())
    }

    fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionTable {
    /// Returns whether another connection could be served, if its peer is below its limit.
    pub(super) fn has_capacity(&self, limits: &Limits) -> bool {
        self.connections.len() < limits.connections || self.oldest_idle(|_| true).is_some()
    }

    /// Registers a connection. `None` if its peer is at its limit, or the total limit is reached,
    /// and no connection is idle.
    pub(super) fn admit(&mut self, peer: IpAddr, limits: &Limits) -> Option<Admitted> {
        let of_peer = |one: &Connection| one.peer == peer;
        let count = self.connections.values().filter(|one| of_peer(one)).count();
        if count >= limits.per_peer {
            self.end(self.oldest_idle(of_peer)?);
        } else if self.connections.len() >= limits.connections {
            self.end(self.oldest_idle(|_| true)?);
        }
        let id = self.next;
        self.next += 1;
        let connection = Connection {
            peer,
            requests: Requests::default(),
            end: CancellationToken::new(),
        };
        let admitted = Admitted {
            id,
            requests: connection.requests.clone(),
            end: connection.end.clone(),
        };
        self.connections.insert(id, connection);
        Some(admitted)
    }

    /// Removes a closed connection.
    pub(super) fn forget(&mut self, id: u64) {
        self.connections.remove(&id);
    }

    fn end(&mut self, id: u64) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.end.cancel();
        }
    }

    fn oldest_idle(&self, is_one: impl Fn(&Connection) -> bool) -> Option<u64> {
        let mut idle = self.connections.iter();
        let found = idle.find(|(_, one)| one.requests.is_idle() && is_one(one));
        found.map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        connections: 3,
        per_peer: 2,
        head: std::time::Duration::ZERO,
        request: std::time::Duration::ZERO,
        connection: std::time::Duration::ZERO,
    };

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn the_oldest_idle_connection_is_closed() {
        let mut connection_table = ConnectionTable::default();
        let mut admit = |last| connection_table.admit(peer(last), &LIMITS);
        let (first, second) = (admit(1).unwrap(), admit(1).unwrap());
        let busy = first.requests.start();
        // The idle connection of the same peer is closed, and not the busy one.
        let third = admit(1).unwrap();
        assert!(second.end.is_cancelled() && !first.end.is_cancelled());
        let other = admit(2).unwrap();
        // At the total limit, any idle connection is closed.
        let next = admit(3).unwrap();
        assert!(third.end.is_cancelled() && !other.end.is_cancelled());
        let requests = [other.requests.start(), next.requests.start()];
        assert!(!connection_table.has_capacity(&LIMITS));
        assert!(connection_table.admit(peer(4), &LIMITS).is_none());
        drop(busy);
        assert!(connection_table.has_capacity(&LIMITS));
        assert!(connection_table.admit(peer(4), &LIMITS).is_some());
        assert!(first.end.is_cancelled());
        drop(requests);
        for id in [other.id, next.id] {
            connection_table.forget(id);
        }
        assert_eq!(connection_table.connections.len(), 1);
    }

    #[test]
    fn a_peer_is_limited_to_its_share() {
        let mut connection_table = ConnectionTable::default();
        let admitted: Vec<Admitted> = (0..2)
            .filter_map(|_| connection_table.admit(peer(1), &LIMITS))
            .collect();
        let _requests: Vec<RunningRequest> =
            admitted.iter().map(|one| one.requests.start()).collect();
        assert!(connection_table.has_capacity(&LIMITS));
        assert!(connection_table.admit(peer(1), &LIMITS).is_none());
        assert!(connection_table.admit(peer(2), &LIMITS).is_some());
    }
}
